"""The value function's units, the fit of its last layer, and what both leave alone."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learning import by_state_and_files, moved, restored, update, weights

from rllib_lmgame.learners.advantages import monte_carlo_returns
from rllib_lmgame.learners.critic.critic import DECAY, SUMS_FILE, ValueUnits, is_held_out
from rllib_lmgame.learners.critic.regression import PENALTIES, RegressionSums, fit, token_sums
from rllib_lmgame.rollouts.records import Trajectory, Turn

GAMES = ("maze", "taxi", "wordle")


def inputs_of(rewards: list[np.ndarray], games: list[int], all_reduce: Any = lambda sums: sums) -> Any:
    """What the units are told of trajectories with these rewards per token."""
    lengths = [len(r) for r in rewards]
    return SimpleNamespace(
        rewards=np.concatenate([np.zeros(0), *rewards]).astype(np.float32),
        bootstrap=np.zeros(len(rewards), np.float32),
        offsets=np.array([0, *accumulate(lengths)]),
        gamma=1.0,
        games=np.array(games, np.int64),
        game_names=GAMES,
        per_token=lambda per: np.repeat(per, lengths),
        all_reduce=all_reduce,
    )


def observe(units: ValueUnits, inputs: Any, *, head_is_new: bool) -> None:
    units.observe(inputs, monte_carlo_returns(inputs), head_is_new=head_is_new)


def random_trajectories(rng: np.random.Generator, count: int) -> tuple[list[np.ndarray], list[int]]:
    games = rng.integers(0, len(GAMES), count).tolist()
    size = 10.0 ** rng.uniform(-2, 3)
    return [rng.normal(-size * game, size, rng.integers(0, 5)) for game in games], games


@given(seed=st.integers(0, 2**32 - 1), updates=st.integers(1, 6), new=st.booleans())
def test_rescaling_the_last_layer_changes_no_prediction(seed: int, updates: int, new: bool) -> None:
    """A head in float64, the games met one after the other, returns whose size jumps by powers of ten."""
    rng = np.random.default_rng(seed)
    units, features = ValueUnits(), rng.normal(size=(50, 4))
    weight, bias = (np.zeros(4), 0.0) if new else (rng.normal(size=4), 1.5)
    for number in range(updates):
        observe(units, inputs_of(*random_trajectories(rng, 6)), head_is_new=new and number == 0)
        maps = units.maps(GAMES)
        before = {game: shift + scale * (features @ weight + bias) for game, (shift, scale) in maps.items()}
        offset, factor = units.rescaling()
        weight, bias = weight / factor, (bias - offset) / factor
        for game, (shift, scale) in units.maps(GAMES).items():
            after = shift + scale * (features @ weight + bias)
            if game in units.games:
                np.testing.assert_allclose(after, before[game], rtol=1e-6, atol=1e-6 * abs(scale))
        weight, bias = weight + rng.normal(size=4), bias + rng.normal()


def test_one_game_has_the_units_of_the_paper() -> None:
    """Running moments by their recursion; the layer gives normalised values; targets in units have mean 0 and deviation
    1 at first.
    """
    rng, units = np.random.default_rng(0), ValueUnits()
    mean = square = None
    for _ in range(4):
        rewards = [np.array([0.0, 0.0, r]) for r in rng.normal(-30.0, 7.0, 20)]
        observe(units, inputs_of(rewards, [1] * 20), head_is_new=True)
        returns = np.repeat([r[-1] for r in rewards], 3)
        first, second = float(returns.mean()), float((returns**2).mean())
        mean = first if mean is None else DECAY * mean + (1 - DECAY) * first
        square = second if square is None else DECAY * square + (1 - DECAY) * second
        units.rescaling()
        assert units.maps(["taxi"])["taxi"] == pytest.approx((mean, np.sqrt(square - mean**2)), rel=1e-5)
        tokens = units.at(["taxi"], np.zeros(3, np.int64), torch.device("cpu"))
        output = torch.tensor([-1.0, 0.0, 2.0])
        torch.testing.assert_close(tokens.normal_output(output), output)
        torch.testing.assert_close(tokens.normal(tokens.mean + 2 * tokens.deviation), torch.full((3,), 2.0))


def test_a_game_first_met_later_begins_at_its_own_units() -> None:
    """Its values begin as those of a new head, though the head has long learned those of another game."""
    units, new = ValueUnits(), [np.array([r]) for r in (-3.0, 5.0)]
    observe(units, inputs_of([np.array([r]) for r in (90.0, 110.0)], [0, 0]), head_is_new=True)
    units.rescaling()
    observe(units, inputs_of(new, [1, 1]), head_is_new=False)
    assert units.maps(["maze", "taxi"]) == {"maze": pytest.approx((100.0, 10.0)), "taxi": pytest.approx((1.0, 4.0))}


def test_returns_that_do_not_vary_are_no_division_by_zero() -> None:
    units = ValueUnits()
    observe(units, inputs_of([np.array([1.0])] * 3, [0] * 3), head_is_new=True)
    assert np.isfinite(units.rescaling()).all()
    assert units.in_rewards(np.array([0.0, 1.0]), GAMES, np.array([0, 0])) == pytest.approx([1.0, 1.0], abs=1e-3)


@given(seed=st.integers(0, 2**32 - 1), learners=st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_statistics_are_those_of_all_learners(seed: int, learners: int) -> None:
    """Also where one of them has no trajectory, or none of a game."""
    rng = np.random.default_rng(seed)
    rewards, games = random_trajectories(rng, 7)
    owner = rng.integers(0, learners, 7)
    alone, sums = ValueUnits(), []
    observe(alone, inputs_of(rewards, games), head_is_new=True)
    parts = [
        ([rewards[i] for i in np.flatnonzero(owner == n)], [games[i] for i in np.flatnonzero(owner == n)])
        for n in range(learners)
    ]
    for part in parts:
        observe(ValueUnits(), inputs_of(*part, lambda s: sums.append(s) or s), head_is_new=True)
    for part in parts:
        units = ValueUnits()
        observe(units, inputs_of(*part, lambda _: np.sum(sums, axis=0)), head_is_new=True)
        assert units.games.keys() == alone.games.keys()
        for game, found in units.games.items():
            expected = alone.games[game]
            assert (found.mean, found.square) == pytest.approx((expected.mean, expected.square), rel=1e-9, abs=1e-9)


def sums_of(features: np.ndarray, targets: np.ndarray, game: np.ndarray, chosen: np.ndarray) -> RegressionSums:
    gram, vectors = token_sums(*map(torch.from_numpy, (features, targets, game, chosen)), len(GAMES))
    sums = RegressionSums.empty(features.shape[1])
    sums.add(gram.numpy(), GAMES, vectors.numpy())
    return sums


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_the_fit_is_ridge_regression_written_out(seed: int) -> None:
    """Over tokens, targets in units of their games; the penalty is the one that does best on what is held out."""
    rng = np.random.default_rng(seed)
    features, game = rng.normal(size=(120, 5)) + 1.0, rng.integers(0, 3, 120)
    units = {"maze": (0.0, 1.0), "taxi": (-30.0, 7.0), "wordle": (2.0, 0.1)}
    shift, scale = np.array([units[g] for g in GAMES]).T
    normal = features @ rng.normal(size=5) + 0.5 + rng.normal(size=120)
    targets, held_out = shift[game] + scale[game] * normal, rng.random(120) < 0.2
    found = fit(sums_of(features, targets, game, ~held_out), sums_of(features, targets, game, held_out), units)

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
    rng, zeros = np.random.default_rng(0), np.zeros(400, np.int64)
    noise, held_out = rng.normal(3.0, 1.0, 400), np.arange(400) < 100
    features = rng.normal(size=(400, 90))
    units = dict.fromkeys(GAMES, (0.0, 1.0))
    found = fit(sums_of(features, noise, zeros, ~held_out), sums_of(features, noise, zeros, held_out), units)
    assert found.held_out_explained_variance >= -1e-9
    assert found.bias + found.weight @ features.mean(0) == pytest.approx(noise.mean())
    alone = fit(sums_of(features, noise, zeros, held_out < 2), sums_of(features, noise, zeros, held_out > 2), units)
    assert np.isnan(alone.held_out_explained_variance)
    assert np.isfinite(alone.weight).all()


@pytest.mark.parametrize("units", [(0.0, 1.0), (1000.7, 1e-3)])
@pytest.mark.parametrize("target", [0.0, 84.7, 1000.7, 5000.3])
def test_targets_that_do_not_vary_choose_no_penalty(target: float, units: tuple[float, float]) -> None:
    """What rounding leaves of their variance explains nothing, and no penalty does best on it."""
    rng, zeros = np.random.default_rng(0), np.zeros(12001, np.int64)
    targets, held_out = np.full(12001, target), np.arange(12001) < 1201
    features = rng.normal(size=(12001, 4)) + 1.0
    parts = (sums_of(features, targets, zeros, which) for which in (~held_out, held_out))
    found = fit(*parts, dict.fromkeys(GAMES, units))
    assert np.isnan(found.explained_variance) and np.isnan(found.held_out_explained_variance)
    assert np.abs(found.weight).max() < 1e-6 / units[1]


def test_a_small_variance_of_large_targets_is_one() -> None:
    rng, zeros = np.random.default_rng(0), np.zeros(4000, np.int64)
    features, held_out = rng.normal(size=(4000, 4)), np.arange(4000) < 400
    targets = 1e4 + 0.05 * (features @ np.ones(4) + rng.normal(size=4000))
    parts = (sums_of(features, targets, zeros, which) for which in (~held_out, held_out))
    found = fit(*parts, dict.fromkeys(GAMES, (0.0, 1.0)))
    assert found.held_out_explained_variance == pytest.approx(0.8, abs=0.05)
    np.testing.assert_allclose(found.weight, 0.05, rtol=0.1)


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


@pytest.mark.parametrize("normalization", ["popart", "none"])
@pytest.mark.parametrize("value_model", ["shared", "separate"])
def test_the_warm_up_fits_the_last_layer_and_touches_nothing_else(
    normalization: str, value_model: str, make_learner: Any, foreseeable: Any
) -> None:
    """Bit for bit; and what it has learned holds for episodes it has not seen."""
    learner = make_learner(
        lr=1e-2,
        options={"value_model": value_model},
        token_ppo={"critic": {"warmup": {"iterations": 2}, "normalization": normalization}},
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
def test_fit_and_units_are_of_returns_discounted_as_the_estimator_does(
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
    ppo = {"critic": {"warmup": {"iterations": 2}, "normalization": "popart", "target": "monte_carlo"}}
    learner = make_learner(gamma=0.9, token_ppo={**ppo, "advantage_estimator": estimator})
    metrics, critic = update(learner, episodes), learner.critics["player"]
    moments = np.array([np.mean(targets), np.mean(np.square(targets))])
    fitted = sum(sums.games.get("taxi", np.zeros(3))[:3] for sums in critic._sums.values())
    assert fitted == pytest.approx([72.0, *(72.0 * moments)])
    units = critic.units.games["taxi"]
    assert (units.mean, units.square) == pytest.approx(moments)
    assert metrics["return_mean"] == pytest.approx(moments[0])


def test_a_penalty_in_the_rewards_is_one_in_what_is_fitted(make_learner: Any, foreseeable: Any) -> None:
    """With a reference that is not the policy's beginning."""
    ppo = {"critic": {"warmup": {"iterations": 2}, "target": "monte_carlo"}, "kl": {"as": "reward"}}
    learner = make_learner(use_kl_loss=True, kl_coeff=2.0, token_ppo=ppo)
    with torch.no_grad():
        for parameter in learner.reference("player").parameters():
            parameter.mul_(1.5)
    episodes = foreseeable(12, 0)
    rewards = [float(sum(e.agent_episodes["player"].get_rewards())) for e in episodes]
    metrics = update(learner, episodes)
    sums = [sums.games.get(GAME, np.zeros(3))[:2] for sums in learner.critics["player"]._sums.values()]
    count, total = np.sum(sums, axis=0)
    assert abs(metrics["return_mean"] - np.mean(rewards)) > 0.1
    assert total / count == pytest.approx(metrics["return_mean"])


