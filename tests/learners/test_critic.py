"""The fit of the value head's last layer, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learning import moved, restored, update, weights

from rllib_lmgame.learners.critic import PENALTIES, SUMS_FILE, Sums, fit, is_held_out, token_sums
from rllib_lmgame.rollouts.records import Trajectory, Turn


def sums_of(features: np.ndarray, targets: np.ndarray, chosen: np.ndarray) -> Sums:
    return Sums(*(each.numpy() for each in token_sums(*map(torch.from_numpy, (features, targets, chosen)))))


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_the_fit_is_ridge_regression_written_out(seed: int) -> None:
    """Over tokens; the penalty is the one that does best on what is held out."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(120, 5)) + 1.0
    normal = features @ rng.normal(size=5) + 0.5 + rng.normal(size=120)
    held_out = rng.random(120) < 0.2
    found = fit(sums_of(features, normal, ~held_out), sums_of(features, normal, held_out))

    def ridge(which: np.ndarray, penalty: float) -> np.ndarray:
        x, y = features[which] - features[which].mean(0), normal[which] - normal[which].mean()
        covariance = x.T @ x / len(x)
        if np.isinf(penalty):
            return np.zeros(5)
        return np.linalg.solve(covariance + penalty * np.trace(covariance) / 5 * np.eye(5), x.T @ y / len(y))

    def explained(which: np.ndarray, weight: np.ndarray) -> float:
        return float(1 - np.var(normal[which] - features[which] @ weight) / np.var(normal[which]))

    grid = [*PENALTIES, np.inf]
    scores = [explained(held_out, ridge(~held_out, penalty)) for penalty in grid]
    everything = np.ones(120, bool)
    weight = ridge(everything, grid[int(np.argmax(scores))])
    np.testing.assert_allclose(found.weight, weight, rtol=1e-5, atol=1e-7)
    assert found.bias == pytest.approx(float(np.mean(normal - features @ weight)), abs=1e-6)
    assert found.held_out_explained_variance == pytest.approx(max(scores), abs=1e-6)
    assert found.explained_variance == pytest.approx(explained(everything, weight), abs=1e-6)


def test_noise_leaves_the_mean_and_nothing_held_out_is_no_error() -> None:
    rng = np.random.default_rng(0)
    noise, held_out = rng.normal(3.0, 1.0, 400), np.arange(400) < 100
    features = rng.normal(size=(400, 90))
    found = fit(sums_of(features, noise, ~held_out), sums_of(features, noise, held_out))
    assert found.held_out_explained_variance >= -1e-9
    assert found.bias + found.weight @ features.mean(0) == pytest.approx(noise.mean())
    alone = fit(sums_of(features, noise, held_out < 2), sums_of(features, noise, held_out > 2))
    assert np.isnan(alone.held_out_explained_variance)
    assert np.isfinite(alone.weight).all()


@pytest.mark.parametrize("target", [0.0, 84.7, 1000.7, 5000.3])
def test_targets_that_do_not_vary_choose_no_penalty(target: float) -> None:
    """What rounding leaves of their variance explains nothing, and no penalty does best on it."""
    rng = np.random.default_rng(0)
    targets, held_out = np.full(12001, target), np.arange(12001) < 1201
    features = rng.normal(size=(12001, 4)) + 1.0
    found = fit(*(sums_of(features, targets, which) for which in (~held_out, held_out)))
    assert np.isnan(found.explained_variance) and np.isnan(found.held_out_explained_variance)
    assert np.abs(found.weight).max() < 1e-6


def test_a_tenth_is_held_out() -> None:
    share = np.mean([is_held_out(f"train-{i}-{j}") for i in range(20) for j in range(200)])
    assert share == pytest.approx(0.1, abs=0.02)
    assert {is_held_out(f"\udcff{i}") for i in range(99)} == {False, True}  # A level's text, from bytes of any kind.


# In the learner.

OFFSET, SIZE = -30.0, 20.0
GAME = "own.game"


@pytest.fixture(scope="module")
def foreseeable(as_episode: Any) -> Callable[..., list[Any]]:
    """Function ``(count, seed) -> episodes`` of one-token replies, whose reward the last id of the prompt tells."""

    def make(count: int, seed: int) -> list[Any]:
        rng = np.random.default_rng(seed)
        episodes = []
        for number in range(count):
            ids = np.array([5, 9, rng.integers(0, 6), rng.integers(0, 64)], np.int32)
            reward = OFFSET + SIZE * (ids[2] in (1, 4))
            turn = Turn(ids[:3], ids[3:], np.full(1, -4.0, np.float32), reward=float(reward), new_row=True)
            names = {"module_id": "player", "game": GAME, "episode_id": f"{seed}-{number}"}
            episodes.append(as_episode(Trajectory([turn], terminated=True, **names)))
        return episodes

    return make


