"""A league: its members, their pay-offs, and the decisions for the next iteration, without I/O."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rllib_lmgame.base.errors import CheckpointError
from rllib_lmgame.league.matches import Match, Table, deal_matches
from rllib_lmgame.league.matchmaking import Member, Standing, draw_member
from rllib_lmgame.league.options import LeagueOptions
from rllib_lmgame.league.payoffs import Payoffs
from rllib_lmgame.measures.ratings import bradley_terry
from rllib_lmgame.rollouts.plans import EpisodePlan, stable_seed
from rllib_lmgame.rollouts.records import EpisodeSummary


def policies_gone(state: Mapping[str, Any], policies: Iterable[str]) -> list[str]:
    """Policies in a league's state, as members or in results, that are not in ``policies``."""
    members = {member["name"]: member["policy"] for member in state["members"]}
    players = {*state["payoffs"]}.union(*state["payoffs"].values())
    return sorted(({*members.values()} | players - members.keys()) - {*policies})


class League:
    """Members (oldest first) and pay-offs of a run.

    1. Decisions for an iteration depend only on the run's seed, the iteration, members and pay-offs.
    2. Pay-offs do not depend on the order of results.
    3. :meth:`state` is the whole state.
    """

    def __init__(self, options: LeagueOptions, policies: Sequence[str], run_seed: int) -> None:
        self.options, self.policies = options, list(policies)
        self.members: list[Member] = []
        self.payoffs = Payoffs()
        self._seed, self._decided = run_seed, -1

    def due(self, iteration: int) -> list[Member]:
        """Snapshots to take before ``iteration``, with name, policy and iteration. None is due twice."""
        if iteration <= self._decided:
            return []
        return [
            Member(f"{policy}-{iteration}", policy, iteration)
            for policy in self.policies
            if iteration % self.options.snapshot_every == 0 or all(each.policy != policy for each in self.members)
        ]

    def decided(self, iteration: int, snapshots: Iterable[Member]) -> list[Member]:
        """Add the snapshots due before ``iteration``. Returns the members that left."""
        for member in snapshots:
            self.members.append(member)
            self.payoffs.copy_row(member.policy, member.name)
        left = self.members[: max(0, len(self.members) - self.options.max_members)]
        self.members = self.members[len(left) :]
        for former in left:
            self.payoffs.forget(former.name)
        self._decided = max(self._decided, iteration)
        return left

    def tables(self, iteration: int) -> list[Table]:
        """Opponents in ``iteration``: one table per opponent engine, in turn for the policies that meet members."""
        tables = []
        for number in range(self.options.opponent_engines if self.members and self.options.self_play_share < 1 else 0):
            policy = self.policies[number % len(self.policies)]
            chance = stable_seed(self._seed, "league", iteration, number, "member") / 2**31
            tables.append(Table(policy, draw_member(self.standings(policy), self.options.matchmaking, chance)))
        return tables

    def standings(self, policy: str) -> list[Standing]:
        """A policy's standings against all members, oldest first."""
        return [
            Standing(member, self.payoffs.win_rate(policy, member.name), self.payoffs.games(policy, member.name))
            for member in self.members
        ]

    def matches(self, plans: Sequence[EpisodePlan], iteration: int) -> dict[int, Match]:
        """Matches by ``EpisodePlan.index``; consecutive rounds are dealt independently."""
        begin = min((plan.index for plan in plans), default=0)
        seed = stable_seed(self._seed, "league", iteration, "matches", *([begin] if begin else []))
        return deal_matches(plans, self.policies, self.tables(iteration), self.options, seed)

    def record(self, summaries: Sequence[EpisodeSummary], matches: Mapping[int, Match]) -> None:
        """Count the results of an iteration, of trained seats only; each call decays earlier results."""
        for policy in self.policies:
            self.payoffs.decay(policy, self.options.payoff_decay)
        for summary in summaries:
            match = matches[summary.index]
            if match.member is None:
                continue
            for seat in summary.seats:
                if seat.trained and seat.outcome is not None:
                    self.payoffs.add(match.policy, match.member.name, str(seat.outcome))

    def state(self) -> dict[str, Any]:
        return {
            "members": [dataclasses.asdict(member) for member in self.members],
            "payoffs": self.payoffs.state(),
            "decided": self._decided,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a :meth:`state`. Raises: CheckpointError: it has members or results of other policies."""
        gone = policies_gone(state, self.policies)
        if gone:
            raise CheckpointError(f"the league has members or results of policies that do not learn: {', '.join(gone)}")
        self.members = [Member(**member) for member in state["members"]]
        self.payoffs.set_state(state["payoffs"])
        self._decided = int(state["decided"])

    def numbers(self) -> dict[str, Any]:
        """``size``, ``mean_win_rate/<policy>``, ``win_rate/<policy>/<member>``, ``rating/<name>`` (Bradley-Terry on
        Elo's scale, mean 0).
        """
        met = {
            policy: {one.member.name: one.win_rate for one in self.standings(policy) if one.games > 0}
            for policy in self.policies
        }
        means = {policy: sum(rates.values()) / len(rates) for policy, rates in met.items() if rates}
        players = [*self.policies, *(member.name for member in self.members)]
        rated = dict(zip(players, bradley_terry(self.payoffs.wins(players)).tolist(), strict=True))
        return {"size": len(self.members), "mean_win_rate": means, "win_rate": met, "rating": rated}