def test_values_are_rewards_whatever_the_units(make_learner: Any, foreseeable: Any) -> None:
    """A new head predicts the mean return; the loss is in units of the deviation; no rescaling moves a prediction."""
    learner = make_learner(lr=1e-3, token_ppo={"critic": {"normalization": "popart"}, "normalize_advantages": "none"})
    first = update(learner, foreseeable(60, 0))
    assert first["vf_loss"] == pytest.approx(1.0, abs=1e-3)
    assert first["advantage_mean"] == pytest.approx(0.0, abs=1e-3)
    critic, head = learner.critics["player"], learner.module["player"].value_head
    hidden, plain, moved = torch.randn(40, 32), critic.rescale, []

    def values() -> np.ndarray:
        return critic.units.in_rewards(head(hidden).detach().numpy(), [GAME], np.zeros(40, np.int64))

    def rescale() -> None:
        before, layer = values(), head.outer.weight.detach().clone()
        plain()
        moved.append((np.abs(values() - before).max(), float((head.outer.weight.detach() - layer).abs().max())))

    critic.rescale = rescale
    for seed in range(1, 4):
        update(learner, foreseeable(60, seed))
    assert max(prediction for prediction, _ in moved) < 1e-4
    assert min(layer for _, layer in moved) > 0


def test_a_head_that_has_learned_in_rewards_goes_on_from_there(
    make_learner: Any, foreseeable: Any, tmp_path: Path
) -> None:
    """A checkpoint of before there were units, and one whose run has them switched off."""
    old = make_learner(token_ppo={"critic": {"warmup": {"iterations": 1}}})
    update(old, foreseeable(100, 0))
    old.save_shard(tmp_path / "old")
    new = make_learner(token_ppo={"critic": {"normalization": "popart"}}, lr=1e-5)
    new.load_shard(tmp_path / "old")
    metrics = update(new, foreseeable(100, 1))
    assert metrics["vf_explained_var"] > 0.7
    assert metrics["vf_loss"] < 0.3
    new.save_shard(tmp_path / "new")
    off = make_learner(lr=1e-5)
    off.load_shard(tmp_path / "new")
    metrics = update(off, foreseeable(100, 2))
    assert metrics["vf_explained_var"] > 0.7
    assert metrics["vf_loss"] < 0.5 * SIZE**2 / 4