@pytest.mark.parametrize("value_model", ["shared", "separate"])
def test_the_warm_up_fits_the_last_layer_and_touches_nothing_else(
    value_model: str, make_learner: Any, foreseeable: Any
) -> None:
    """Bit for bit; and what it has learned holds for episodes it has not seen."""
    learner = make_learner(
        lr=1e-2, options={"value_model": value_model}, training={"critic": {"warmup": {"iterations": 2}}}
    )
    before, optimizer = weights(learner), learner.get_optimizer("player")
    first = update(learner, foreseeable(100, 0))
    assert abs(first["vf_explained_var"]) < 1e-3
    assert first["critic_fit_explained_var_held_out"] > 0.7
    second = update(learner, foreseeable(100, 1))
    assert second["vf_explained_var"] > 0.7
    assert second["critic_fit_explained_var"] > 0.8
    assert moved(learner, before) == {"value_head.outer.weight", "value_head.outer.bias"}
    assert not optimizer.state
    third = update(learner, foreseeable(100, 2))
    assert third["vf_explained_var"] > 0.7
    assert third["num_steps"] == 1


@pytest.mark.parametrize(
    ("estimator", "targets"),
    [
        ("gae", [0.9**k for k in (5, 4, 3, 2, 1, 0)]),
        ("turn_gae", [0.9] * 3 + [1.0] * 3),
        ({"type": "bilevel_gae", "turn_gamma": 0.5}, [0.5 * 0.81, 0.5 * 0.9, 0.5, 0.81, 0.9, 1.0]),
    ],
)
def test_the_fit_is_of_returns_discounted_as_the_estimator_does(
    estimator: Any, targets: list[float], make_learner: Any, as_episode: Any
) -> None:
    """Two turns of three tokens and a reward at the end: the value loss has these targets, too."""
    rng, episodes = np.random.default_rng(0), []
    for number in range(12):
        turns = [
            Turn(*rng.integers(0, 64, (2, 3), np.int32), np.full(3, -4.0, np.float32), reward=float(k), new_row=k == 0)
            for k in range(2)
        ]
        names = {"module_id": "player", "game": "taxi", "episode_id": f"e{number}"}
        episodes.append(as_episode(Trajectory(turns, terminated=True, **names)))
    ppo = {"critic": {"warmup": {"iterations": 2}, "target": "monte_carlo"}}
    learner = make_learner(gamma=0.9, training={**ppo, "advantage_estimator": estimator})
    metrics, critic = update(learner, episodes), learner.critics["player"]
    moments = np.array([np.mean(targets), np.mean(np.square(targets))])
    fitted = sum(sums.vector[:3] for sums in critic.sums.values())
    assert fitted == pytest.approx([72.0, *(72.0 * moments)])
    assert metrics["return_mean"] == pytest.approx(moments[0])


def test_a_penalty_in_the_rewards_is_one_in_what_is_fitted(make_learner: Any, foreseeable: Any) -> None:
    """With a reference that is not the policy's beginning."""
    ppo = {"critic": {"warmup": {"iterations": 2}, "target": "monte_carlo"}, "kl": {"as": "reward"}}
    learner = make_learner(use_kl_loss=True, kl_coeff=2.0, training=ppo)
    with torch.no_grad():
        for parameter in learner.reference("player").module.parameters():
            parameter.mul_(1.5)
    episodes = foreseeable(12, 0)
    rewards = [float(sum(e.agent_episodes["player"].get_rewards())) for e in episodes]
    metrics = update(learner, episodes)
    count, total = np.sum([sums.vector[:2] for sums in learner.critics["player"].sums.values()], axis=0)
    assert abs(metrics["return_mean"] - np.mean(rewards)) > 0.1
    assert total / count == pytest.approx(metrics["return_mean"])


def test_a_warm_up_goes_on_where_it_was(make_learner: Any, foreseeable: Any, tmp_path: Path) -> None:
    ppo = {"critic": {"warmup": {"iterations": 3}}}
    one, other = make_learner(training=ppo), make_learner(training=ppo)
    update(one, foreseeable(40, 0))
    update(one, foreseeable(40, 1))
    restored(other, one, tmp_path)
    assert (tmp_path / "player" / SUMS_FILE).exists()
    for seed in (2, 3):
        a, b = update(one, foreseeable(40, seed)), update(other, foreseeable(40, seed))
        assert a["vf_explained_var"] == b["vf_explained_var"]
        assert not moved(other, weights(one))
    assert not one.critics["player"].sums


def test_a_policy_that_begins_anew_forgets_what_was_fitted(make_learner: Any, foreseeable: Any) -> None:
    """The sums are of hidden states that are no more."""
    learner = make_learner(training={"critic": {"warmup": {"iterations": 2}}})
    update(learner, foreseeable(20, 0))
    assert learner.critics["player"].sums
    learner.begin_rl()
    assert not learner.critics["player"].sums
