"""A game in which a client takes seats, and scripted players the others.

Guarantees, each tested:

1. A client is shown what its own seats see and earn, and nothing of the others.
2. Where several of its seats act at once it is asked one after another, and none is shown what another replied.
3. A game that raises or hangs is lost for its client, and for nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rllib_lmgame.base.errors import ConfigError, did_you_mean
from rllib_lmgame.base.text import shown, without_paths
from rllib_lmgame.envs.contract.session import GameSession, Observation
from rllib_lmgame.policies.scripted import SCRIPTED_PLAYERS
from rllib_lmgame.rollouts.options import TextRolloutOptions
from rllib_lmgame.rollouts.plans import EpisodePlan
from rllib_lmgame.rollouts.play import PlayedEpisode, Sessions, play_one
from rllib_lmgame.rollouts.players import Scripted, seat_seed
from rllib_lmgame.rollouts.records import Failure, GameConfig
from rllib_lmgame.rollouts.seats import GameCall, Seat

REMOTE = "remote"
"""Stands for the client in place of a player."""

Seating = Sequence[str] | Mapping[str, str]
"""Who plays, by the order of the seats or by their names: ``remote`` or a scripted player."""


class GameLostError(RuntimeError):
    """The game cannot be played on, through no fault of the client."""


@dataclass(frozen=True)
class View:
    """What a client is shown.

    Attributes:
        agent: Seat that is to reply; at the end the one that replied last.
        observation: What this seat sees.
        replied: Seat that replied last; ``None`` at the beginning.
        refused: The game could not read that reply, or did not allow it.
        rewards: What each of the client's seats earned since the last view.
        infos: At the end what the game says of each of the client's seats, as plain data; empty before.
        over: The game is over.
        truncated: It was cut short.
    """

    agent: str
    observation: Observation
    replied: str | None = None
    refused: bool = False
    rewards: Mapping[str, float] = field(default_factory=dict)
    infos: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    over: bool = False
    truncated: bool = False

    @property
    def reward(self) -> float:
        """The reward of the seat that replied last."""
        return self.rewards.get(self.replied or "", 0.0)

    @property
    def info(self) -> dict[str, Any]:
        """Information for the seat in addition to its observation."""
        return {
            **self.infos.get(self.agent, {}),
            "agent": self.agent,
            "legal_actions": list(self.observation.legal_actions),
            "turns_left": self.observation.turns_left,
            "invalid_action": self.refused,
            **({"truncated": self.truncated} if self.over else {}),
        }


@dataclass
class RemoteSeat(Seat):
    """A seat of the client: what it sees is put into ``asked``, and its reply is awaited."""

    asked: asyncio.Queue[tuple[RemoteSeat, Observation] | None] = field(default_factory=asyncio.Queue)
    earned: float = 0.0
    refused: bool = False
    last: Observation | None = None
    answer: asyncio.Future[str] | None = None

    async def act(self, session: GameSession, observation: Observation, call: GameCall) -> str:
        self.answer = asyncio.get_running_loop().create_future()
        self.asked.put_nowait((self, observation))
        return await self.answer

    def acted(self, invalid: bool) -> None:
        super().acted(invalid)
        self.refused = invalid

    def reward(self, value: float) -> None:
        super().reward(value)
        self.earned += value

    def finish(self, observation: Observation, reason: Any, terminated: bool) -> None:
        self.last = observation


class ServedEpisode:
    """One game, from reset to end.

    Args:
        game: What is played.
        seating: Who takes which seat; ``None``: the client takes all.
        plan: Its level.
        sessions: Where games are kept between episodes.
        options: Limits on time.
    """

    def __init__(
        self,
        game: GameConfig,
        seating: Seating | None,
        plan: EpisodePlan,
        sessions: Sessions,
        options: TextRolloutOptions,
    ) -> None:
        self.agents: tuple[str, ...] = ()
        self.instructions = ""
        self._seating = seating
        self._asked: asyncio.Queue[tuple[RemoteSeat, Observation] | None] = asyncio.Queue()
        self._seats: dict[str, RemoteSeat] = {}
        self._now: RemoteSeat | None = None
        self._game = asyncio.create_task(play_one(plan, game, self._take_seats, sessions, options))
        self._game.add_done_callback(lambda _: self._asked.put_nowait(None))

    async def reply(self, text: str) -> View:
        """Reply for the seat that was asked. Raises: GameLostError: also if the game is over."""
        seat = self._now
        if seat is None or seat.answer is None or seat.answer.done():
            raise GameLostError("the game is over; reset begins another one")
        seat.answer.set_result(text)
        return await self.next_view()

    async def leave(self) -> None:
        """End the game wherever it is."""
        self._game.cancel()
        await asyncio.wait([self._game])
        if not self._game.cancelled():
            self._game.exception()  # It was told to the client, or nobody is there any more.

    def _take_seats(self, session: GameSession, plan: EpisodePlan) -> dict[str, Seat]:
        self.agents, self.instructions = session.agent_ids, session.instructions
        players = seated(self._seating, session)
        for agent in (agent for agent, player in players.items() if player == REMOTE):
            self._seats[agent] = RemoteSeat(agent, session.roles[agent], REMOTE, asked=self._asked)
        return {
            agent: self._seats.get(agent) or Scripted(player).seat(session, plan, agent, seat_seed(plan, agent))
            for agent, player in players.items()
        }

    async def next_view(self) -> View:
        """What is seen first, or next. Raises: GameLostError; ConfigError: there is no such seating."""
        asked = await self._asked.get()
        before, self._now = self._now, None
        replied = before.agent_id if before is not None else None
        rewards = {}
        for agent, seat in self._seats.items():
            rewards[agent], seat.earned = seat.earned, 0.0
        refused = before is not None and before.refused
        if asked is not None:
            self._now, observation = asked
            return View(self._now.agent_id, observation, replied, refused, rewards)
        if self._game.cancelled():
            raise GameLostError("the game was left")
        outcome = self._game.result()
        if isinstance(outcome, Failure):
            raise GameLostError(without_paths(f"the game is lost ({outcome.reason}): {outcome.message}"))
        return self._end(outcome, before, rewards)

    def _end(self, outcome: PlayedEpisode, before: RemoteSeat | None, rewards: dict[str, float]) -> View:
        seat = before or next(iter(self._seats.values()))
        infos = {
            agent: {**outcome.infos.get(agent, {}), "stop_reason": outcome.ends[agent].stop_reason.value}
            for agent in self._seats
        }
        return View(
            seat.agent_id,
            seat.last or Observation(""),
            before.agent_id if before is not None else None,
            seat.refused,
            rewards,
            infos,
            over=True,
            truncated=not outcome.ends[seat.agent_id].terminated,
        )


def seated(seating: Seating | None, session: GameSession) -> dict[str, str]:
    """Who takes each seat. Raises: ConfigError: it names no player, no seat, or leaves none to the client."""
    agents = session.agent_ids
    if seating is None:
        return dict.fromkeys(agents, REMOTE)
    if isinstance(seating, Mapping):
        for agent in seating:
            if agent not in agents:
                raise ConfigError(
                    f"seats.{agent[:100]}", did_you_mean(agent, agents, f"the seats are {', '.join(agents)}")
                )
        players = {agent: seating.get(agent, REMOTE) for agent in agents}
    elif len(seating) != len(agents):
        raise ConfigError("seats", f"{session.game_id} has {len(agents)} ({', '.join(agents)}), got {len(seating)}")
    else:
        players = dict(zip(agents, seating, strict=True))
    known = (REMOTE, *SCRIPTED_PLAYERS)
    for agent, player in players.items():
        if player not in known:
            raise ConfigError(f"seats.{agent}", f"unknown player {shown(player)}; known: {', '.join(known)}")
    if REMOTE not in players.values():
        raise ConfigError("seats", f"leave none to the client; write {REMOTE!r} for its seat")
    return players
