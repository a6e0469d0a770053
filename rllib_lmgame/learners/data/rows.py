"""From trajectories to rows of tokens.

A row is one trajectory, or one window of it. Ids are copied from the turns, and nothing is ever tokenised again.

Guarantees:
 1. Every sampled token stands in exactly one row, in the order it was sampled, and has ``loss_mask`` set unless
    constrained decoding forced it (one allowed id); no other token has it.
 2. Every sampled token has at least one token before it in its row (something predicts it).
 3. All rewards of a trajectory are in its rows, on the last token of the reply that earned them. Those of an empty
    reply or a forced token move to the last trained token before (the first after if there is none).
 4. No row is longer than ``max_row_tokens``. The memory of the turns is not shared.
 5. A truncated trajectory has exactly one row with ``needs_bootstrap``: its last one. A terminated one has none.
 6. A token of the game's text that a turn tells of (``observed``) is marked in one row at most. It is not marked where
    a later row repeats it, nor at a row's beginning, where nothing predicts it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from rllib_lmgame.rollouts.records import Trajectory, Turn


def assign_balanced(sizes: np.ndarray, bins: int, order: np.ndarray) -> np.ndarray:
    """Bin of each item, int64 ``[N]``: the lightest bin takes the next in ``order``.

    Bins differ by at most the largest item. With at least as many items of size > 0 as bins, no bin stays empty.
    """
    loads = [(0, i) for i in range(bins)]
    chosen = np.zeros(len(sizes), np.int64)
    weights = np.asarray(sizes).tolist()
    for item in np.asarray(order).tolist():
        load, target = loads[0]
        chosen[item] = target
        heapq.heapreplace(loads, (load + weights[item], target))
    return chosen


def take_out_forced(rewards: np.ndarray, owner: np.ndarray, forced: np.ndarray) -> None:
    """Move the rewards of forced tokens, in place, to the last choice before, or else to the first after.

    Where a single id was left, nothing was decided: such tokens stay as context, out of the loss and of the time
    advantages run over. ``rewards`` (float64), ``owner`` (int, the trajectory, never falling) and ``forced`` (bool) are
    of the sampled tokens ``[A]``.
    """
    choices, earned = np.flatnonzero(~forced), np.flatnonzero(forced & (rewards != 0))
    amounts = rewards[earned]
    rewards[earned] = 0.0
    after = np.searchsorted(choices, earned)
    for side in (after - 1, after):
        target = choices[np.clip(side, 0, len(choices) - 1)]
        found = (side >= 0) & (side < len(choices)) & (owner[target] == owner[earned])
        np.add.at(rewards, target[found], amounts[found])
        amounts = np.where(found, 0.0, amounts)


class RowLayout:
    """Rows of trajectories, as segments of ids from one source each, end to end.

    A reply that does not fit in ``limit`` tokens (at least 2) begins a new row with the tail of the context: half a
    row, or more if the last observation is longer. A longer reply is cut.

    Attributes:
        segments: Ids, log-probabilities (``None``: context), policy version, number of the turn, reward on the last
            token, and which of the ids are the game's text that is said here for the first time.
        rows: Number of segments up to the row's end, number of the trajectory, and whether the value at the last token
            is its bootstrap value. Segments after the last row's end are the row that is being written.
        truncated_sequences: Rows that lack the head of the context their replies were sampled with, for want of room.
    """

    def __init__(self, limit: int) -> None:
        if limit < 2:
            raise ValueError(f"max_row_tokens must be at least 2 (a sampled token and one before it), not {limit}")
        self.segments: list[tuple[np.ndarray, np.ndarray | None, int, int, float, np.ndarray | None]] = []
        self.rows: list[tuple[int, int, bool]] = []
        self.truncated_sequences = 0
        self._limit = limit
        self._tokens, self._cut = 0, False

    def add(self, index: int, trajectory: Trajectory, reward_scale: float) -> None:
        """Lay out the rows of one trajectory; a truncated one also shows its last state, for the bootstrap value.

        Raises: ValueError: A reply with nothing before it, or too many or few log-probabilities.
        """
        self._trajectory = index
        rewards = [reward * reward_scale for reward in _rewards_of_replies(trajectory.turns)]
        for number, turn in enumerate(trajectory.turns):
            size = len(turn.response_ids)
            if len(turn.rollout_logprobs) != size:
                raise ValueError(
                    f"turn {number} of {name_of(trajectory)} has {size} response ids and {len(turn.rollout_logprobs)} "
                    "log-probabilities; it needs one per id"
                )
            self._add_context(turn.prompt_ids, size, turn.observed, new_row=turn.new_row)
            if size and not self._tokens:
                raise ValueError(
                    f"turn {number} of {name_of(trajectory)} has no prompt before its reply, so nothing predicts the "
                    "reply's first token"
                )
            if size:
                self._add_reply(turn, number, rewards[number])
        final = trajectory.final_prompt_ids
        if not trajectory.terminated and final is not None and len(final):
            self._add_context(final, 0, trajectory.final_observed, new_row=trajectory.final_new_row)
        self._close(needs_bootstrap=not trajectory.terminated)

    def _add_context(self, ids: np.ndarray, room: int, observed: np.ndarray | None, *, new_row: bool) -> None:
        if new_row:
            self._close()
        if self._tokens + len(ids) + room > self._limit:
            self._open_window(ids, room, observed)
        elif len(ids):
            self._append(ids, observed=observed)

    def _add_reply(self, turn: Turn, number: int, reward: float) -> None:
        """The reply in pieces that fit (nearly always one); between two pieces a new window is begun."""
        start, size = 0, len(turn.response_ids)
        while start < size:
            end = min(size, start + self._limit - self._tokens)
            earned = reward if end == size else 0.0
            self._append(
                turn.response_ids[start:end], turn.rollout_logprobs[start:end], turn.policy_version, number, earned
            )
            if end < size:
                self._open_window(turn.response_ids[:0], size - end)
            start = end

    def _append(
        self,
        ids: np.ndarray,
        logprobs: np.ndarray | None = None,
        version: int = -1,
        turn: int = -1,
        reward: float = 0.0,
        observed: np.ndarray | None = None,
    ) -> None:
        self.segments.append((ids, logprobs, version, turn, reward, observed))
        self._tokens += len(ids)

    def _open_window(self, delta: np.ndarray, room: int, observed: np.ndarray | None = None) -> None:
        """Begin a row with the tail of the open one and ``delta``, leaving room for ``room`` tokens where possible."""
        half = self._limit // 2
        keep = min(self._limit - room, max(half, len(delta))) if room < self._limit else min(self._limit - 1, half)
        context = np.concatenate([*(ids for ids, *_ in self._open()), np.asarray(delta)])[-keep:]
        cut = self._cut or len(context) < self._tokens + len(delta)
        self._close()
        if len(context):
            if observed is not None:  # What stood in the row before is not said again.
                observed = np.concatenate([np.zeros(len(context), bool), observed])[-len(context) :]
            self._append(context, observed=observed)
        self._cut = cut

    def _open(self) -> list[tuple[np.ndarray, np.ndarray | None, int, int, float, np.ndarray | None]]:
        return self.segments[self.rows[-1][0] if self.rows else 0 :]

    def _close(self, needs_bootstrap: bool = False) -> None:
        """End the row, or drop it if there is nothing to learn; without one the row before holds the last state."""
        row = self._open()
        if needs_bootstrap and not row:
            self.rows[-1] = (*self.rows[-1][:2], True)
        elif needs_bootstrap or any(logprobs is not None for _, logprobs, *_ in row):
            self.rows.append((len(self.segments), self._trajectory, needs_bootstrap))
            self.truncated_sequences += self._cut
        elif row:
            del self.segments[-len(row) :]
        self._tokens, self._cut = 0, False


def _rewards_of_replies(turns: Sequence[Turn]) -> list[float]:
    """Reward per turn, with that of an empty reply moved to the reply before it, or else to the one after it."""
    rewards = [float(turn.reward) for turn in turns]
    if all(len(turn.response_ids) for turn in turns):
        return rewards
    carried, target = 0.0, -1
    for number, turn in enumerate(turns):
        if len(turn.response_ids):
            rewards[number] += carried
            carried, target = 0.0, number
        elif target >= 0:
            rewards[target] += rewards[number]
        else:
            carried += rewards[number]
    return rewards


def name_of(trajectory: Trajectory) -> str:
    return f"episode {trajectory.episode_id or '(without id)'}, agent {trajectory.agent_id}"
