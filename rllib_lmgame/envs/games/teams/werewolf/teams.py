"""Who belongs together in Werewolf, who has won, and what it pays."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

WEREWOLF, SEER, DOCTOR, VILLAGER = "werewolf", "seer", "doctor", "villager"


class Team(enum.StrEnum):
    """Who wins together."""

    VILLAGE = "village"
    WEREWOLVES = "werewolves"


def team_of(role: str) -> Team:
    """The team of a role."""
    return Team.WEREWOLVES if role == WEREWOLF else Team.VILLAGE


def seats(players: int, werewolves: int, *, seer: bool, doctor: bool) -> dict[str, str]:
    """Seats and their roles; the village's rest are villagers."""
    roles = [WEREWOLF] * werewolves + [SEER] * seer + [DOCTOR] * doctor
    roles += [VILLAGER] * (players - len(roles))
    count = Counter(roles)
    named: Counter[str] = Counter()
    found = {}
    for role in roles:
        found[role if count[role] == 1 else f"{role}_{named[role]}"] = role
        named[role] += 1
    return found


def winner(alive: Iterable[str]) -> Team | None:
    """Who has won, given the roles of those who live: the village once no werewolf is left, the werewolves once they
    are as many as the others.
    """
    count = Counter(team_of(role) for role in alive)
    if not count[Team.WEREWOLVES]:
        return Team.VILLAGE
    return Team.WEREWOLVES if count[Team.WEREWOLVES] >= count[Team.VILLAGE] else None


def most_named(votes: Sequence[str | None]) -> str | None:
    """Who is named by more than any other; ``None`` where nobody is, or several equally often. ``None`` among the
    votes names nobody.
    """
    ranking = Counter(vote for vote in votes if vote is not None).most_common(2)
    if not ranking or (len(ranking) == 2 and ranking[0][1] == ranking[1][1]):
        return None
    return ranking[0][0]


def results(roles: Mapping[str, str], won: Team | None, forfeited: Collection[str] = ()) -> dict[str, float]:
    """Reward of every seat at the end; they sum to 0.

    A werewolf gets 1 or -1, one of the village as much of the opposite sign as makes the teams' sums equal; a draw
    gives 0. Who has forfeited has lost, whatever its team does; the difference goes to all others in equal parts.

    Args:
        roles: Of every seat.
        won: The winning team, if one has won.
        forfeited: Seats that gave up, not all of them.
    """
    wolves = sum(team_of(role) is Team.WEREWOLVES for role in roles.values())
    stake = {Team.WEREWOLVES: 1.0, Team.VILLAGE: wolves / (len(roles) - wolves)}
    signs = {Team.WEREWOLVES: 0.0, Team.VILLAGE: 0.0} if won is None else dict.fromkeys(Team, -1.0) | {won: 1.0}
    team = {seat: team_of(role) for seat, role in roles.items()}
    found = {seat: signs[team[seat]] * stake[team[seat]] for seat in roles}
    others = [seat for seat in roles if seat not in forfeited]
    for seat in forfeited:
        spare = found[seat] + stake[team[seat]]
        found[seat] = -stake[team[seat]]
        for other in others:
            found[other] += spare / len(others)
    return found
