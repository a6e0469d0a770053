"""The coefficient of an entropy bonus that follows a target."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rllib_lmgame.learners.data.rows import WholeEpisodes
from rllib_lmgame.learners.objectives import SupervisedObjective
from rllib_lmgame.learners.objectives.policy_losses import next_coefficient


@given(st.floats(0, 1), st.floats(0, 10), st.floats(0.01, 10), st.floats(1e-4, 1))
def test_the_coefficient_rises_below_the_target_and_falls_to_zero_above_it(
    coefficient: float, entropy: float, target: float, rate: float
) -> None:
    after = next_coefficient(coefficient, entropy, target, rate)
    assert after >= 0.0
    assert (after >= coefficient) if entropy <= target else (after <= coefficient)
    assert next_coefficient(coefficient, float("nan"), target, rate) == coefficient


@pytest.mark.parametrize("start", [0.0, 0.5])
def test_a_policy_whose_entropy_answers_to_the_bonus_comes_to_rest_at_the_target(start: float) -> None:
    """Entropy .2 without a bonus, and more the larger the coefficient is."""
    coefficient = start
    for _ in range(400):
        coefficient = next_coefficient(coefficient, 0.2 + 5.0 * coefficient, 0.7, 0.05)
    assert coefficient == pytest.approx(0.1, abs=1e-6)


def test_a_learner_follows_the_target_and_keeps_the_coefficient(
    make_learner: Callable[..., Any], make_episodes: Callable[..., list[Any]]
) -> None:
    kwargs = {"token_ppo": {"entropy": {"target": 9.0, "rate": 0.1}}, "entropy_coeff": 0.02}
    learner, expected = make_learner(**kwargs), 0.02

    def update(of: Any, **how: Any) -> dict[str, float]:
        return MetricsLogger.peek_results(of.update(training_data=WholeEpisodes(episodes=make_episodes(4)), **how))[
            "player"
        ]

    update(learner, objective=SupervisedObjective(1, lr=1e-3))
    assert learner.counters()["entropy_coefficients"] == {}
    warming = make_learner(
        token_ppo=kwargs["token_ppo"] | {"critic": {"warmup": {"iterations": 1}}}, entropy_coeff=kwargs["entropy_coeff"]
    )
    assert [update(warming)["curr_entropy_coeff"] > 0.1 for _ in range(2)] == [False, True], "a rest, and then none"
    used = []
    for _ in range(2):
        used.append(learner.entropy_coefficient("player"))
        numbers = update(learner)
        expected += 0.1 * (9.0 - numbers["entropy"])
        assert numbers["curr_entropy_coeff"] == pytest.approx(expected)
    assert used[0] == pytest.approx(0.02) and used[1] > 0.1
    fresh = make_learner(**kwargs)
    fresh.set_counters(json.loads(json.dumps(learner.counters())))
    assert fresh.entropy_coefficient("player") == pytest.approx(expected)
    fresh.begin_ppo()
    assert fresh.entropy_coefficient("player") == pytest.approx(0.02), "a policy that begins anew has the first one"


@pytest.mark.parametrize("how", ["state", "files"])
def test_a_restored_run_without_the_target_goes_by_its_own_coefficient(
    how: str, make_learner: Callable[..., Any], make_episodes: Callable[..., list[Any]], tmp_path: Path
) -> None:
    def update(of: Any, **more: Any) -> float:
        training_data = WholeEpisodes(episodes=make_episodes(4))
        results = MetricsLogger.peek_results(of.update(training_data=training_data, **more))
        return float(results["player"]["curr_entropy_coeff"])

    def restored(**kwargs: Any) -> Any:
        fresh = make_learner(**{"entropy_coeff": 0.02, **kwargs})
        if how == "state":
            fresh.set_state(learner.get_state())
        else:
            fresh.load_shard(tmp_path)
        return fresh

    target = {"entropy": {"target": 9.0, "rate": 0.1}}
    learner = make_learner(token_ppo=target, entropy_coeff=0.02)
    moved = update(learner)
    learner.save_shard(tmp_path)
    assert moved > 0.1
    without = restored()
    assert update(without) == without.entropy_coefficient("player") == pytest.approx(0.02)
    assert update(without, scheduled={"entropy_coeff": 0.3}) == pytest.approx(0.3)
    assert without.entropy_coefficient("player") == pytest.approx(0.3)
    assert restored(token_ppo=target).entropy_coefficient("player") == pytest.approx(moved)
    begun = restored(token_ppo=target, entropy_coeff=0.5)
    assert begun.entropy_coefficient("player") == pytest.approx(0.5), "it is to begin with another number"
    follows = restored(token_ppo={"entropy": {"target": 1.0, "rate": 0.1}})
    follows._follow({"token_ppo.entropy.target": 9.0})
    assert follows.entropy_coefficient("player") == pytest.approx(moved), "the target stands in a schedule"
