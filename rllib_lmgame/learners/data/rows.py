"""From trajectories to rows of tokens, and which rows begin alike.

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

What rows begin with in common is computed once. They are a tree: a node is a stretch that all rows behind it have,
prompts and replies; a leaf is what a row has of its own, which is never nothing.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rllib_lmgame.rollouts.records import Trajectory, Turn


def assign_balanced(sizes: np.ndarray, bins: int, order: np.ndarray) -> np.ndarray:
    """Bin of each item, int64 ``[N]``: the lightest bin takes the next in ``order``. Bins differ by at most the
    largest.
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

    Where a single id was left, nothing was decided: such tokens are context, and no time passes at them. ``rewards``
    (float64), ``owner`` (int, the trajectory, never falling) and ``forced`` (bool) are of the sampled tokens ``[A]``.
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


Segment = tuple[np.ndarray, "np.ndarray | None", int, int, float, "np.ndarray | None", "np.ndarray | None"]


class RowLayout:
    """Rows of trajectories, as segments of ids from one source each, end to end.

    A reply that does not fit in ``limit`` tokens begins a new row with the tail of the context: half a row, or more if
    the last observation is longer. A longer reply is cut.

    Attributes:
        segments: Ids, log-probabilities (``None``: context), policy version, number of the turn, reward on the last
            token, which of the ids are the game's text that is said here for the first time, and the ids' experts.
        rows: Number of segments up to the row's end, number of the trajectory, whether it ends in a bootstrap value.
        truncated_sequences: Rows that lack the head of the context their replies were sampled with, for want of room.
    """

    def __init__(self, limit: int) -> None:
        self.segments: list[Segment] = []
        self.rows: list[tuple[int, int, bool]] = []
        self.truncated_sequences = 0
        self._limit = limit
        self._tokens, self._cut = 0, False

    def add(self, index: int, trajectory: Trajectory, reward_scale: float) -> None:
        """Lay out the rows of one trajectory; a truncated one also shows its last state, for the bootstrap value.

        ``reward_scale`` is that of games that have none of their own.

        Raises: ValueError: A reply with nothing before it, or too many or few log-probabilities.
        """
        self._trajectory = index
        scale = reward_scale if trajectory.reward_scale is None else trajectory.reward_scale
        rewards = [reward * scale for reward in _rewards_of_replies(trajectory.turns)]
        for number, turn in enumerate(trajectory.turns):
            size = len(turn.response_ids)
            if len(turn.rollout_logprobs) != size:
                found = f"{size} response ids and {len(turn.rollout_logprobs)} log-probabilities"
                raise ValueError(f"turn {number} of {name_of(trajectory)} has {found}")
            prompt, routes = len(turn.prompt_ids), turn.routed_experts
            told = None if routes is None else routes[:prompt]
            self._add_context(turn.prompt_ids, size, turn.observed, told, new_row=turn.new_row)
            if size and not self._tokens:
                raise ValueError(f"turn {number} of {name_of(trajectory)} has no prompt before its reply")
            if size:
                self._add_reply(turn, number, rewards[number], None if routes is None else routes[prompt:])
        final = trajectory.final_prompt_ids
        if not trajectory.terminated and final is not None and len(final):
            self._add_context(final, 0, trajectory.final_observed, None, new_row=trajectory.final_new_row)
        self._close(needs_bootstrap=not trajectory.terminated)

    def _add_context(
        self, ids: np.ndarray, room: int, observed: np.ndarray | None, routes: np.ndarray | None, *, new_row: bool
    ) -> None:
        if new_row:
            self._close()
        if self._tokens + len(ids) + room > self._limit:
            self._open_window(ids, room, observed, routes)
        elif len(ids):
            self._append(ids, observed=observed, routes=routes)

    def _add_reply(self, turn: Turn, number: int, reward: float, routes: np.ndarray | None) -> None:
        """The reply in pieces that fit and are of one version (nearly always one); behind a full window is another."""
        start, size = 0, len(turn.response_ids)
        versions = [(0, turn.policy_version), *turn.later_versions]
        while start < size:
            version = [version for first, version in versions if first <= start][-1]
            end = min(size, start + self._limit - self._tokens, *(first for first, _ in versions if first > start))
            earned, piece = reward if end == size else 0.0, slice(start, end)
            of_turn = (turn.rollout_logprobs[piece], version, number, earned)
            self._append(turn.response_ids[piece], *of_turn, routes=None if routes is None else routes[piece])
            if end < size and self._tokens >= self._limit:
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
        routes: np.ndarray | None = None,
    ) -> None:
        self.segments.append((ids, logprobs, version, turn, reward, observed, routes))
        self._tokens += len(ids)

    def _open_window(
        self, delta: np.ndarray, room: int, observed: np.ndarray | None = None, routes: np.ndarray | None = None
    ) -> None:
        """Begin a row with the tail of the open one and ``delta``, leaving room for ``room`` tokens where possible."""
        half = self._limit // 2
        keep = min(self._limit - room, max(half, len(delta))) if room < self._limit else min(self._limit - 1, half)
        context = np.concatenate([*(ids for ids, *_ in self._open()), np.asarray(delta)])[-keep:]
        routes = joined_routes([*((len(each[0]), each[-1]) for each in self._open()), (len(delta), routes)])
        cut = self._cut or len(context) < self._tokens + len(delta)
        self._close()
        if len(context):
            if observed is not None:  # What stood in the row before is not said again.
                observed = np.concatenate([np.zeros(len(context), bool), observed])[-len(context) :]
            self._append(context, observed=observed, routes=None if routes is None else routes[-len(context) :])
        self._cut = cut

    def _open(self) -> list[Segment]:
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


