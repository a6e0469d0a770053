"""Judges a player's function: by calls whose results are compared here, or by test code in a second sandbox."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rllib_lmgame.sandbox.assertions import counted
from rllib_lmgame.sandbox.concurrency_limit import machine_limit
from rllib_lmgame.sandbox.harness import Unknown, decode, encode
from rllib_lmgame.sandbox.limits import MEBIBYTE, Limits, ProgramEnd
from rllib_lmgame.sandbox.process import Process, supervise
from rllib_lmgame.sandbox.programs import sandbox_mode

JUDGE_LIMITS = Limits(wall_s=5.0, cpu_s=5, output_bytes=MEBIBYTE)
TOLERANCE = 1e-9
MAX_ANSWER = 50_000
"""Longest answer that is decoded, in characters: 20,000 numbers that share one hash would take many seconds."""
UNREADABLE, TOO_LONG = "the answer could not be read", "the value is too large"


@dataclass(frozen=True)
class Answer:
    """The result of one call: a value, or an error in one line."""

    value: Any = None
    error: str = ""


@dataclass(frozen=True)
class Answers:
    """What a program gave: whether it is Python, why the function could not be called, and an answer per call."""

    compiles: bool
    problem: str
    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class Tally:
    compiles: bool
    problem: str
    passed: int
    total: int


def call_function(source: str, entry: str, calls: Sequence[Sequence[Any]], limits: Limits = JUDGE_LIMITS) -> Answers:
    """Call ``entry`` of ``source`` with each list of arguments, in one sandbox, each once the one before is answered.

    Raises: SandboxError: if the sandbox cannot be set up here.
    """
    more = [_line([encode(list(call)), encode({})]) for call in calls]
    mode, job = sandbox_mode(), _line({"source": source, "entry": entry})
    with machine_limit().admitted(), Process(_harness(), job, limits, mode, more=more) as process:
        outcome = supervise([process], limits.wall_s)[0]
    return _answers(outcome.stdout, len(calls), outcome.problem() or "the program ended early")


def _answers(text: str, calls: int, ending: str) -> Answers:
    """What a program wrote, as the answers to ``calls`` calls.

    ``ending`` may quote the program; after a line that is no message it does not, since that could tell of calls.
    """
    lines = text.split("\n")
    messages = _messages(lines)
    if len(messages) < len(lines) - 1:
        ending = UNREADABLE
    loaded = messages[0] if messages else {}
    answers = [_answer(message, len(line)) for message, line in zip(messages[1 : calls + 1], lines[1:], strict=False)]
    problem = str(loaded.get("problem", "")) or ("" if len(answers) == calls else ending)
    answers += [Answer(error=problem)] * (calls - len(answers))
    return Answers(loaded.get("compiles", True) is True, problem, tuple(answers))


def run_tests(source: str, entry: str, tests: str, prelude: str = "", limits: Limits = JUDGE_LIMITS) -> Tally:
    """Run test code (``assert`` statements about ``entry`` or ``candidate``) against the program ``source``.

    Each runs in a sandbox of its own, and only calls and results pass between them, so the program can neither see nor
    alter the tests. Assertions that fail or raise are counted (``assertions.py``). ``prelude`` is code the tests need.

    Raises: SandboxError: if the sandbox cannot be set up here.
    """
    mode = sandbox_mode()
    with contextlib.suppress(SyntaxError, ValueError, RecursionError):  # else the judge says what is wrong
        tests = counted(tests)
    with machine_limit().admitted():  # they take turns, so they need one core
        return _run_tests(source, entry, tests, prelude, limits, mode)


def _run_tests(source: str, entry: str, tests: str, prelude: str, limits: Limits, mode: str) -> Tally:
    with contextlib.ExitStack() as pipes:
        calls_out, calls_in, answers_out, answers_in = ends = (*os.pipe(), *os.pipe())
        for descriptor in ends:
            pipes.callback(os.close, descriptor)
        player = {"source": source, "entry": entry, "serve": [calls_out, answers_in]}
        judge = {"tests": tests, "entry": entry, "prelude": prelude, "ask": [answers_out, calls_in]}
        with (
            Process(_harness(), _line(player), limits, mode, pass_fds=(calls_out, answers_in)) as playing,
            Process(_harness(), _line(judge), limits, mode, pass_fds=(answers_out, calls_in)) as judging,
        ):
            pipes.close()
            return _tally(*supervise([playing, judging], limits.wall_s))


def same(one: Any, other: Any) -> bool:
    """Equal as Python says, numbers up to a rounding error, also inside lists, tuples and dictionaries."""
    if isinstance(one, Unknown) or isinstance(other, Unknown):
        return False
    if isinstance(one, float) or isinstance(other, float):
        numbers = isinstance(one, int | float) and isinstance(other, int | float)
        try:
            return numbers and (one == other or math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE))
        except OverflowError:
            return False
    if type(one) is type(other) and isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    return bool(one == other)


@cache
def _harness() -> str:
    return Path(__file__).with_name("harness.py").read_text(encoding="utf-8")


def _line(message: Any) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _messages(lines: Sequence[str]) -> list[dict[str, Any]]:
    """The mappings of JSON lines, up to the first line that is none."""
    found = []
    for line in lines:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(message, dict):
            break
        found.append(message)
    return found


def _answer(message: dict[str, Any], length: int) -> Answer:
    if length > MAX_ANSWER:
        return Answer(error=TOO_LONG)
    if "value" in message:
        try:
            return Answer(value=decode(message["value"]))
        except RecursionError:
            return Answer(error="the value is nested too deeply")
    return Answer(error=str(message.get("raised", "no value"))[:400])


def _tally(played: ProgramEnd, judged: ProgramEnd) -> Tally:
    loaded = (_messages(played.stdout.split("\n")) or [{}])[0]
    result = (_messages(judged.stdout.split("\n")) or [{}])[0]
    passed, total = int(result.get("passed", 0)), int(result.get("total", 0))
    ending = "it ran too long and was stopped" if not total else ""
    problem = str(loaded.get("problem", "")) or played.problem() or str(result.get("problem", "")) or ending
    return Tally(loaded.get("compiles", True) is True, problem[:400], passed, max(total, 1))
