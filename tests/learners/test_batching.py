"""Packing loses nothing, repeats nothing and keeps within its budget."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby, pairwise, product
from typing import Any

import episode_parts
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rllib_lmgame.learners.data.batching import PackedBatch, TokenBatch, assign_balanced
from rllib_lmgame.rollouts.records import Trajectory, Turn


@dataclass
class Row(episode_parts.Row):
    """A made-up row of a game with this ``temperature``, in this ``group``; its turns count from ``first_turn`` on."""

    temperature: float | None
    group: str
    first_turn: int

    @property
    def runs(self) -> list[tuple[int, int]]:
        """Where replies begin and end."""
        marks = np.concatenate([[0], self.loss_mask.astype(int), [0]])
        return list(zip(np.flatnonzero(np.diff(marks) == 1), np.flatnonzero(np.diff(marks) == -1), strict=True))


def make_row(
    length: int,
    mask: list[int],
    trajectory: int,
    *,
    bootstrap: bool = False,
    role: str = "player",
    first_id: int = 0,
    group: str = "",
    game: str = "",
    first_turn: int = 0,
    temperature: float | None = None,
    ids: np.ndarray | None = None,
) -> Row:
    """A row whose ids count up from ``first_id`` and whose sampled positions are ``mask``: neighbours are a turn."""
    marks = np.zeros(length, bool)
    marks[mask] = True
    numbers = np.arange(first_id, first_id + length, dtype=np.int32) if ids is None else ids
    row = Row(
        input_ids=numbers,
        loss_mask=marks,
        rollout_logprobs=np.where(marks, -numbers, 0).astype(np.float32),
        rewards=np.zeros(length),
        policy_version=np.where(marks, trajectory, -1).astype(np.int32),
        turn=np.full(length, -1, np.int32),
        weights=marks.astype(np.float32),
        observed=np.zeros(length, bool),
        trajectory=trajectory,
        needs_bootstrap=bootstrap,
        role=role,
        group=group,
        game=game,
        episode=f"e{trajectory}",
        temperature=temperature,
        first_turn=first_turn,
    )
    for number, (begin, end) in enumerate(row.runs, first_turn):
        row.turn[begin:end] = number
        row.rewards[end - 1] = numbers[end - 1] * 0.5
    return row


def trajectory_of_rows(rows: list[Row]) -> Trajectory:
    """The trajectory that becomes these rows."""
    turns, final, final_new_row = [], None, False
    for row in rows:
        at = 0
        for begin, end in row.runs:
            turns.append(
                Turn(
                    prompt_ids=row.input_ids[at:begin],
                    response_ids=row.input_ids[begin:end],
                    rollout_logprobs=row.rollout_logprobs[begin:end],
                    reward=row.rewards[end - 1],
                    policy_version=row.trajectory,
                    new_row=at == 0,
                    observation=100 * row.trajectory + row.turn[begin],
                )
            )
            at = end
        rest = row.input_ids[at:]
        if row.needs_bootstrap:
            final, final_new_row = rest, at == 0
        elif len(rest):  # A reply of nothing, as if no token had been left.
            turns.append(Turn(rest, rest[:0], np.zeros(0, np.float32)))
    row = rows[0]
    return Trajectory(
        turns,
        terminated=not rows[-1].needs_bootstrap,
        role=row.role,
        group=row.group,
        game=row.game,
        episode_id=row.episode,
        final_prompt_ids=final,
        final_new_row=final_new_row,
        temperature=row.temperature,
    )


def batch_of(rows: list[Row]) -> TokenBatch:
    """The batch of these rows; trajectories of other numbers have nothing to learn."""
    played = [Trajectory([], terminated=True) for _ in range(max(row.trajectory for row in rows) + 1)]
    for number, own in groupby(rows, lambda row: row.trajectory):
        played[number] = trajectory_of_rows(list(own))
    return TokenBatch.from_trajectories(played, max_row_tokens=10**6)


@st.composite
def row_lists(draw: st.DrawFn) -> list[Row]:
    rows: list[Row] = []
    used = 0
    index = draw(st.integers(0, 3))
    for _ in range(draw(st.integers(1, 12))):
        count = draw(st.integers(1, 3))
        truncated, spoken = draw(st.booleans()), 0
        role, group = draw(st.sampled_from(["a", "b"])), draw(st.sampled_from(["", "g1", "g2"]))
        game, temperature = draw(st.sampled_from(["g", "h"])), draw(st.sampled_from([None, 0.0, 0.5]))
        for i in range(count):
            length = draw(st.integers(2, 12))
            mask = draw(st.lists(st.integers(1, length - 1), min_size=1, unique=True))
            if truncated and i == count - 1 and i > 0 and draw(st.booleans()):
                mask = []
            truncates = truncated and i == count - 1
            told = {"role": role, "group": group, "game": game, "first_turn": spoken, "temperature": temperature}
            rows.append(make_row(length, mask, index, bootstrap=truncates, first_id=used, **told))
            spoken += len(rows[-1].runs)
            used += length
        index += draw(st.integers(1, 3))
    return rows


def read_of(row: Row) -> np.ndarray:
    """The ids that anything is read behind: up to the last action token's predecessor, or to the last state."""
    return row.input_ids if row.needs_bootstrap else row.input_ids[: np.flatnonzero(row.loss_mask)[-1]]


