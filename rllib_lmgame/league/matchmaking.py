"""Which members a policy meets: weights by name or import path, and a draw from them.

A matchmaker is a function of what is known of the members, so every process draws the same. Prioritised fictitious
self-play (PFSP) and forgotten members are those of Vinyals et al., "Grandmaster level in StarCraft II using multi-agent
reinforcement learning", Nature 575, 2019.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.league.members import Member
from rllib_lmgame.rollouts.plans import stable_seed
from rllib_lmgame.settings.plugins import MATCHMAKERS, check_call
from rllib_lmgame.settings.sections.league import LeagueOptions

FORGOTTEN_POWER = 2.0
"""Exponent of the draw among forgotten members, and among past exploiters."""

EXPLOITED_BELOW = 0.3
"""A policy that wins less of its games than this against a past exploiter is exploited by it."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How a policy stands against a member: estimated share of games won (draws count half), from decayed games."""

    member: Member
    win_rate: float
    games: float


Matchmaker = Callable[[Sequence[Standing], LeagueOptions], Sequence[float]]
"""Weight of each member, oldest first, at least 0. If all are 0, members are drawn evenly."""


def uniform(standings: Sequence[Standing], options: LeagueOptions) -> list[float]:
    """Every member alike."""
    return [1.0] * len(standings)


def latest(standings: Sequence[Standing], options: LeagueOptions) -> list[float]:
    """The member that came last."""
    return [0.0] * (len(standings) - 1) + [1.0]


def pfsp_hard(standings: Sequence[Standing], options: LeagueOptions) -> list[float]:
    """``(1 - x)^power``, with the policy's win rate ``x``: members that are hard to beat."""
    return [(1 - standing.win_rate) ** options.matchmaking.power for standing in standings]


def pfsp_var(standings: Sequence[Standing], options: LeagueOptions) -> list[float]:
    """``x(1 - x)``, with the policy's win rate ``x``: members that are as strong as it is."""
    return [standing.win_rate * (1 - standing.win_rate) for standing in standings]


def resolve_matchmaker(name: str) -> Matchmaker:
    """The matchmaker called ``name``, or at ``package.module:function``. Raises: ConfigError: it is none."""
    found: Matchmaker = MATCHMAKERS.find(name)
    takes = "a matchmaker takes two arguments: the standings against all members, and the options"
    check_call(found, name, MATCHMAKERS.key, takes, (), LeagueOptions())
    return found


def forgotten(standings: Sequence[Standing], below: float) -> list[Standing]:
    """Members (oldest first) that were beaten once and no longer are.

    The last ones are left out as long as each is harder than the one before it, as it should be
    (``remove_monotonic_suffix`` in the pseudocode of Vinyals et al.). Of the rest one must be beaten less often than
    ``below``.
    """
    end = len(standings)
    while end > 1 and standings[end - 2].win_rate >= standings[end - 1].win_rate:
        end -= 1
    earlier = list(standings[:end]) if end > 1 else []
    return earlier if any(standing.win_rate < below for standing in earlier) else []


def exploited_by(standings: Sequence[Standing], options: LeagueOptions) -> list[Standing]:
    """All past exploiters, if one of them exploits the policy. ``standings``: oldest first."""
    past = [standing for standing in standings if standing.member.policy in options.exploiters]
    return past if any(standing.win_rate < EXPLOITED_BELOW for standing in past) else []


def draw_member(
    standings: Sequence[Standing], options: LeagueOptions, matchmaker: Matchmaker, chance: Callable[[str], float]
) -> Member:
    """The member that is met, of at least one (oldest first); ``chance`` draws a number from [0, 1) for a purpose."""
    against_others = 1 - options.self_play_share
    if options.forgotten and chance("branch") * against_others < options.forgotten.share:
        others = [standing for standing in standings if standing.member.policy not in options.exploiters]
        past = exploited_by(standings, options) or forgotten(others, options.forgotten.below)
        if past:
            return _pick(past, [(1 - standing.win_rate) ** FORGOTTEN_POWER for standing in past], chance("member"))
    return _pick(standings, _checked(matchmaker(standings, options), standings, options), chance("member"))


def draw_past(standings: Sequence[Standing], options: LeagueOptions, chance: Callable[[str], float]) -> Member:
    """The past version of its policy that an exploiter meets, by ``pfsp_var``; arguments as :func:`draw_member`."""
    return _pick(standings, pfsp_var(standings, options), chance("member"))


def drawn(*parts: object) -> float:
    """A number from [0, 1) that depends on ``parts`` alone."""
    return stable_seed(*parts) / 2**31


def _pick(standings: Sequence[Standing], weights: Sequence[float], number: float) -> Member:
    total = math.fsum(weights)
    if total == 0:
        weights, total = [1.0] * len(standings), float(len(standings))
    left = number * total
    for standing, weight in zip(standings, weights, strict=True):
        left -= weight
        if left < 0:
            return standing.member
    return next(standing.member for standing, weight in zip(standings, weights, strict=True) if weight)


def _checked(weights: Sequence[float], standings: Sequence[Standing], options: LeagueOptions) -> list[float]:
    values = [float(weight) for weight in weights]
    if len(values) != len(standings) or any(not 0 <= value < math.inf for value in values):
        raise ConfigError(
            MATCHMAKERS.key,
            f"`{options.matchmaking.type}` gave {values} for {len(standings)} members; one number of at least 0 each",
        )
    return values
