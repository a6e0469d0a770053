"""Any Gymnasium environment with words for actions as a text game."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.base.trust import is_name
from rllib_lmgame.envs.contract.base import SEPARATOR, InvalidAction, TextGame, TextGameOptions, Variant

MAX_STARTS_TRIED = 3_000
DISCOUNT = 0.999
"""Discount of the values the expert plays by: near 1, so that reaching the goal counts for more than reaching it
soon.
"""

MAX_SWEEPS, TOLERANCE = 5_000, 1e-7
MAX_PATH = 1_000
COLOURED = re.compile("\x1b\\[[0-9;]*m([^\x1b]*)\x1b\\[0m")

RULES = """{rules}
{actions}
{several}There are {turns} turns{total}."""


class Level(NamedTuple):
    """An episode of the environment: the seed of its reset, and what a player sees then."""

    seed: int
    first: str


class GymTextOptions(TextGameOptions):
    """``env_config`` of Gymnasium environments."""

    max_turns: int = option(100, "Replies per episode.", ge=1)
    env_id: str = option(
        "FrozenLake-v1", "Id of the Gymnasium environment (`module:Id-v0` imports the module first).", stranger=is_name
    )
    env_kwargs: dict[str, Any] = option({}, "Arguments for `gymnasium.make`.")
    action_names: tuple[str, ...] | None = option(
        None, "Words for the actions of a Discrete space, in order; null is their numbers.", stranger=True
    )
    rules: str = option(
        "", "What a player is told about the game: what is seen, what shall be reached, what is paid.", stranger=True
    )
    observation: str = option(
        "render",
        "Show what the environment draws as text (`ansi`), the values of its observation, or both.",
        choices=("render", "values", "both"),
    )
    success_above: float = option(0.0, "The episode is won if the environment ends it with a last reward above this.")
    split_by_start: bool = option(
        True,
        "Levels are told apart by what is seen first; false where all episodes start alike (all splits then play "
        "the same).",
    )


class GymTextGame(TextGame):
    """A Gymnasium environment, played in text.

    Observation: what the environment draws in render mode ``ansi`` (a coloured character is shown in brackets, for
        texts have no colours). Or the values of its observation (``Discrete``, ``MultiDiscrete``, ``Text``, or tuples
        of them), or both.
    Action: one of ``action_names``; for an environment with a ``Text`` action space any text of it.
    Reward: the environment's; -0.1 for a reply that is no action.
    Success: the environment ends the episode with a last reward above ``success_above``.
    Horizon: 100 replies; a time limit of the environment's own truncates too.
    Levels: seeds of the environment, split by a hash of what is seen first.
    Solver: value iteration where the environment tells its transitions (``env.P``, as the tabular ones of ``toy_text``
        do); on a deterministic one that is a path of the greatest return.
    """

    variants: ClassVar[tuple[Variant, ...]] = (
        Variant(
            "lmgame/GymFrozenLake-v0",
            (-6.7, 1.0),
            "Gymnasium's slippery FrozenLake on its 4x4 map.",
            {
                "action_names": ("Left", "Down", "Right", "Up"),
                "rules": "You cross a frozen lake from the start S to the goal G over the ice F; a hole H ends the "
                "game. Brackets show where you are.\n"
                "The ice is slippery: one time in three each you go where you want, or to one side or the other of "
                "it. The goal gives 1.",
                "split_by_start": False,
            },
        ),
        Variant(
            "lmgame/CliffWalking-v0",
            (-10000.0, -13.0),
            "Gymnasium's CliffWalking: walk along a cliff to the goal.",
            {
                "env_id": "CliffWalking-v1",
                "action_names": ("Up", "Right", "Down", "Left"),
                "rules": "You walk from the lower left corner to the target. x is you, o ground, C cliff, T the "
                "target.\nEach step costs 1; a step onto the cliff costs 100 and takes you back to the start.",
                "split_by_start": False,
                "success_above": -50.0,
                "max_turns": 20,
                "max_actions_per_turn": 5,
                "invalid_action_penalty": -5.0,
                "max_invalid_actions": None,
            },
        ),
    )
    Options: ClassVar[type[TextGameOptions]] = GymTextOptions
    options: GymTextOptions

    def __init__(self, render_mode: str | None = None, **env_config: object) -> None:
        super().__init__(render_mode, **env_config)
        self._env = self._made()
        self._names = self._action_names()
        self._by_name = {name.lower(): i for i, name in enumerate(self._names)}
        self._ended = self._cut = False
        self._seen: Any = None
        self._last_reward = 0.0
        self._mask: Any = None

    @property
    def has_levels(self) -> bool:
        return self.options.split_by_start

    @property
    def rules(self) -> str:
        chosen = self.options
        per_turn = chosen.max_actions_per_turn
        return RULES.format(
            rules=chosen.rules or f"You play {chosen.env_id}.",
            actions=f"Actions: {', '.join(self._names)}." if self._names else "Reply with any text.",
            several=f"Up to {per_turn} actions per reply, joined by {SEPARATOR}. " if per_turn > 1 else "",
            turns=chosen.max_turns,
            total=self.total_rule("action"),
        )

    @property
    def success(self) -> bool:
        return self._ended and self._last_reward > self.options.success_above

    @property
    def finished(self) -> bool:
        return self._ended

    @property
    def solver_wins(self) -> bool:
        return self._policy is not None and self._deterministic

    def levels(self, rng: random.Random) -> Iterator[Level]:
        for _ in range(MAX_STARTS_TRIED):
            seed = rng.getrandbits(31)
            self._restart(seed)
            yield Level(seed, self.view())
        raise ConfigError(
            "env_config.split",
            f"{self.options.env_id} starts in too few ways to fill it; set split_by_start: false, or take split 'all'",
        )

    def level_key(self, level: Level) -> str:
        return f"{self.options.env_id} {sorted(self.options.env_kwargs.items())} {level.first}"

    def split_of_level(self, digest: str, level: Level) -> str:
        return super().split_of_level(digest, level) if self.options.split_by_start else self.options.split

    def start(self, level: Level) -> None:
        self._restart(level.seed)

    def view(self) -> str:
        """What the player sees now; a game of one environment may say it better."""
        shown = []
        if self.options.observation != "values":
            shown.append(without_colours(self._env.render()))
        if self.options.observation != "render":
            shown.append(f"Observation: {values_said(self._seen)}")
        return "\n".join(shown)

    def board(self) -> str:
        return self.view()

    def legal_actions(self) -> tuple[str, ...]:
        """All actions, or those the environment's ``action_mask`` leaves (the others are accepted too)."""
        if self._mask is None or not any(self._mask):
            return self._names
        return tuple(name for name, useful in zip(self._names, self._mask, strict=True) if useful)

    def read_move(self, text: str) -> Any:
        if not self._names:
            if text not in self._env.action_space:
                raise InvalidAction("that text is no action of this game.")
            return text
        index = self._by_name.get(text.rstrip(".").lower())
        if index is None:
            several = f"; several are joined by {SEPARATOR}" if self.options.max_actions_per_turn > 1 else ""
            raise InvalidAction(f"the actions are {', '.join(self._names)}{several}.")
        return int(self._env.action_space.start) + index

    def play_move(self, move: Any) -> float:
        self._seen, reward, ended, cut, info = self._env.step(move)
        self._ended, self._cut = bool(ended), bool(cut)
        self._mask = info.get("action_mask")
        self._last_reward = float(reward)
        return self._last_reward

    def solve(self) -> list[str] | None:
        """Actions to the end of the episode by the best policy; only the next one where chance decides what it does."""
        if self._policy is None:
            return None
        state, path = int(self._env.unwrapped.s), list[str]()
        while len(path) < MAX_PATH:
            action = self._policy[state]
            path.append(self._names[action])
            outcomes = self._env.unwrapped.P[state][action]
            if len(outcomes) > 1 or outcomes[0][3]:
                break
            state = int(outcomes[0][1])
        return path

    def expert_action(self) -> str | None:
        return None if self._policy is None else super().expert_action()

    def close(self) -> None:
        self._env.close()
        super().close()

    def _actions_left(self) -> int | None:
        # The environment's own time limit is a budget like ours: it truncates.
        return 0 if self._cut else super()._actions_left()

    def _restart(self, seed: int) -> None:
        self._seen, info = self._env.reset(seed=seed)
        self._mask = info.get("action_mask")
        self._ended = self._cut = False
        self._last_reward = 0.0

    def _made(self) -> Any:
        """The environment. Raises: ConfigError: if there is no such environment, or it cannot be played in text."""
        chosen = self.options
        try:
            env = gymnasium.make(chosen.env_id, disable_env_checker=True, **chosen.env_kwargs)
            if chosen.observation != "values" and self._needs_render():
                if "ansi" not in env.metadata.get("render_modes", ()):
                    raise ConfigError(
                        "env_config.observation", f"{chosen.env_id} has no render mode 'ansi'; set observation: values"
                    )
                env = gymnasium.make(chosen.env_id, disable_env_checker=True, render_mode="ansi", **chosen.env_kwargs)
        except ConfigError:
            raise
        except gymnasium.error.Error as error:
            raise ConfigError("env_config.env_id", f"Gymnasium cannot make {chosen.env_id!r}: {error}") from error
        except (TypeError, ValueError, ModuleNotFoundError) as error:
            raise ConfigError(
                "env_config.env_kwargs", f"{chosen.env_id} does not take {dict(chosen.env_kwargs)}: {error}"
            ) from error
        if not isinstance(env.action_space, spaces.Discrete | spaces.Text):
            raise ConfigError(
                "env_config.env_id",
                f"the actions of {chosen.env_id} are {env.action_space}; only Discrete and Text can be words",
            )
        if chosen.observation != "render" and not can_be_said(env.observation_space):
            raise ConfigError(
                "env_config.observation",
                f"{env.observation_space} cannot be told in a few words; set observation: render",
            )
        return env

    def _needs_render(self) -> bool:
        """Whether :meth:`view` asks the environment to draw."""
        return type(self).view is GymTextGame.view

    def _action_names(self) -> tuple[str, ...]:
        names, space = self.options.action_names, self._env.action_space
        if isinstance(space, spaces.Text):
            return ()
        if names is None:
            return tuple(str(int(space.start) + i) for i in range(int(space.n)))
        if (
            len(names) != int(space.n)
            or len({name.lower() for name in names}) != len(names)
            or not all(name.strip(" .") for name in names)
        ):
            raise ConfigError(
                "env_config.action_names",
                f"{self.options.env_id} has {space.n} actions; give as many different words, got {list(names)}",
            )
        return names

    @cached_property
    def _policy(self) -> dict[int, int] | None:
        """Best action of every state, or ``None`` if the environment does not tell its transitions."""
        env = self._env.unwrapped
        return best_policy(env.P) if hasattr(env, "P") and hasattr(env, "s") else None

    @cached_property
    def _deterministic(self) -> bool:
        return all(len(outcomes) == 1 for actions in self._env.unwrapped.P.values() for outcomes in actions.values())


