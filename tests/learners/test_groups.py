"""Groups on their way to an advantage estimator: a baseline that is the mean of the group, against its definition."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("ray")

from episode_parts import episode_of, part_of
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

from rllib_lmgame.learners.advantages import AdvantageInputs, advantage_inputs, resolve_estimator
from rllib_lmgame.learners.data.batching import PackedBatch, TokenBatch
from rllib_lmgame.learners.data.rows import WholeEpisodes, build_rows, played_parts
from rllib_lmgame.learners.objectives.base import UpdateLoop
from rllib_lmgame.learners.ranks import Ranks
from rllib_lmgame.rollouts.plans import plan_episodes
from rllib_lmgame.rollouts.records import Trajectory, Turn, trajectory_of


class MeanOfGroup:
    """Return minus the mean return of the group, at every token."""

    needs_groups = True

    def __call__(self, inputs: AdvantageInputs) -> np.ndarray:
        means = np.bincount(inputs.groups, weights=inputs.returns) / np.maximum(1, np.bincount(inputs.groups))
        return inputs.per_token(inputs.returns - means[inputs.groups])


def played(rng: np.random.Generator, number: int, group: str, game: str, roles: tuple[str, ...]) -> MultiAgentEpisode:
    """An episode with a seat for each of ``roles``, of one to three turns with one to four sampled tokens each."""
    parts = []
    for seat, role in enumerate(roles):
        turns = [
            Turn(
                np.ones(rng.integers(1, 4), np.int32),
                np.full(n, 2, np.int32),
                np.zeros(n, np.float32),
                float(rng.normal()),
                0,
                i == 0,
            )
            for i, n in enumerate(rng.integers(1, 5, rng.integers(1, 4)).tolist())
        ]
        trajectory = Trajectory(
            turns, terminated=True, role=role, agent_id=f"seat{seat}", episode_id=f"e{number}", group=group, game=game
        )
        parts.append(part_of(trajectory))
    return episode_of(*parts)


def expected(episodes: list[MultiAgentEpisode]) -> dict[tuple[str, str], float]:
    """By its definition, from the episodes: (episode, seat) -> return minus the mean over the group, which is of one
    game, seed and role.
    """
    returns: dict[tuple[str, str, str], dict[tuple[str, str], float]] = defaultdict(dict)
    for episode in episodes:
        for trajectory in map(trajectory_of, played_parts(episode)):
            seat = (trajectory.episode_id, trajectory.agent_id)
            returns[trajectory.game, trajectory.group or trajectory.episode_id, trajectory.role][seat] = sum(
                turn.reward for turn in trajectory.turns
            )
    return {
        seat: value - sum(group.values()) / len(group) for group in returns.values() for seat, value in group.items()
    }


def estimated(data: WholeEpisodes) -> dict[tuple[str, str], float]:
    """What the estimator gives for a learner's episodes; all tokens of a trajectory have the same."""
    trajectories = [trajectory_of(part) for episode in data.episodes or [] for part in played_parts(episode)]
    batch = TokenBatch.from_rows(build_rows(trajectories, max_row_tokens=6))
    batch.values[:] = 0.0
    inputs = advantage_inputs(batch, gamma=1.0, lam=1.0, ranks=Ranks())
    advantages = resolve_estimator(f"{__name__}:MeanOfGroup")(inputs)
    found = {}
    for n, (a, b) in enumerate(zip(inputs.offsets[:-1], inputs.offsets[1:], strict=True)):
        played = trajectories[batch.trajectory_ids[n]]
        game, role = inputs.game_names[inputs.games[n]], inputs.role_names[inputs.roles[n]]
        assert (inputs.episodes[n], game, role) == (played.episode_id, played.game, played.role)
        assert np.ptp(advantages[a:b]) == 0.0
        found[played.episode_id, played.agent_id] = float(advantages[a])
    return found


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 2))
def test_the_mean_of_a_group_is_a_baseline_whoever_has_it_and_in_whatever_order(seed: int, learners: int) -> None:
    """Several games, roles and group sizes; some episodes stand alone, two seats of one episode may share a role."""
    rng, episodes = np.random.default_rng(seed), []
    for group in ["a1", "a2", "b1", ""]:
        roles = {"a": ("player",), "b": ("white", "black", "black"), "": ("player",)}[group[:1]]
        for _ in range(rng.integers(1, 5)):
            episodes.append(played(rng, len(episodes), group, f"game-{group[:1]}", roles))
    random.Random(seed).shuffle(episodes)
    shards = [shard for shard, _ in WholeEpisodes(episodes=episodes, needs_groups=True).shard(learners)]
    found = {seat: value for shard in shards for seat, value in estimated(shard).items()}
    assert found == pytest.approx(expected(episodes), abs=1e-5)