def joined_routes(parts: Sequence[tuple[int, np.ndarray | None]]) -> np.ndarray | None:
    """The experts of stretches end to end, each with its number of tokens; ``None`` if none are known."""
    like = next((routes for _, routes in parts if routes is not None), None)
    if like is None:
        return None
    nobody = np.full((max(size for size, _ in parts), *like.shape[1:]), np.iinfo(like.dtype).max, like.dtype)
    return np.concatenate([nobody[:size] if routes is None else routes for size, routes in parts])


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


LEAST_SAVED = 32
"""Tokens that a node must save; each costs calls in every layer."""


@dataclass(frozen=True)
class Forest:
    """Rows in an order in which those of one tree are neighbours; small trees and short rows first.

    Attributes:
        rows: int64 ``[R]``.
        paths: The nodes each row goes through, outermost first; empty where it shares nothing.
        ends: Tokens of a row up to the end of each node.
    """

    rows: np.ndarray
    paths: Sequence[tuple[int, ...]]
    ends: Sequence[int]


class Segments(NamedTuple):
    """Stretches of rows that a forward pass computes, int64 ``[S]``, and the last one of each row, int64 ``[R]``.

    ``begin`` and ``end`` are places in ``row``; ``parent`` is the segment before, -1 where the row begins.
    """

    row: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    parent: np.ndarray
    leaf: np.ndarray


class PromptOrder:
    """Rows sorted by what they begin with, of which neighbours have the most in common.

    ``ids`` holds all rows, which begin at ``starts``; the first ``shareable`` tokens of each may be shared. All int
    ``[R]`` but for the ids.
    """

    def __init__(self, ids: np.ndarray, starts: np.ndarray, shareable: np.ndarray) -> None:
        prompts = [ids[a : a + n] for a, n in zip(starts.tolist(), shareable.tolist(), strict=True)]
        order, common = _sorted(prompts)
        self._order = np.array(order, np.int64)
        self._rank = np.argsort(self._order)
        self._common = np.array(common, np.int64)

    def forest(self, rows: np.ndarray, lengths: np.ndarray) -> Forest:
        """Of some rows, with the lengths int64 ``[R]`` of all."""
        rank = np.sort(self._rank[rows])
        common = np.minimum.reduceat(self._common[: rank[-1] + 1], np.concatenate([[0], rank[:-1] + 1]))
        common[0] = 0
        ends, children, roots = _nodes(self._order[rank].tolist(), common.tolist())
        return _in_order(ends, children, roots, lengths)


def shared_tokens(prompts: Sequence[np.ndarray]) -> int:
    """How many tokens of the prompts are repetitions, if each that begins like others has them once."""
    return sum(_sorted(prompts)[1])


def unshared(rows: np.ndarray, lengths: np.ndarray) -> Forest:
    """Some rows as a forest of leaves, with the lengths int64 ``[R]`` of all."""
    return Forest(rows[np.argsort(lengths[rows], kind="stable")], [()] * len(rows), [])


def micro_batches(forest: Forest, lengths: np.ndarray, max_tokens: int, repeat_cost: float = 0.0) -> list[slice]:
    """Runs of the forest's rows of which at most ``max_tokens`` are computed; a longer row goes alone.

    ``repeat_cost`` is what each repetition of a shared token's keys and values counts.
    """
    runs, start, used = [], 0, 0.0
    before: tuple[int, ...] = ()
    for i, (length, path) in enumerate(zip(lengths[forest.rows].tolist(), forest.paths, strict=True)):
        known = 0
        while known < min(len(path), len(before)) and path[known] == before[known]:
            known += 1
        cost = _cost(length, path, known, forest.ends, repeat_cost)
        if used and used + cost > max_tokens:
            runs.append(slice(start, i))
            start, used, cost = i, 0.0, _cost(length, path, 0, forest.ends, repeat_cost)
        used, before = used + cost, path
    return [*runs, slice(start, len(forest.rows))] if len(forest.rows) else runs


