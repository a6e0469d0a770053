"""The game: levels, texts, expert."""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import gymnasium
import minigrid  # noqa: F401  (registers the levels)

from rllib_lmgame.base.errors import ConfigError, did_you_mean
from rllib_lmgame.base.group import option
from rllib_lmgame.base.trust import is_name
from rllib_lmgame.envs.contract.base import TextGame, TextGameOptions, Variant
from rllib_lmgame.envs.games.adapted.babyai.bot import Step, bot_walk, longest_command, pose_of
from rllib_lmgame.envs.games.adapted.babyai.commands import Plan, all_commands, plan_of
from rllib_lmgame.envs.games.adapted.babyai.sight import Seen, Sight

PREFIX = "BabyAI-"
LEVELS = (
    "GoToRedBallGrey", "GoToRedBall", "GoToRedBallNoDists", "GoToObj", "GoToLocal", "GoToObjMaze", "GoTo",
    "GoToImpUnlock", "GoToSeq", "GoToRedBlueBall", "GoToDoor", "GoToObjDoor", "Open", "OpenRedDoor", "OpenDoor",
    "OpenTwoDoors", "OpenDoorsOrderN4", "Pickup", "UnblockPickup", "PickupLoc", "PickupDist", "PickupAbove",
    "PutNextLocal", "PutNextS7N4", "Unlock", "UnlockLocal", "KeyInBox", "UnlockPickup", "BlockedUnlockPickup",
    "UnlockToUnlock", "ActionObjDoor", "FindObjS7", "KeyCorridor", "MoveTwoAcrossS8N9", "Synth", "SynthLoc", "SynthSeq",
    "MiniBossLevel", "BossLevel",
)  # fmt: skip
"""The 39 levels, by number from 1; those of other sizes are chosen by name."""

SMALL_LEVELS = (
    "GoToRedBallGrey", "GoToRedBall", "GoToRedBallNoDists", "GoToObj", "GoToLocal", "PickupLoc", "PickupDist",
    "OpenRedDoor", "OpenDoor",
)  # fmt: skip
"""Levels of one room, or of doors in sight, that the expert solves within 20 replies."""

WALL_SIDES = ((0, "ahead"), (3, "to your left"), (1, "to your right"))
WALKS_BY_COMMANDS = 3
"""Ways of the bot that the expert follows in long commands before it takes the bot's steps one by one."""

MAX_FAILURES = 3
"""Times that the bot may find no way before the expert gives an episode up."""

RULES = """You walk through rooms on a grid and do what the goal says. You see up to 6 steps ahead and 3 to each side, \
but not through walls and
closed doors.
Actions: turn left, turn right, move forward (one step), toggle (open or close the door or box right in front of you; \
a locked door needs the key of its colour), drop (put down what you carry in front of you); \
and with an object you see, named with its number:
go to red ball 1 (walk there and face it), pick up red ball 1 (one thing at a time), go through blue door 1 \
(opening it if needed).
Each command may take several steps. There are {turns} turns. Reaching the goal gives up to 1, \
less the more steps it took."""


class Level(NamedTuple):
    """A seed of the engine, and all that it puts on the grid."""

    seed: int
    key: str


class BabyAIOptions(TextGameOptions):
    """``env_config`` of BabyAI."""

    max_turns: int = option(20, "Replies per episode.", ge=1)
    show_legal_actions: bool = option(True, "End each observation with the legal actions.")
    level: int | str = option(
        "GoToLocal", "Level by name (as `GoToLocal`, `GoToLocalS5N2`) or number (1 to 39).", stranger=is_name
    )


