"""A league: its members, their pay-offs, and the decisions for the next iteration, without I/O."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from rllib_lmgame.base.errors import CheckpointError
from rllib_lmgame.league.matches import Match, Table, deal_matches
from rllib_lmgame.league.matchmaking import Standing, draw_member, draw_past, drawn
from rllib_lmgame.league.members import Member, leaving, member_name, member_of, policies_of
from rllib_lmgame.league.options import ExploiterOptions, LeagueOptions
from rllib_lmgame.league.payoffs import Payoffs
from rllib_lmgame.measures.ratings import bradley_terry
from rllib_lmgame.rollouts.plans import EpisodePlan, stable_seed
from rllib_lmgame.rollouts.records import EpisodeSummary


def policies_gone(state: Mapping[str, Any], policies: Iterable[str]) -> list[str]:
    """Policies in a league's state, as members or in results, that are not in ``policies``."""
    members = policies_of(state)
    players = {*state["payoffs"]}.union(*state["payoffs"].values())
    return sorted(({*members.values()} | players - members.keys()) - {*policies})


@dataclasses.dataclass(slots=True)
class Attempt:
    """Progress of an exploiter: the iteration before which it ``began``, and the number of resets."""

    began: int = 0
    resets: int = 0

    def is_over(self, options: ExploiterOptions, iteration: int, win_rate: float | None) -> bool:
        """Whether it becomes a member before ``iteration`` and restarts; ``win_rate`` is ``None`` for few games."""
        if options.reset_every is not None and iteration - self.began >= options.reset_every:
            return True
        return options.win_rate is not None and win_rate is not None and win_rate > options.win_rate


