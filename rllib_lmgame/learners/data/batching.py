"""The rows of one update as flat arrays over action (sampled) tokens, and their packed micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rllib_lmgame.inference.protocol import AllowedTokens
from rllib_lmgame.learners.data.rows import (
    PromptOrder,
    RowLayout,
    Segments,
    assign_balanced,
    joined_routes,
    micro_batches,
    name_of,
    segments_of,
    take_out_forced,
    unshared,
)
from rllib_lmgame.rollouts.records import Trajectory

if TYPE_CHECKING:
    import torch


def _none() -> np.ndarray:
    return np.zeros(0, np.int64)


@dataclass(slots=True)
class PackedBatch:
    """What one forward pass sees: ``R`` rows of ``T`` tokens in all, end to end, sorted by length.

    What several rows begin with is a row of its own: with ``parents`` a row continues another one.

    Attributes:
        input_ids: int64 ``[T]``.
        position_ids: int64 ``[T]``; from 0 in each row, or from where its parent ended.
        cu_seqlens: int32 ``[R + 1]``; where rows begin and end.
        predict_index: int64 ``[A]``; position before action token ``a``, where its logits and the value are read.
        target_ids: int64 ``[A]``; the action tokens.
        bootstrap_index: int64 ``[B]``; positions whose value is a bootstrap value.
        token_slot: int64 ``[A]``; place of each action token in the flat arrays of the ``TokenBatch``.
        bootstrap_slot: int64 ``[B]``; index of the trajectory in the ``TokenBatch``.
        allowed_action: int64 ``[C]``; the action tokens that were chosen among a few ids, rising.
        allowed_owner: int64 ``[S]``; place in ``allowed_action``, never falling.
        allowed_ids: int64 ``[S]``; an id that its owner was chosen among.
        parents: int64 ``[R]``; the row that each continues, -1 for none. Empty where no row does.
        temperatures: float32 ``[A]``; what each action token was sampled at, NaN where the game says nothing of its
            own. Empty where none does.
        observed_index, observed_ids: int64 ``[O]``; as ``predict_index`` and ``target_ids``, of tokens of the game's
            text that are learned.
        routed_experts: uint8 or uint16 ``[T, layers, k]``; the largest number where they are not known. Empty where
            none are. What rows share goes where the first of them went.
    """

    input_ids: np.ndarray
    position_ids: np.ndarray
    cu_seqlens: np.ndarray
    predict_index: np.ndarray = field(default_factory=_none)
    target_ids: np.ndarray = field(default_factory=_none)
    bootstrap_index: np.ndarray = field(default_factory=_none)
    token_slot: np.ndarray = field(default_factory=_none)
    bootstrap_slot: np.ndarray = field(default_factory=_none)
    allowed_action: np.ndarray = field(default_factory=_none)
    allowed_owner: np.ndarray = field(default_factory=_none)
    allowed_ids: np.ndarray = field(default_factory=_none)
    parents: np.ndarray = field(default_factory=_none)
    temperatures: np.ndarray = field(default_factory=_none)
    observed_index: np.ndarray = field(default_factory=_none)
    observed_ids: np.ndarray = field(default_factory=_none)
    routed_experts: np.ndarray = field(default_factory=_none)

    @property
    def num_tokens(self) -> int:
        """Tokens that are computed."""
        return len(self.input_ids)

    @property
    def batched_tokens(self) -> int:
        """Tokens of the same rows side by side, all as long as the longest."""
        return int(np.diff(self.cu_seqlens).max()) * (len(self.cu_seqlens) - 1)

    @property
    def repeated_tokens(self) -> int:
        """Tokens before all rows, whose keys and values some attention repeats for each."""
        return int(self.position_ids[self.cu_seqlens[:-1]].sum())

    @property
    def given_tokens(self) -> int:
        """Tokens if every row had its prompt to itself."""
        last = np.delete(self.cu_seqlens[1:] - 1, np.unique(self.parents[self.parents >= 0]))
        return int((self.position_ids[last] + 1).sum())

    @property
    def num_actions(self) -> int:
        return len(self.target_ids)

    def to_torch(self, device: torch.device | str | None = None) -> dict[str, Any]:
        """The arrays as tensors on ``device``, under the names of the attributes."""
        import torch

        return {f.name: torch.from_numpy(getattr(self, f.name)).to(device, non_blocking=True) for f in fields(self)}


def dummy_batch() -> PackedBatch:
    """One row with nothing to learn, for a learner that runs out while others run collective passes."""
    return PackedBatch(np.zeros(2, np.int64), np.arange(2), np.array([0, 2], np.int32))


MOST_FILLERS = 1 / 8
"""Of the tokens of rows that lie side by side; with fewer there are more passes."""


class MinibatchSize(NamedTuple):
    """Number of action tokens, of trajectories with any, of tokens whose supervised loss counts, and of learned tokens
    of the game's text; floats, to be summed over learners.
    """

    tokens: float
    trajectories: float
    weighed: float
    observed: float


_FILLED_LATER = (
    *("old_logprobs", "values", "ref_logprobs", "teacher_logprobs", "advantages", "returns", "loss_weights"),
    *("importance_weights", "entropies"),
)
"""Arrays of a batch over its action tokens that are not made from its rows."""


@dataclass(eq=False)
class TokenBatch:
    """All rows of one update: ``A`` action tokens in ``U`` replies, ``R`` rows, ``N`` trajectories, ``T`` tokens.

    Tokens are ordered by trajectory, then time. Arrays without a value yet are NaN, so that early use is seen.

    Attributes:
        rollout_logprobs, rewards: float32 and float64 ``[A]``.
        policy_version, trajectory: int32 ``[A]``; ``trajectory`` counts from 0 here.
        turn_offsets: int64 ``[U + 1]``; tokens of reply ``u`` are ``[offsets[u], offsets[u + 1])``; none is empty.
        turn_observation: int64 ``[U]``; key of what the player saw before it.
        turn_weight: float32 ``[U]``; what the supervised loss of its tokens counts.
        roles, games: Names, sorted; ``role`` and ``game`` are int32 ``[N]`` indices into them.
        group: int64 ``[N]``; equal for trajectories of one game, seed and role, in order of appearance.
        episodes, trajectory_ids: Of each trajectory the episode's id, and int64 its number among those given.
        trajectory_offsets: int64 ``[N + 1]``; as ``turn_offsets``.
        needs_bootstrap: bool ``[N]``.
        old_logprobs, values, ref_logprobs, teacher_logprobs, advantages, returns, loss_weights, importance_weights,
            entropies: float32 ``[A]``; filled later, the last one where ``shown``.
        shown: bool ``[A]``; tokens that somebody will look at. Empty where there are none.
        sequence: int64 ``[A]``; the sequence of each token (:meth:`stretches`), filled later.
        bootstrap_values: float32 ``[N]``; 0, filled later where ``needs_bootstrap``.
        temperature: float32 ``[N]``; the game's own, NaN where it has none. Empty where no game has.
        row_lengths, row_trajectory: int64 ``[R]``; tokens of each row that are read, and its trajectory. Nobody needs
            what stands behind the token that predicts the last one of a row that is learned, unless its last state has
            a value.
        truncated_sequences: Rows that lack the head of their context because of ``max_row_tokens``.
    """

    rollout_logprobs: np.ndarray
    rewards: np.ndarray
    policy_version: np.ndarray
    trajectory: np.ndarray
    turn_offsets: np.ndarray
    turn_observation: np.ndarray
    turn_weight: np.ndarray
    roles: tuple[str, ...]
    games: tuple[str, ...]
    role: np.ndarray
    game: np.ndarray
    group: np.ndarray
    episodes: tuple[str, ...]
    trajectory_ids: np.ndarray
    trajectory_offsets: np.ndarray
    needs_bootstrap: np.ndarray
    old_logprobs: np.ndarray
    values: np.ndarray
    ref_logprobs: np.ndarray
    teacher_logprobs: np.ndarray
    advantages: np.ndarray
    returns: np.ndarray
    loss_weights: np.ndarray
    importance_weights: np.ndarray
    entropies: np.ndarray
    bootstrap_values: np.ndarray
    row_lengths: np.ndarray
    row_trajectory: np.ndarray
    truncated_sequences: int
    _ids: np.ndarray
    _row_starts: np.ndarray
    _row_bootstrap: np.ndarray
    _action_position: np.ndarray
    _row_actions: np.ndarray
    _allowed_ids: np.ndarray
    _allowed_offsets: np.ndarray
    _observed_position: np.ndarray
    _row_observed: np.ndarray
    sequence: np.ndarray = field(default_factory=_none)
    temperature: np.ndarray = field(default_factory=_none)
    shown: np.ndarray = field(default_factory=_none)
    _routes: np.ndarray = field(default_factory=_none)

    @classmethod
    def empty(cls) -> TokenBatch:
        """Of a learner without rows, which takes part in an update for the others' sake."""
        numbers = ("rewards", "rollout_logprobs", "turn_weight", "bootstrap_values", *_FILLED_LATER)
        arrays = {each.name: np.zeros(0, np.float32 if each.name in numbers else np.int64) for each in fields(cls)}
        offsets = ("trajectory_offsets", "turn_offsets", "_row_actions", "_row_observed", "_allowed_offsets")
        flags = dict.fromkeys(("needs_bootstrap", "_row_bootstrap"), np.zeros(0, bool))
        names: dict[str, Any] = {"roles": (), "games": (), "episodes": (), "truncated_sequences": 0}
        return cls(**{**arrays, **dict.fromkeys(offsets, np.zeros(1, np.int64)), **flags, **names})

    @classmethod
    def from_trajectories(
        cls,
        trajectories: Sequence[Trajectory],
        *,
        max_row_tokens: int,
        reward_scale: float = 1.0,
        observations: bool = False,
    ) -> TokenBatch:
        """The rows of trajectories of one module; none of those without a token to learn.

        With ``observations`` the game's text is learned too.

        Raises: ValueError: as :class:`~rllib_lmgame.learners.data.rows.RowLayout`; an infinite or NaN reward.
        """
        layout = RowLayout(max_row_tokens)
        for index, trajectory in enumerate(trajectories):
            if any(turn.has_choice for turn in trajectory.turns):
                layout.add(index, trajectory, reward_scale)
        if not layout.rows:
            return cls.empty()
        segments, logprobs, versions, turns, earned, observed, experts = zip(*layout.segments, strict=True)
        sizes = np.fromiter(map(len, segments), np.int64, len(segments))
        routes = joined_routes(list(zip(sizes.tolist(), experts, strict=True)))
        ids = np.concatenate(segments, dtype=np.int32, casting="unsafe")
        ends, owners, needs = zip(*layout.rows, strict=True)
        stops, bootstraps = np.cumsum(sizes)[np.array(ends) - 1], np.array(needs)
        starts = np.concatenate([[0], stops[:-1]])
        told = observed if observations else [None] * len(segments)
        said = np.concatenate(
            [np.zeros(size, bool) if each is None else each for size, each in zip(sizes, told, strict=True)]
        )
        said[starts] = False
        numbers, row_trajectory = np.unique(owners, return_inverse=True)
        played = [trajectories[number] for number in numbers.tolist()]

        # Of sampled tokens; forced ones are then taken out.
        sampled = np.array([each is not None for each in logprobs])
        replies, position = sizes[sampled], np.flatnonzero(np.repeat(sampled, sizes))
        row = np.searchsorted(stops, position, side="right")
        rewards = np.zeros(len(position))
        rewards[np.cumsum(replies) - 1] = np.array(earned)[sampled]
        bad = np.flatnonzero(~(np.abs(rewards) <= np.finfo(np.float32).max))
        if len(bad):
            name = name_of(played[row_trajectory[row[bad[0]]]])
            raise ValueError(f"{name} has a reward that is not finite ({rewards[bad[0]]})")
        counts, allowed_ids = _allowed(played, len(position))
        kept = counts != 1
        take_out_forced(rewards, row_trajectory[row], ~kept)
        allowed_ids = allowed_ids[np.repeat(kept, counts)]
        position, row, rewards, counts = (each[kept] for each in (position, row, rewards, counts))
        policy_version, turn = (
            np.repeat(np.array(each, np.int32)[sampled], replies)[kept] for each in (versions, turns)
        )

        # Of rows; those that have no token to learn any more are taken out.
        per_row, lengths = np.bincount(row, minlength=len(stops)), stops - starts
        learned = bootstraps | (per_row > 0)
        if not learned.all():
            kept_tokens = np.repeat(learned, lengths)
            ids, said = ids[kept_tokens], said[kept_tokens]
            routes = None if routes is None else routes[kept_tokens]
            position = position - np.cumsum(np.where(learned, 0, lengths))[row]
            columns = (per_row, lengths, bootstraps, row_trajectory)
            per_row, lengths, bootstraps, row_trajectory = (each[learned] for each in columns)
            starts = np.cumsum(lengths) - lengths
        row_actions = np.concatenate([[0], np.cumsum(per_row)])
        observed_position = np.flatnonzero(said)
        row_observed = np.concatenate([[0], np.cumsum(np.add.reduceat(said.astype(np.int64), starts))])
        last, last_observed = (
            np.append(places, 0)[bounds[1:] - 1] - starts
            for places, bounds in ((position, row_actions), (observed_position, row_observed))
        )
        read = np.where(per_row > 0, last, 1)
        read = np.where(np.diff(row_observed) > 0, np.maximum(read, last_observed), read)
        whose = np.repeat(row_trajectory, per_row).astype(np.int32)
        per_trajectory = np.bincount(row_trajectory, weights=per_row, minlength=len(played)).astype(np.int64)
        known = [each for each in logprobs if each is not None]
        filled_later: dict[str, Any] = {name: np.full(len(position), np.nan, np.float32) for name in _FILLED_LATER}
        return cls(
            rollout_logprobs=np.concatenate(known, dtype=np.float32, casting="unsafe")[kept],
            rewards=rewards,
            policy_version=policy_version,
            trajectory=whose,
            **_of_turns(played, whose, turn),
            **_labels(played),
            **filled_later,
            trajectory_ids=numbers,
            trajectory_offsets=np.concatenate([[0], np.cumsum(per_trajectory)]),
            needs_bootstrap=np.bincount(row_trajectory[bootstraps], minlength=len(played)) > 0,
            bootstrap_values=np.zeros(len(played), np.float32),
            row_lengths=np.where(bootstraps, lengths, read),
            row_trajectory=row_trajectory,
            truncated_sequences=layout.truncated_sequences,
            _ids=ids,
            _row_starts=starts,
            _row_bootstrap=bootstraps,
            _action_position=position,
            _row_actions=row_actions,
            _allowed_ids=allowed_ids,
            _allowed_offsets=np.concatenate([[0], np.cumsum(counts)]),
            _observed_position=observed_position,
            _row_observed=row_observed,
            _routes=_none() if routes is None else routes,
        )

    def action_rows(self) -> Iterator[tuple[np.ndarray, np.ndarray, slice]]:
        """Of each row with action tokens: int32 ids up to the last of them, int64 places of them in it, and where they
        stand in the flat arrays.
        """
        for row in np.flatnonzero(np.diff(self._row_actions)).tolist():
            slots, start = slice(*self._row_actions[row : row + 2].tolist()), self._row_starts[row]
            places = self._action_position[slots] - start
            yield self._ids[start : start + places[-1] + 1], places, slots

    @property
    def num_rows(self) -> int:
        return len(self.row_lengths)

    @property
    def num_tokens(self) -> int:
        """All tokens, prompts included."""
        return len(self._ids)

    @property
    def num_actions(self) -> int:
        return len(self.rewards)

    @property
    def num_observed(self) -> int:
        """Tokens of the game's text that are learned."""
        return len(self._observed_position)

    @cached_property
    def turn(self) -> np.ndarray:
        """Number of the reply of each action token among all replies, int64 ``[A]``."""
        return np.repeat(np.arange(len(self.turn_offsets) - 1), np.diff(self.turn_offsets))

    @cached_property
    def action_weights(self) -> np.ndarray:
        """Weight of each action token in the supervised loss, float32 ``[A]``."""
        return self.turn_weight[self.turn]

    def size_of(self, minibatch: Sequence[PackedBatch]) -> MinibatchSize:
        """What some micro-batches have together."""
        slots = np.concatenate([_none(), *(pack.token_slot for pack in minibatch)])
        trajectories = np.count_nonzero(np.bincount(self.trajectory[slots]))
        weighed = np.count_nonzero(self.action_weights[slots])
        observed = sum(len(pack.observed_ids) for pack in minibatch)
        return MinibatchSize(float(len(slots)), float(trajectories), float(weighed), float(observed))

    def stretches(self, by: str) -> np.ndarray:
        """Number of each action token's stretch of a row, int64 ``[A]``, rising; ``by`` ``turn`` or ``trajectory``."""
        ends = {"turn": self.turn_offsets, "trajectory": self.trajectory_offsets}[by]
        begins = np.zeros(self.num_actions + 1, np.int64)
        begins[ends] = begins[self._row_actions] = 1
        return np.cumsum(begins[:-1]) - 1

    def put(self, packed: PackedBatch, **columns: np.ndarray) -> None:
        """Write per-action-token results of a forward pass (``bootstrap_values``: per position) into flat arrays."""
        for name, value in columns.items():
            getattr(self, name)[packed.bootstrap_slot if name == "bootstrap_values" else packed.token_slot] = value

    def microbatches(
        self, max_tokens: int, *, batched: bool = False, repeat_cost: float | None = None
    ) -> list[PackedBatch]:
        """All rows in micro-batches of which at most ``max_tokens`` are computed (a longer row goes alone).

        With ``batched`` as many as they are side by side, with at most one filler to eight tokens. Otherwise what rows
        begin with is shared unless ``repeat_cost`` is ``None``: how much of a token counts where the attention repeats
        the keys and values of a shared one.
        """
        return self._pack(np.arange(self.num_rows), max_tokens, batched, repeat_cost)

    def minibatches(
        self,
        num_minibatches: int,
        rng: np.random.Generator,
        max_tokens: int,
        *,
        whole_groups: bool = False,
        batched: bool = False,
        repeat_cost: float | None = None,
    ) -> list[list[PackedBatch]]:
        """Exactly ``num_minibatches`` lists of :meth:`microbatches`; every row is in one of them, once.

        Trajectories (with ``whole_groups``: groups) stay whole, and the tokens of two minibatches differ by at most
        those of the longest. With fewer of them the last minibatches are empty: learners must agree on the number.
        """
        unit = self.group[self.row_trajectory] if whole_groups else self.row_trajectory
        sizes = np.bincount(unit, weights=self.row_lengths).astype(np.int64)
        chosen = assign_balanced(sizes, num_minibatches, rng.permutation(len(sizes)))[unit]
        packs = (np.flatnonzero(chosen == i) for i in range(num_minibatches))
        return [self._pack(rows, max_tokens, batched, repeat_cost) for rows in packs]

    @cached_property
    def _prompts(self) -> PromptOrder:
        """What rows may share: never all of one."""
        return PromptOrder(self._ids, self._row_starts, self.row_lengths - 1)

    def _pack(self, rows: np.ndarray, max_tokens: int, batched: bool, repeat_cost: float | None) -> list[PackedBatch]:
        shared = repeat_cost is not None and not batched and len(rows) > 1
        lengths = self.row_lengths
        forest = self._prompts.forest(rows, lengths) if shared else unshared(rows, lengths)
        if batched:
            runs = _side_by_side(lengths[forest.rows].tolist(), max_tokens)
        else:
            runs = micro_batches(forest, lengths, max_tokens, repeat_cost or 0.0)
        return [self._packed(forest.rows[run], segments_of(forest, run, lengths)) for run in runs]

    def _packed(self, rows: np.ndarray, segments: Segments) -> PackedBatch:
        order = np.lexsort((segments.begin, segments.end - segments.begin))
        place = np.argsort(order)
        of_row, begin, end, parent = (x[order] for x in segments[:4])
        parent = np.where(parent >= 0, place[parent], -1)
        ends = np.cumsum(end - begin)
        begins = ends - (end - begin)
        leaf = place[segments.leaf]
        by_leaf = np.argsort(leaf)
        rows, leaf = rows[by_leaf], leaf[by_leaf]
        token = _ranges(self._row_starts[of_row] + begin, end - begin)

        def predicted(position: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            """Of learned tokens at these places: their numbers, where they are predicted, and their ids."""
            per_row = offsets[rows + 1] - offsets[rows]
            slot = _ranges(offsets[rows], per_row)
            source = position[slot]
            read = source - 1 - np.repeat(self._row_starts[rows], per_row)
            segment = np.repeat(leaf, per_row)
            while (earlier := read < begin[segment]).any():
                segment = np.where(earlier, parent[segment], segment)
            return slot, begins[segment] + read - begin[segment], self._ids[source].astype(np.int64)

        slot, predict_index, target_ids = predicted(self._action_position, self._row_actions)
        _, observed_index, observed_ids = predicted(self._observed_position, self._row_observed)
        bootstrap = self._row_bootstrap[rows]
        allowed = self._allowed_offsets[slot + 1] - self._allowed_offsets[slot]
        constrained = np.flatnonzero(allowed)
        return PackedBatch(
            input_ids=self._ids[token].astype(np.int64),
            position_ids=np.arange(len(token)) - np.repeat(begins - begin, end - begin),
            cu_seqlens=np.concatenate([[0], ends]).astype(np.int32),
            predict_index=predict_index,
            target_ids=target_ids,
            bootstrap_index=ends[leaf[bootstrap]] - 1,
            token_slot=slot,
            bootstrap_slot=self.row_trajectory[rows[bootstrap]],
            allowed_action=constrained,
            allowed_owner=np.repeat(np.arange(len(constrained)), allowed[constrained]),
            allowed_ids=self._allowed_ids[_ranges(self._allowed_offsets[slot], allowed)].astype(np.int64),
            parents=parent if (parent >= 0).any() else _none(),
            temperatures=self.temperature[self.trajectory[slot]] if len(self.temperature) else _none(),
            observed_index=observed_index,
            observed_ids=observed_ids,
            routed_experts=self._routes[token] if len(self._routes) else _none(),
        )


def _side_by_side(lengths: Sequence[int], max_tokens: int) -> list[slice]:
    """Runs of rows of rising lengths that are at most ``max_tokens`` if all are filled up to the longest of a run."""
    runs, start, used = [], 0, 0
    for i, length in enumerate(lengths):
        tokens, computed = used + length, (i + 1 - start) * length
        if used and (computed > max_tokens or computed - tokens > MOST_FILLERS * tokens):
            runs.append(slice(start, i))
            start, used = i, 0
        used += length
    return [*runs, slice(start, len(lengths))] if lengths else runs


def _allowed(played: Sequence[Trajectory], tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """How many ids each sampled token was chosen among (0: the whole vocabulary), and these ids end to end."""
    replies = [turn for each in played for turn in each.turns if len(turn.response_ids)]
    found = AllowedTokens.joined([(turn.allowed, len(turn.response_ids)) for turn in replies])
    return (np.zeros(tokens, np.int32), np.zeros(0, np.int32)) if found is None else (found.counts, found.ids)


def _of_turns(played: Sequence[Trajectory], trajectory: np.ndarray, turn: np.ndarray) -> dict[str, Any]:
    """Columns over replies; ``trajectory`` and ``turn`` say whose each action token is."""
    changes = (np.diff(trajectory) != 0) | (np.diff(turn) != 0)
    begins = np.flatnonzero(np.concatenate([[True], changes])) if len(turn) else _none()
    owners = trajectory[begins].tolist()
    turns = [played[n].turns[number] for n, number in zip(owners, turn[begins].tolist(), strict=True)]
    return {
        "turn_offsets": np.append(begins, len(turn)),
        "turn_observation": np.array([each.observation for each in turns], np.int64),
        "turn_weight": np.array([each.weight for each in turns], np.float32),
    }


def _labels(played: Sequence[Trajectory]) -> dict[str, Any]:
    roles, games = (tuple(sorted({getattr(each, name) for each in played})) for name in ("role", "game"))
    keys = [(each.game, each.group, each.role) if each.group else number for number, each in enumerate(played)]
    groups: dict[Any, int] = {}
    own = np.array([np.nan if each.temperature is None else each.temperature for each in played], np.float32)
    return {
        "temperature": _none()
        if np.isnan(own).all()
        else np.where(own == 0, np.float32(1), own),  # Greedy counts as 1.
        "roles": roles,
        "games": games,
        "role": np.array([roles.index(each.role) for each in played], np.int32),
        "game": np.array([games.index(each.game) for each in played], np.int32),
        "group": np.array([groups.setdefault(key, len(groups)) for key in keys]),
        "episodes": tuple(each.episode_id for each in played),
    }


def _ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """``concatenate([arange(s, s + n) for s, n in zip(starts, lengths)])``."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)
