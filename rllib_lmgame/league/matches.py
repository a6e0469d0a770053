"""The matches of an iteration: policies, opponents and seats.

They depend only on the plans, the run's seed and the tables, so they are the same in every process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rllib_lmgame.league.matchmaking import Member
from rllib_lmgame.league.options import LeagueOptions
from rllib_lmgame.rollouts.plans import AgentAssignment, EpisodePlan, deal_games, stable_seed
from rllib_lmgame.rollouts.sources import AgentMapper, Roles


@dataclass(frozen=True, slots=True)
class Table:
    """A policy and the member that it meets in an iteration, on one opponent engine."""

    policy: str
    member: Member


@dataclass(frozen=True, slots=True)
class Match:
    """Who plays an episode: the policy against a member, or against itself.

    ``number`` is that of its group among those of the same game, policy and opponent: seats are dealt by it.
    """

    policy: str
    member: Member | None
    number: int

    def assignments(self, roles: Roles) -> dict[str, AgentAssignment]:
        """Everybody's seat. Alone or against itself the policy learns from every seat, else from its own."""
        own = AgentAssignment(self.policy, trained=True)
        if self.member is None or len(roles) == 1:
            return dict.fromkeys(roles, own)
        opponent = AgentAssignment(self.member.policy, member=self.member.name)
        seat = self.number % len(roles)
        return {agent: own if place == seat else opponent for place, agent in enumerate(roles)}


def deal_matches(
    plans: Sequence[EpisodePlan], policies: Sequence[str], tables: Sequence[Table], options: LeagueOptions, seed: int
) -> dict[int, Match]:
    """Deal episodes to policies and opponents: ``EpisodePlan.index`` -> match.

    All policies have the same number of matches. Shares are met within one group per game; seats and tables are taken
    evenly. A group's episodes are all of one kind. ``seed`` is that of the iteration.
    """
    kinds: list[tuple[str, Member | None]] = []
    shares: list[float] = []
    share = options.self_play_share
    for policy in policies:
        own = [table for table in tables if table.policy == policy]
        kinds += [(policy, None), *((policy, table.member) for table in own)]
        shares += [share if own else 1.0, *((1 - share) / len(own) for _ in own)]
    matches: dict[int, Match] = {}
    plans = sorted(plans, key=lambda plan: plan.index)
    for game in sorted({plan.game for plan in plans}):
        groups = list(dict.fromkeys(plan.group for plan in plans if plan.game == game))
        dealt = deal_games(len(groups), shares, stable_seed(seed, game))
        numbers = [stable_seed(seed, game, kind, "start") % 2**16 for kind in range(len(kinds))]
        of_group: dict[str, Match] = {}
        for group, kind in zip(groups, dealt, strict=True):
            of_group[group] = Match(*kinds[kind], numbers[kind])
            numbers[kind] += 1
        matches |= {plan.index: of_group[plan.group] for plan in plans if plan.game == game}
    return matches


def assign_engines(held: Sequence[str | None], wanted: Sequence[str]) -> list[str | None]:
    """The member of each opponent engine; members that an engine has ``held`` stay there.

    ``wanted`` are the members that are met, at most one per engine; one may be wanted twice.
    """
    left = list(wanted)
    assigned: list[str | None] = []
    for name in held:
        stays = name is not None and name in left
        assigned.append(name if stays else None)
        if stays:
            left.remove(str(name))
    # An engine without a match keeps what it holds.
    for place, name in enumerate(assigned):
        if name is None:
            assigned[place] = left.pop(0) if left else held[place]
    return assigned


class LeagueAgentMapper(AgentMapper):
    """Assignments by ``matches`` (``EpisodePlan.index`` -> match); a replacement has the index of its plan."""

    matches: Mapping[int, Match] = {}

    def assignments(self, plan: EpisodePlan, roles: Roles) -> dict[str, AgentAssignment]:
        return self.matches[plan.index].assignments(roles)
