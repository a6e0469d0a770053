"""``benchmarks/async_rollouts.py``: its ratios by hand."""

from __future__ import annotations

import async_rollouts
import pytest


def test_the_bound_is_of_both_phases_with_all_cores_over_the_longer_one_with_one() -> None:
    turns = {"iteration_s": 10.5, "rollout_s": 4.0, "update_s": 6.0}
    alone = {"iteration_s": 13.0, "rollout_s": 5.0, "update_s": 8.0}
    ahead = {"iteration_s": 8.75, "idle_engine_s": 2.0, "idle_learner_s": 0.5}
    found = async_rollouts.figures(turns, alone, ahead)
    assert found["bound"] == 1.25 and found["speedup"] == pytest.approx(1.2)
    assert found["share_of_bound"] == pytest.approx(0.96)
    assert {key for key, *_ in async_rollouts.ROWS} == set(found)
