"""A game with one external player, who replies once per turn; scripted players take the other seats."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.registry import make_session
from rllib_lmgame.policies.scripted import ScriptedPlayer, make_scripted_player


class OneSeat:
    """A game from one seat: what it sees, what it earns. Games follow each other with ``reset``.

    Args:
        game: Id or ``package.module:Class``.
        env_config: Its options.
        others: Seat -> scripted player (or ``package.module:Class``), of all seats but one.

    Attributes:
        seat: The seat that is left.
        rules: What it is told of the game.
        over: No game is begun, or its game is over.
        reward: What the last reply earned.
        total: The sum of rewards of the game.
        info: What the game said with the last reply; at its end with ``success``.

    Raises:
        ConfigError: there is no such game, option, seat or player.
    """

    def __init__(
        self, game: str, env_config: Mapping[str, Any] | None = None, others: Mapping[str, str] | None = None
    ) -> None:
        self._session = make_session(game, env_config)
        self._others = dict(others or {})
        seats = self._session.agent_ids
        left = [seat for seat in seats if seat not in self._others]
        if len(left) != 1 or not self._others.keys() <= set(seats):
            named = ", ".join(self._others) or "none"
            raise ConfigError("others", f"must name all seats but one of {', '.join(seats)}; it names {named}")
        (self.seat,) = left
        for seat, name in self._others.items():
            make_scripted_player(name, f"others.{seat}")
        self._players: dict[str, tuple[ScriptedPlayer, random.Random]] = {}
        self.rules = self._session.instructions
        self.over = True
        self.reward = self.total = 0.0
        self.info: Mapping[str, Any] = {}

    def reset(self, seed: int) -> str:
        """Begin the level of ``seed``; what the seat sees."""
        self._session.reset(seed)
        self._players = {
            seat: (make_scripted_player(name, f"others.{seat}"), random.Random(f"{seat} {seed}"))
            for seat, name in self._others.items()
        }
        self.over, self.reward, self.total, self.info = False, 0.0, 0.0, {}
        return self._seen()

    def reply(self, text: str) -> str:
        """Reply for the seat; what it sees next. Raises: ValueError: the game is over."""
        if self.over:
            raise ValueError("the game is over; reset begins another one")
        self.reward = 0.0
        self._step({self.seat: text})
        return self._seen()

    def close(self) -> None:
        """Free what the game holds."""
        self._session.close()

    def _seen(self) -> str:
        """What the seat sees when it is to reply, or its game is over."""
        while not self.over and self.seat not in (asked := self._session.to_act()):
            if not asked:
                raise GameError(f"{self._session.game_id}: nobody is to act, and the game is not over")
            self._step({})
        return self._session.observe(self.seat).text

    def _step(self, replies: dict[str, str]) -> None:
        for seat in self._session.to_act():
            if seat not in replies:
                player, rng = self._players[seat]
                replies[seat] = player.act(self._session, seat, self._session.observe(seat), rng)
        result = self._session.step(replies)
        earned = float(result.rewards.get(self.seat, 0.0))
        self.reward += earned
        self.total += earned
        self.info = result.infos.get(self.seat, self.info)
        self.over = result.end_of(self.seat) is not None
