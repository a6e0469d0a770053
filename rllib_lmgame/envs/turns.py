"""Games in which two or more players take turns, in text: PettingZoo AEC environments with our common rules.

The guarantees are those of :mod:`rllib_lmgame.envs.contract`. After an invalid action the same player acts again;
``max_invalid_actions`` in a row forfeit the game. The penalty of an invalid action is the offender's alone and is
reported as ``info["penalty"]``: results of a zero-sum game sum to zero without the penalties.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv
from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from rllib_lmgame.envs.contract import (
    MAX_TEXT,
    GameError,
    GameOptions,
    InvalidAction,
    invalid_rule,
    observation_text,
    read_options,
    seeded,
    text_space,
)
from rllib_lmgame.schema import option


@dataclass(frozen=True)
class TextAECOptions(GameOptions):
    """``env_config`` keys of every turn-based game; a player who writes only what is invalid must not play for ever."""

    max_invalid_actions: int = option(3, "Invalid actions in a row with which a player forfeits the game.", low=1)


class TextAECGame(AECEnv[str, str, str]):
    """A turn-based game for several players.

    A game derives from it, sets ``Options``, ``metadata``, ``seats`` (or :meth:`seat_roles`) and writes the abstract methods. ``env_config``
    keys are the constructor's keyword arguments.

    Raises:
        ConfigError: for an unknown key or an impossible value.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "text_game_v0", "is_parallelizable": False, "render_modes": ["ansi"]}
    Options: ClassVar[type[TextAECOptions]] = TextAECOptions
    zero_sum: ClassVar[bool] = True
    cooperative: ClassVar[bool] = False
    """All players reach the goal together or not at all; otherwise they win, draw and lose against each other
    (:func:`~rllib_lmgame.envs.verdicts.outcomes`)."""
    has_levels: ClassVar[bool] = False
    """Whether the seed picks a level that must belong to one split alone."""
    seats: ClassVar[Mapping[str, str]] = {"player_0": "player_0", "player_1": "player_1"}
    """Agent ids, in the order they play, and their roles."""

    def __init__(self, render_mode: str | None = None, **env_config: Any) -> None:
        super().__init__()
        self.options: Any = read_options(self.Options, env_config)
        self.render_mode = render_mode
        self.roles: Mapping[str, str] = dict(self.seat_roles())
        self.possible_agents = list(self.roles)
        self.agents: list[str] = []
        self.observation_spaces = {agent: text_space() for agent in self.possible_agents}
        self.action_spaces = {agent: text_space() for agent in self.possible_agents}
        self._seeds = np.random.default_rng()
        self.random = random.Random(0)
        self.expert_random = random.Random(0)

    @property
    @abstractmethod
    def rules(self) -> str:
        """Rules and legend; :attr:`instructions` adds what becomes of an invalid reply."""

    @property
    def instructions(self) -> str:
        """All a player is told, for the system prompt or each player's first observation."""
        return f"{self.rules}\n{invalid_rule(self.options)}" if self.rules else ""

    @abstractmethod
    def start(self) -> None:
        """Set up a new game; chance comes from ``self.random``."""

    @abstractmethod
    def player_to_move(self) -> str:
        """Agent whose turn it is (at the end of the game: any)."""

    @abstractmethod
    def view(self, agent: str) -> str:
        """What ``agent`` sees, in words it may see."""

    @abstractmethod
    def legal_actions(self, agent: str) -> tuple[str, ...]:
        """Actions ``agent`` may take now, as texts; none if it is not to move."""

    @abstractmethod
    def read_move(self, text: str) -> Hashable:
        """The move that ``text`` says.

        Raises:
            InvalidAction: if it says none, several, or one that is not allowed now.
        """

    @abstractmethod
    def play_move(self, agent: str, move: Any) -> None:
        """Make a move of the player to move."""

    @property
    @abstractmethod
    def finished(self) -> bool:
        """The game is over by its own rules."""

    @abstractmethod
    def results(self) -> Mapping[str, float]:
        """Reward of every agent at the end."""

    @abstractmethod
    def forfeit_results(self, agent: str) -> Mapping[str, float]:
        """Reward of every agent when ``agent`` forfeits."""

    def eliminated(self) -> Mapping[str, float]:
        """Players whose game is over while others play on, and their rewards; asked after every move, each player is let out once."""
        return {}

    def pass_action(self, agent: str) -> str | None:
        """What is played for ``agent``, who is to move but can write no more, while the others play on; by default nothing: it forfeits."""
        return None

    def won(self, agent: str, results: Mapping[str, float]) -> bool:
        """Success of ``agent`` at the end; by default a positive result."""
        return results[agent] > 0

    def seat_roles(self) -> Mapping[str, str]:
        """Agent ids in order and their roles, where they depend on the options."""
        return self.seats

    def expert_action(self, agent: str) -> str | None:
        """What the game's own expert would play for ``agent``, or ``None`` without one."""
        return None

    def observation_space(self, agent: str) -> spaces.Text:
        return self.observation_spaces[agent]  # type: ignore[return-value]

    def action_space(self, agent: str) -> spaces.Text:
        return self.action_spaces[agent]  # type: ignore[return-value]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start the game of ``seed`` (without one: of a fresh seed)."""
        if seed is not None:
            self._seeds = np.random.default_rng(seed)
        else:
            seed = int(self._seeds.integers(2**31))
        self.random = seeded(seed, "game")
        self.expert_random = seeded(seed, "expert")
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self._notes = dict.fromkeys(self.agents, "")
        self._acted = dict.fromkeys(self.agents, False)
        self._invalid_run = dict.fromkeys(self.agents, 0)
        self.start()
        self.agent_selection = self.player_to_move()
        self.infos = {agent: self._info(agent, invalid=False) for agent in self.agents}

    def observe(self, agent: str) -> str:
        """What ``agent`` sees: rules before its first action, what was wrong with its last one, the state."""
        rules = self.instructions if self.options.show_rules and not self._acted[agent] else ""
        legal = self.legal_actions(agent) if self.options.show_legal_actions and not self._over() else ()
        listed = "Legal actions: " + ", ".join(legal) if legal else ""
        return observation_text((rules, self._notes[agent], self.view(agent), listed))

    def step(self, action: str | None) -> None:
        """One reply of the player to move. After the end only ``None`` is taken, once per player."""
        if not self.agents:
            raise GameError("the episode is over; call reset() before step()")
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        self.rewards = dict.fromkeys(self.agents, 0.0)
        problem = self._play(agent, action)
        self._acted[agent] = True
        self._notes[agent] = f"Invalid action: {problem}" if problem else ""
        self._invalid_run[agent] = self._invalid_run[agent] + 1 if problem else 0
        self.infos = {a: self._info(a, invalid=bool(problem) and a == agent) for a in self.agents}
        if problem:
            self.rewards[agent] += self._penalty(problem)
            self.infos[agent]["penalty"] = self._penalty(problem)
        if self._invalid_run[agent] >= self.options.max_invalid_actions:
            self._end(self.forfeit_results(agent), forfeiter=agent)
        elif self.finished:
            self._end(self.results())
        else:
            self._let_out()
        self._accumulate_rewards()

    def forfeit(self, agent: str) -> None:
        """``agent``, who is to move but can write no more, gives up."""
        self._cumulative_rewards[agent] = 0.0
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self.infos = {a: self._info(a, invalid=False) for a in self.agents}
        self._end(self.forfeit_results(agent), forfeiter=agent)
        self._accumulate_rewards()

    def render(self) -> str:
        """The state as the player to move sees it."""
        return self.view(self.agent_selection)

    def state(self) -> str:
        """All views, one below the other."""
        return "\n".join(f"{agent}: {self.view(agent)}" for agent in self.possible_agents)

    def close(self) -> None:
        """Nothing to free."""

    def _play(self, agent: str, action: Any) -> InvalidAction | None:
        try:
            if not isinstance(action, str):
                raise InvalidAction("the reply must be text.")
            if len(action) > MAX_TEXT:
                raise InvalidAction("the reply is too long.")
            self.play_move(agent, self.read_move(action))
        except InvalidAction as problem:
            return problem
        return None

    def _penalty(self, problem: InvalidAction) -> float:
        return float(self.options.invalid_action_penalty if problem.penalty is None else problem.penalty)

    def _end(self, results: Mapping[str, float], forfeiter: str | None = None) -> None:
        """End the game of the players that ``results`` names."""
        for agent in self.agents:
            if agent not in results or self.terminations[agent]:
                continue
            self.rewards[agent] += float(results[agent])
            self.terminations[agent] = True
            self.infos[agent] |= {
                "success": bool(self.won(agent, results)),
                "forfeit": agent == forfeiter,
                "result": float(results[agent]),
                "legal_actions": (),
            }

    def _let_out(self) -> None:
        """End the game of those who are out of it; who is left goes on."""
        out = {agent: result for agent, result in self.eliminated().items() if agent in self.agents}
        self._end(out)
        self.agent_selection = self.player_to_move()
        if out:
            self._deads_step_first()

    def _over(self) -> bool:
        return all(self.terminations.values()) or self.finished

    def _info(self, agent: str, invalid: bool) -> dict[str, Any]:
        return {"invalid_action": invalid, "legal_actions": () if self._over() else self.legal_actions(agent)}


def maker_of(raw_env: type[TextAECGame]) -> Callable[..., OrderEnforcingWrapper[str, str, str]]:
    """The function ``env`` of a module that is imported as PettingZoo's own games are (``kuhn_poker_v0.env(players=3)``).

    It takes ``render_mode`` and the game's options, raises :class:`~rllib_lmgame.errors.ConfigError` for an unknown key or an impossible value, and
    makes the game with an error for calls that come before ``reset``.
    """

    def env(render_mode: str | None = None, **env_config: Any) -> OrderEnforcingWrapper[str, str, str]:
        return OrderEnforcingWrapper(raw_env(render_mode, **env_config))

    return env
