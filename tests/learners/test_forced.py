"""Tokens that constrained decoding forced are context, not actions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rllib_lmgame.inference.protocol import AllowedTokens
from rllib_lmgame.learners.data.batching import TokenBatch
from rllib_lmgame.learners.data.rows import build_rows
from rllib_lmgame.rollouts.records import Trajectory, Turn


@st.composite
def constrained(draw: st.DrawFn) -> list[Trajectory]:
    """Trajectories in which every id occurs once and some replies are constrained; allowed ids beside the token count
    from 10,000 on.
    """
    fresh, others = itertools.count(1), itertools.count(10_000)

    def take(count: int) -> np.ndarray:
        return np.array([next(fresh) for _ in range(count)], np.int32)

    def allowed(ids: np.ndarray) -> AllowedTokens:
        sets = [[token, *(next(others) for _ in range(draw(st.integers(0, 2))))] for token in ids.tolist()]
        return AllowedTokens(np.array(list(map(len, sets)), np.int32), np.array(list(itertools.chain(*sets)), np.int32))

    played = []
    for _ in range(draw(st.integers(1, 4))):
        turns = []
        for i in range(draw(st.integers(1, 4))):
            prompt, ids = take(draw(st.integers(1, 5))), take(draw(st.integers(0, 6)))
            logprobs = -0.01 * ids.astype(np.float32)
            reward = float(draw(st.integers(-3, 3)))
            turns.append(
                Turn(prompt, ids, logprobs, reward, 3, i == 0, allowed=draw(st.none() | st.just(ids).map(allowed)))
            )
        final = take(2) if draw(st.booleans()) else None
        played.append(Trajectory(turns, terminated=final is None, final_prompt_ids=final))
    return played


def decisions(trajectory: Trajectory) -> list[tuple[int, list[int]]]:
    """The sampled ids that had an alternative, each with what it was chosen among (nothing: the whole vocabulary)."""
    found = []
    for turn in trajectory.turns:
        ends = np.cumsum([0] if turn.allowed is None else [0, *turn.allowed.counts])
        for i, token in enumerate(turn.response_ids.tolist()):
            among = [] if turn.allowed is None else turn.allowed.ids[ends[i] : ends[i + 1]].tolist()
            if len(among) != 1:
                found.append((token, among))
    return found


@settings(max_examples=300, deadline=None)
@given(constrained(), st.integers(2, 30), st.integers(1, 60))
def test_decisions_alone_are_trained_on_each_with_its_own_alternatives(
    played: list[Trajectory], limit: int, budget: int
) -> None:
    rows = build_rows(played, max_row_tokens=limit)
    for index, trajectory in enumerate(played):
        own = [row for row in rows if row.trajectory == index]
        expected = decisions(trajectory)
        assert [int(t) for row in own for t in row.input_ids[row.loss_mask]] == [token for token, _ in expected]
        assert not any(row.rollout_logprobs[~row.loss_mask].any() for row in own)
        assert all(row.loss_mask.any() or row.needs_bootstrap for row in own)
        assert [row.needs_bootstrap for row in own] == [False] * (len(own) - 1) + [not trajectory.terminated] * bool(
            own
        )
        if expected:
            total = sum(turn.reward for turn in trajectory.turns)
            assert sum(float(row.rewards[row.loss_mask].sum()) for row in own) == pytest.approx(total)
        else:
            assert own == []
    if not rows:
        return
    among = dict(itertools.chain(*map(decisions, played)))
    for pack in TokenBatch.from_rows(rows).microbatches(budget):
        for place, action in enumerate(pack.allowed_action.tolist()):
            assert pack.allowed_ids[pack.allowed_owner == place].tolist() == among.pop(int(pack.target_ids[action]))
    assert not any(among.values())


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def reply(tokens: np.ndarray, counts: list[int], reward: float, new_row: bool = False) -> Turn:
    among = ids(
        *itertools.chain(
            *([token, *range(90, 89 + count)] for token, count in zip(tokens.tolist(), counts, strict=True))
        )
    )
    return Turn(
        ids(50),
        tokens,
        np.full(len(tokens), -1, np.float32),
        reward,
        new_row=new_row,
        allowed=AllowedTokens(ids(*counts), among),
    )


def test_a_reward_moves_from_forced_tokens_to_the_decision_that_earned_it() -> None:
    """The closing tag is forced; a reply with one legal move earns for the move before, or for the next if it is the
    first.
    """
    turns = [
        reply(ids(1, 2), [1, 1], 4.0, new_row=True),
        reply(ids(3, 4, 5), [1, 3, 1], 1.0),
        reply(ids(6, 7), [1, 1], 0.5),
        reply(ids(8), [2], 2.0),
    ]
    (row,) = build_rows([Trajectory(turns, terminated=True)], max_row_tokens=64)
    assert row.input_ids[row.loss_mask].tolist() == [4, 8]
    assert row.rewards[row.loss_mask].tolist() == [5.5, 2.0]
    assert row.rewards.sum() == 7.5


def test_rewards_stay_within_their_trajectory() -> None:
    """The one between the two others has no decision, hence no row, and gives them nothing."""
    played = [
        Trajectory([reply(ids(i), [count], 1.0 + i, new_row=True)], terminated=True)
        for i, count in ((1, 2), (2, 1), (3, 2))
    ]
    rows = build_rows(played, max_row_tokens=8)
    assert [(row.trajectory, float(row.rewards.sum())) for row in rows] == [(0, 2.0), (2, 4.0)]
    assert build_rows(played[1:2], max_row_tokens=8) == []
