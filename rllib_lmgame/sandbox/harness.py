"""Calls a player's function inside the sandbox and sends back what it returned.

The file is a module of ours (:func:`encode`, :func:`decode`) and the text of the sandboxed program (:func:`main`), so
it imports nothing of this package. Expected results never enter the process that runs the player's code. So a program
that prints "all tests passed", leaves early or alters the harness can only lose. Each call is sent once the one before
it is answered: nothing a program says can tell of a later one.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

MAX_DEPTH = 50
LARGE_INT_BITS = 1_000
SOLUTION = "solution.py"


class Unknown:
    """A value that cannot be sent; equal to nothing."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __eq__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"<{self.kind}>"


def encode(value: Any, depth: int = 0) -> Any:
    """A value as JSON can hold it: lists and plain values as they are, the rest as ``{kind: content}``."""
    if depth > MAX_DEPTH:
        return {"other": "a value nested too deeply"}
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if value.bit_length() < LARGE_INT_BITS else {"int": hex(value)}
    if isinstance(value, float):
        return float(value) if value - value == 0 else {"float": repr(float(value))}
    if isinstance(value, str):
        return str(value)
    if isinstance(value, list):
        return [encode(item, depth + 1) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [encode(item, depth + 1) for item in value]}
    if isinstance(value, set | frozenset):
        return {"set": [encode(item, depth + 1) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[encode(key, depth + 1), encode(item, depth + 1)] for key, item in value.items()]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, complex):
        return {"complex": [repr(value.real), repr(value.imag)]}
    return {"other": type(value).__name__[:50]}


def decode(data: Any, depth: int = 0) -> Any:
    """The value again; what is malformed becomes :class:`Unknown`."""
    if isinstance(data, list):
        too_deep = depth > MAX_DEPTH + 1
        return Unknown("a value nested too deeply") if too_deep else [decode(item, depth + 1) for item in data]
    if not isinstance(data, dict):
        return data
    try:
        ((kind, content),) = data.items()
        return _decode_kind(kind, content, depth)
    except (ValueError, TypeError, ArithmeticError, RecursionError):
        return Unknown("a malformed value")


def _decode_kind(kind: str, content: Any, depth: int) -> Any:
    if kind == "int":
        return int(content, 16)
    if kind == "float":
        return float(content)
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "complex":
        real, imaginary = content
        return complex(float(real), float(imaginary))
    if kind == "other":
        return Unknown(str(content)[:50])
    items = decode(content, depth + 1)
    if kind == "tuple":
        return tuple(items)
    if kind == "set":
        return set(items)
    if kind == "dict":
        return dict(items)
    raise ValueError(kind)


def sendable(value: Any) -> bool:
    """Whether a decoded value holds no :class:`Unknown`."""
    if isinstance(value, dict):
        return all(map(sendable, (*value, *value.values())))
    if isinstance(value, list | tuple | set):
        return all(map(sendable, value))
    return not isinstance(value, Unknown)


def explain(error: BaseException) -> str:
    """An exception in one line, with its line in the player's code."""
    where, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == SOLUTION:
            where = trace.tb_lineno
        trace = trace.tb_next
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} (line {error.lineno})"
    try:
        message = str(error)[:300]
    except BaseException:
        message = ""
    return f"{type(error).__name__}: {message}".rstrip(": ") + (f" (line {where})" if where else "")


class Lines:
    def __init__(self, reads: int, writes: int) -> None:
        self._reads = os.fdopen(reads, "rb")
        self._writes = writes

    def send(self, message: Any) -> None:
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        while data:
            data = data[os.write(self._writes, data) :]

    def receive(self) -> Any:
        line = self._reads.readline()
        return json.loads(line) if line.endswith(b"\n") else None


def load(source: str, entry: str) -> tuple[Any, dict[str, Any]]:
    """The player's function, and what is to be said about loading it."""
    try:
        code = compile(source, SOLUTION, "exec", dont_inherit=True)
    except BaseException as error:
        return None, {"compiles": False, "problem": explain(error)}
    module = type(sys)("solution")
    sys.modules["solution"] = module
    try:
        exec(code, module.__dict__)
    except BaseException as error:
        return None, {"compiles": True, "problem": explain(error)}
    function = module.__dict__.get(entry)
    problem = "" if callable(function) else f"there is no function {entry}"
    return (function if callable(function) else None), {"compiles": True, "problem": problem}


def answer(function: Any, call: Any) -> dict[str, Any]:
    try:
        arguments, keywords = decode(call[0]), decode(call[1])
        return {"value": encode(function(*arguments, **keywords))}
    except BaseException as error:
        return {"raised": explain(error)}


def run_calls(job: dict[str, Any], lines: Lines) -> None:
    function, loaded = load(job["source"], job["entry"])
    lines.send(loaded)
    if function is None:
        return
    peer = Lines(*job["serve"]) if "serve" in job else lines
    while (call := peer.receive()) is not None:
        peer.send(answer(function, call))


class Tallied:
    """Counts assertions; rewritten tests call it (``assertions.py``)."""

    def __init__(self) -> None:
        self.passed = self.total = 0
        self.problem = ""

    def assertion(self, value: Any) -> None:
        """An assertion was evaluated. If its truth raises, it counts as failed."""
        held = bool(value)
        self.total += 1
        self.passed += held

    def held(self, value: Any) -> bool:
        """An assertion was evaluated that raises if it does not hold."""
        if value:
            self.assertion(True)
        return bool(value)

    def failed(self, error: BaseException) -> None:
        self.total += 1
        self.problem = self.problem or explain(error)


def run_tests(job: dict[str, Any], lines: Lines) -> None:
    """Run rewritten tests; the player's function is a stand-in that asks the other sandbox."""
    peer = Lines(*job["ask"])
    tally = Tallied()

    def candidate(*arguments: Any, **keywords: Any) -> Any:
        try:
            peer.send([encode(list(arguments)), encode(keywords)])
            said = peer.receive()
        except BrokenPipeError:
            said = None
        if not isinstance(said, dict) or "value" not in said:
            raise RuntimeError(str((said or {}).get("raised", "the program ended"))[:400])
        value = decode(said["value"])
        if not sendable(value):  # Equal to nothing, it would pass every assertion that asks for a difference.
            raise RuntimeError(f"{job['entry']} returned what cannot be sent: {value!r}"[:400])
        return value

    helpers = {"__assertion__": tally.assertion, "__assertion_failed__": tally.failed, "__held__": tally.held}
    scope: dict[str, Any] = {"__name__": "tests", **helpers}
    try:
        exec(compile(job["prelude"], "prelude.py", "exec"), scope)
        scope[job["entry"]] = scope["candidate"] = candidate
        exec(compile(job["tests"], "tests.py", "exec"), scope)
    except BaseException as error:  # Of no assertion: who could end the tests early would be paid for those before.
        tally.failed(error)
        tally.passed = 0
    lines.send({"passed": tally.passed, "total": tally.total, "problem": tally.problem})


def main() -> None:
    """Read the job. What the player's program prints goes to standard error; its input has ended."""
    lines = Lines(os.dup(0), os.dup(1))
    job = lines.receive()
    nothing, end = os.pipe()
    os.close(end)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    (run_tests if "ask" in job else run_calls)(job, lines)
    os._exit(0)


if __name__ == "__main__":
    main()
