"""Seats of an episode that continues from a state of another one, whose turns are replayed first.

Games are pure functions of seed and replies, so replaying turns gives the same state. Conversations, memories of
scripted players and token budgets are those of the recorded episode.

Guarantees (each has a test):

1. No engine is asked before the state is reached.
2. From there each player continues as in any episode: with its own draws and the limits that are left.
3. If a game or scripted player differs from the record, the episode fails (``restart_mismatch``), naming it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from rllib_lmgame.envs.contract.session import GameSession, Observation
from rllib_lmgame.inference.protocol import Generation, StopReason
from rllib_lmgame.policies.chat.format import Prompt
from rllib_lmgame.policies.scripted import ScriptedPlayer
from rllib_lmgame.rollouts.plans import Beginning
from rllib_lmgame.rollouts.records import observation_key
from rllib_lmgame.rollouts.seats import EpisodeFailed, GameCall, LanguageModelSeat, ReplySource


@dataclass
class RecordedReplies:
    source: ReplySource
    beginning: Beginning

    async def reply(
        self, seat: LanguageModelSeat, session: GameSession, observation: Observation, prompt: Prompt, call: GameCall
    ) -> Generation:
        turn = len(seat.turns)
        _check_seen(self.beginning, session, seat.agent_id, turn, observation)
        if turn >= self.beginning.played(seat.agent_id):
            return await self.source.reply(seat, session, observation, prompt, call)
        ids = self.beginning.recording.replies[seat.agent_id][turn]
        return Generation("", ids, np.zeros(len(ids), np.float32), StopReason.EOS, 0)


class RecordedPlayer:
    """A scripted player that must act as recorded, with the same draws (``seed``), and continues with other draws."""

    def __init__(self, player: ScriptedPlayer, beginning: Beginning, seed: int) -> None:
        self._player = player
        self._beginning = beginning
        self._draws = random.Random(seed)
        self._turn = 0

    def think(self, session: GameSession, agent_id: str) -> str | None:
        think = getattr(self._player, "think", None)
        return think(session, agent_id) if think else None

    def act(self, session: GameSession, agent_id: str, observation: Observation, rng: random.Random) -> str:
        turn, self._turn = self._turn, self._turn + 1
        _check_seen(self._beginning, session, agent_id, turn, observation)
        if turn >= self._beginning.played(agent_id):
            return self._player.act(session, agent_id, observation, rng)
        action = self._player.act(session, agent_id, observation, self._draws)
        if action != self._beginning.recording.actions[agent_id][turn]:
            raise restart_mismatch(
                f"the player {type(self._player).__name__} of {session.game_id} makes another move", turn
            )
        return action


def _check_seen(beginning: Beginning, session: GameSession, agent: str, turn: int, observation: Observation) -> None:
    wanted = beginning.seen(agent, turn)
    if wanted is not None and observation_key(observation.text) != wanted:
        raise restart_mismatch(f"{session.game_id} shows {agent} another text", turn)


def restart_mismatch(what: str, turn: int) -> EpisodeFailed:
    """The failure of an episode whose replay differs from the record."""
    return EpisodeFailed(
        StopReason.RESTART_MISMATCH,
        f"{what} before turn {turn + 1} when it is played again from its seed and replies; it is no pure function of "
        "them, so that its states have no values that can be played for",
    )
