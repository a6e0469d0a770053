"""Advantages against brute force, RLlib's own and hand-worked cases."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.learners.advantages import (
    AdvantageInputs,
    advantage_inputs,
    monte_carlo_returns,
    normalize,
    normalize_compared,
    resolve_estimator,
    token_gae,
)
from rllib_lmgame.learners.advantages.gae import GAE
from rllib_lmgame.learners.data.batching import NO_ROWS, TokenBatch
from rllib_lmgame.learners.data.rows import build_rows
from rllib_lmgame.learners.ranks import Ranks
from rllib_lmgame.rollouts.records import Trajectory, Turn
from rllib_lmgame.settings.plugins import ESTIMATORS

GAMMA, LAM = 0.99, 0.95


def arrays(rewards, values, bootstrap, offsets, gamma: float = GAMMA, lam: float = LAM) -> AdvantageInputs:
    """Inputs of which only the values count: one turn, one group and one role per trajectory."""
    count, nothing = len(offsets) - 1, np.zeros(len(rewards), np.float32)
    return AdvantageInputs(
        rewards=rewards,
        values=values,
        bootstrap=bootstrap,
        truncated=bootstrap != 0,
        offsets=offsets,
        turn_offsets=np.unique(offsets),
        turn_observations=np.zeros(len(np.unique(offsets)) - 1, np.int64),
        groups=np.arange(count),
        roles=np.zeros(count, np.int64),
        role_names=("player",),
        games=np.zeros(count, np.int64),
        game_names=("game",),
        episodes=tuple(map(str, range(count))),
        old_logprobs=nothing,
        rollout_logprobs=nothing,
        gamma=gamma,
        lam=lam,
    )


def problem(seed: int, lengths: list[int], gamma: float = GAMMA, lam: float = LAM) -> AdvantageInputs:
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    total = int(offsets[-1])
    bootstrap = np.where(rng.random(len(lengths)) < 0.5, rng.normal(size=len(lengths)), 0.0).astype(np.float32)
    return arrays(
        rng.normal(size=total).astype(np.float32),
        rng.normal(size=total).astype(np.float32),
        bootstrap,
        offsets,
        gamma,
        lam,
    )


def brute_force(inputs: AdvantageInputs) -> np.ndarray:
    """The definition: a sum over all later deltas, each written out."""
    rewards, values, gamma = inputs.rewards, inputs.values, inputs.gamma
    out = np.zeros(len(rewards))
    for n, (a, b) in enumerate(pairwise(inputs.offsets)):
        following = [*values[a + 1 : b], inputs.bootstrap[n]]
        deltas = [float(rewards[a + i]) + gamma * float(following[i]) - float(values[a + i]) for i in range(b - a)]
        for i in range(b - a):
            out[a + i] = sum((gamma * inputs.lam) ** (j - i) * deltas[j] for j in range(i, b - a))
    return out


LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=8)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1), LENGTHS)
def test_token_gae_equals_brute_force(seed: int, lengths: list[int]) -> None:
    inputs = problem(seed, lengths)
    np.testing.assert_allclose(token_gae(inputs), brute_force(inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (1.0, 0.0), (0.9, 0.5), (1.0, 0.95)])
def test_token_gae_equals_brute_force_for_other_discounts(gamma: float, lam: float) -> None:
    inputs = problem(3, [1, 33, 7, 64], gamma, lam)
    np.testing.assert_allclose(token_gae(inputs), brute_force(inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("terminated", [True, False])
@pytest.mark.parametrize("length", [1, 2, 17, 200])
def test_token_gae_equals_rllibs_targets(terminated: bool, length: int) -> None:
    value_predictions = pytest.importorskip("ray.rllib.utils.postprocessing.value_predictions")
    drawn = problem(length, [length])
    rewards, values = drawn.rewards, drawn.values
    bootstrap = np.array([0.0 if terminated else 0.7], np.float32)
    ends = np.zeros(length + 1)
    ends[length - 1] = 1.0
    never = np.zeros(length + 1)
    targets = value_predictions.compute_value_targets(
        values=np.append(values, bootstrap),
        rewards=np.append(rewards, 0.0),
        terminateds=ends if terminated else never,
        truncateds=never if terminated else ends,
        gamma=GAMMA,
        lambda_=LAM,
    )
    advantages = token_gae(replace(drawn, bootstrap=bootstrap))
    np.testing.assert_allclose(advantages + values, targets[:length], rtol=1e-4, atol=1e-5)


def test_long_trajectories_keep_their_precision() -> None:
    inputs = problem(0, [3000, 1], 0.999, 0.99)
    reference = np.zeros(3001)
    rewards, values, bootstrap = inputs.rewards, inputs.values, inputs.bootstrap
    running = 0.0
    for t in reversed(range(3000)):
        following = values[t + 1] if t < 2999 else bootstrap[0]
        running = rewards[t] + 0.999 * following - values[t] + 0.999 * 0.99 * running
        reference[t] = running
    np.testing.assert_allclose(token_gae(inputs)[:3000], reference[:3000], rtol=1e-4, atol=1e-4)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), LENGTHS)
def test_monte_carlo_returns_are_gae_with_lambda_one(seed: int, lengths: list[int]) -> None:
    inputs = problem(seed, lengths, GAMMA, 1.0)
    np.testing.assert_allclose(monte_carlo_returns(inputs), brute_force(inputs) + inputs.values, rtol=1e-4, atol=1e-4)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(1, 20), min_size=2, max_size=5))
def test_trajectories_do_not_influence_each_other(seed: int, lengths: list[int]) -> None:
    inputs = problem(seed, lengths)
    together = token_gae(inputs)
    for n, (a, b) in enumerate(pairwise(inputs.offsets)):
        alone = token_gae(
            arrays(inputs.rewards[a:b], inputs.values[a:b], inputs.bootstrap[n : n + 1], np.array([0, b - a]))
        )
        np.testing.assert_allclose(together[a:b], alone, rtol=1e-5, atol=1e-6)


def reply(count: int, reward: float = 0.0, new_row: bool = False) -> Turn:
    return Turn(
        np.arange(1, 4, dtype=np.int32),
        np.arange(10, 10 + count, dtype=np.int32),
        np.zeros(count, np.float32),
        reward,
        0,
        new_row,
    )


@pytest.mark.parametrize("window", [False, True])
def test_two_turn_success_gives_the_first_token_its_share(window: bool) -> None:
    """Observation tokens between the turns, and a new row per turn, do not dilute the credit."""
    trajectory = Trajectory([reply(3, new_row=True), reply(2, reward=1.0, new_row=window)], terminated=True)
    rows = build_rows([trajectory], max_row_tokens=64)
    assert len(rows) == (2 if window else 1)
    batch = TokenBatch.from_rows(rows)
    inputs = replace(advantage_inputs(batch, gamma=1.0, lam=LAM, ranks=Ranks()), values=np.zeros(5))
    advantages = token_gae(inputs)
    np.testing.assert_allclose(advantages, [LAM**4, LAM**3, LAM**2, LAM, 1.0], rtol=1e-6)
    np.testing.assert_allclose(monte_carlo_returns(inputs), np.ones(5))


def test_a_truncated_trajectory_bootstraps_and_a_terminated_one_does_not() -> None:
    def play(terminated: bool) -> Trajectory:
        return Trajectory(
            [reply(2, reward=0.5, new_row=True)], terminated=terminated, final_prompt_ids=np.array([99], np.int32)
        )

    batch = TokenBatch.from_rows(build_rows([play(True), play(False)], max_row_tokens=64))
    for packed in batch.microbatches(100):
        batch.put(
            packed, values=np.full(packed.num_actions, 0.25), bootstrap_values=np.full(len(packed.bootstrap_index), 4.0)
        )
    assert batch.bootstrap_values.tolist() == [0.0, 4.0]
    inputs = advantage_inputs(batch, gamma=GAMMA, lam=LAM, ranks=Ranks())
    assert inputs.truncated.tolist() == [False, True]
    advantages = token_gae(inputs)
    np.testing.assert_allclose(advantages[1], 0.5 - 0.25, rtol=1e-6)
    np.testing.assert_allclose(advantages[3], 0.5 + GAMMA * 4.0 - 0.25, rtol=1e-6)
    np.testing.assert_allclose(advantages[2], GAMMA * 0.25 - 0.25 + GAMMA * LAM * advantages[3], rtol=1e-6)


ADVANTAGES = np.array([1.0, 2.0, 6.0, -3.0, 5.0], np.float32)
ROLES = np.array([0, 0, 0, 1, 1])


def test_batch_normalisation_centres_and_scales() -> None:
    result = normalize(ADVANTAGES, "batch", ROLES)
    np.testing.assert_allclose(result, (ADVANTAGES - 2.2) / ADVANTAGES.std(), rtol=1e-5)


def test_role_normalisation_works_within_each_role() -> None:
    result = normalize(ADVANTAGES, "role", ROLES)
    for role in (0, 1):
        part = ADVANTAGES[role == ROLES]
        np.testing.assert_allclose(result[role == ROLES], (part - part.mean()) / part.std(), rtol=1e-5)


def test_centring_per_role_keeps_the_scale() -> None:
    np.testing.assert_allclose(normalize(ADVANTAGES, "center_role", ROLES), [-2, -1, 3, -4, 4], atol=1e-6)


def test_none_changes_nothing() -> None:
    np.testing.assert_array_equal(normalize(ADVANTAGES, "none", ROLES), ADVANTAGES)


@pytest.mark.parametrize("mode", ["batch", "role", "center_role"])
def test_equal_advantages_become_zero_not_noise(mode: str) -> None:
    np.testing.assert_allclose(normalize(np.full(7, 0.1, np.float32), mode, np.zeros(7, int)), np.zeros(7), atol=1e-6)


@pytest.mark.parametrize("mode", ["batch", "role"])
def test_where_all_returns_are_equal_the_critics_error_is_not_blown_up(mode: str) -> None:
    """Sixty-four won games and a value function that is off by 1e-4; a batch that differs is scaled as before."""
    noise = np.random.default_rng(0).normal(0.0, 1e-4, 64)
    roles = np.arange(64) % 2
    result = normalize(1.0 - (1.0 + noise), mode, roles, floor=0.01)
    assert 0.0 < np.abs(result).max() < 0.05
    np.testing.assert_array_equal(normalize(ADVANTAGES, mode, ROLES, floor=0.01), normalize(ADVANTAGES, mode, ROLES))


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="batch, group, game, role, center_role, none, not `turn`"):
        normalize(ADVANTAGES, "turn", ROLES)


class Reducer:
    """Sums arrays over the threads that take part."""

    def __init__(self, members: int) -> None:
        self.parts: list[np.ndarray] = []
        self.sum: np.ndarray | None = None
        self.barrier = threading.Barrier(members, action=self._add, timeout=120)

    def _add(self) -> None:
        self.sum = np.sum(self.parts, axis=0)
        self.parts = []

    def __call__(self, array: np.ndarray) -> np.ndarray:
        self.parts.append(array)
        self.barrier.wait()
        assert self.sum is not None
        return self.sum


@pytest.mark.parametrize("mode", ["batch", "role", "center_role", "none"])
@pytest.mark.parametrize("cuts", [[2], [0, 3], [1, 5]])
def test_several_learners_normalise_over_the_global_batch(mode: str, cuts: list[int]) -> None:
    """Also where a learner has no tokens at all, or none of some role."""
    expected = normalize(ADVANTAGES, mode, ROLES)
    parts = list(zip(np.split(ADVANTAGES, cuts), np.split(ROLES, cuts), strict=True))
    reducer = Reducer(len(parts))
    results: list[np.ndarray] = [np.zeros(0)] * len(parts)

    def learner(i: int) -> None:
        results[i] = normalize(*parts[i][:1], mode, parts[i][1], num_classes=2, all_reduce=reducer)

    threads = [threading.Thread(target=learner, args=(i,)) for i in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_allclose(np.concatenate(results), expected, rtol=1e-5, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1), st.integers(0, 2)), min_size=1, max_size=12),
    st.integers(1, 3),
)
def test_advantages_are_normalised_within_what_is_compared(
    seed: int, played: list[tuple[int, int, int]], learners: int
) -> None:
    """Level, role and number of tokens of each trajectory; two levels a game, and all of a level on one learner."""
    rng = np.random.default_rng(seed)
    tokens = [rng.normal(level, 1 + level, count) for level, _, count in played]
    keys = {
        "batch": [() for _ in played],
        "group": [(level, role) for level, role, _ in played],
        "game": [level // 2 for level, _, _ in played],
        "role": [role for _, role, _ in played],
    }
    shards = [[n for n, (level, _, _) in enumerate(played) if level % learners == i] for i in range(learners)]
    for mode, compared in keys.items():
        expected = {}
        for n, values in enumerate(tokens):
            same = [x for other, key in zip(tokens, compared, strict=True) if key == compared[n] for x in other]
            deviation = (sum((x - sum(same) / len(same)) ** 2 for x in same) / len(same)) ** 0.5 if same else 0.0
            expected[n] = [(x - sum(same) / len(same)) / max(deviation, 0.01) for x in values]
        reducer, found = Reducer(learners), {}

        def learner(shard: list[int], mode: str = mode, reducer: Reducer = reducer, found: dict = found) -> None:
            lengths = np.array([len(tokens[n]) for n in shard], np.int64)
            advantages = np.concatenate([np.zeros(0), *(tokens[n] for n in shard)])
            offsets = np.concatenate([[0], np.cumsum(lengths)])
            nothing, here = np.zeros(len(shard), np.float32), sorted({keys["group"][n] for n in shard})
            inputs = replace(
                arrays(advantages, advantages, nothing, offsets),
                groups=np.array([here.index(keys["group"][n]) for n in shard], np.int64),
                games=np.array([keys["game"][n] for n in shard], np.int64),
                game_names=("a", "b", "c"),
                roles=np.array([keys["role"][n] for n in shard], np.int64),
                role_names=("white", "black"),
                all_reduce=reducer,
            )
            parts = np.split(normalize_compared(advantages, mode, inputs, floor=0.01), offsets[1:-1])
            found.update(zip(shard, parts, strict=False))

        threads = [threading.Thread(target=learner, args=(shard,)) for shard in shards]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for n, values in expected.items():
            np.testing.assert_allclose(found[n], values, rtol=1e-5, atol=1e-5, err_msg=mode)


def test_a_learner_without_tokens_gets_empty_arrays() -> None:
    inputs = advantage_inputs(NO_ROWS, gamma=GAMMA, lam=LAM, ranks=Ranks(), with_reference=True)
    for found in (
        token_gae(inputs),
        monte_carlo_returns(inputs),
        inputs.returns,
        inputs.per_token(inputs.groups),
        inputs.ref_logprobs,
    ):
        assert found is not None and len(found) == 0
    assert len(normalize(np.zeros(0), "role", inputs.per_token(inputs.roles), num_classes=2)) == 0


class CountsItself:
    """An estimator with an object for each policy that knows what it needs."""

    needs_groups = True
    needs_reference = True
    kept = 0

    def __call__(self, inputs: AdvantageInputs) -> np.ndarray:
        return inputs.rewards

    def get_state(self) -> int:
        return self.kept

    def set_state(self, state: int) -> None:
        self.kept = state


def with_six_arrays(rewards, values, bootstrap, offsets, gamma, lam):
    return rewards


class WithArguments:
    def __init__(self, discount: float) -> None:
        self.discount = discount


def test_estimators_resolve_by_name_and_by_path() -> None:
    assert isinstance(resolve_estimator("gae"), GAE)
    plain = resolve_estimator("rllib_lmgame.learners.advantages:token_gae")
    assert plain.needs_critic and not (plain.needs_groups or plain.needs_reference or plain.state_rollouts)


def test_of_a_class_every_policy_gets_an_object_of_its_own() -> None:
    first, second = (resolve_estimator(f"{__name__}:CountsItself") for _ in range(2))
    assert first.needs_groups and first.needs_reference and first.needs_critic
    first.set_state(3)
    assert (first.get_state(), second.get_state()) == (3, 0)


def test_a_registered_estimator_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def plugin(inputs: AdvantageInputs) -> np.ndarray:
        return inputs.rewards

    monkeypatch.setitem(ESTIMATORS.own, "plugin", plugin)  # type: ignore[arg-type]
    inputs = problem(0, [3])
    assert resolve_estimator("plugin")(inputs) is inputs.rewards


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gea", "did you mean `gae`"),
        ("unlike anything", "known are bilevel_gae, dr_grpo, gae"),
        ("no_such_package_here:f", "cannot import 'no_such_package_here'"),
        ("rllib_lmgame.learners.advantages:no_such", "has no 'no_such'"),
        ("rllib_lmgame.settings.sections.token_ppo:NORMALIZE_MODES", "is a tuple, not a function"),
        (f"{__name__}:WithArguments", "cannot be made without arguments"),
        (
            f"{__name__}:with_six_arrays",
            r"takes \(rewards, values, .*; an estimator takes one argument, an AdvantageInputs .*`inputs.rewards`",
        ),
    ],
)
def test_unknown_estimators_are_refused_with_their_key(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        resolve_estimator(name)
    assert caught.value.path == "token_ppo.advantage_estimator"