class League:
    """Members (oldest first) and pay-offs of a run.

    1. Decisions for an iteration depend only on the run's seed, the iteration, members and pay-offs.
    2. Pay-offs do not depend on the order of results.
    3. :meth:`state` is the whole state.
    """

    def __init__(self, options: LeagueOptions, policies: Sequence[str], run_seed: int) -> None:
        self.options = options
        self.policies = list(policies)
        self.exploiters = options.exploiter_options
        self.members: list[Member] = []
        self.payoffs = Payoffs()
        self._seed = run_seed
        self._decided = -1
        self._attempts: dict[str, Attempt] = {}

    def due(self, iteration: int) -> list[Member]:
        """Snapshots to take before ``iteration``, with name, policy and iteration. None is due twice."""
        if iteration <= self._decided:
            return []
        return [
            Member(member_name(policy, iteration), policy, iteration)
            for policy in self.policies
            if self._is_due(policy, iteration)
        ]

    def decided(self, iteration: int, snapshots: Iterable[Member]) -> list[Member]:
        """Add the snapshots due before ``iteration``; exploiters (re)start. Returns the members that left."""
        for policy in self.exploiters:
            self._attempts.setdefault(policy, Attempt(iteration))
        left: list[Member] = []
        for member in snapshots:
            self.members.append(member)
            if member.policy in self.exploiters:
                self.payoffs.retire(member.policy, self.exploiters[member.policy].of, member.name)
                self._attempts[member.policy] = Attempt(iteration, self._attempts[member.policy].resets + 1)
            else:
                self.payoffs.copy_row(member.policy, member.name)
            for former in leaving(self.members, self.options.max_members, self.options.leaves, self._beaten):
                self.members.remove(former)
                self.payoffs.forget(former.name)
                left.append(former)
        self._decided = max(self._decided, iteration)
        return left

    def _is_due(self, policy: str, iteration: int) -> bool:
        exploiter = self.exploiters.get(policy)
        if exploiter is not None:
            attempt = self._attempts.get(policy)
            return attempt is not None and attempt.is_over(exploiter, iteration, self._success(policy, exploiter))
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

    def _success(self, policy: str, exploiter: ExploiterOptions) -> float | None:
        """An exploiter's win rate against present weights; ``None`` for too few games."""
        enough = self.payoffs.games(policy, exploiter.of) >= self.options.snapshot_min_games
        return self.payoffs.win_rate(policy, exploiter.of) if enough else None

    def _beaten(self, member: Member) -> float:
        rates = [
            self.payoffs.win_rate(policy, member.name) for policy in self.policies if policy not in self.exploiters
        ]
        return sum(rates) / len(rates)

    def _mean_win_rate(self, policy: str) -> float:
        """Mean win rate against all members (at least one)."""
        rates = [self.payoffs.win_rate(policy, member.name) for member in self.members]
        return sum(rates) / len(rates)

    def tables(self, iteration: int) -> list[Table]:
        """Opponents in ``iteration``: one table per opponent engine, in turn for the policies that meet members."""
        standings = {policy: self.standings(policy) for policy in self.policies}
        seated = [
            policy for policy in self.policies if standings[policy] and self.options.share_without_members(policy) < 1
        ]
        tables = []
        for number in range(self.options.opponent_engines if seated else 0):
            policy = seated[number % len(seated)]
            chance = partial(drawn, self._seed, "league", iteration, number)
            if policy in self.exploiters:
                member = draw_past(standings[policy], chance)
            else:
                member = draw_member(standings[policy], self.options, chance)
            tables.append(Table(policy, member))
        return tables

    def standings(self, policy: str) -> list[Standing]:
        """A policy's standings against members, oldest first; an exploiter meets only past versions of its policy."""
        exploiter = self.exploiters.get(policy)
        return [
            Standing(member, self.payoffs.win_rate(policy, member.name), self.payoffs.games(policy, member.name))
            for member in self.members
            if exploiter is None or member.policy == exploiter.of
        ]

    def next_tables(self, iteration: int) -> list[Table]:
        """The tables of ``iteration`` after the snapshots that are due."""
        after = copy.deepcopy(self)
        after.decided(iteration, after.due(iteration))
        return after.tables(iteration)

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
            if match.opponent is None:
                continue
            for seat in summary.seats:
                if seat.trained and seat.outcome is not None:
                    self.payoffs.add(match.policy, match.opponent, str(seat.outcome))

    def state(self) -> dict[str, Any]:
        return {
            "members": [dataclasses.asdict(member) for member in self.members],
            "payoffs": self.payoffs.state(),
            "decided": self._decided,
            "exploiters": {policy: dataclasses.asdict(attempt) for policy, attempt in self._attempts.items()},
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a :meth:`state`. Raises: CheckpointError: it has members or results of other policies."""
        gone = policies_gone(state, self.policies)
        if gone:
            raise CheckpointError(f"the league has members or results of policies that do not learn: {', '.join(gone)}")
        self.members = [member_of(member) for member in state["members"]]
        self.payoffs.set_state(state["payoffs"])
        self._decided = int(state["decided"])
        attempts = state["exploiters"]
        self._attempts = {policy: Attempt(**attempts[policy]) for policy in self.exploiters if policy in attempts}

    def numbers(self) -> dict[str, Any]:
        """``size``, ``mean_win_rate/<policy>``, ``win_rate/<policy>/<member>``, ``rating/<name>`` (Bradley-Terry on
        Elo's scale, mean 0). For ``exploiters``: ``win_rate`` against present weights, ``iterations`` since the start,
        ``resets``.
        """
        met = {
            policy: {one.member.name: one.win_rate for one in self.standings(policy) if one.games > 0}
            for policy in self.policies
        }
        means = {policy: sum(rates.values()) / len(rates) for policy, rates in met.items() if rates}
        players = [*self.policies, *(member.name for member in self.members)]
        rated = dict(zip(players, bradley_terry(self.payoffs.wins(players)).tolist(), strict=True))
        numbers = {"size": len(self.members), "mean_win_rate": means, "win_rate": met, "rating": rated}
        exploiters = {}
        for policy, exploiter in self.exploiters.items():
            attempt = self._attempts.get(policy, Attempt(self._decided + 1))
            exploiters[policy] = {
                "win_rate": self.payoffs.win_rate(policy, exploiter.of),
                "iterations": self._decided + 1 - attempt.began,
                "resets": attempt.resets,
            }
        return numbers | ({"exploiters": exploiters} if exploiters else {})