class BabyAI(TextGame):
    """Follow an instruction among doors, keys, balls and boxes.

    Observation: the goal; the objects in sight with their distance ahead and to the side; the walls ahead and beside;
        what is carried; the actions that can be done now.
    Action: ``turn left``, ``turn right``, ``move forward``, ``toggle``, ``drop``, ``go to <object> <number>``, ``pick
        up <object> <number>``, ``go through <door> <number>``. The last three walk through cells in sight. Numbers
        count the objects of a colour and kind in sight, nearest first.
    Reward: 1 - 0.9 t/T when the goal is reached after t steps of the engine, T being its limit (64 steps for one room
        of 8x8), else 0. -0.1 for a reply that cannot be done.
    Success: the goal is reached. Some instructions can be failed, which ends the episode.
    Horizon: 20 replies; the engine's own limit of steps truncates too. Texts and budget follow AgentGym's form of the
        game.
    Levels: 39 kinds by name or number (the default is one room with eight objects, of which one is to be faced), and
        all other sizes that ``minigrid`` knows, by name. Split by a hash of instruction, grid and pose, not by what is
        in sight: about one test level in 25 begins with the text of a training level (3 of 79 beside 931).
    Solver: the planning bot of ``minigrid``, which knows only what has been in sight; its steps are put into as few
        commands as say the same. It plays the default level in 20 replies; large mazes take more (raise ``max_turns``).
        ``minigrid`` draws some levels of ``GoToImpUnlock`` with the only key behind the door it opens.
    """

    variants = (Variant("lmgame/BabyAI-v0", (-1.4, 1.0)),)
    extra = "babyai"
    Options: ClassVar[type[TextGameOptions]] = BabyAIOptions
    rules_text = RULES
    options: BabyAIOptions
    _sight: Sight
    _commands: list[tuple[str, Plan]] | None

    def __init__(self, render_mode: str | None = None, **env_config: object) -> None:
        super().__init__(render_mode, **env_config)
        self._name = level_name(self.options.level)
        self._env = gymnasium.make(self._name, disable_env_checker=True).unwrapped
        self._env.gen_obs = dict  # The picture, which takes most of the engine's time, is read by nobody.
        self._put: int | None = None
        self._ended = self._cut = False
        self._reward = 0.0
        self._walk: list[Step] | None = None
        self._walks = self._failures = 0

    @property
    def success(self) -> bool:
        return self._ended and self._reward > 0

    @property
    def finished(self) -> bool:
        return self._ended

    @property
    def solver_wins(self) -> bool:
        return self._name.removeprefix(PREFIX).rsplit("-v", 1)[0] in SMALL_LEVELS and self.options.max_turns >= 20

    def levels(self, rng: random.Random) -> Iterator[Level]:
        while True:
            seed = rng.getrandbits(31)
            self._put_down(seed)
            yield Level(seed, self._everything())

    def level_key(self, level: Level) -> str:
        return level.key

    def start(self, level: Level) -> None:
        if self._put != level.seed:
            self._put_down(level.seed)
        self._put = None  # From now on the grid changes.
        self._ended = self._cut = False
        self._reward = 0.0
        self._walk = None
        self._walks = self._failures = 0
        self._look()

    def board(self) -> str:
        sight, carrying = self._sight, self._env.carrying
        seen = [f"There is a {described(thing)}, {place_said(thing.ahead, thing.right)}." for thing in sight.objects]
        walls = [f"{steps_said(steps)} {where}" for heading, where in WALL_SIDES if (steps := sight.wall(heading))]
        lines = (
            f"Your goal: {self._env.mission}",
            " ".join(seen) or "You see no objects.",
            f"There are walls {listed(walls)}."
            if len(walls) > 1
            else f"There is a wall {walls[0]}."
            if walls
            else "You see no wall around you.",
            f"You are carrying a {carrying.color} {carrying.type}." if carrying else "You are not carrying anything.",
        )
        return "\n".join(
            ("The goal is reached.", *lines)
            if self.success
            else ("The goal was missed.", *lines)
            if self._ended
            else lines
        )

    def legal_actions(self) -> tuple[str, ...]:
        if self._commands is None:
            self._commands = all_commands(self._sight, self._env.carrying)
        return tuple(command for command, _ in self._commands)

    def read_move(self, text: str) -> str:
        return " ".join(text.lower().rstrip(".").split())

    def play_move(self, command: str) -> float:
        for action in plan_of(command, self._sight, self._env.carrying).actions:
            _, reward, ended, cut, _ = self._env.step(action)
            self._ended, self._reward = bool(ended), float(reward) if ended else 0.0
            self._cut = bool(cut) and not self._ended
            if ended or cut:
                break
        self._look()
        return self._reward

    def expert_action(self) -> str:
        """The next command of the bot's way from here; where the bot knows none, the first legal action."""
        walk = self._walk
        if walk is None or len(walk) == 1 or walk[0][:2] != (pose_of(self._env), self._env.carrying is not None):
            walk = bot_walk(self._env) if self._failures < MAX_FAILURES else None
            self._walks += 1
        if walk is None:
            self._failures += 1
            return self.legal_actions()[0]
        # A command may lead where the bot went by other cells, past what it had to pass: after a few such ways, step by
        # step.
        command, used = longest_command(
            walk if self._walks <= WALKS_BY_COMMANDS else walk[:2], self._sight, self._env.carrying
        )
        self._walk = walk[used:]
        return command

    def close(self) -> None:
        self._env.close()
        super().close()

    def _actions_left(self) -> int | None:
        # The engine's own limit of steps is a budget like ours: it truncates.
        return 0 if self._cut else super()._actions_left()

    def _look(self) -> None:
        self._sight = Sight(self._env)
        self._commands = None

    def _put_down(self, seed: int) -> None:
        with contextlib.redirect_stdout(io.StringIO()):  # The engine prints every layout it rejects.
            self._env.reset(seed=seed)
        self._put = seed

    def _everything(self) -> str:
        return f"{self._name} {self._env.mission} {pose_of(self._env)} {self._env.grid.encode().tobytes().hex()}"


def level_name(level: int | str) -> str:
    """Id of a level in ``minigrid``.

    Raises: ConfigError: if there is no such level; the message names the nearest one.
    """
    known = {
        name.removeprefix(PREFIX).rsplit("-v", 1)[0]: name for name in gymnasium.registry if name.startswith(PREFIX)
    }
    if isinstance(level, int):
        if not 1 <= level <= len(LEVELS):
            raise ConfigError("env_config.level", f"levels are numbered 1 to {len(LEVELS)}, got {level}")
        level = LEVELS[level - 1]
    name = level.removeprefix(PREFIX).rsplit("-v", 1)[0]
    if name not in known:
        hint = did_you_mean(name, known, f"levels: {', '.join(LEVELS)}")
        raise ConfigError("env_config.level", f"there is no level {level!r}; {hint}")
    return known[name]


def described(seen: Seen) -> str:
    """An object as it is told: its name and, for a door, its state."""
    thing = seen.thing
    if thing.type != "door":
        return seen.name
    return f"{seen.name} ({'open' if thing.is_open else 'locked' if thing.is_locked else 'closed'})"


def steps_said(steps: int) -> str:
    """A number of steps."""
    return "1 step" if steps == 1 else f"{steps} steps"


def place_said(ahead: int, right: int) -> str:
    """Where something is, as seen by the agent."""
    side = f"{steps_said(abs(right))} to your {'right' if right > 0 else 'left'}"
    if not right:
        return f"{steps_said(ahead)} right in front of you"
    return f"{steps_said(ahead)} in front of you and {side}" if ahead else side


def listed(parts: list[str]) -> str:
    """Parts of a sentence, separated by commas and ``and``."""
    return ", ".join(parts[:-1]) + " and " + parts[-1]
