"""The ScienceWorld simulator: one Java process per Python process, shared by all its games.

The simulator is reached directly through ``py4j``: the package's own environment lists thousands of valid actions after
every step, which takes far longer than the step itself.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JError, Py4JJavaError
from scienceworld.constants import BASEPATH, ID2TASK, JAR_PATH

from rllib_lmgame.base.errors import MissingDependencyError
from rllib_lmgame.base.text import first_line
from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.contract.splits import TEST, TRAIN, VALIDATION

JAVA_OPTIONS = ("-Xmx4g", "-XX:+UseSerialGC", "-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2")
"""Java needs some 180 MB and every game 15 MB more. The simulator lists things in the order of their identity hashes,
which Java draws anew for every object. With one hash for all, the order is that in which they were made, the same every
time."""

END_TIMEOUT_S = 10.0
UNKNOWN = "No known action matches that input."
"""What the simulator says to an action it does not know."""

INSTALL_JAVA = (
    "SciWorld needs Java 8 or later, and there is no program 'java': install a Java runtime (apt-get install "
    "default-jre-headless, or conda install openjdk), or set JAVA_HOME"
)

TASKS: tuple[str, ...] = tuple(
    name for _, name in sorted(ID2TASK.items(), key=lambda item: tuple(map(int, item[0].split("-"))))
)
"""Names of the 30 types of task, ordered as in the simulator's paper."""


class Answer(NamedTuple):
    """What the simulator says to one action.

    Attributes:
        text: In words.
        score: Part of the task that is done, -1 (failed for good) to 1.
        completed: The task is over.
    """

    text: str
    score: float
    completed: bool


class JavaProcess:
    """The process in which simulators live. It ends with :meth:`stop`, at the end of this process, and when this
    process is killed.
    """

    def __init__(self) -> None:
        require_java()
        port, self._process = launch_gateway(
            classpath=JAR_PATH, javaopts=list(JAVA_OPTIONS), die_on_exit=True, cwd=BASEPATH, return_proc=True
        )
        self.gateway = JavaGateway(
            gateway_parameters=GatewayParameters(auto_field=True, port=port, enable_memory_management=False),
            java_process=self._process,
        )
        self.pid = self._process.pid
        self.stop = weakref.finalize(self, _stop, self.gateway, self._process)

    @property
    def alive(self) -> bool:
        """It has not ended."""
        return self._process.poll() is None


def _stop(gateway: JavaGateway, process: subprocess.Popen[bytes]) -> None:
    try:
        gateway.close()
    finally:
        process.kill()
        process.wait(END_TIMEOUT_S)


_lock = threading.Lock()
_shared: dict[int, tuple[JavaProcess, set[int]]] = {}
"""Of this process (by its id: a forked child must not use its parent's): the Java process and the simulators in use."""


class Simulator:
    """One laboratory. Simulators share a Java process, which is started with the first and stopped with the last of
    them.

    Raises: MissingDependencyError: without Java.
    """

    def __init__(self) -> None:
        with _lock:
            shared = _shared.get(os.getpid())
            self._java, users = shared if shared is not None and shared[0].alive else (JavaProcess(), set())
            users.add(id(self))
            _shared[os.getpid()] = (self._java, users)
        self._leave = weakref.finalize(self, _leave, self._java, id(self))
        self._server: Any = self._call(lambda: self._java.gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface())
        self._detach = weakref.finalize(self, _detach, self._java, self._server)

    @property
    def open(self) -> bool:
        """It can still be used."""
        return self._leave.alive

    def close(self) -> None:
        """Free it; the last simulator of a process stops the Java process."""
        self._detach()
        self._leave()

    @property
    def java_pid(self) -> int:
        """Process id of the Java process."""
        return self._java.pid

    def variations(self, task: str) -> int:
        """How many variations a type of task has."""
        return int(self._call(lambda: self._server.getTaskMaxVariations(task)))

    def split_variations(self, task: str) -> dict[str, Sequence[int]]:
        """The simulator's own lists of variations for training, development and test."""
        self.load(task, 0)  # The lists are those of the task that is loaded.
        read = {
            TRAIN: self._server.getVariationsTrain,
            VALIDATION: self._server.getVariationsDev,
            TEST: self._server.getVariationsTest,
        }
        return {split: tuple(self._list(call)) for split, call in read.items()}

    def load(self, task: str, variation: int, simplifications: str = "", with_path: bool = False) -> None:
        """Set up a laboratory.

        Args:
            task: One of :data:`TASKS`.
            variation: Which of its variations.
            simplifications: As the simulator names them, separated by commas.
            with_path: Also work out :meth:`path`.
        """
        self._call(lambda: self._server.load(task, variation, simplifications, with_path))

    def act(self, text: str) -> Answer:
        """Do something; ``text`` must be ASCII. What makes the simulator itself stumble is no known action."""
        try:
            said = str(self._call(lambda: self._server.step(text)))
        except Py4JJavaError:
            said = UNKNOWN
        return Answer(
            said,
            float(self._call(lambda: self._server.getScore())),
            bool(self._call(lambda: self._server.getCompleted())),
        )

    def task(self) -> str:
        """The task in words."""
        return str(self._call(lambda: self._server.getTaskDescription()))

    def look(self) -> str:
        """The room, without spending time."""
        return str(self._call(lambda: self._server.freeActionLook()))

    def inventory(self) -> str:
        """What is carried, without spending time."""
        return str(self._call(lambda: self._server.freeActionInventory()))

    def path(self) -> list[str]:
        """Actions that solve the task from its start (not always the fewest)."""
        return [str(action) for action in self._list(self._server.getGoldActionSequence)]

    def _list(self, call: Callable[[], Any]) -> list[Any]:
        """The elements of a list in Java, which is then let go."""
        there = self._call(call)
        here = self._call(lambda: list(there))
        _detach(self._java, there)
        return here

    def _call(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Py4JJavaError:
            raise
        except (Py4JError, OSError) as error:
            self._leave()
            raise GameError(f"the ScienceWorld simulator failed: {first_line(error)}") from error


def _detach(java: JavaProcess, thing: Any) -> None:
    """Let Java forget an object. It is done here and not when Python collects the object, which can be at any moment,
    also after the process.
    """
    if java.alive:
        with contextlib.suppress(Py4JError, OSError):
            java.gateway.detach(thing)


def _leave(java: JavaProcess, user: int) -> None:
    """One simulator less; the last one stops the Java process."""
    with _lock:
        current, users = _shared.get(os.getpid(), (None, set()))
        if current is java:
            users.discard(user)
            if not users:
                del _shared[os.getpid()]
                java.stop()


def require_java() -> None:
    """Check that there is Java. Raises: MissingDependencyError: otherwise, saying what to install."""
    home = os.environ.get("JAVA_HOME")
    if not (home and (Path(home) / "bin" / "java").exists()) and shutil.which("java") is None:
        raise MissingDependencyError(INSTALL_JAVA)


@lru_cache(4096)
def solution(task: str, variation: int, simplifications: str) -> tuple[str, ...]:
    """The simulator's own path through a task."""
    simulator = Simulator()
    try:
        simulator.load(task, variation, simplifications, with_path=True)
        return tuple(simulator.path())
    finally:
        simulator.close()


@lru_cache(len(TASKS))
def splits_of(task: str) -> dict[int, str]:
    """Split of every variation of a task, by the simulator's own lists."""
    simulator = Simulator()
    try:
        return {
            variation: split
            for split, variations in simulator.split_variations(task).items()
            for variation in variations
        }
    finally:
        simulator.close()
