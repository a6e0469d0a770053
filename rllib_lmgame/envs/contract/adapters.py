"""Sessions over the three kinds of environment: Gymnasium, PettingZoo AEC and PettingZoo parallel.

An environment may follow these conventions, as ours do. In its infos: ``info["legal_actions"]`` (texts),
``info["turns_left"]``, ``info["invalid_action"]``, ``info["success"]``, ``info["measures"]``, ``info["category"]``
(the kind of level, at the end: evaluations have a row for each). Attributes:
``instructions`` and ``cooperative``, and a mapping ``roles`` (agent id to role). Methods:
``expert_action``, ``expert_thought`` and ``functions`` (:class:`~.functions.GameFunction` as mappings). Of games for
several also ``pass_action(agent)`` and ``forfeit(agent)``: what becomes of a player who can write no more.

What a game hands out is checked here: a reward that is not a finite number, an observation that is not text, or an
exception becomes a :class:`~rllib_lmgame.envs.contract.base.GameError` that names the game and the fault.
"""

from __future__ import annotations

import numbers
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
from gymnasium import spaces

from rllib_lmgame.base.step_timer import WaitedTooLong
from rllib_lmgame.base.text import in_words, is_writable, place_of
from rllib_lmgame.envs.contract.base import MAX_TEXT, GameError, TextGame
from rllib_lmgame.envs.contract.functions import read_functions
from rllib_lmgame.envs.contract.session import GameSession, Observation, StepResult
from rllib_lmgame.envs.contract.simultaneous import TextParallelGame
from rllib_lmgame.envs.contract.turns import TextAECGame

T = TypeVar("T")

MAX_REWARD = 1e9
"""Rewards are added up in float32: what is larger than this says nothing any more."""

MAX_TURNS_LEFT = 10**9
FLAGS = ("invalid_action", "forfeit")
"""Keys of an info that are True or False, or the number 1 or 0 of any type: nothing else that only counts as one of
them.
"""

LONGEST_OBSERVATION = 16 * MAX_TEXT
"""Of a game of another author, in characters: all games of an env runner wait while one is encoded."""

OUR_BASES = TextGame | TextAECGame | TextParallelGame
"""What the games built on this package derive from."""

MAX_RANDOM_LENGTH = 64
"""Characters of a random reply to a game whose action space allows many more."""


