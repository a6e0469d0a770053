"""A league: its members, what is known of them, and what follows for the next iteration.

Decisions alone; files, engines and learners are the algorithm's business.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from rllib_lmgame.league.matches import Match, Table, deal_matches
from rllib_lmgame.league.matchmaking import Standing, draw_member, drawn, resolve_matchmaker
from rllib_lmgame.league.members import Member, leaving, member_name
from rllib_lmgame.league.options import LeagueOptions
from rllib_lmgame.league.payoffs import Payoffs
from rllib_lmgame.measures.ratings import bradley_terry
from rllib_lmgame.rollouts.plans import EpisodePlan, stable_seed
from rllib_lmgame.rollouts.records import EpisodeSummary


class League:
    """Members and pay-offs of a run.

    1. What is decided for an iteration follows from the run's seed, the iteration, members and pay-offs alone.
    2. Pay-offs are counted in the order of the plans.
    3. :meth:`state` is all there is.

    Args:
        options: The ``league`` section.
        policies: The policies that learn.
        run_seed: Seed of the run.

    Attributes:
        members: In the order in which they came.
        payoffs: What policies and members did against them.
    """

    def __init__(self, options: LeagueOptions, policies: Sequence[str], run_seed: int) -> None:
        self.options = options
        self.policies = list(policies)
        self.members: list[Member] = []
        self.payoffs = Payoffs()
        self._seed = run_seed
        self._decided = -1
        self._matchmaker = resolve_matchmaker(options.matchmaking)

    # -- snapshots ----------------------------------------------------------------------------------------------

    def due(self, iteration: int) -> list[Member]:
        """Snapshots to be taken before ``iteration``, of which name, policy and iteration are known;
        none a second time.
        """
        if iteration <= self._decided:
            return []
        return [
            Member(member_name(policy, iteration), policy, iteration)
            for policy in self.policies
            if self._is_due(policy, iteration)
        ]

    def decided(self, iteration: int, snapshots: Iterable[Member]) -> list[Member]:
        """Take in the snapshots that were due before ``iteration``; returns the members that left for them."""
        left: list[Member] = []
        for member in snapshots:
            self.members.append(member)
            self.payoffs.copy_row(member.policy, member.name)
            for former in leaving(self.members, self.options.max_members, self.options.leaves, self._beaten):
                self.members.remove(former)
                self.payoffs.forget(former.name)
                left.append(former)
        self._decided = max(self._decided, iteration)
        return left

    def _is_due(self, policy: str, iteration: int) -> bool:
        latest = next((member for member in reversed(self.members) if member.policy == policy), None)
        if latest is None:
            return True
        every, rate = self.options.snapshot_every, self.options.snapshot_win_rate
        if every is not None and iteration % every == 0:
            return True
        return (
            rate is not None
            and self.payoffs.games(policy, latest.name) >= self.options.snapshot_min_games
            and self._mean_win_rate(policy) > rate
        )

    def _beaten(self, member: Member) -> float:
        return sum(self.payoffs.win_rate(policy, member.name) for policy in self.policies) / len(self.policies)

    def _mean_win_rate(self, policy: str) -> float:
        rates = [self.payoffs.win_rate(policy, member.name) for member in self.members]
        return sum(rates) / len(rates) if rates else 0.5

    # -- matches ------------------------------------------------------------------------------------------------

    def tables(self, iteration: int) -> list[Table]:
        """Whom the policies meet in ``iteration``: a table for each opponent engine, held by the policies in turn."""
        if not self.members or self.options.self_play_share == 1:
            return []
        standings = {policy: self.standings(policy) for policy in self.policies}
        tables = []
        for number in range(self.options.opponent_engines):
            policy = self.policies[number % len(self.policies)]
            chance = partial(drawn, self._seed, "league", iteration, number)
            member = draw_member(standings[policy], self.options, self._matchmaker, chance)
            tables.append(Table(policy, member))
        return tables

    def standings(self, policy: str) -> list[Standing]:
        """How a policy stands against every member, oldest first."""
        return [
            Standing(member, self.payoffs.win_rate(policy, member.name), self.payoffs.games(policy, member.name))
            for member in self.members
        ]

    def next_tables(self, iteration: int) -> list[Table]:
        """The tables of ``iteration`` as they will be once the snapshots that are due have been taken."""
        after = copy.deepcopy(self)
        after.decided(iteration, after.due(iteration))
        return after.tables(iteration)

    def matches(self, plans: Sequence[EpisodePlan], iteration: int) -> dict[int, Match]:
        """Who plays what; ``EpisodePlan.index`` -> match."""
        seed = stable_seed(self._seed, "league", iteration, "matches")
        return deal_matches(plans, self.policies, self.tables(iteration), self.options.self_play_share, seed)

    def record(self, summaries: Sequence[EpisodeSummary], matches: Mapping[int, Match]) -> None:
        """Count the results of an iteration; several seats of the policy that learns count as one game together."""
        for policy in self.policies:
            self.payoffs.decay(policy, self.options.payoff_decay)
        for summary in sorted(summaries, key=lambda summary: summary.index):
            match = matches[summary.index]
            own = [seat for seat in summary.seats if seat.trained and seat.outcome is not None]
            if match.member is not None:
                for seat in own:
                    self.payoffs.add(match.policy, match.member.name, str(seat.outcome), 1 / len(own))

    # -- state --------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything a resumed run must know, JSON-ready."""
        return {
            "members": [dataclasses.asdict(member) for member in self.members],
            "payoffs": self.payoffs.state(),
            "decided": self._decided,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over a state of :meth:`state`."""
        self.members = [Member(**member) for member in state["members"]]
        self.payoffs.set_state(state["payoffs"])
        self._decided = int(state["decided"])

    def numbers(self) -> dict[str, Any]:
        """``size``; ``mean_win_rate/<policy>``; ``win_rate/<policy>/<member>``, as far as they have met; and
        ``rating/<name>`` of policies and members: Bradley-Terry, on Elo's scale, with mean 0.
        """
        met = {
            policy: {
                standing.member.name: standing.win_rate for standing in self.standings(policy) if standing.games > 0
            }
            for policy in self.policies
        }
        means = {policy: sum(rates.values()) / len(rates) for policy, rates in met.items() if rates}
        players = [*self.policies, *(member.name for member in self.members)]
        rated = dict(zip(players, bradley_terry(self.payoffs.wins(players)).tolist(), strict=True))
        return {"size": len(self.members), "mean_win_rate": means, "win_rate": met, "rating": rated}
