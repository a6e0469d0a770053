"""Shards are whole episodes, balanced by tokens; groups stay together all the way to an estimator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from episode_parts import episode_of, part_of, rows_of
from hypothesis import given
from hypothesis import strategies as st
from ray.rllib.core.learner import training_data as rllib_training_data
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllib_lmgame.learners.advantages import advantage_inputs
from rllib_lmgame.learners.data.batching import TokenBatch
from rllib_lmgame.learners.data.sharding import WholeEpisodes, num_tokens
from rllib_lmgame.learners.process import ProcessGroup
from rllib_lmgame.rollouts.records import CUSTOM_DATA_KEY, Trajectory, Turn, played_parts, trajectory_of


def make_part(
    agent: str, sizes: list[tuple[int, int]], *, module: str = "player", role: str = "player", final: int | None = None
) -> SingleAgentEpisode:
    """One agent's part; ``sizes`` are prompt and reply lengths per turn. Truncated where ``final`` is given."""
    turns = [
        Turn(
            np.full(prompt, 1, np.int32), np.full(response, 2, np.int32), np.zeros(response, np.float32), 0.5, 3, i == 0
        )
        for i, (prompt, response) in enumerate(sizes)
    ]
    ids = None if final is None else np.ones(final, np.int32)
    return part_of(
        Trajectory(turns, terminated=final is None, role=role, agent_id=agent, module_id=module, final_prompt_ids=ids)
    )


def make_episode(*parts: SingleAgentEpisode, group: str = "") -> MultiAgentEpisode:
    episode = episode_of(*parts)
    for part in played_parts(episode):
        part.custom_data[CUSTOM_DATA_KEY].group = group
    return episode


def simple(tokens: int, group: str = "") -> MultiAgentEpisode:
    """An episode of ``tokens`` tokens, one of them sampled."""
    return make_episode(make_part("player", [(tokens - 1, 1)]), group=group)


def indices(data: WholeEpisodes, episodes: list[MultiAgentEpisode]) -> list[int]:
    """Which of ``episodes`` a shard holds, in its order."""
    assert data.episodes is not None
    return [next(i for i, e in enumerate(episodes) if e is episode) for episode in data.episodes]


def tokens_in(data: Any) -> int:
    return sum(
        len(turn.prompt_ids) + len(turn.response_ids)
        for episode in data.episodes
        for part in episode.agent_episodes.values()
        for turn in part.extra_model_outputs["turn"].data
    )


def dealt(data: WholeEpisodes, count: int, episodes: list[MultiAgentEpisode]) -> tuple[list[list[int]], list[int]]:
    """Whose episodes each of ``count`` shards has, every one once and in order, and its tokens."""
    shards = [shard for shard, _ in data.shard(count)]
    order = [indices(shard, episodes) for shard in shards]
    assert sorted(i for part in order for i in part) == list(range(len(episodes)))
    assert all(part and part == sorted(part) for part in order)
    return order, [tokens_in(shard) for shard in shards]


@given(
    st.lists(st.tuples(st.integers(2, 60), st.sampled_from(["", "g1", "g2", "g3", "g4"])), min_size=1, max_size=25),
    st.integers(1, 6),
    st.booleans(),
)
def test_shards_are_balanced_and_the_episodes_of_a_group_go_to_one_learner(
    drawn: list[tuple[int, str]], count: int, needed: bool
) -> None:
    episodes = [simple(size, group) for size, group in drawn]
    unit = [group or str(i) for i, (_, group) in enumerate(drawn)]
    data = WholeEpisodes(episodes=episodes, needs_groups=needed)
    few = len(set(unit)) < count
    if len(episodes) < count or (few and needed):
        with pytest.raises(ValueError, match=rf"cannot be shared by {count} learners"):
            data.shard(count)
        return
    order, loads = dealt(data, count, episodes)
    assert sum(loads) == sum(size for size, _ in drawn)
    if few:
        assert max(loads) - min(loads) <= max(size for size, _ in drawn)
    else:
        assert sum(len({unit[i] for i in part}) for part in order) == len(set(unit))
        assert max(loads) - min(loads) <= max(
            sum(size for (size, _), other in zip(drawn, unit, strict=True) if other == group) for group in unit
        )


