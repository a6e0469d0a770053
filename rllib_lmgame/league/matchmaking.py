"""Members of a league, and matchmakers: classes whose fields are options, which weigh the members a policy may meet.

Weights depend only on the standings, so every process draws the same. Prioritised fictitious self-play (PFSP) is
that of Vinyals et al., "Grandmaster level in StarCraft II using multi-agent reinforcement learning", Nature 575, 2019.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import Group, option, tag
from rllib_lmgame.base.plugin import import_path

KEY = "config.league.matchmaking"


@dataclass(frozen=True, slots=True)
class Member:
    """A snapshot of a policy, which never changes; ``name`` is unique in the league, and its directory's.

    Attributes:
        policy: The policy of the snapshot, whose chat format and options it shares.
        iteration: Iterations that the policy had been trained for.
        checksum: Of the weights (:func:`~rllib_lmgame.inference.weights.state_checksum`).
        files: Their entries in a checkpoint's manifest; the files are hashed once.
    """

    name: str
    policy: str
    iteration: int
    version: int = 0
    checksum: str = ""
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Standing:
    """A policy's estimated win rate against a member (draws count half), from so many decayed games."""

    member: Member
    win_rate: float
    games: float


class Matchmaker(Group):
    """Base class of matchmakers; its fields are options, with ``type``."""

    type: str = tag("", "Its name, or `package.module:Class`.")

    def __call__(self, standings: Sequence[Standing], /) -> Sequence[float]:
        """Weight of each member, oldest first, at least 0. If all are 0, members are drawn evenly."""
        raise NotImplementedError


class FunctionMatchmaker(Matchmaker):
    """A function of the standings at an import path."""

    def __call__(self, standings: Sequence[Standing], /) -> Sequence[float]:
        return import_path(self.type, KEY)(standings)


class PFSPVar(Matchmaker):
    """``x(1 - x)`` with the policy's win rate ``x``: members as strong as the policy."""

    type: str = tag("pfsp_var", "Its name.")

    def __call__(self, standings: Sequence[Standing], /) -> list[float]:
        return [standing.win_rate * (1 - standing.win_rate) for standing in standings]


class Uniform(Matchmaker):
    """All members equally."""

    type: str = tag("uniform", "Its name.")

    def __call__(self, standings: Sequence[Standing], /) -> list[float]:
        return [1.0] * len(standings)


class Latest(Matchmaker):
    """The newest member."""

    type: str = tag("latest", "Its name.")

    def __call__(self, standings: Sequence[Standing], /) -> list[float]:
        return [0.0] * (len(standings) - 1) + [1.0]


class PFSPHard(Matchmaker):
    """``(1 - x)^power`` with the policy's win rate ``x``: members that are hard to beat."""

    type: str = tag("pfsp_hard", "Its name.")
    power: float = option(2.0, "The exponent.", ge=0)

    def __call__(self, standings: Sequence[Standing], /) -> list[float]:
        return [(1 - standing.win_rate) ** self.power for standing in standings]


def draw_member(standings: Sequence[Standing], matchmaker: Matchmaker, number: float) -> Member:
    """The member to meet, of at least one (oldest first), by a ``number`` drawn from [0, 1)."""
    weights = _weights(matchmaker, standings)
    total = math.fsum(weights)
    if total == 0:
        weights, total = [1.0] * len(standings), float(len(standings))
    left = number * total
    for standing, weight in zip(standings, weights, strict=True):
        left -= weight
        if left < 0:
            return standing.member
    return next(standing.member for standing, weight in zip(standings, weights, strict=True) if weight)


def _weights(matchmaker: Matchmaker, standings: Sequence[Standing]) -> list[float]:
    values = [float(weight) for weight in matchmaker(standings)]
    if len(values) != len(standings) or any(not 0 <= value < math.inf for value in values):
        wanted = f"one number of at least 0 for each of {len(standings)} members"
        raise ConfigError(KEY, f"`{matchmaker.type}` must return {wanted}, not {values}")
    return values
