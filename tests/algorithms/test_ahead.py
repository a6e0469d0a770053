"""Iterations played ahead: in order and each once, never older than allowed, whatever is killed and begun again."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllib_lmgame.algorithms.async_rollouts import Ahead
from rllib_lmgame.rollouts.plans import AgentAssignment, EpisodePlan, plan_episodes
from rllib_lmgame.rollouts.records import EpisodeSummary, GameConfig, PlayResult, PlaySettings, SeatSummary
from rllib_lmgame.rollouts.sources import STALE, RolloutError, play_all, without_stale


def planned(count: int) -> list[EpisodePlan]:
    return plan_episodes(count, run_seed=0, purpose="t", iteration=1)


class Run:
    """A driver that trains, as far as it asks what may begin.

    Iterations are played in order, by somebody who may be anywhere between the first and the last that have begun; a
    level of a list is dealt when its iteration begins to be played. ``saved`` is what a checkpoint holds.
    """

    def __init__(self, max_staleness: int) -> None:
        self.max_staleness = max_staleness
        self.iteration = self.version = self.dealt = self.used = 0
        self.trained: list[tuple[int, int]] = []
        self.start_anew()

    def start_anew(self) -> None:
        self.ahead: Ahead[dict[str, int]] = Ahead(self.max_staleness)

    def begin(self, iteration: int) -> dict[str, int]:
        oldest = self.ahead.oldest(self.version, self.iteration, iteration)
        return {"iteration": iteration, "oldest": oldest, "version": -1, "level": -1}

    def play(self) -> None:
        """The next iteration that has begun and was not played is played."""
        for job in self.ahead.begun:
            if job["version"] < 0:
                self.play_one(job)
                return

    def play_one(self, job: dict[str, int]) -> None:
        job["version"], job["level"] = self.version, self.dealt
        self.dealt += 1

    def step(self, plays_during_the_update: int) -> None:
        job = self.ahead.take(self.iteration) or self.begin(self.iteration)
        if job["version"] < 0:
            self.play_one(job)
        assert job["iteration"] == self.iteration
        assert 0 <= self.version - job["version"] <= self.max_staleness and job["version"] >= job["oldest"]
        self.used = job["level"] + 1
        for iteration in self.ahead.room(self.iteration):
            self.ahead.begin(iteration, self.begin(iteration))
        assert len(self.ahead.begun) == self.max_staleness
        for _ in range(plays_during_the_update):
            self.play()
        self.trained.append((job["iteration"], job["level"]))
        self.version += 1
        self.iteration += 1

    def save(self) -> tuple[int, ...]:
        return self.iteration, self.version, self.used

    def restore(self, saved: tuple[int, ...]) -> None:
        self.iteration, self.version, self.used = saved
        self.dealt = self.used
        del self.trained[self.iteration :]


@given(
    st.integers(0, 4),
    st.lists(
        st.one_of(
            st.integers(0, 5), st.sampled_from(["play", "save", "kill", "killed in the update", "forget", "fewer"])
        ),
        max_size=60,
    ),
)
def test_nothing_is_lost_nothing_comes_twice_and_nothing_is_too_old(staleness: int, events: list[int | str]) -> None:
    """Numbers: an iteration, and so many that are played while it is trained on."""
    run = Run(staleness)
    saved = run.save()
    for event in events:
        if isinstance(event, int):
            run.step(event)
        elif event == "play":
            run.play()
        elif event == "save":
            saved = run.save()
        elif event == "forget":
            assert len(run.ahead.forget()) <= staleness and not run.ahead.begun
            run.dealt = run.used
        else:
            if event == "fewer":
                run.max_staleness = max(0, run.max_staleness - 1)
            run.start_anew()
            run.restore(saved)
        assert run.trained == [(number, number) for number in range(run.iteration)]


def test_iterations_cannot_be_left_out() -> None:
    ahead: Ahead[str] = Ahead(2)
    assert list(ahead.room(0)) == [1, 2]
    ahead.begin(1, "one")
    with pytest.raises(ValueError, match="iteration 3 does not follow on 1"):
        ahead.begin(3, "three")
    with pytest.raises(ValueError, match="iteration 1 comes out before iteration 2"):
        ahead.take(2)
    assert ahead.take(1) == "one" and ahead.take(1) is None


class Engines:
    """Runners whose engines hold weights of version 4 at first; ``stuck`` ones stay there, others go on to 5.

    Every second episode is played by a stuck one until it is replaced; with ``always`` also afterwards.
    """

    def __init__(self, always: bool) -> None:
        self.always = always
        self.healed = 0

    def play(self, plans: Sequence[EpisodePlan], settings: PlaySettings) -> PlayResult:
        played = PlayResult()
        for plan in plans:
            stuck = plan.index % 2 and (self.always or not plan.attempt)
            seat = SeatSummary("a", "r", "p", 0.0, 1, 0, 0, 1, 1, 1, None, 4 if stuck else 5)
            summary = EpisodeSummary(plan.episode_id, plan.index, 0, "g", plan.seed, True, "game_over", 1, 1.0)
            played.summaries.append(dataclasses.replace(summary, seats=[seat]))
        return played

    def heal(self) -> None:
        self.healed += 1


@pytest.mark.parametrize("always", [False, True])
def test_what_an_engine_plays_that_did_not_take_the_last_weights_is_played_again(always: bool) -> None:
    settings = PlaySettings((GameConfig(env="game"),), oldest_version=5)
    plans = [dataclasses.replace(plan, assignments={"a": AgentAssignment("p")}) for plan in planned(6)]
    engines = Engines(always)
    agent_mapper: Any = SimpleNamespace(assigned=lambda plans, games: (list(plans), []))
    if always:
        with pytest.raises(RolloutError, match="in 3 rounds: weights of version 4 replied, older than 5"):
            play_all(engines, plans, settings, agent_mapper, 3)
        return
    result = play_all(engines, plans, settings, agent_mapper, 3)
    assert [(failure.plan.index, failure.reason) for failure in result.failures] == [(n, STALE) for n in (1, 3, 5)]
    assert engines.healed == 1
    assert [summary.index for summary in result.summaries] == [*range(6)]
    assert [summary.seed for summary in result.summaries] == [plan.seed for plan in plans]


@given(st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=12), st.integers(0, 9), st.randoms())
def test_episodes_of_old_weights_have_failed(versions: list[list[int]], oldest: int, chance: random.Random) -> None:
    """``versions``: per episode, the oldest weights that replied in each trained seat."""
    plans = planned(len(versions))
    played = PlayResult()
    for plan in chance.sample(plans, len(plans)):
        numbers = [*((True, 1, version) for version in versions[plan.index]), (True, 0, 0), (False, 3, 0)]
        seats = [
            SeatSummary("a", "r", "p", 0.0, turns, 0, 0, 1, 1, 1, None, version, trained=trained)
            for trained, turns, version in numbers
        ]
        played.summaries.append(
            EpisodeSummary(plan.episode_id, plan.index, 0, "g", 0, True, "game_over", 1, 1.0, seats=seats)
        )
    assert not without_stale(plans, played, None) and len(played.summaries) == len(versions)
    failures = without_stale(plans, played, oldest)
    old = {index for index, found in enumerate(versions) if found and min(found) < oldest}
    assert {failure.plan.index for failure in failures} == old and {failure.reason for failure in failures} <= {STALE}
    assert {summary.index for summary in played.summaries} == set(range(len(versions))) - old