@by_state_and_files
def test_a_warm_up_goes_on_where_it_was(how: str, make_learner: Any, foreseeable: Any, tmp_path: Path) -> None:
    ppo = {"critic": {"warmup": {"iterations": 3}, "normalization": "popart"}}
    one, other = make_learner(token_ppo=ppo), make_learner(token_ppo=ppo)
    update(one, foreseeable(40, 0))
    update(one, foreseeable(40, 1))
    restored(other, one, how, tmp_path)
    assert (tmp_path / "player" / SUMS_FILE).exists() == (how == "files")
    for seed in (2, 3):
        a, b = update(one, foreseeable(40, seed)), update(other, foreseeable(40, seed))
        assert a["vf_explained_var"] == b["vf_explained_var"]
        assert not moved(other, weights(one))
    assert one.critics["player"].get_state() == other.critics["player"].get_state()
    assert not one.critics["player"].sums()


def test_a_policy_that_begins_anew_forgets_what_was_fitted(make_learner: Any, foreseeable: Any) -> None:
    """The sums are of hidden states that are no more."""
    learner = make_learner(token_ppo={"critic": {"warmup": {"iterations": 2}}})
    update(learner, foreseeable(20, 0))
    assert learner.critics["player"].sums()
    learner.begin_rl()
    assert not learner.critics["player"].sums()
