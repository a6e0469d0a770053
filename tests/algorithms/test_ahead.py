"""Episodes that weights played which are older than asynchronous rollouts allow are played again."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllib_lmgame.rollouts.plans import AgentAssignment, EpisodePlan, plan_episodes
from rllib_lmgame.rollouts.records import EpisodeSummary, GameConfig, PlayResult, PlaySettings, SeatSummary
from rllib_lmgame.rollouts.sources import STALE, RolloutError, play_all, without_stale


def planned(count: int) -> list[EpisodePlan]:
    return plan_episodes(count, run_seed=0, purpose="t", iteration=1)


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
