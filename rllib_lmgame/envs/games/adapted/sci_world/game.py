"""SciWorld: school experiments in a simulated house."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

from rllib_lmgame.base.errors import ConfigError, did_you_mean
from rllib_lmgame.base.group import option
from rllib_lmgame.base.trust import is_name
from rllib_lmgame.envs.contract.base import InvalidAction, TextGame, TextGameOptions, Variant
from rllib_lmgame.envs.games.adapted.sci_world.simulator import (
    TASKS,
    UNKNOWN,
    Simulator,
    require_java,
    solution,
    splits_of,
)

ANY = "any"
ACTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ,.'()\-]{0,199}")
RESET = "reset task"

RULES = """You do an experiment from a science class \
in a house with several rooms, a greenhouse, a workshop and an outside. Reply with one action.
Actions are (OBJ is the name of a thing you see; it may say where the thing is, as in: thermometer in inventory):
open OBJ, close OBJ, activate OBJ, deactivate OBJ, connect OBJ to OBJ, disconnect OBJ, use OBJ, use OBJ on OBJ, \
look around, look at OBJ,
look in OBJ, read OBJ, examine OBJ, move OBJ to OBJ, pick up OBJ, put down OBJ, pour OBJ in OBJ, dunk OBJ in OBJ, \
mix OBJ, go to OBJ,
eat OBJ, flush OBJ, focus on OBJ (says what the task is about; a wrong thing fails it), wait (10 steps), \
wait1 (one step), task, inventory.
If a request is ambiguous, reply with the number of what you meant. The score goes from 0 to 1; \
you are paid what each reply adds to it.
There are {turns} turns."""


class SciWorldOptions(TextGameOptions):
    """``env_config`` of SciWorld."""

    max_turns: int = option(
        20,
        "Replies per episode. Many tasks need more: the simulator's own paths take up to some hundred actions.",
        ge=1,
    )
    task: str | int = option(
        ANY, "One of the 30 types of task by name or number (0 to 29), or `any`: the seed decides.", stranger=is_name
    )
    easy: bool = option(
        False,
        "All of the simulator's simplifications: doors and boxes open, teleporting, pots that water themselves, "
        "no wiring.",
    )
    show_room: bool = option(
        False, "Show the room and what is carried in every observation, not only what came of the last action."
    )


class Experiment(NamedTuple):
    """Type of task and variation."""

    task: str
    variation: int


class SciWorld(TextGame):
    """A science experiment in the ScienceWorld simulator (needs Java).

    Observation: the task and what came of the last action (at the start, the room); option: room and inventory every
        time.
    Action: one of 25 verbs with names of things, as ``pick up thermometer``.
    Reward: what the reply adds to the simulator's score, scaled from 0-100 to [0, 1]. A score below 0 (the simulator's
        mark for a task that is failed for good) counts as 0, so returns lie in [0, 1]. -0.1 for what is no action here.
    Horizon: 20 replies (AgentGym-RL). The task's end, reached or failed, ends it.
    Levels: variations of 30 types of task; the splits are the simulator's own training, development and test
        variations.
    Speed: below 1,000 replies a second, because every reply is simulated in a Java process (benchmarks/games.py);
        starting it takes seconds.
    Solver: the simulator's own path, from the start of a task, which does not always fit into 20 replies.
    """

    variants = (Variant("lmgame/SciWorld-v0", (-1.4, 1.0)),)
    extra = "sciworld"
    Options: ClassVar[type[TextGameOptions]] = SciWorldOptions
    slow_calls = True  # the simulator is a process of its own
    solver_wins = False
    rules_text = RULES
    options: SciWorldOptions

    def __init__(self, render_mode: str | None = None, **env_config: Any) -> None:
        super().__init__(render_mode, **env_config)
        self._tasks = TASKS if self.options.task == ANY else (task_name(self.options.task),)
        self._simplifications = "easy" if self.options.easy else ""
        require_java()
        self._simulator: Simulator | None = None

    @property
    def simulator(self) -> Simulator:
        """The laboratory, set up when it is first needed."""
        if self._simulator is None or not self._simulator.open:
            self._simulator = Simulator()
        return self._simulator

    def levels(self, rng: random.Random) -> Iterator[Experiment]:
        while True:
            task = rng.choice(self._tasks)
            yield Experiment(task, rng.randrange(self.simulator.variations(task)))

    def level_key(self, level: Experiment) -> str:
        return f"sci_world {level.task} {level.variation}"

    def split_of_level(self, digest: str, level: Experiment) -> str:
        return splits_of(level.task).get(level.variation, "")

    def start(self, level: Experiment) -> None:
        self._level = level
        self.simulator.load(level.task, level.variation, self._simplifications)
        self._task = " ".join(self.simulator.task().removeprefix("Task Description:").split())
        self._said = self.simulator.look().strip()
        self._score = 0.0
        self._completed = False
        self._done: list[str] = []

    def board(self) -> str:
        room = ""
        if self.options.show_room:
            room = f"{self.simulator.look().strip()}\n{self.simulator.inventory().strip()}"
        elif not self._said:
            room = self.simulator.look().strip()
        return "\n".join(part for part in (f"Task: {self._task}", self._said, room) if part)

    def legal_actions(self) -> tuple[str, ...]:
        """None: what is possible runs into thousands."""
        return ()

    def read_move(self, text: str) -> str:
        action = " ".join(text[:300].split())
        if ACTION.fullmatch(action) is None:
            raise InvalidAction("an action is a verb with names of things, as: open door to kitchen.")
        action = action.rstrip(".")
        if action.lower() == RESET:
            raise InvalidAction("the task cannot be started again.")
        return action

    def play_move(self, move: str) -> float:
        answer = self.simulator.act(move)
        if answer.text.startswith(UNKNOWN):
            raise InvalidAction(f"{move[:80]!r} is no action that can be done here.")
        self._said = answer.text.strip()
        self._completed = answer.completed or answer.score < 0
        gained = max(0.0, answer.score) - self._score
        self._score += gained
        self._done.append(move)
        return gained

    @property
    def success(self) -> bool:
        return self._completed and self._score >= 1.0

    @property
    def finished(self) -> bool:
        return self._completed

    def expert_action(self) -> str | None:
        """The next action of the simulator's own path; after all of them, waiting."""
        ahead = iter(solution(*self._level, self._simplifications))
        due = next(ahead, None)
        for action in self._done:
            if action == due:
                due = next(ahead, None)
        return due or "wait1"

    def close(self) -> None:
        """Leave the simulator; the last game to leave ends the Java process."""
        if self._simulator is not None:
            self._simulator.close()


def task_name(task: str | int) -> str:
    """The type of task a name or number means. Raises: ConfigError: if there is none."""
    if isinstance(task, str) and task.isascii() and task.isdigit():
        task = int(task)
    if isinstance(task, int):
        if not 0 <= task < len(TASKS):
            raise ConfigError("env_config.task", f"is {task}; tasks are numbered 0 to {len(TASKS) - 1}")
        return TASKS[task]
    if task not in TASKS:
        hint = did_you_mean(task, TASKS, "tasks: " + ", ".join(TASKS))
        raise ConfigError("env_config.task", f"unknown task {task!r}; {hint}")
    return task