def test_a_prompt_of_a_group_counts_once_where_it_is_shared() -> None:
    """Eight games of one prompt of 40 tokens compute 48, as much as four games that are alone."""
    episodes = [simple(41, "large") for _ in range(8)] + [simple(12, f"g{i}") for i in range(4)]
    shards = [shard for shard, _ in WholeEpisodes(episodes=episodes, share_prompts=True).shard(2)]
    assert [indices(shard, episodes) for shard in shards] == [list(range(8)), [8, 9, 10, 11]]
    assert all(shard.share_prompts for shard in shards)
    shards = [shard for shard, _ in WholeEpisodes(episodes=episodes).shard(2)]
    assert [indices(shard, episodes) for shard in shards] == [list(range(8)), [8, 9, 10, 11]]
    more = [*episodes, *(simple(12, f"h{i}") for i in range(4))]
    shards = [shard for shard, _ in WholeEpisodes(episodes=more, share_prompts=True).shard(2)]
    assert [len(indices(shard, more)) for shard in shards] == [10, 6]


def test_the_last_state_of_a_terminated_game_is_not_trained_on_and_not_counted() -> None:
    part = make_part("player", [(4, 3)])
    part.custom_data[CUSTOM_DATA_KEY].final_prompt_ids = np.ones(50, np.int32)
    (row,) = rows_of([trajectory_of(part)], max_row_tokens=100)
    assert num_tokens(make_episode(part)) == len(row) == 7


def test_only_trained_modules_count() -> None:
    """Two long games of a frozen opponent do not make a learner look busy."""
    heavy = [
        make_episode(make_part("w", [(1, 1)], module="a"), make_part("b", [(900, 90)], module="frozen"))
        for _ in range(2)
    ]
    light = [make_episode(make_part("w", [(1, 1)], module="a")) for _ in range(2)]
    shards = [shard for shard, _ in WholeEpisodes(episodes=[*heavy, *light], modules=("a",)).shard(2)]
    assert [len(shard.episodes) for shard in shards] == [2, 2]
    assert num_tokens(heavy[0], ("a",)) == 2
    assert [part.module_id for part in played_parts(heavy[0], ("a",))] == ["a"]


def test_references_are_solved_before_sharding(monkeypatch: pytest.MonkeyPatch) -> None:
    store = {"ref0": [simple(5)], "ref1": [simple(9), simple(4)]}
    monkeypatch.setattr(rllib_training_data.ray, "get", lambda refs: [store[ref] for ref in refs])
    data = WholeEpisodes(episodes_refs=["ref0", "ref1"])
    data.validate()
    shards = [shard for shard, _ in data.shard(2)]
    assert sorted(tokens_in(shard) for shard in shards) == [9, 9]
    assert sum(len(shard.episodes) for shard in shards) == 3


def played(rng: np.random.Generator, number: int, group: str, game: str, roles: tuple[str, ...]) -> MultiAgentEpisode:
    """An episode with a seat for each of ``roles``, of one to three turns with one to four sampled tokens each."""
    parts = []
    for seat, role in enumerate(roles):
        turns = [
            Turn(np.ones(k, np.int32), np.full(n, 2, np.int32), np.zeros(n, np.float32), float(rng.normal()), 0, i == 0)
            for i, (k, n) in enumerate(rng.integers(1, 5, (rng.integers(1, 4), 2)).tolist())
        ]
        trajectory = Trajectory(
            turns, terminated=True, role=role, agent_id=f"seat{seat}", episode_id=f"e{number}", group=group, game=game
        )
        parts.append(part_of(trajectory))
    return episode_of(*parts)


def test_an_estimator_sees_turns_and_what_was_seen_before_them() -> None:
    """Whatever was seen: a program's output may hold half a surrogate pair."""
    rng = np.random.default_rng(5)
    episodes = [played(rng, i, group, "game", ("player",)) for i, group in enumerate(["g", "g", "h\ud800"])]
    trajectories = [trajectory_of(part) for episode in episodes for part in played_parts(episode)]
    inputs = advantage_inputs(
        TokenBatch.from_trajectories(trajectories, max_row_tokens=64), gamma=1.0, lam=1.0, ranks=ProcessGroup()
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
