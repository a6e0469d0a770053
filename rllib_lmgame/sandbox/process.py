"""Starts sandboxed processes, feeds and reads them, and makes sure that nothing of them is left.

Guarantees, each tested with programs that try to break it:

1. A run and every process it started end at most a second after its wall-clock limit.
2. At most ``output_bytes`` of each output are kept; a program that writes more is killed.
3. A run leaves no process (zombies included) and no file behind.
4. It can be used from several threads at once, and runs no code of ours between fork and exec.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import re
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Sequence

from rllib_lmgame.sandbox.confinement import BUBBLEWRAP, command_of, job_of
from rllib_lmgame.sandbox.limits import FINISHED, TIMEOUT, TOO_MUCH_OUTPUT, Limits, ProgramEnd, SandboxError

CHUNK = 65_536
GRACE_S = 1.0
"""Seconds the launcher has to end its namespace before it is killed as well."""
SETUP_MESSAGE_BYTES = 4_096
READY = b"ready"


class Process(contextlib.AbstractContextManager["Process"]):
    """A sandboxed process. Raises: SandboxError: if it cannot be started.

    Args:
        program: Source text, run as ``__main__``.
        stdin: What the program reads from standard input.
        limits: Its bounds; the wall clock is kept by :func:`supervise`.
        mode: One of :data:`~rllib_lmgame.sandbox.confinement.MODES`.
        more: What it reads next, each piece after another line of output.
        pass_fds: Open descriptors the program gets under the same numbers.
        read_paths: Files or directories the program may read, beside the interpreter's.
        server: As of :func:`~rllib_lmgame.sandbox.confinement.job_of`; its input stays open.
    """

    def __init__(
        self,
        program: str,
        stdin: str | bytes,
        limits: Limits,
        mode: str,
        more: Sequence[bytes] = (),
        pass_fds: Sequence[int] = (),
        read_paths: Sequence[str] = (),
        server: bool = False,
    ) -> None:
        self.limits = limits
        self.mode = mode
        self.pending = memoryview(b"")
        self.more = deque(more)
        self.outputs = {"stdout": bytearray(), "stderr": bytearray()}
        self.overflow = False
        self._said = b""
        self._status, status_end = os.pipe()
        self._info, info_end = os.pipe() if self.mode == BUBBLEWRAP else (-1, -1)
        kept = [*pass_fds, status_end, *([info_end] if info_end >= 0 else [])]
        try:
            self.popen = subprocess.Popen(
                command_of(self.mode, self.limits, info_end, read_paths),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env={},
                cwd="/",
                pass_fds=kept,
                start_new_session=True,
            )
        except OSError as error:
            self._close_pipes()
            raise SandboxError(f"cannot start a process in the sandbox ({self.mode}): {error}") from error
        finally:
            for descriptor in (status_end, info_end):
                if descriptor >= 0:
                    os.close(descriptor)
        job = marshal.dumps(job_of(self.mode, self.limits, program, status_end, server))
        data = stdin if isinstance(stdin, bytes) else stdin.encode("utf-8", "surrogatepass")
        self.pending = memoryview(len(job).to_bytes(8, "little") + job + data)

    def kill(self) -> None:
        """End the process and everything it started, and wait for it."""
        if self.popen.poll() is None:
            self._end()
            try:
                self.popen.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.popen.pid, signal.SIGKILL)
                self.popen.wait()

    def _end(self) -> None:
        """Ask whoever holds the process namespace to end it and wait for it, so that no zombie is left."""
        with contextlib.suppress(ProcessLookupError):
            if self.mode == BUBBLEWRAP and (child := self._bubblewrap_child()):
                os.kill(child, signal.SIGKILL)
            else:
                os.killpg(self.popen.pid, signal.SIGKILL)

    def _bubblewrap_child(self) -> int:
        os.set_blocking(self._info, False)
        try:
            found = re.search(rb'"child-pid": *(\d+)', os.read(self._info, CHUNK))
        except BlockingIOError:
            return 0
        return int(found[1]) if found else 0

    def close(self) -> None:
        """Kill what still runs and give back every descriptor and file."""
        self.kill()
        for pipe in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._close_pipes()

    def _close_pipes(self) -> None:
        self._read_status()
        for descriptor in (self._status, self._info):
            if descriptor >= 0:
                os.close(descriptor)
        self._status = self._info = -1

    def exit_code(self) -> int:
        """Exit status, negative for a signal, which bubblewrap reports as 128 plus its number."""
        code = self.popen.returncode
        return 128 - code if self.mode == BUBBLEWRAP and 128 < code < 128 + signal.NSIG else code

    def check_started(self) -> None:
        """Raises: SandboxError: the program was not reached; says which step of the confinement failed."""
        self._read_status()
        if self._said != READY:
            complaint = bytes(self.outputs["stderr"][-500:]).decode("utf-8", "replace").strip()
            said = self._said.decode("utf-8", "replace") or complaint or "its process ended without a word"
            raise SandboxError(f"the sandbox ({self.mode}) could not be set up: {said}")

    def _read_status(self) -> None:
        if self._status >= 0 and not self._said:
            os.set_blocking(self._status, False)
            with contextlib.suppress(BlockingIOError):
                self._said = os.read(self._status, SETUP_MESSAGE_BYTES)

    def __exit__(self, *error: object) -> None:
        self.close()


def supervise(processes: Sequence[Process], wall_s: float) -> list[ProgramEnd]:
    """Run until all have ended, ``wall_s`` are over or one writes too much; then nothing of them runs any more.

    Standard input ends after what was given. Raises: SandboxError: one never reached its program.
    """
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        waiting = dict.fromkeys(processes, True)
        for process in processes:
            _register(selector, process, stack)
        while any(waiting.values()) and not any(process.overflow for process in processes):
            left = begun + wall_s - time.monotonic()
            if left <= 0:
                break
            for key, _ in selector.select(left):
                process, role = key.data
                if role == "stdin":
                    _feed(selector, process)
                elif role == "exit":
                    selector.unregister(key.fileobj)
                    waiting[process] = False
                elif not _read(process, role):
                    selector.unregister(key.fileobj)
                elif process.pending and process.popen.stdin not in selector.get_map():
                    selector.register(process.popen.stdin, selectors.EVENT_WRITE, (process, "stdin"))
        stops = [TOO_MUCH_OUTPUT if p.overflow else TIMEOUT if running else FINISHED for p, running in waiting.items()]
        for process in processes:
            process.kill()
        for process in processes:
            _drain(process)
    seconds = time.monotonic() - begun
    outcomes = []
    for process, stop in zip(processes, stops, strict=True):
        if stop != TIMEOUT:
            process.check_started()
        stdout, stderr = (bytes(data).decode("utf-8", "replace") for data in process.outputs.values())
        code = process.exit_code() if stop == FINISHED else None
        outcomes.append(ProgramEnd(stdout, stderr, code, TOO_MUCH_OUTPUT if process.overflow else stop, seconds))
    return outcomes


def run_now(program: str, stdin: str | bytes, limits: Limits, mode: str) -> ProgramEnd:
    """Run one program without waiting to be let in. Raises: SandboxError: if the sandbox cannot be set up here."""
    with Process(program, stdin, limits, mode) as process:
        return supervise([process], limits.wall_s)[0]


def _register(selector: selectors.BaseSelector, process: Process, stack: contextlib.ExitStack) -> None:
    popen = process.popen
    for role, pipe, event in (
        ("stdin", popen.stdin, selectors.EVENT_WRITE),
        ("stdout", popen.stdout, selectors.EVENT_READ),
        ("stderr", popen.stderr, selectors.EVENT_READ),
    ):
        assert pipe is not None
        os.set_blocking(pipe.fileno(), False)
        selector.register(pipe, event, (process, role))
    ended = os.pidfd_open(popen.pid)
    stack.callback(os.close, ended)
    selector.register(ended, selectors.EVENT_READ, (process, "exit"))


def _feed(selector: selectors.BaseSelector, process: Process) -> None:
    pipe = process.popen.stdin
    assert pipe is not None
    try:
        process.pending = process.pending[os.write(pipe.fileno(), process.pending[:CHUNK]) :]
    except BlockingIOError:
        return
    except OSError:  # the program does not read on
        process.pending = memoryview(b"")
        process.more.clear()
    if not process.pending:
        selector.unregister(pipe)
        if not process.more:
            pipe.close()


def _read(process: Process, role: str) -> bool:
    """Take what there is; False at the end of the stream."""
    kept = process.outputs[role]
    try:
        data = os.read(getattr(process.popen, role).fileno(), CHUNK)
    except BlockingIOError:
        return True
    if role == "stdout" and process.more:
        lines = min(data.count(b"\n"), len(process.more))
        process.pending = memoryview(bytes(process.pending) + b"".join(process.more.popleft() for _ in range(lines)))
    room = process.limits.output_bytes - len(kept)
    process.overflow = process.overflow or len(data) > room
    kept += data[:room]
    return bool(data)


def _drain(process: Process) -> None:
    """Read the output that was written before the process ended."""
    for role, kept in process.outputs.items():
        before = -1
        while not process.overflow and before < len(kept):
            before = len(kept)
            _read(process, role)
