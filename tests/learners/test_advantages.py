"""GAE against RLlib's own and hand-worked cases, normalisation against its definition, and how estimators are found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from learning import ThreadGroup, together

from rllib_lmgame.base.registry import ESTIMATORS
from rllib_lmgame.learners.advantages import (
    AdvantageInputs,
    advantage_inputs,
    monte_carlo_returns,
    normalize,
    token_gae,
)
from rllib_lmgame.learners.advantages.base import GAE
from rllib_lmgame.learners.data.batching import TokenBatch
from rllib_lmgame.learners.process import ProcessGroup
from rllib_lmgame.rollouts.records import Trajectory, Turn

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


def problem(length: int, gamma: float, lam: float) -> AdvantageInputs:
    """A trajectory of random rewards and values."""
    rewards, values = np.random.default_rng(length).normal(size=(2, length)).astype(np.float32)
    return arrays(rewards, values, np.zeros(1, np.float32), np.array([0, length]), gamma, lam)


@pytest.mark.parametrize("terminated", [True, False])
@pytest.mark.parametrize(
    ("length", "gamma", "lam"),
    [(1, 0.99, 0.95), (2, 1.0, 0.95), (17, 1.0, 1.0), (33, 1.0, 0.0), (200, 0.9, 0.5), (3000, 0.999, 0.99)],
)
def test_token_gae_equals_rllibs_targets(terminated: bool, length: int, gamma: float, lam: float) -> None:
    value_predictions = pytest.importorskip("ray.rllib.utils.postprocessing.value_predictions")
    drawn = problem(length, gamma, lam)
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
        gamma=gamma,
        lambda_=lam,
    )
    advantages = token_gae(replace(drawn, bootstrap=bootstrap))
    np.testing.assert_allclose(advantages + values, targets[:length], rtol=1e-4, atol=1e-5)


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
    batch = TokenBatch.from_trajectories([trajectory], max_row_tokens=64)
    assert batch.num_rows == (2 if window else 1)
    inputs = replace(advantage_inputs(batch, gamma=1.0, lam=LAM, ranks=ProcessGroup()), values=np.zeros(5))
    np.testing.assert_allclose(token_gae(inputs), [LAM**4, LAM**3, LAM**2, LAM, 1.0], rtol=1e-6)
    np.testing.assert_allclose(monte_carlo_returns(inputs), np.ones(5))


def test_a_truncated_trajectory_bootstraps_and_a_terminated_one_does_not() -> None:
    def play(terminated: bool) -> Trajectory:
        return Trajectory(
            [reply(2, reward=0.5, new_row=True)], terminated=terminated, final_prompt_ids=np.array([99], np.int32)
        )

    batch = TokenBatch.from_trajectories([play(True), play(False)], max_row_tokens=64)
    for packed in batch.microbatches(100):
        batch.put(
            packed, values=np.full(packed.num_actions, 0.25), bootstrap_values=np.full(len(packed.bootstrap_index), 4.0)
        )
    assert batch.bootstrap_values.tolist() == [0.0, 4.0]
    inputs = advantage_inputs(batch, gamma=GAMMA, lam=LAM, ranks=ProcessGroup())
    assert inputs.truncated.tolist() == [False, True]
    advantages = token_gae(inputs)
    np.testing.assert_allclose(advantages[1], 0.5 - 0.25, rtol=1e-6)
    np.testing.assert_allclose(advantages[3], 0.5 + GAMMA * 4.0 - 0.25, rtol=1e-6)
    np.testing.assert_allclose(advantages[2], GAMMA * 0.25 - 0.25 + GAMMA * LAM * advantages[3], rtol=1e-6)


ADVANTAGES = np.array([1.0, 2.0, 6.0, -3.0, 5.0], np.float32)
ROLES = np.array([0, 0, 0, 1, 1])


def normalized(values: np.ndarray, mode: str, roles: np.ndarray, **how: float) -> np.ndarray:
    """Of tokens that are each a trajectory of their own."""
    count = len(values)
    inputs = arrays(values, values, np.zeros(count, np.float32), np.arange(count + 1))
    return normalize(values, mode, replace(inputs, roles=roles, role_names=("white", "black")), **how)


@pytest.mark.parametrize("mode", ["batch", "role"])
def test_where_all_returns_are_equal_the_critics_error_is_not_blown_up(mode: str) -> None:
    """Sixty-four won games and a value function that is off by 1e-4; a batch that differs is scaled as before."""
    noise = np.random.default_rng(0).normal(0.0, 1e-4, 64)
    assert 0.0 < np.abs(normalized(1.0 - (1.0 + noise), mode, np.arange(64) % 2, floor=0.01)).max() < 0.05
    np.testing.assert_array_equal(normalized(ADVANTAGES, mode, ROLES, floor=0.01), normalized(ADVANTAGES, mode, ROLES))


@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1), st.integers(0, 2)), min_size=1, max_size=12),
    st.integers(1, 3),
)
def test_advantages_are_normalised_within_what_is_compared(
    seed: int, played: list[tuple[int, int, int]], learners: int
) -> None:
    """Level, role and number of tokens of each trajectory; two levels a game, and all of a level on one learner. Some
    learner may have no tokens at all, or none of a role.
    """
    rng = np.random.default_rng(seed)
    tokens = [rng.normal(level, 1 + level, count) for level, _, count in played]
    keys = {
        "batch": [() for _ in played],
        "group": [(level, role) for level, role, _ in played],
        "game": [level // 2 for level, _, _ in played],
        "role": [role for _, role, _ in played],
        "center_role": [role for _, role, _ in played],
        "none": [*range(len(played))],
    }
    shards = [[n for n, (level, _, _) in enumerate(played) if level % learners == i] for i in range(learners)]
    for mode, compared in keys.items():
        expected = []
        for n, values in enumerate(tokens):
            same = [x for other, key in zip(tokens, compared, strict=True) if key == compared[n] for x in other]
            mean = sum(same) / len(same) if same and mode != "none" else 0.0
            deviation = max(0.01, (sum((x - mean) ** 2 for x in same) / max(1, len(same))) ** 0.5)
            expected.append((values - mean) / (1.0 if mode in ("center_role", "none") else deviation))

        def learner(ranks: ThreadGroup, mode: str = mode) -> list[np.ndarray]:
            shard = shards[ranks.rank]
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
                all_reduce=ranks.sum,
            )
            return np.split(normalize(advantages, mode, inputs, floor=0.01), offsets[1:-1])

        for shard, parts in zip(shards, together(learners, learner), strict=True):
            for n, part in zip(shard, parts, strict=False):
                np.testing.assert_allclose(part, expected[n], rtol=1e-5, atol=1e-5, err_msg=mode)


def test_a_learner_without_tokens_gets_empty_arrays() -> None:
    inputs = advantage_inputs(TokenBatch.empty(), gamma=GAMMA, lam=LAM, ranks=ProcessGroup(), with_reference=True)
    for found in (
        token_gae(inputs),
        monte_carlo_returns(inputs),
        inputs.returns,
        inputs.per_token(inputs.groups),
        inputs.ref_logprobs,
    ):
        assert found is not None and len(found) == 0
    assert len(normalize(np.zeros(0), "role", inputs)) == 0


def test_estimators_resolve_by_name_and_by_path() -> None:
    assert isinstance(ESTIMATORS.read("gae"), GAE)
    plain = ESTIMATORS.read("rllib_lmgame.learners.advantages:token_gae")
    assert plain.needs_critic and not (plain.needs_groups or plain.needs_reference)
    inputs = problem(3, GAMMA, LAM)
    np.testing.assert_array_equal(plain(inputs), token_gae(inputs))