def segments_of(forest: Forest, run: slice, lengths: np.ndarray) -> Segments:
    """What is computed of a micro-batch; nodes that not at least two of its branches share are parts of others."""
    rows, paths = forest.rows[run], forest.paths[run]
    if not any(paths):
        zeros = np.zeros(len(rows), np.int64)
        return Segments(rows, zeros, lengths[rows], zeros - 1, np.arange(len(rows)))
    counts = Counter(node for path in paths for node in path)
    found: list[tuple[int, int, int, int]] = []
    of_node: dict[int, int] = {}
    leaves = []
    for row, length, path in zip(rows.tolist(), lengths[rows].tolist(), paths, strict=True):
        begin, parent = 0, -1
        for node, inner in zip(path, (*path[1:], -1), strict=False):
            if counts[node] < 2 or counts[node] == counts[inner]:  # A missing one counts 0.
                continue
            if node not in of_node:
                of_node[node] = len(found)
                found.append((row, begin, forest.ends[node], parent))
            begin, parent = forest.ends[node], of_node[node]
        leaves.append(len(found))
        found.append((row, begin, length, parent))
    row_of, begins, ends, parents = np.array(found, np.int64).T
    return Segments(row_of, begins, ends, parents, np.array(leaves))


def _sorted(prompts: Sequence[np.ndarray]) -> tuple[list[int], list[int]]:
    """The order of int ``[n]`` prompts, and what each then has in common with the one before."""
    keys = [prompt.astype(">i4").tobytes() for prompt in prompts]  # Big-endian bytes sort as the numbers do.
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return order, [0, *(_in_common(prompts[a], prompts[b]) for a, b in pairwise(order))]


def _in_common(a: np.ndarray, b: np.ndarray) -> int:
    size = min(len(a), len(b))
    differs = a[:size] != b[:size]
    return int(differs.argmax()) if differs.any() else size


def _nodes(rows: Sequence[int], common: Sequence[int]) -> tuple[list[int], list[list[int]], list[int]]:
    """The nodes that pay, innermost first: where each ends, and its children; and the roots. A row ``r`` is ``~r``.

    ``rows`` are sorted by their prompts; ``common`` is what each has in common with the one before.
    """
    ends: list[int] = []
    children: list[list[int]] = []
    around: list[tuple[int, list[int]]] = [(0, [])]

    def close(outer: int) -> list[int]:
        end, inside = around.pop()
        if (end - outer) * (len(inside) - 1) < LEAST_SAVED:
            return inside
        ends.append(end)
        children.append(inside)
        return [len(ends) - 1]

    for row, depth in zip([*rows, None], [*common, 0], strict=True):
        moved = [around[-1][1].pop()] if around[-1][0] < depth else []
        while around[-1][0] > depth:
            moved = close(max(depth, around[-2][0]))
            if around[-1][0] >= depth:
                around[-1][1].extend(moved)
                moved = []
        if around[-1][0] < depth:
            around.append((depth, moved))
        if row is not None:
            around[-1][1].append(~row)
    return ends, children, around[0][1]


def _in_order(ends: list[int], children: list[list[int]], roots: list[int], lengths: np.ndarray) -> Forest:
    inside: list[tuple[int, int]] = []

    def size(child: int, begin: int) -> tuple[int, int]:
        if child < 0:
            return int(lengths[~child]) - begin, ~child
        tokens, first = inside[child]
        return ends[child] - begin + tokens, first

    for end, some in zip(ends, children, strict=True):
        some.sort(key=lambda child, end=end: size(child, end))
        sizes = [size(child, end) for child in some]
        inside.append((sum(tokens for tokens, _ in sizes), min(first for _, first in sizes)))
    roots.sort(key=lambda child: size(child, 0))
    rows, paths = [], []
    waiting: list[tuple[int, tuple[int, ...]]] = [(root, ()) for root in reversed(roots)]
    while waiting:
        child, path = waiting.pop()
        if child < 0:
            rows.append(~child)
            paths.append(path)
        else:
            waiting += [(inner, (*path, child)) for inner in reversed(children[child])]
    return Forest(np.array(rows, np.int64), paths, ends)


def _cost(length: int, path: tuple[int, ...], known: int, ends: Sequence[int], repeat_cost: float) -> float:
    """Tokens that a row adds, of whose nodes the first ``known`` are there already."""
    before = ends[path[known - 1]] if known else 0
    repeated = sum(ends[node] for node in path[max(known - 1, 0) :]) if repeat_cost else 0
    return length - before + repeat_cost * repeated
