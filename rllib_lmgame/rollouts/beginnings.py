"""What of an episode is played as it is recorded, so that a game goes on from a state in its middle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False, slots=True)
class Recording:
    """What the players of an episode saw and replied.

    Attributes:
        episode_id: Of the episode: players that draw do it by this name.
        seen: Agent -> key of the text that it saw before each of its turns.
        actions: Agent -> what it typed in each of its turns.
        replies: Agent that is a language model -> ids of the reply of each turn.
    """

    episode_id: str
    seen: Mapping[str, Sequence[int]]
    actions: Mapping[str, Sequence[str]]
    replies: Mapping[str, Sequence[np.ndarray]]


@dataclass(frozen=True, eq=False, slots=True)
class Beginning:
    """Turns that are played as they are recorded, before the players go on by themselves.

    Attributes:
        recording: The episode that they come from; that of all states of it, so that it travels once.
        turns: Agent -> how many of its turns; who is missing had none.
        next: Agents that acted in the state behind these turns: it is known what they saw there.
    """

    recording: Recording
    turns: Mapping[str, int]
    next: frozenset[str]

    def played(self, agent: str) -> int:
        """How many turns of ``agent`` are recorded ones."""
        return self.turns.get(agent, 0)

    def seen(self, agent: str, turn: int) -> int | None:
        """Key of the text that ``agent`` must see before its turn of this number; ``None`` where it is open."""
        known = self.played(agent) + (agent in self.next)
        return self.recording.seen[agent][turn] if turn < known else None