def test_a_replaced_episode_is_compared_with_those_of_its_own_level_only() -> None:
    plans = plan_episodes(4, run_seed=0, purpose="train", iteration=0, group_size=4)
    plans = [plans[0], plans[1], *(plan.replacement(new_level=True) for plan in plans[2:])]
    rng = np.random.default_rng(0)
    episodes = [played(rng, plan.index, plan.group, "game", ("player",)) for plan in plans]
    found = estimated(WholeEpisodes(episodes=episodes))
    assert found == pytest.approx(expected(episodes), abs=1e-5)
    values = [found[f"e{i}", "seat0"] for i in range(4)]
    assert values[0] == pytest.approx(-values[1]) and values[2] == pytest.approx(-values[3]) and abs(values[2]) > 0.0
    assert plans[2].seed == plans[3].seed != plans[0].seed


def test_an_estimator_sees_turns_and_what_was_seen_before_them() -> None:
    """Whatever was seen: a program's output may hold half a surrogate pair."""
    rng = np.random.default_rng(5)
    episodes = [played(rng, i, group, "game", ("player",)) for i, group in enumerate(["g", "g", "h\ud800"])]
    trajectories = [trajectory_of(part) for episode in episodes for part in played_parts(episode)]
    inputs = advantage_inputs(
        TokenBatch.from_rows(build_rows(trajectories, max_row_tokens=64)), gamma=1.0, lam=1.0, ranks=Ranks()
    )
    assert np.diff(inputs.turn_offsets).tolist() == [
        len(turn.response_ids) for trajectory in trajectories for turn in trajectory.turns
    ]
    np.testing.assert_allclose(
        np.add.reduceat(inputs.rewards, inputs.turn_offsets[:-1]),
        [t.reward for played in trajectories for t in played.turns],
    )
    texts = [f"turn {i} of {played.group}" for played in trajectories for i in range(len(played.turns))]
    keys = inputs.turn_observations
    assert [[bool(a == b) for b in keys] for a in keys] == [[a == b for b in texts] for a in texts]


def test_a_learner_trains_on_groups(make_learner: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every minibatch is a group, and the advantages are those of the definition."""
    from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

    rng = np.random.default_rng(2)
    episodes = [played(rng, i, f"g{i % 2}", "game", ("player",)) for i in range(6)]
    learner = make_learner(
        token_ppo={
            "advantage_estimator": f"{__name__}:MeanOfGroup",
            "num_minibatches": 2,
            "normalize_advantages": "none",
        }
    )
    seen: list[set[int]] = []
    step = UpdateLoop._step

    def watched(loop: UpdateLoop, packs: list[PackedBatch], one_pass: bool) -> None:
        batch = loop.update.batch
        assert batch is not None
        seen.append({int(batch.group[batch.trajectory[slot]]) for pack in packs for slot in pack.token_slot})
        step(loop, packs, one_pass)

    monkeypatch.setattr(UpdateLoop, "_step", watched)
    metrics = MetricsLogger.peek_results(learner.update(training_data=WholeEpisodes(episodes=episodes)))["player"]
    assert sorted(map(tuple, seen)) == [(0,), (1,)]
    values = expected(episodes)
    lengths = dict.fromkeys(values, 0)
    for trajectory in (trajectory_of(part) for episode in episodes for part in played_parts(episode)):
        lengths[trajectory.episode_id, trajectory.agent_id] = sum(len(turn.response_ids) for turn in trajectory.turns)
    tokens = np.repeat(list(values.values()), [lengths[seat] for seat in values])
    assert metrics["advantage_mean"] == pytest.approx(tokens.mean(), abs=1e-5)
    assert metrics["advantage_std"] == pytest.approx(tokens.std(), rel=1e-4)
