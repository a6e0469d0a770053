"""Players of any kind at the table of ``rllib play``: one reply at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from rllib_lmgame.envs.contract.session import GameSession
from rllib_lmgame.errors import ConfigError, nearest
from rllib_lmgame.evaluation.players.naming import FLAG, make_player, split_name
from rllib_lmgame.evaluation.players.player import Player, PlayerSettings
from rllib_lmgame.rollouts.game_calls import GameCalls
from rllib_lmgame.rollouts.plans import EpisodePlan
from rllib_lmgame.rollouts.seats import Seat
from rllib_lmgame.time_limits import CALL_LIMIT_S


class AtTable:
    """A player without an event loop of the caller's. A context: what the player loads ends with it.

    Args:
        player: Who plays.
    """

    def __init__(self, player: Player) -> None:
        self.player = player
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        try:
            self._runner.run(self.player.__aenter__())
        except BaseException:
            self._runner.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.run(self.player.__aexit__(kind, error, trace))
        self._runner.close()

    def seat(self, session: GameSession, agent: str, *, seed: int, policy: str | None = None) -> Seat:
        """The player in ``agent``'s seat; there is no ``policy`` to choose."""
        plan = EpisodePlan(f"play-{seed}", 0, seed, "", 0, line_up={agent: self.player.assignment})
        return self.player.seat(session, plan, agent)

    def act(self, seat: Seat, session: GameSession) -> str:
        """The action of ``seat`` for what it sees now.

        Raises:
            ConfigError: if the player cannot play this game.
            OutOfTokens: if the context or the token budget leaves no room for a reply.
            EpisodeFailed: if there is no reply.
        """
        call = GameCalls(session.game_id, session.trusted, CALL_LIMIT_S)
        return self._runner.run(seat.act(session, session.observe(seat.agent_id), call))


def line_up_of(texts: Sequence[str], agents: Sequence[str]) -> tuple[dict[str, str], str | None]:
    """Players by seat, and who takes the seats that are left.

    Args:
        texts: ``SEAT=PLAYER``, or ``PLAYER`` for all other seats.
        agents: The seats.

    Raises:
        ConfigError: if there is no such seat, or one is given twice.
    """
    named: dict[str, str] = {}
    others: str | None = None
    for text in texts:
        seat, player = split_name(text)
        if seat is None and others is not None:
            raise ConfigError(FLAG, f"{others!r} and {text!r} cannot both take all other seats; write SEAT=PLAYER")
        if seat is None:
            others = player
            continue
        if seat not in agents:
            match = nearest(seat, agents)
            hint = f"did you mean {match!r}?" if match else f"seats: {', '.join(agents)}"
            raise ConfigError(FLAG, f"there is no seat {seat!r}; {hint}")
        if seat in named:
            raise ConfigError(FLAG, f"seat {seat!r} is given twice")
        named[seat] = player
    return named, others


def players_of(line_up: Mapping[str, str], settings: PlayerSettings) -> dict[str, Player]:
    """A player for each seat; the same text is one player in several seats.

    Raises:
        ConfigError, CheckpointError: as :func:`~.naming.make_player`.
    """
    players = {text: make_player(text, text, settings) for text in dict.fromkeys(line_up.values())}
    return {seat: players[text] for seat, text in line_up.items()}
