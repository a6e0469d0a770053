"""Which rows begin alike, and in which order and micro-batches they go so that what they share is computed once.

They are a tree: a node is a stretch that all rows behind it have, prompts and replies; a leaf is what a row has of its
own, which is never nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

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
    """From the smallest to the largest: by the tokens to compute, then by the first row."""
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