def rows_in(packed: PackedBatch) -> list[np.ndarray]:
    return [packed.input_ids[a:b] for a, b in pairwise(packed.cu_seqlens)]


def check_cover(batch: TokenBatch, rows: list[Row], packs: list[PackedBatch]) -> None:
    """All that is read of rows, each once, all action tokens, each once, all bootstrap positions, each once."""
    found = sorted(tuple(row) for packed in packs for row in rows_in(packed))
    assert found == sorted(tuple(read_of(row)) for row in rows)
    assert sorted(np.concatenate([p.token_slot for p in packs]).tolist()) == list(range(batch.num_actions))
    assert (
        sorted(np.concatenate([p.bootstrap_slot for p in packs]).tolist())
        == np.flatnonzero(batch.needs_bootstrap).tolist()
    )


@given(row_lists(), st.integers(1, 60))
def test_microbatches_hold_every_row_once_within_budget(rows: list[Row], budget: int) -> None:
    batch = batch_of(rows)
    packs = batch.microbatches(budget)
    check_cover(batch, rows, packs)
    for packed in packs:
        lengths = np.diff(packed.cu_seqlens)
        assert packed.num_tokens <= budget or len(lengths) == 1
        assert (np.diff(lengths) >= 0).all()
        assert packed.num_tokens == lengths.sum() == packed.cu_seqlens[-1]


@given(row_lists(), st.integers(1, 60))
def test_rows_side_by_side_have_few_fillers(rows: list[Row], budget: int) -> None:
    batch = batch_of(rows)
    packs = batch.microbatches(budget, batched=True)
    check_cover(batch, rows, packs)
    for packed in packs:
        lengths = np.diff(packed.cu_seqlens)
        assert packed.batched_tokens == lengths.max() * len(lengths)
        assert packed.batched_tokens <= budget or len(lengths) == 1
        assert 8 * (packed.batched_tokens - packed.num_tokens) <= packed.num_tokens
    for one, other in pairwise(packs):  # None could have taken the next row.
        count, length = len(one.cu_seqlens), int(np.diff(other.cu_seqlens).min())
        assert count * length > min(budget, 9 / 8 * (one.num_tokens + length))


@given(row_lists())
def test_stretches_are_the_tokens_of_one_turn_or_trajectory_in_one_row(rows: list[Row]) -> None:
    turns = [(n, row.turn[at]) for n, row in enumerate(rows) for at in np.flatnonzero(row.loss_mask)]
    batch = batch_of(rows)
    for by, keys in (("turn", turns), ("trajectory", [n for n, _ in turns])):
        numbers: dict[Any, int] = {}
        assert batch.stretches(by).tolist() == [numbers.setdefault(key, len(numbers)) for key in keys]


