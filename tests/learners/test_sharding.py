"""Shards are whole episodes, balanced by tokens."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("ray")

from episode_parts import episode_of, part_of
from ray.rllib.core.learner import training_data as rllib_training_data
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllib_lmgame.learners.data.rows import WholeEpisodes, build_rows, num_tokens, played_parts
from rllib_lmgame.rollouts.records import CUSTOM_DATA_KEY, Trajectory, Turn, trajectory_of


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
        part.custom_data[CUSTOM_DATA_KEY]["group"] = group
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
        len(p) + len(r)
        for episode in data.episodes
        for part in episode.agent_episodes.values()
        for p, r in zip(
            part.extra_model_outputs["prompt_ids"].data, part.extra_model_outputs["response_ids"].data, strict=True
        )
    )


def dealt(data: WholeEpisodes, count: int, episodes: list[MultiAgentEpisode]) -> tuple[list[list[int]], list[int]]:
    """Whose episodes each of ``count`` shards has, every one once and in order, and its tokens."""
    shards = [shard for shard, _ in data.shard(count)]
    order = [indices(shard, episodes) for shard in shards]
    assert sorted(i for part in order for i in part) == list(range(len(episodes)))
    assert all(part and part == sorted(part) for part in order)
    return order, [tokens_in(shard) for shard in shards]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(2, 60), min_size=1, max_size=25), st.integers(1, 6))
def test_shards_are_whole_ordered_and_balanced(sizes: list[int], count: int) -> None:
    episodes = [simple(size) for size in sizes]
    data = WholeEpisodes(episodes=episodes)
    if len(episodes) < count:
        with pytest.raises(ValueError, match=f"{len(episodes)} episodes cannot be shared by {count} learners"):
            data.shard(count)
        return
    _, loads = dealt(data, count, episodes)
    assert sum(loads) == sum(sizes)
    assert max(loads) - min(loads) <= max(sizes)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(2, 60), st.sampled_from(["", "g1", "g2", "g3", "g4"])), min_size=1, max_size=25),
    st.integers(1, 4),
    st.booleans(),
)
def test_the_episodes_of_a_group_go_to_one_learner(drawn: list[tuple[int, str]], count: int, needed: bool) -> None:
    episodes = [simple(size, group) for size, group in drawn]
    unit = [group or str(i) for i, (_, group) in enumerate(drawn)]
    data = WholeEpisodes(episodes=episodes, needs_groups=needed)
    few = len(set(unit)) < count
    if len(episodes) < count or (few and needed):
        with pytest.raises(ValueError, match=r"cannot be shared by \d learners"):
            data.shard(count)
        return
    order, loads = dealt(data, count, episodes)
    if few:
        assert max(loads) - min(loads) <= max(size for size, _ in drawn)
    else:
        assert sum(len({unit[i] for i in part}) for part in order) == len(set(unit))
        assert max(loads) - min(loads) <= max(
            sum(size for (size, _), other in zip(drawn, unit, strict=True) if other == group) for group in unit
        )


def test_a_group_larger_than_a_share_stays_whole() -> None:
    """Seven tenths of the tokens are one group's: its learner has nothing else, the other all the rest."""
    episodes = [simple(7, "large") for _ in range(10)] + [simple(3, f"g{i}") for i in range(10)]
    shards = [shard for shard, _ in WholeEpisodes(episodes=episodes).shard(2)]
    assert [indices(shard, episodes) for shard in shards] == [list(range(10)), list(range(10, 20))]


def test_the_tokens_of_the_rows_are_counted() -> None:
    episode = make_episode(make_part("white", [(4, 3), (2, 5)], final=7), make_part("black", [(3, 2)], module="other"))
    rows = build_rows([trajectory_of(part) for part in played_parts(episode)], max_row_tokens=64)
    assert num_tokens(episode) == sum(len(row) for row in rows) == 26
    assert num_tokens(episode, ("other",)) == 5


def test_the_longest_episodes_are_dealt_first() -> None:
    """In the order given, the last and longest episode would make one shard three times the other."""
    shards = [shard for shard, _ in WholeEpisodes(episodes=[simple(2), simple(2), simple(4)]).shard(2)]
    assert [tokens_in(shard) for shard in shards] == [4, 4]


def test_the_last_state_of_a_terminated_game_is_not_trained_on_and_not_counted() -> None:
    part = make_part("player", [(4, 3)])
    part.custom_data[CUSTOM_DATA_KEY]["final_prompt_ids"] = np.ones(50, np.int32)
    (row,) = build_rows([trajectory_of(part)], max_row_tokens=100)
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


def test_agents_that_never_acted_are_left_out() -> None:
    silent = SingleAgentEpisode(agent_id="late", module_id="player", observations=["o"], infos=[{}])
    episode = make_episode(make_part("player", [(4, 2)]), silent)
    assert [part.agent_id for part in played_parts(episode)] == ["player"]
    assert num_tokens(episode) == 6


def test_a_shard_survives_the_way_to_its_learner() -> None:
    shards = WholeEpisodes(episodes=[simple(5), simple(9), simple(4)]).shard(2)
    for shard, _ in shards:
        arrived = pickle.loads(pickle.dumps(shard))
        arrived.validate()
        arrived.solve_refs()
        assert tokens_in(arrived) == tokens_in(shard)
        turn = trajectory_of(arrived.episodes[0].agent_episodes["player"]).turns[0]
        assert turn.response_ids.tolist() == [2] and turn.reward == 0.5 and turn.policy_version == 3


def test_references_are_solved_before_sharding(monkeypatch: pytest.MonkeyPatch) -> None:
    store = {"ref0": [simple(5)], "ref1": [simple(9), simple(4)]}
    monkeypatch.setattr(rllib_training_data.ray, "get", lambda refs: [store[ref] for ref in refs])
    data = WholeEpisodes(episodes_refs=["ref0", "ref1"])
    data.validate()
    shards = [shard for shard, _ in data.shard(2)]
    assert sorted(tokens_in(shard) for shard in shards) == [9, 9]
    assert sum(len(shard.episodes) for shard in shards) == 3


def test_the_learners_get_no_arguments_but_those_of_the_group() -> None:
    assert [
        kwargs
        for _, kwargs in WholeEpisodes(episodes=[simple(5), simple(9)]).shard(2, len_lookback_buffer=1, num_epochs=2)
    ] == [{}, {}]


@pytest.mark.parametrize("given", [{}, {"episodes": [], "episodes_refs": []}, {"batches": []}])
def test_only_episodes_are_taken(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        WholeEpisodes(**given).validate()
