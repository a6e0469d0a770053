"""Oversampling with early stop: more groups of episodes are started than are needed, and the first to finish are kept.

Plans that are ``spare`` are those beyond what is needed. Whether an episode is one of them says nothing of its fate: of
every game those groups come out that finish first, as many as are not spare.

Guarantees (each has a test):

1. Groups are whole: one of which an episode is still in play has not finished, and none of its episodes comes out.
2. Every game has its number of groups, so that a short game does not take the place of a long one.
3. What is left behind stops at once, is named, and is not played again.
4. Which episodes are planned, and which seeds the next ones have, does not depend on who finishes first.
5. Every env runner that has a share has a group of every game in it that it can do without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rllib_lmgame.rollouts.plans import EpisodePlan, first_id


def with_spares(plans: Sequence[EpisodePlan]) -> bool:
    """Whether some of the plans are spare."""
    return any(plan.spare for plan in plans)


class Race:
    """Who has finished, and who is still wanted. Without spare plans everybody is.

    Args:
        plans: Who takes part.
    """

    def __init__(self, plans: Iterable[EpisodePlan] = ()) -> None:
        self._group: dict[str, str] = {}
        self._game: dict[str, int] = {}
        self._in_play: dict[str, set[str]] = {}
        self._missing: Counter[int] = Counter()
        self._kept: set[str] = set()
        self._left: set[str] = set()
        self._keeps_all = True
        self.add(plans)

    def add(self, plans: Iterable[EpisodePlan]) -> None:
        """These take part as well."""
        for plan in plans:
            group, episode = first_id(plan.group), first_id(plan.episode_id)
            if group not in self._in_play:
                self._in_play[group] = set()
                self._game[group] = plan.game
                self._missing[plan.game] += not plan.spare
            self._in_play[group].add(episode)
            self._group[episode] = group
            self._keeps_all = self._keeps_all and not plan.spare

    def finish(self, episode_id: str) -> bool:
        """An episode, or what replaced it, has finished; whether that makes others superfluous."""
        group = self._group[first_id(episode_id)]
        in_play, game = self._in_play[group], self._game[group]
        in_play.discard(first_id(episode_id))
        if in_play or group in self._kept or group in self._left or not self._missing[game]:
            return False
        self._kept.add(group)
        self._missing[game] -= 1
        return not self._keeps_all and not self._missing[game]

    def leave(self, episode_id: str) -> None:
        """An episode was left behind: its group cannot be whole any more."""
        self._left.add(self._group[first_id(episode_id)])

    def wants(self, episode_id: str) -> bool:
        """Whether the episode is one of a kept group, or of one that may still be kept."""
        group = self._group[first_id(episode_id)]
        may_be_kept = group not in self._left and self._missing[self._game[group]] > 0
        return self._keeps_all or group in self._kept or may_be_kept

    def marked(self, plans: Sequence[EpisodePlan]) -> list[EpisodePlan]:
        """``plans``, which are to be played now, with as many groups that are not spare as are still missing."""
        if self._keeps_all:
            return list(plans)
        missing = Counter(self._missing)
        spare: dict[str, bool] = {}
        for plan in plans:
            group = first_id(plan.group)
            if group not in spare:
                spare[group] = missing[plan.game] <= 0
                missing[plan.game] -= 1
        return [replace(plan, spare=spare[first_id(plan.group)]) for plan in plans]


def deal_with_spares(plans: Sequence[EpisodePlan], parts: int) -> list[list[EpisodePlan]]:
    """Deal plans to runners, groups whole; who gets groups of a game gets a spare one too, if there are any, so that it
    can stop by itself and waits for no episode that never ends. There may be fewer shares than runners.
    """
    games: dict[int, tuple[dict[str, list[EpisodePlan]], dict[str, list[EpisodePlan]]]] = {}
    for plan in plans:
        games.setdefault(plan.game, ({}, {}))[plan.spare].setdefault(first_id(plan.group), []).append(plan)
    dealt: list[list[EpisodePlan]] = [[] for _ in range(parts)]
    for needed, spare in games.values():
        places = sorted(dealt, key=len)[: min(len(needed) or 1, len(spare) or parts)]
        for number, group in enumerate((*needed.values(), *spare.values())):
            places[number % len(places)].extend(group)
    return [share for share in dealt if share]