@given(row_lists())
def test_flat_arrays_are_the_sampled_tokens_in_order(rows: list[Row]) -> None:
    batch = batch_of(rows)
    np.testing.assert_array_equal(
        batch.rollout_logprobs, np.concatenate([row.rollout_logprobs[row.loss_mask] for row in rows])
    )
    np.testing.assert_array_equal(batch.rewards, np.concatenate([row.rewards[row.loss_mask] for row in rows]))
    owner = np.concatenate([np.full(row.loss_mask.sum(), row.trajectory) for row in rows])
    np.testing.assert_array_equal(batch.trajectory_ids[batch.trajectory], owner)
    np.testing.assert_array_equal(batch.policy_version, owner)
    first = [next(row for row in rows if row.trajectory == i) for i in batch.trajectory_ids]
    assert [(batch.roles[r], batch.games[g]) for r, g in zip(batch.role, batch.game, strict=True)] == [
        (row.role, row.game) for row in first
    ]
    assert batch.episodes == tuple(row.episode for row in first)
    for (i, a), (j, b) in product(enumerate(first), repeat=2):
        alike = (a.group, a.game, a.role) == (b.group, b.game, b.role) and a.group != ""
        assert (batch.group[i] == batch.group[j]) == (alike or i == j)
    own = np.array([math.nan if row.temperature is None else row.temperature or 1.0 for row in first])  # Greedy: at 1.
    known = not np.isnan(own).all()
    np.testing.assert_array_equal(batch.temperature, own if known else [])
    for pack in batch.microbatches(20):
        np.testing.assert_array_equal(pack.temperatures, own[batch.trajectory[pack.token_slot]] if known else [])
    replies = dict.fromkeys((row.trajectory, int(turn)) for row in rows for turn in row.turn[row.loss_mask])
    tokens = [
        (int(owner), int(turn))
        for row in rows
        for owner, turn in zip([row.trajectory] * len(row), row.turn, strict=True)
        if turn >= 0
    ]
    assert [tokens[a:b] for a, b in pairwise(batch.turn_offsets)] == [
        [reply] * tokens.count(reply) for reply in replies
    ]
    assert batch.turn_observation.tolist() == [100 * trajectory + turn for trajectory, turn in replies]
    for n, (a, b) in enumerate(pairwise(batch.trajectory_offsets)):
        assert (batch.trajectory[a:b] == n).all()
        assert (b > a) == any(row.loss_mask.any() for row in rows if row.trajectory == batch.trajectory_ids[n])
    assert batch.trajectory_offsets[-1] == batch.num_actions
    assert np.isnan(batch.values).all() and not batch.bootstrap_values.any()


@given(row_lists(), st.integers(1, 6), st.integers(0, 2**32 - 1), st.booleans())
def test_minibatches_keep_trajectories_whole_and_balanced_and_groups_where_asked(
    rows: list[Row], count: int, seed: int, groups: bool
) -> None:
    batch = batch_of(rows)
    minibatches = batch.minibatches(count, np.random.default_rng(seed), 40, whole_groups=groups)
    assert len(minibatches) == count
    check_cover(batch, rows, [packed for packs in minibatches for packed in packs])
    unit_of = {
        int(row.input_ids[0]): (row.game, row.group, row.role) if groups and row.group else row.trajectory
        for row in rows
    }
    home: dict[object, int] = {}
    loads = []
    for number, packs in enumerate(minibatches):
        loads.append(sum(packed.num_tokens for packed in packs))
        for packed in packs:
            for row in rows_in(packed):
                assert home.setdefault(unit_of[int(row[0])], number) == number
    sizes = [sum(len(read_of(row)) for row in rows if unit_of[int(row.input_ids[0])] == unit) for unit in home]
    assert max(loads) - min(loads) <= max(sizes)
    if len(home) >= count:
        assert min(loads) > 0


def test_minibatches_follow_the_random_state_and_nothing_else() -> None:
    batch = batch_of([make_row(4, [2, 3], i, first_id=10 * i) for i in range(30)])

    def slots(rng: np.random.Generator) -> list[list[int]]:
        return [packed.token_slot.tolist() for packs in batch.minibatches(3, rng, 1000) for packed in packs]

    assert slots(np.random.default_rng(1)) == slots(np.random.default_rng(1))
    assert slots(np.random.default_rng(1)) != slots(np.random.default_rng(2))
    rng = np.random.default_rng(1)
    assert slots(rng) != slots(rng)


@settings(deadline=None)
@given(st.lists(st.integers(1, 100), min_size=1, max_size=40), st.integers(1, 8), st.randoms(use_true_random=False))
def test_bins_differ_by_at_most_the_largest_item(sizes: list[int], bins: int, random) -> None:
    order = list(range(len(sizes)))
    random.shuffle(order)
    loads = np.bincount(assign_balanced(np.array(sizes), bins, np.array(order)), weights=sizes, minlength=bins)
    assert loads.max() - loads.min() <= max(sizes)
    assert len(sizes) < bins or loads.min() > 0
