"""Runs an agent program's episodes: a process that has imported the program once, and forks for each episode.

It is run as a script, ``python -P host.py PACKAGE.MODULE:FUNCTION DESCRIPTOR``, and imports nothing of this package. On
the socket of that descriptor it says in a line of JSON whether the program can be used. Then each byte that comes
brings the socket of one episode, on which it reads the task and writes how the program ended.

Between this process and a program stands one that watches over it:

1. When the program ends, or the episode's socket is closed, it kills the program and all that it started, whatever
   group or session these have put themselves in, and waits until they are gone.
2. So nothing is left when the process that plays the episodes dies, also by a signal that cannot be caught.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import inspect
import json
import os
import random
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

DEATH_SIGNAL, SUBREAPER = 1, 36
"""Of Linux's ``prctl``."""
MOST_BYTES = 1 << 20
"""Of what a program returns, as JSON."""
MOST_SAID = 500
POLL_S = 0.05
"""Where no descriptor tells of an ended process (anything but Linux), it is asked this often."""


@dataclass(frozen=True)
class Task:
    """What a program is given.

    Attributes:
        base_url, api_key, model: Of the endpoint at which the policy replies, as OpenAI's clients name them.
        seed: Of the level. Generators of ``random`` and NumPy are seeded with it.
        split: ``train``, ``validation``, ``test`` or ``all``.
        options: What ``env_config.options`` says.
    """

    base_url: str
    api_key: str
    model: str
    seed: int
    split: str
    options: dict[str, Any] = field(default_factory=dict)


def main() -> None:
    path, descriptor = sys.argv[1], int(sys.argv[2])
    with socket.socket(fileno=descriptor) as orders:
        program, problem = load(path)
        orders.sendall(json.dumps({"problem": problem}).encode() + b"\n")
        if problem:
            return
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Nobody waits for those that watch.
        while True:
            message, descriptors, _, _ = socket.recv_fds(orders, 1, 1)
            if not message:
                return
            if not os.fork():
                orders.close()
                with contextlib.suppress(OSError):  # Nobody wants to know any more.
                    watch(program, socket.socket(fileno=descriptors[0]))
                os._exit(0)
            os.close(descriptors[0])


def load(path: str) -> tuple[Callable[[Task], Any], str]:
    """The program, or what is wrong with it, in words."""
    module_name, _, name = path.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except BaseException as error:
        return print, f"cannot import {module_name!r}: {_words(error)}"
    for part in name.split("."):
        if not hasattr(found, part):
            return print, f"module {module_name!r} has no {name!r}"
        found = getattr(found, part)
    if not callable(found):
        return print, f"{path} is {type(found).__name__}; it must be a function"
    with contextlib.suppress(ValueError):  # Some say nothing of their arguments.
        signature = inspect.signature(found)
        try:
            signature.bind(None)
        except TypeError:
            return print, f"{path}{signature} must take one argument, the task, and need no other"
    with contextlib.suppress(Exception):  # Half of it is imported when it is first used: once here, not in every fork.
        _ = sys.modules["openai"].OpenAI(base_url="http://127.0.0.1", api_key="none").chat.completions
    return found, ""


def watch(program: Callable[[Task], Any], episode: socket.socket) -> None:
    """One episode: what the program returns, or why it returned nothing, goes back on its socket."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _prctl(SUBREAPER, 1)
    with episode.makefile("rb") as file:
        task = json.loads(file.readline())
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.setsid()
        _prctl(DEATH_SIGNAL, signal.SIGKILL)
        episode.close()
        os.close(reading)
        play(program, task, writing)
    os.close(writing)
    said, status = _waited(pid, reading, episode)
    end_all(pid)
    if status is not None:
        said = said or json.dumps({"error": _end(status)}).encode()
        if len(said) > MOST_BYTES:
            said = json.dumps({"error": f"it returned more than {MOST_BYTES:,} bytes"}).encode()
        episode.sendall(said)
    episode.close()


def _waited(pid: int, reading: int, episode: socket.socket) -> tuple[bytes, int | None]:
    """What the program said and its status; none if nobody waits for it any more."""
    said = b""
    ended = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
    with selectors.DefaultSelector() as chosen:
        chosen.register(reading, selectors.EVENT_READ)
        chosen.register(episode, selectors.EVENT_READ)
        if ended is not None:
            chosen.register(ended, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in chosen.select(POLL_S if ended is None else None)]
            if reading in ready:
                part = os.read(reading, 65_536)
                said = (said + part)[: MOST_BYTES + 1]
                if not part:
                    chosen.unregister(reading)
                continue
            if episode in ready:
                return said, None
            if ended is None or ended in ready:
                found, status = os.waitpid(pid, 0 if ended is not None else os.WNOHANG)
                if found:
                    return said, status


def _end(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"it was ended by {signal.Signals(-code).name}" if code < 0 else f"it ended itself, with status {code}"


def end_all(pid: int) -> None:
    """Kill a program and all that it started, and wait until they are gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    while True:
        for child in _children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    """Processes that have this one as their parent: a program's own are its own when it has died."""
    found = []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():
                    found.append(int(name))
    return found


def play(program: Callable[[Task], Any], task: dict[str, Any], writing: int) -> None:
    """The program's own process; it never returns. What forks of it return is not asked for."""
    given, own = Task(**task), os.getpid()
    os.environ |= {"OPENAI_BASE_URL": given.base_url, "OPENAI_API_KEY": given.api_key}
    for name in ("NO_PROXY", "no_proxy"):  # The endpoint is on this machine.
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1")))
    random.seed(given.seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(given.seed % 2**32)
    try:
        result = program(given)
        if inspect.iscoroutine(result):
            result = asyncio.run(result)
        said = json.dumps({"result": _plain(result)})
    except BaseException as error:
        said = json.dumps({"error": _words(error)})
    data = said.encode() if os.getpid() == own else b""
    while data:
        data = data[os.write(writing, data) :]
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(0)


def _plain(result: Any) -> Any:
    """Numbers of any kind as JSON has them."""
    if isinstance(result, dict):
        return {str(key): _plain(value) for key, value in result.items()}
    if result is None or isinstance(result, bool | int | float | str):
        return result
    single = getattr(result, "item", None)  # Of an array or a tensor: `success` may be a flag of NumPy.
    return float(result) if single is None else single()


def _words(error: BaseException) -> str:
    """An error's kind and message, and the line that it came from."""
    try:
        said = f"{type(error).__name__}: {error}"[:MOST_SAID]
    except BaseException:
        said = type(error).__name__
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    own = [frame for frame in frames if "site-packages" not in frame.filename and os.path.isfile(frame.filename)]
    if not (own or frames):
        return said
    last = (own or frames)[-1]
    return f"{said} ({os.path.basename(last.filename)}:{last.lineno})"


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


if __name__ == "__main__":
    main()