class EnvironmentSession(GameSession):
    """What the three kinds have in common.

    Args:
        game_id: Id or import path, for messages.
        env: The environment.
        own: It is a game of this package (:attr:`~rllib_lmgame.envs.registry.GameSpec.own`).
    """

    def __init__(self, game_id: str, env: Any, own: bool = False) -> None:
        self.game_id = game_id
        self.env = env
        game = getattr(env, "unwrapped", env)
        self._game = game
        self.trusted = own and not getattr(game, "slow_calls", False)
        self.instructions = str(self._attribute("instructions", ""))
        self.cooperative = self._declared("cooperative")
        self.secret_seats = self._declared("secret_seats")
        self.program = getattr(game, "program", None) if isinstance(game, TextGame) else None
        self._ends: dict[str, bool] = {}
        seats = self._guard("possible_agents", self._seats)
        self.agent_ids = self._checked(seats)
        self._ids: dict[str, Any] = dict(zip(self.agent_ids, seats, strict=True))
        self._names: dict[Any, str] = self._guard("possible_agents", lambda: dict(zip(seats, self._ids, strict=True)))
        self.roles = self._roles(self._attribute("roles", {}))
        listed = self._attribute("functions", None)
        self.functions = () if listed is None else self._guard("functions", lambda: read_functions(listed()))

    def _seats(self) -> tuple[Any, ...]:
        """The agents as the environment calls them: anything that can be a key of a mapping."""
        raise NotImplementedError

    def _checked(self, seats: tuple[Any, ...]) -> tuple[str, ...]:
        """The agents' names (``0`` is called ``"0"``), which are keys of the episode log and of metrics."""
        names = self._guard("possible_agents", lambda: tuple(s if isinstance(s, str) else str(s) for s in seats))
        for number, (seat, name) in enumerate(zip(seats, names, strict=True)):
            if not is_writable(name):
                raise self._fault(f"{seat!r} is no name of an agent; it must be text that UTF-8 holds")
            if seat in seats[:number] or name in names[:number]:
                raise self._fault(f"two agents are called {name!r}; give each a name of its own")
        return names

    def level(self) -> str | None:
        named = (info.get("level") for info in self._started() if self._attribute("has_levels", True))
        return next((str(level) for level in named if isinstance(level, str | int)), None)

    def _started(self) -> Iterable[Mapping[str, Any]]:
        """What the environment said of each agent when the level began."""
        raise NotImplementedError

    def _roles(self, declared: Any) -> dict[str, str]:
        """Kind of seat of every agent."""
        if not isinstance(declared, Mapping):
            raise self._fault(f"`roles` is a {type(declared).__name__}; it must be a mapping of agents to roles")
        roles = {name: str(declared.get(seat, name)) for name, seat in self._ids.items()}
        for role in roles.values():
            if not is_writable(role):
                raise self._fault(f"{role!r} is no name of a role; it must be text that UTF-8 holds")
        return roles

    def _declared(self, name: str) -> bool:
        """What an attribute says that a game may have: True or False, nothing that only counts as one of them."""
        return self._flag(self._attribute(name, False), name)

    def _attribute(self, name: str, default: Any) -> Any:
        """An attribute that a game may have; reading it may run code of the game's."""
        try:
            return getattr(self._game, name, default)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise self._fault(f"{name} raised {in_words(error)}{place_of(error)}") from error

    def expert_action(self, agent_id: str) -> str | None:
        return self._optional("expert_action", self._id(agent_id))

    def expert_thought(self, agent_id: str) -> str | None:
        return self._optional("expert_thought", self._id(agent_id))

    def random_action(self, agent_id: str, rng: random.Random) -> str | None:
        """A text of the action space of a game that others wrote; those of this package's base classes take any text,
        so that they say themselves what is typical, if anything is.
        """
        if isinstance(self._game, OUR_BASES):
            return self._optional("random_action", self._id(agent_id), rng)
        space = self._action_space(agent_id)
        length = rng.randint(space.min_length, max(space.min_length, min(space.max_length, MAX_RANDOM_LENGTH)))
        return "".join(rng.choices(sorted(space.character_set), k=length))

    def _action_space(self, agent_id: str) -> spaces.Text:
        return self.env.action_space(self._id(agent_id))

    def pass_action(self, agent_id: str) -> str | None:
        return self._optional("pass_action", self._id(agent_id))

    def _ended(self, agent_id: str, terminated: Any, truncated: Any) -> bool:
        """Note whether a player's game is over, and how."""
        ended, cut = self._flag(terminated, "terminated"), self._flag(truncated, "truncated")
        if ended or cut:
            self._ends.setdefault(agent_id, ended)
        return agent_id in self._ends

    def _result(self, rewards: Mapping[str, float], infos: Mapping[str, Mapping[str, Any]], over: bool) -> StepResult:
        """A step's result; the game as a whole was cut short if it was for one of the players."""
        terminated = over and all(self._ends.get(agent, True) for agent in self.agent_ids)
        return StepResult(rewards, terminated, over and not terminated, infos, dict(self._ends))

    def _optional(self, name: str, *args: Any) -> str | None:
        """What a method says that a game may have."""
        method = getattr(self._game, name, None)
        return self._guard(name, method, *args) if method else None

    def close(self) -> None:
        self._guard("close", self.env.close)

    def _guard(self, name: str, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call the game; what it raises, ``sys.exit()`` included, becomes a :class:`GameError`."""
        try:
            return call(*args, **kwargs)
        except (GameError, WaitedTooLong, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise self._fault(f"{name}() raised {in_words(error)}{place_of(error)}") from error

    def _fault(self, what: str) -> GameError:
        return GameError(f"{self.game_id}: {what}")

    def _id(self, agent_id: str) -> Any:
        """What the environment calls an agent."""
        return self._ids.get(agent_id, agent_id)

    def _known(self, seat: Any) -> str:
        """Name of an agent, one of those the environment began with."""
        if seat not in self._names:
            raise self._fault(f"{seat!r} is none of possible_agents, {', '.join(self.agent_ids)}")
        return self._names[seat]

    def _named(self, values: Mapping[Any, T]) -> dict[str, T]:
        """What the environment says of each agent, by names."""
        return {self._names.get(seat, str(seat)): value for seat, value in values.items()}

    def _infos_of(self, values: Mapping[Any, Any]) -> dict[str, dict[str, Any]]:
        return {name: self._info(info) for name, info in self._named(values).items()}

    def _reward(self, value: Any, agent_id: str) -> float:
        scalar = value.item() if isinstance(value, np.generic | np.ndarray) and np.size(value) == 1 else value
        if isinstance(scalar, bool) or not isinstance(scalar, int | float) or not abs(scalar) <= MAX_REWARD:
            must = f"it must be a finite number of at most {MAX_REWARD:g}"
            raise self._fault(f"step() gave {agent_id} the reward {value!r}; {must}")
        return float(scalar)

    def _flag(self, value: Any, name: str) -> bool:
        if not isinstance(value, bool | np.bool_):
            raise self._fault(f"{name} is {value!r}; it must be True or False")
        return bool(value)

    def _info(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise self._fault(f"info is {type(value).__name__}; it must be a dict")
        info = dict(value)
        for name in FLAGS:
            flag = info.get(name)
            if flag is None:
                continue
            if not (isinstance(flag, np.bool_ | numbers.Number) and flag in (0, 1)):
                raise self._fault(f"info[{name!r}] is {flag!r}; it must be True or False")
            info[name] = bool(flag)
        return info

    def _text(self, value: Any, agent_id: str) -> str:
        if not isinstance(value, str):
            raise self._fault(f"the observation of {agent_id} is {type(value).__name__}; it must be text")
        if len(value) > LONGEST_OBSERVATION:
            most = f"at most {LONGEST_OBSERVATION:,} are read"
            raise self._fault(f"the observation of {agent_id} has {len(value):,} characters; {most}")
        return value

    def _observation(self, text: Any, info: Mapping[str, Any], agent_id: str) -> Observation:
        given, left = info.get("legal_actions", ()), info.get("turns_left")
        legal = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (None,)
        if not all(isinstance(action, str) for action in legal):
            raise self._fault(f"info['legal_actions'] is {given!r}; it must be a sequence of texts")
        if left is not None and not (isinstance(left, numbers.Integral) and abs(int(left)) <= MAX_TURNS_LEFT):
            raise self._fault(f"info['turns_left'] must be a whole number of at most {MAX_TURNS_LEFT:,}, or None")
        refusal = self._game.referee.note(self._id(agent_id)) if isinstance(self._game, OUR_BASES) else ""
        return Observation(self._text(text, agent_id), legal, None if left is None else int(left), refusal)

    def _action_of(self, actions: Mapping[str, str], agent_id: str) -> str:
        if agent_id not in actions:
            raise self._fault(f"step() needs an action of {agent_id}, got {sorted(actions) or 'none'}")
        return actions[agent_id]


class GymnasiumSession(EnvironmentSession):
    """A Gymnasium environment: one agent."""

    def _seats(self) -> tuple[str, ...]:
        _check_spaces(self.game_id, "", self.env.observation_space, self.env.action_space)
        self._agent = str(getattr(self._game, "agent_id", "player"))
        self._text_now: Any = ""
        self._info_now: dict[str, Any] = {}
        self._playing = False
        return (self._agent,)

    def _action_space(self, agent_id: str) -> spaces.Text:
        return self.env.action_space

    def reset(self, seed: int) -> None:
        self._text_now, info = self._guard("reset", self.env.reset, seed=seed)
        self._info_now = self._info(info)
        self._ends = {}
        self._playing = True

    def _started(self) -> Iterable[Mapping[str, Any]]:
        return (self._info_now,)

    def to_act(self) -> tuple[str, ...]:
        return (self._agent,) if self._playing else ()

    def observe(self, agent_id: str) -> Observation:
        return self._observation(self._text_now, self._info_now, agent_id)

    def step(self, actions: Mapping[str, str]) -> StepResult:
        result = self._guard("step", self.env.step, self._action_of(actions, self._agent))
        if not isinstance(result, tuple) or len(result) != 5:
            must = "it must return (observation, reward, terminated, truncated, info)"
            raise self._fault(f"step() returned {result!r}; {must}")
        self._text_now, reward, terminated, truncated, info = result
        self._text(self._text_now, self._agent)
        self._info_now = self._info(info)
        self._playing = not self._ended(self._agent, terminated, truncated)
        return self._result(
            {self._agent: self._reward(reward, self._agent)}, {self._agent: self._info_now}, not self._playing
        )

    def expert_action(self, agent_id: str) -> str | None:
        return self._optional("expert_action")

    def expert_thought(self, agent_id: str) -> str | None:
        return self._optional("expert_thought")


class AECSession(EnvironmentSession):
    """A PettingZoo AEC environment: players take turns."""

    def _seats(self) -> tuple[Any, ...]:
        for agent in self.env.possible_agents:
            _check_spaces(self.game_id, f" of {agent}", self.env.observation_space(agent), self.env.action_space(agent))
        self._last: dict[str, Observation] = {}
        return tuple(self.env.possible_agents)

    def reset(self, seed: int) -> None:
        self._last, self._ends = {}, {}
        self._guard("reset", self.env.reset, seed=seed)
        self._clear_finished()

    def _started(self) -> Iterable[Mapping[str, Any]]:
        return map(self._info, self.env.infos.values())

    def to_act(self) -> tuple[str, ...]:
        return (self._known(self.env.agent_selection),) if self.env.agents else ()

    def observe(self, agent_id: str) -> Observation:
        if agent_id in self._last:
            return self._last[agent_id]
        return self._seen(agent_id)

    def step(self, actions: Mapping[str, str]) -> StepResult:
        agent = self._known(self.env.agent_selection)
        self._guard("step", self.env.step, self._action_of(actions, agent))
        return self._taken()

    def forfeit(self, agent_id: str) -> StepResult | None:
        method = getattr(self._game, "forfeit", None)
        if method is None:
            return None
        self._guard("forfeit", method, self._id(agent_id))
        return self._taken()

    def _taken(self) -> StepResult:
        """What the environment says after a step; players whose game is over are taken off the table."""
        rewards = {self._known(a): self._reward(r, a) for a, r in self.env.rewards.items()}
        infos = self._infos_of(self.env.infos)
        self._clear_finished()
        return self._result(rewards, infos, not self.env.agents)

    def _clear_finished(self) -> None:
        """Keep what players see last whose game is over, and take them off the table, as PettingZoo wants it."""
        for agent in self.env.agents:
            if self._is_over(agent) and (name := self._known(agent)) not in self._last:
                self._last[name] = self._seen(name)
        while self.env.agents and self._is_over(self._selected()):
            left = len(self.env.agents)
            self._guard("step", self.env.step, None)
            if len(self.env.agents) >= left:
                still = "after step(None) a player whose game is over is still among the agents"
                raise self._fault(f"{still}; call _was_dead_step()")
        if self.env.agents and self._known(self.env.agent_selection) in self._ends:
            raise self._fault(f"{self.env.agent_selection} is to act, but its game was over before")

    def _seen(self, agent_id: str) -> Observation:
        seat = self._id(agent_id)
        text = self._guard("observe", self.env.observe, seat)
        return self._observation(text, self._info(self.env.infos.get(seat, {})), agent_id)

    def _selected(self) -> Any:
        agent = self.env.agent_selection
        if agent not in self.env.agents:
            raise self._fault(f"agent_selection is {agent!r}, who is not among the agents any more")
        return agent

    def _is_over(self, agent: Any) -> bool:
        """Whether a player is done, as the environment says now."""
        terminated, truncated = self.env.terminations.get(agent), self.env.truncations.get(agent)
        self._ended(self._known(agent), terminated, truncated)
        return bool(terminated or truncated)


class ParallelSession(EnvironmentSession):
    """A PettingZoo parallel environment: all players move at once."""

    def _seats(self) -> tuple[Any, ...]:
        for agent in self.env.possible_agents:
            _check_spaces(self.game_id, f" of {agent}", self.env.observation_space(agent), self.env.action_space(agent))
        self._texts: dict[str, Any] = {}
        self._infos: dict[str, dict[str, Any]] = {}
        return tuple(self.env.possible_agents)

    def reset(self, seed: int) -> None:
        texts, infos = self._guard("reset", self.env.reset, seed=seed)
        self._texts, self._infos = self._named(texts), self._infos_of(infos)
        self._ends = {}

    def _started(self) -> Iterable[Mapping[str, Any]]:
        return self._infos.values()

    def to_act(self) -> tuple[str, ...]:
        return tuple(name for name in map(self._known, self.env.agents) if name not in self._ends)

    def observe(self, agent_id: str) -> Observation:
        return self._observation(self._texts.get(agent_id), self._infos.get(agent_id, {}), agent_id)

    def step(self, actions: Mapping[str, str]) -> StepResult:
        moves = {self._id(agent): self._action_of(actions, agent) for agent in self.to_act()}
        texts, rewards, terminations, truncations, infos = self._guard("step", self.env.step, moves)
        self._texts |= self._named(texts)
        now = self._infos_of(infos)
        self._infos |= now
        checked = {self._known(agent): self._reward(reward, agent) for agent, reward in rewards.items()}
        late = [agent for agent, reward in checked.items() if reward and agent in self._ends]
        if late:
            raise self._fault(f"step() rewards {', '.join(late)}, whose game was over before")
        for agent in moves:
            self._ended(self._known(agent), terminations.get(agent, False), truncations.get(agent, False))
        return self._result(checked, now, not self.to_act())


def _check_spaces(game_id: str, whose: str, *found: Any) -> None:
    for name, space in zip(("observation", "action"), found, strict=True):
        if not isinstance(space, spaces.Text):
            raise GameError(f"{game_id}: the {name} space{whose} is {space}; a text game has gymnasium.spaces.Text")
