"""What games for several players share, whether they take turns (:mod:`.turns`) or reply
at once (:mod:`.simultaneous`).
"""

from __future__ import annotations

import random
import re
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from rllib_lmgame.envs.contract.base import (
    GameError,
    GameOptions,
    Variant,
    check_written,
    observation_text,
    read_options,
    seeded,
    text_space,
)
from rllib_lmgame.envs.contract.referee import Referee
from rllib_lmgame.envs.contract.splits import choose_level, split_of_digest


class TextMultiAgentGame:
    """Mix-in of PettingZoo environments: options, seats, chance, levels, and what players are told.

    Raises: ConfigError: for an unknown key or an impossible value.
    """

    metadata: ClassVar[dict[str, Any]] = {}
    """As PettingZoo wants it; the name is that of the first of :attr:`variants`, if the class says none."""
    variants: ClassVar[tuple[Variant, ...]] = ()
    extra: ClassVar[str | None] = None
    """Both as of :class:`~rllib_lmgame.envs.contract.base.TextGame`."""
    Options: ClassVar[type[GameOptions]]
    """Options; they have a ``max_turns``."""
    cooperative: bool = False
    """All players reach the goal together or not at all; otherwise they win, draw and lose against each other
    (:func:`~rllib_lmgame.envs.contract.verdicts.outcomes`)."""
    has_levels: ClassVar[bool] = False
    """Whether the seed picks a level that must belong to one split alone: then the game writes :meth:`levels` and
    :meth:`level_key`, and finds the chosen one as ``self.level`` in :meth:`start`."""
    secret_seats: ClassVar[bool] = False
    """Players know of each other only what the game shows them, neither who sits where nor what others reply. Whoever
    shows the game to a player names nobody else's seat and shows nobody else's reply.
    """
    seats: ClassVar[Mapping[str, str]] = {"player_0": "player_0", "player_1": "player_1"}
    """Agent ids, in the order they play, and their roles."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "variants" in vars(cls) and "metadata" not in vars(cls):
            words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.variants[0].game_id.partition("/")[2])
            cls.metadata = {**cls.metadata, "name": words.replace("-", "_").lower()}

    def __init__(self, render_mode: str | None = None, **env_config: Any) -> None:
        super().__init__()
        check_written(type(self))
        self.options: Any = read_options(self.Options, env_config)
        self.render_mode = render_mode
        self.roles: Mapping[str, str] = dict(self.seat_roles())
        self.possible_agents = list(self.roles)
        self.agents: list[str] = []
        self.observation_spaces = {agent: text_space() for agent in self.possible_agents}
        self.action_spaces = {agent: text_space() for agent in self.possible_agents}
        chosen = self.options
        self.referee = Referee(
            self.possible_agents, chosen.invalid_action_penalty, chosen.max_invalid_actions, self.turn_limit()
        )
        self.level: Any = None
        self._level_digest = ""
        self._seeds = np.random.default_rng()
        self.random = random.Random(0)
        self.expert_random = random.Random(0)

    @property
    def rules(self) -> str:
        """Rules and legend; :attr:`instructions` adds what becomes of an invalid reply."""
        return ""

    @property
    @abstractmethod
    def instructions(self) -> str:
        """All a player is told, for the system prompt or each player's first observation."""

    @abstractmethod
    def start(self) -> None:
        """Set up a new game; chance comes from ``self.random``."""

    @abstractmethod
    def view(self, agent: str) -> str:
        """What ``agent`` sees of the state, in words it may see."""

    @abstractmethod
    def legal_actions(self, agent: str) -> tuple[str, ...]:
        """Actions ``agent`` may take now, as texts; none if it is not to move."""

    @property
    @abstractmethod
    def finished(self) -> bool:
        """The game is over by its own rules."""

    def levels(self, rng: random.Random) -> Iterator[Any]:
        """Candidates for the level, of a game that :attr:`has_levels`; the first one in the right split is played."""
        raise NotImplementedError(f"{type(self).__name__} has levels, so it must write levels()")

    def level_key(self, level: Any) -> str:
        """Everything that tells this level from another one."""
        raise NotImplementedError(f"{type(self).__name__} has levels, so it must write level_key()")

    def split_of_level(self, digest: str, level: Any) -> str:
        """Split a level belongs to, by default by its hash."""
        return split_of_digest(digest)

    def seat_roles(self) -> Mapping[str, str]:
        """Agent ids in order and their roles, where they depend on the options."""
        return self.seats

    def turn_limit(self) -> int | None:
        """Replies of each player, after which the game is cut short if it is not over; by default
        the option ``max_turns``.
        """
        return self.options.max_turns

    def expert_action(self, agent: str) -> str | None:
        """What the game's own expert would play for ``agent``, or ``None`` without one."""
        return None

    def random_action(self, agent: str, rng: random.Random) -> str | None:
        """What a random player types for ``agent`` where :meth:`legal_actions` lists nothing (free talk); ``None`` says
        that no text is typical.
        """
        return None

    def measures(self, agent: str) -> Mapping[str, float]:
        """Numbers of the episode worth an average, of ``agent`` alone (how often it has cooperated) or the same for all
        (how much of the surplus was shared out). They are asked for at the end of the agent's game and stand in its
        last ``info["measures"]``; names are made of letters, digits and ``_``, numbers are finite.
        """
        return {}

    def observation_space(self, agent: str) -> spaces.Text:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Text:
        return self.action_spaces[agent]

    def state(self) -> str:
        """All views, one below the other."""
        return "\n".join(f"{agent}: {self.view(agent)}" for agent in self.possible_agents)

    def close(self) -> None:
        """Nothing to free."""

    def _begin(self, seed: int | None) -> None:
        """Set everything for the game of ``seed``, or of a fresh seed, up to its level."""
        if seed is not None:
            self._seeds = np.random.default_rng(seed)
        else:
            seed = int(self._seeds.integers(2**31))
        self.random, self.expert_random = seeded(seed, "game"), seeded(seed, "expert")
        self.agents = list(self.possible_agents)
        self.referee.begin()
        if self.has_levels:
            self.level, self._level_digest = choose_level(
                self.levels(self.random), self.options.split, self.level_key, self.split_of_level
            )

    def _told(self, agent: str, over: bool, heard: Iterable[str] = ()) -> str:
        """Rules before the first reply, what was wrong with the last one, what was heard since, the state."""
        legal = () if over else self.legal_actions(agent)
        said = (self.referee.note(agent), *heard, self.view(agent))
        return self._composed(not self.referee.has_replied(agent), said, legal)

    def _composed(self, first: bool, said: Iterable[str], legal: Iterable[str]) -> str:
        """An observation: the rules before the ``first`` reply, what is ``said``, and the legal actions."""
        rules = self.instructions if self.options.show_rules and first else ""
        listed = ", ".join(legal) if self.options.show_legal_actions else ""
        return observation_text((rules, *said, f"Legal actions: {listed}" if listed else ""))

    def _rewarded(
        self, method: str, rewards: Mapping[str, float], due: Iterable[str], among: Collection[str] = ()
    ) -> Mapping[str, float]:
        """The rewards that ``method`` gave.

        Args:
            method: The game's method.
            rewards: What it gave.
            due: Players it must name.
            among: Players it may name, if not all.

        Raises: GameError: if it leaves out somebody, or names one it may not.
        """
        among = among or self.roles
        missing = [agent for agent in due if agent not in rewards]
        if missing:
            raise GameError(
                f"`{method}` must name the reward of every player still in the game; it leaves out {', '.join(missing)}"
            )
        unknown = [repr(agent) for agent in rewards if agent not in among]
        if unknown:
            raise GameError(f"`{method}` names {', '.join(unknown)}; the players are {', '.join(among)}")
        return rewards

    def _measured(self, agent: str) -> dict[str, dict[str, float]]:
        """``info["measures"]`` of ``agent``, if there are any."""
        measures = self.measures(agent)
        return {"measures": dict(measures)} if measures else {}

    def _level_info(self) -> dict[str, str]:
        return {"level": self._level_digest} if self.has_levels else {}