def without_colours(drawn: str) -> str:
    """A drawing with every coloured run ``x`` as ``[x]``, and no space at its ends."""
    marked = COLOURED.sub(lambda match: f"[{match[1]}]", drawn)
    return "\n".join(line.rstrip() for line in marked.splitlines()).strip("\n")


def can_be_said(space: Any) -> bool:
    """Whether the values of a space are a few numbers or a text."""
    if isinstance(space, spaces.Tuple):
        return all(can_be_said(part) for part in space.spaces)
    return isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary | spaces.Text)


def values_said(value: Any) -> str:
    """An observation in words: a text as it is, numbers separated by commas."""
    if isinstance(value, str):
        return value
    if isinstance(value, tuple | list | np.ndarray):
        return ", ".join(values_said(part) for part in value)
    return str(int(value))


def best_policy(transitions: Mapping[int, Mapping[int, list[tuple[float, int, float, bool]]]]) -> dict[int, int]:
    """Best action of every state, by value iteration.

    Args:
        transitions: State to action to ``(probability, next state, reward, terminated)``, as ``env.P`` of Gymnasium's
            tabular environments.
    """
    values = dict.fromkeys(transitions, 0.0)

    def worth(state: int, action: int) -> float:
        outcomes = transitions[state][action]
        return sum(
            chance * (reward + (0.0 if ended else DISCOUNT * values[int(ahead)]))
            for chance, ahead, reward, ended in outcomes
        )

    for _ in range(MAX_SWEEPS):
        change = 0.0
        for state, actions in transitions.items():
            value = max(worth(state, action) for action in actions)
            change = max(change, abs(value - values[state]))
            values[state] = value
        if change < TOLERANCE:
            break
    return {state: max(actions, key=lambda action: worth(state, action)) for state, actions in transitions.items()}
