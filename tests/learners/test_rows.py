"""Rows hold every sampled token once, in order, and nothing else is trained on: forced tokens are context."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from episode_parts import Row, rows_of
from hypothesis import given
from hypothesis import strategies as st

from rllib_lmgame.inference.protocol import AllowedTokens
from rllib_lmgame.learners.data.batching import TokenBatch
from rllib_lmgame.rollouts.records import Trajectory, Turn


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def turn(
    prompt: np.ndarray, response: np.ndarray, reward: float = 0.0, new_row: bool = False, version: int = 0
) -> Turn:
    return Turn(prompt, response, -0.01 * response.astype(np.float32), reward, version, new_row)


@st.composite
def trajectories(draw: st.DrawFn, constrained: bool = False) -> list[Trajectory]:
    """Trajectories in which every id, of prompts and replies, occurs once; where some replies are ``constrained``,
    allowed ids beside the tokens count from 10,000 on.
    """
    fresh, others = itertools.count(1), itertools.count(10_000)

    def take(count: int) -> np.ndarray:
        return np.array([next(fresh) for _ in range(count)], np.int32)

    def allowed(response: np.ndarray) -> AllowedTokens:
        sets = [[token, *(next(others) for _ in range(draw(st.integers(0, 2))))] for token in response.tolist()]
        return AllowedTokens(ids(*map(len, sets)), ids(*itertools.chain(*sets)))

    result = []
    for number in range(draw(st.integers(1, 4))):
        turns = []
        for i in range(draw(st.integers(1, 5))):
            new_row = i == 0 or draw(st.booleans())
            prompt = take(draw(st.integers(1 if new_row else 0, 7)))
            response = take(draw(st.integers(0, 9)))
            turns.append(turn(prompt, response, float(draw(st.integers(-3, 3))), new_row, draw(st.integers(-1, 5))))
            changes = draw(st.sets(st.integers(1, 8), max_size=2)) if draw(st.booleans()) else ()
            turns[-1].later_versions = tuple((first, 10 + first) for first in sorted(changes) if first < len(response))
            if constrained and draw(st.booleans()):
                turns[-1].allowed = allowed(response)
        final = draw(st.one_of(st.none(), st.integers(0, 12)))
        result.append(
            Trajectory(
                turns,
                terminated=draw(st.booleans()),
                role=draw(st.sampled_from(["white", "black"])),
                module_id=f"module{number % 2}",
                group=f"seed{number}",
                final_prompt_ids=None if final is None else take(final),
                final_new_row=draw(st.booleans()),
            )
        )
    return result


def contexts(trajectory: Trajectory) -> list[np.ndarray]:
    """What the policy saw and said, one array per unbroken sequence."""
    streams: list[list[np.ndarray]] = [[]]
    for played in trajectory.turns:
        if played.new_row:
            streams.append([])
        streams[-1] += [played.prompt_ids, played.response_ids]
    if not trajectory.terminated and trajectory.final_prompt_ids is not None:
        if trajectory.final_new_row and len(trajectory.final_prompt_ids):
            streams.append([])
        streams[-1].append(trajectory.final_prompt_ids)
    return [np.concatenate(stream) for stream in streams if stream]


def of(rows: list[Row], index: int) -> list[Row]:
    return [row for row in rows if row.trajectory == index]


def sampled(trajectory: Trajectory, values: str) -> np.ndarray:
    return np.concatenate([getattr(played, values) for played in trajectory.turns])


LIMITS = st.integers(2, 40)


@given(trajectories(), LIMITS)
def test_every_sampled_token_is_trained_on_once_and_in_order(played: list[Trajectory], limit: int) -> None:
    rows = rows_of(played, max_row_tokens=limit)
    assert [row.trajectory for row in rows] == sorted(row.trajectory for row in rows)
    for index, trajectory in enumerate(played):
        own = of(rows, index)
        expected = sampled(trajectory, "response_ids")
        if not len(expected):
            assert own == []
            continue
        np.testing.assert_array_equal(np.concatenate([row.input_ids[row.loss_mask] for row in own]), expected)
        np.testing.assert_array_equal(
            np.concatenate([row.rollout_logprobs[row.loss_mask] for row in own]),
            sampled(trajectory, "rollout_logprobs"),
        )
        versions = []
        for played_turn in trajectory.turns:
            version, later = played_turn.policy_version, dict(played_turn.later_versions)
            versions += [version := later.get(token, version) for token in range(len(played_turn.response_ids))]
        np.testing.assert_array_equal(np.concatenate([row.policy_version[row.loss_mask] for row in own]), versions)
        lengths = [len(t.response_ids) for t in trajectory.turns if len(t.response_ids)]
        turns = np.repeat(np.arange(len(lengths)), lengths)
        np.testing.assert_array_equal(np.concatenate([row.turn[row.loss_mask] for row in own]), turns)


@given(trajectories(), LIMITS)
def test_a_row_is_an_unbroken_stretch_of_one_context(played: list[Trajectory], limit: int) -> None:
    cut = 0
    for row in rows_of(played, max_row_tokens=limit):
        assert 1 <= len(row) <= limit
        assert not row.loss_mask[0] and (row.loss_mask.any() or row.needs_bootstrap)
        whole = next(stream for stream in contexts(played[row.trajectory]) if row.input_ids[0] in stream)
        start = int(np.flatnonzero(whole == row.input_ids[0])[0])
        np.testing.assert_array_equal(row.input_ids, whole[start : start + len(row)])
        cut += start > 0
    assert TokenBatch.from_trajectories(played, max_row_tokens=limit).truncated_sequences == cut


@given(trajectories(), LIMITS, st.sampled_from([1.0, 0.5]))
def test_rewards_stand_on_the_last_token_of_the_reply_that_earned_them(
    played: list[Trajectory], limit: int, scale: float
) -> None:
    rows = rows_of(played, max_row_tokens=limit, reward_scale=scale)
    for index, trajectory in enumerate(played):
        own = of(rows, index)
        if not own:
            continue
        flat = np.concatenate([row.rewards[row.loss_mask] for row in own])
        replies = [t for t in trajectory.turns if len(t.response_ids)]
        expected = np.zeros(len(flat))
        end = np.cumsum([len(t.response_ids) for t in replies]) - 1
        before = 0.0
        slot = -1
        for t in trajectory.turns:
            if len(t.response_ids):
                slot += 1
                expected[end[slot]] += t.reward + before
                before = 0.0
            elif slot >= 0:
                expected[end[slot]] += t.reward
            else:
                before += t.reward
        np.testing.assert_allclose(flat, expected * scale)
        assert flat.sum() == pytest.approx(scale * sum(t.reward for t in trajectory.turns))


@given(trajectories(), LIMITS)
def test_only_the_last_row_of_a_truncated_trajectory_bootstraps(played: list[Trajectory], limit: int) -> None:
    rows = rows_of(played, max_row_tokens=limit)
    for index, trajectory in enumerate(played):
        own = of(rows, index)
        flags = [row.needs_bootstrap for row in own]
        assert flags == [False] * (len(own) - 1) + [not trajectory.terminated] * bool(own)
        if own and not trajectory.terminated:
            assert own[-1].input_ids[-1] == contexts(trajectory)[-1][-1] or not len(contexts(trajectory)[-1])


def test_an_overflow_begins_a_window_with_the_tail_of_the_context() -> None:
    trajectory = Trajectory(
        [turn(ids(*range(1, 6)), ids(6, 7), new_row=True), turn(ids(8), ids(9, 10))], terminated=True
    )
    rows = rows_of([trajectory], max_row_tokens=8)
    assert [row.input_ids.tolist() for row in rows] == [[1, 2, 3, 4, 5, 6, 7], [5, 6, 7, 8, 9, 10]]
    assert [row.loss_mask.tolist()[-3:] for row in rows] == [[False, True, True], [False, True, True]]
    assert TokenBatch.from_trajectories([trajectory], max_row_tokens=8).truncated_sequences == 1
    trajectory.turns[1] = turn(
        ids(*range(8, 14)), ids(14, 15)
    )  # A last observation longer than half a row stays whole.
    assert rows_of([trajectory], max_row_tokens=8)[1].input_ids.tolist() == [*range(8, 16)]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (turn(ids(), ids(2), new_row=True), "turn 0 of episode e7, agent p.*no prompt"),
        (Turn(ids(1), ids(2, 3), np.zeros(1, np.float32), new_row=True), "2 response ids and 1 log-probabilities"),
        *(
            (turn(ids(1), ids(2), float(bad), new_row=True), "episode e7, agent p has a reward that is not finite")
            for bad in ("nan", "inf", "-inf")
        ),
    ],
)
def test_broken_turns_are_named(bad: Turn, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rows_of([Trajectory([bad], terminated=True, episode_id="e7", agent_id="p")], max_row_tokens=8)


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


@given(trajectories(constrained=True), LIMITS, st.integers(1, 60))
def test_decisions_alone_are_trained_on_each_with_its_own_alternatives(
    played: list[Trajectory], limit: int, budget: int
) -> None:
    rows = rows_of(played, max_row_tokens=limit)
    for index, trajectory in enumerate(played):
        own = of(rows, index)
        expected = decisions(trajectory)
        assert [int(t) for row in own for t in row.input_ids[row.loss_mask]] == [token for token, _ in expected]
        assert not any(row.rollout_logprobs[~row.loss_mask].any() for row in own)
        assert all(row.loss_mask.any() or row.needs_bootstrap for row in own)
        flags = [False] * (len(own) - 1) + [not trajectory.terminated] * bool(own)
        assert [row.needs_bootstrap for row in own] == flags
        if expected:
            total = sum(turn.reward for turn in trajectory.turns)
            assert sum(float(row.rewards[row.loss_mask].sum()) for row in own) == pytest.approx(total)
        else:
            assert own == []
    batch = TokenBatch.from_trajectories(played, max_row_tokens=limit)
    among = dict(itertools.chain(*map(decisions, played)))
    for pack in batch.microbatches(budget):
        for place, action in enumerate(pack.allowed_action.tolist()):
            assert pack.allowed_ids[pack.allowed_owner == place].tolist() == among.pop(int(pack.target_ids[action]))
    assert not any(among.values())


def reply(tokens: np.ndarray, counts: list[int], reward: float, new_row: bool = False) -> Turn:
    """A reply of which each token is one of so many."""
    played = turn(ids(50), tokens, reward, new_row)
    sets = ([token, *range(90, 89 + count)] for token, count in zip(tokens.tolist(), counts, strict=True))
    played.allowed = AllowedTokens(ids(*counts), ids(*itertools.chain(*sets)))
    return played


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
    (row,) = rows_of([Trajectory(turns, terminated=True)], max_row_tokens=64)
    assert row.input_ids[row.loss_mask].tolist() == [4, 8]
    assert row.rewards[row.loss_mask].tolist() == [5.5, 2.0]
    assert row.rewards.sum() == 7.5
