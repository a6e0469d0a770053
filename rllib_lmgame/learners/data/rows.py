"""From episodes to rows: whole episodes are dealt to the learners, and each learner makes rows of its trajectories.

A row is one trajectory, or one window of it. Ids are copied from the turns, and nothing is ever tokenised again.

Guarantees:
 1. Every sampled token stands in exactly one row, in the order it was sampled, and has ``loss_mask`` set unless
    constrained decoding forced it (one allowed id); no other token has it.
 2. Every sampled token has at least one token before it in its row (something predicts it).
 3. All rewards of a trajectory are in its rows, on the last token of the reply that earned them. Those of an empty
    reply or a forced token move to the last trained token before (the first after if there is none).
 4. No row is longer than ``max_row_tokens``.
 5. A truncated trajectory has exactly one row with ``needs_bootstrap``: its last one. A terminated one has none.
 6. A token of the game's text that a turn tells of (``observed``) is marked in one row at most. It is not marked where
    a later row repeats it, nor at a row's beginning, where nothing predicts it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any, NamedTuple

import numpy as np
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllib_lmgame.inference.protocol import AllowedTokens
from rllib_lmgame.learners.data.prompts import shared_tokens
from rllib_lmgame.rollouts.records import CUSTOM_DATA_KEY, PROMPT_IDS, RESPONSE_IDS, Trajectory, Turn
from rllib_lmgame.rollouts.records import played_parts as played_parts


@dataclass
class WholeEpisodes(TrainingData):
    """Complete multi-agent episodes for ``LearnerGroup.update(training_data=...)``.

    RLlib's own sharding cuts episodes at time steps, which would lose context and the tail of advantages. Guarantees:

    1. Every episode is in exactly one shard, whole and in its original order. Every shard has an episode.
    2. A group is in one shard, unless there are fewer groups than shards and ``needs_groups`` is false.
    3. The tokens of two shards differ by at most those of the largest group.

    ``modules`` are those that are trained (``None``: all); tokens of others do not count. With ``share_prompts`` what
    the first prompts of a group have in common counts once.
    """

    modules: Collection[str] | None = None
    needs_groups: bool = False
    share_prompts: bool = False

    def shard(
        self, num_shards: int, len_lookback_buffer: int | None = None, **kwargs: Any
    ) -> list[tuple[TrainingData, dict[str, Any]]]:
        """One part per learner, and further arguments of its ``update`` (none).

        Raises: ValueError: Fewer episodes than learners, or fewer groups where these must stay whole.
        """
        self.solve_refs()
        episodes: list[MultiAgentEpisode] = self.episodes
        if len(episodes) < num_shards:
            raise ValueError(
                f"{len(episodes)} episodes cannot be shared by {num_shards} learners, each needs at least one; "
                "raise text_rollouts.episodes_per_iteration or lower num_learners"
            )
        unit = self._units(num_shards)
        sizes = np.bincount(unit, weights=[max(1, num_tokens(episode, self.modules)) for episode in episodes])
        sizes = sizes.astype(np.int64) - (self._shared(unit) if self.share_prompts else 0)
        largest_first = np.argsort(-sizes, kind="stable")
        chosen = assign_balanced(sizes, num_shards, largest_first)[unit]
        shards = [[episodes[i] for i in np.flatnonzero(chosen == index)] for index in range(num_shards)]
        told: dict[str, Any] = {
            "modules": self.modules,
            "needs_groups": self.needs_groups,
            "share_prompts": self.share_prompts,
        }
        return [(WholeEpisodes(episodes=shard, **told), {}) for shard in shards]

    def _shared(self, unit: np.ndarray) -> np.ndarray:
        """Tokens of each unit's first prompts that another one of the unit has, int64."""
        prompts: dict[tuple[int, str], list[np.ndarray]] = {}
        for number, episode in zip(unit.tolist(), self.episodes, strict=True):
            for part in played_parts(episode, self.modules):
                if _part_tokens(part):
                    first = part.extra_model_outputs[PROMPT_IDS]
                    prompts.setdefault((number, str(part.module_id)), []).append(first.data[first.lookback])
        saved = np.zeros(unit.max() + 1, np.int64)
        for (number, _), some in prompts.items():
            saved[number] += shared_tokens(some)
        return saved

    def _units(self, num_shards: int) -> np.ndarray:
        """What is dealt as one, int64: per episode the index of its group, or of itself."""
        numbers: dict[str | int, int] = {}
        groups = np.array(
            [numbers.setdefault(group_of(episode) or n, len(numbers)) for n, episode in enumerate(self.episodes)]
        )
        if len(numbers) >= num_shards:
            return groups
        if self.needs_groups:
            raise ValueError(
                f"{len(numbers)} groups of episodes cannot be shared by {num_shards} learners, each needs at least "
                "one; raise text_rollouts.episodes_per_iteration, or lower text_rollouts.group_size or num_learners"
            )
        return np.arange(len(self.episodes))

    def validate(self) -> None:
        """Raises: ValueError: Something else than episodes, or references to lists of them, was given, or nothing."""
        super().validate()
        if self.episodes is None and self.episodes_refs is None:
            raise ValueError("WholeEpisodes takes `episodes` or `episodes_refs`, no batches and no data iterators")


def group_of(episode: MultiAgentEpisode) -> str:
    """The group an episode belongs to; empty if it stands alone."""
    return next(
        (str(data["group"]) for part in played_parts(episode) if (data := part.custom_data.get(CUSTOM_DATA_KEY))), ""
    )


def num_tokens(episode: MultiAgentEpisode, modules: Collection[str] | None = None) -> int:
    """Tokens of an episode's rows, prompts included, of the given modules or of all."""
    return sum(_part_tokens(part) for part in played_parts(episode, modules))


def _part_tokens(part: SingleAgentEpisode) -> int:
    replies = _count(part, RESPONSE_IDS)
    if not replies:
        return 0
    final = part.custom_data[CUSTOM_DATA_KEY]["final_prompt_ids"]
    return replies + _count(part, PROMPT_IDS) + (0 if final is None or part.is_terminated else len(final))


def _count(part: SingleAgentEpisode, column: str) -> int:
    """Tokens in a ragged column. The buffer's own indexing is slow, so its list is read directly."""
    buffer = part.extra_model_outputs[column]
    return sum(map(len, buffer.data[buffer.lookback :]))


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


def allowed_in_turns(turns: Iterable[Turn]) -> AllowedTokens | None:
    """What the sampled tokens of ``turns`` were chosen among, in their order; ``None`` if no turn was constrained."""
    return AllowedTokens.joined([(turn.allowed, len(turn.response_ids)) for turn in turns if len(turn.response_ids)])


def take_out_forced(
    loss_mask: np.ndarray, rewards: np.ndarray, owner: np.ndarray, allowed: AllowedTokens
) -> AllowedTokens:
    """Unmark forced tokens, in place, and move their rewards to the last choice before, or else to the first after.

    Where a single id was left, nothing was decided: such tokens stay as context, out of the loss and of the time
    advantages run over. A trajectory without a choice loses its rewards. ``loss_mask`` (bool), ``rewards`` (float64)
    and ``owner`` (int, the trajectory, never falling) are ``[T]``; ``allowed`` is of the marked tokens, and those still
    marked are returned.
    """
    position = np.flatnonzero(loss_mask)
    forced = allowed.counts == 1
    loss_mask[position[forced]] = False
    choices = position[~forced]
    earned = position[forced & (rewards[position] != 0)]
    amounts = rewards[earned]
    rewards[earned] = 0.0
    after = np.searchsorted(choices, earned)
    for side in (after - 1, after):
        target = choices[np.clip(side, 0, len(choices) - 1)] if len(choices) else earned
        found = (side >= 0) & (side < len(choices)) & (owner[target] == owner[earned])
        np.add.at(rewards, target[found], amounts[found])
        amounts = np.where(found, 0.0, amounts)
    return AllowedTokens(allowed.counts[~forced], allowed.ids[np.repeat(~forced, allowed.counts)])


@dataclass(slots=True)
class Row:
    """One training sequence of ``L`` tokens.

    Attributes:
        input_ids: int32 ``[L]``.
        loss_mask: bool ``[L]``; the token was sampled by the policy, not forced.
        rollout_logprobs: float32 ``[L]``; 0 where not sampled.
        rewards: float64 ``[L]``; scaled. In single precision equal returns could differ by how replies were cut.
        policy_version, turn: int32 ``[L]``; ``turn`` is the number of the reply. -1 where not sampled.
        trajectory: Index into the trajectories the rows were built from.
        needs_bootstrap: The value at the last token is the bootstrap value of the trajectory. Without anything in the
            loss mask the last state began a row of its own.
        group: Episodes of one game and seed; empty where the episode stands alone.
        observations: int64, one per turn of the trajectory; key of what the player saw. Rows share it.
        state_values: float32, one per turn of the trajectory; scaled value of the state before it, NaN if unknown.
        weights: float32, one per turn of the trajectory; what the supervised loss of its tokens counts. Rows share it.
        temperature: That of the game alone; NaN where it has none of its own.
        context_cut: The row lacks the head of the context its replies were sampled with, for want of room.
        allowed: What the tokens in ``loss_mask`` were chosen among; ``None`` if each was among the whole vocabulary.
        observed: bool ``[L]``; text of the game that is said here for the first time, behind a reply. ``None``: there
            is none, or nobody asked.
    """

    input_ids: np.ndarray
    loss_mask: np.ndarray
    rollout_logprobs: np.ndarray
    rewards: np.ndarray
    policy_version: np.ndarray
    turn: np.ndarray
    trajectory: int
    needs_bootstrap: bool
    role: str
    module_id: str
    group: str
    game: str
    episode: str
    observations: np.ndarray
    state_values: np.ndarray
    weights: np.ndarray
    context_cut: bool = False
    allowed: AllowedTokens | None = None
    temperature: float = math.nan
    observed: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.input_ids)


def build_rows(trajectories: Sequence[Trajectory], *, max_row_tokens: int, reward_scale: float = 1.0) -> list[Row]:
    """The rows of all trajectories; the rows of one are adjacent and in the order they were played.

    A reply that does not fit in ``max_row_tokens`` (at least 2) begins a new row with the tail of the context: half a
    row, or more if the last observation is longer. A longer reply is cut. Trajectories without a trained token have no
    rows.

    Raises: ValueError: A reply with nothing before it, or too many or few log-probabilities; an infinite or NaN reward.
    """
    if max_row_tokens < 2:
        raise ValueError(f"max_row_tokens must be at least 2 (a sampled token and one before it), not {max_row_tokens}")
    plan = _Plan(max_row_tokens)
    for index, trajectory in enumerate(trajectories):
        if any(turn.has_choice for turn in trajectory.turns):
            plan.add(index, trajectory, _scale_of(trajectory, reward_scale))
    return _materialise(plan, trajectories, reward_scale) if plan.rows else []


def _scale_of(trajectory: Trajectory, reward_scale: float) -> float:
    """The factor on a trajectory's rewards: its game's own, or everybody's."""
    return reward_scale if trajectory.reward_scale is None else trajectory.reward_scale


def context_cuts(rows: Sequence[Row]) -> int:
    """Number of rows that lack the head of their context because of ``max_row_tokens``."""
    return sum(row.context_cut for row in rows)


class _Segment(NamedTuple):
    """A stretch of ids from one source, with ``reward`` on its last token; without log-probabilities it is context."""

    ids: np.ndarray
    logprobs: np.ndarray | None = None
    version: int = -1
    turn: int = -1
    reward: float = 0.0
    observed: np.ndarray | None = None


@dataclass(slots=True)
class _PlannedRow:
    """``end`` is the number of segments up to its end."""

    end: int
    trajectory: int
    needs_bootstrap: bool
    context_cut: bool


class _Plan:
    """Segments of all rows, laid end to end; those after the last row's end are the row that is being written."""

    def __init__(self, limit: int) -> None:
        self.segments: list[_Segment] = []
        self.rows: list[_PlannedRow] = []
        self._limit = limit
        self._tokens, self._cut = 0, False

    def add(self, index: int, trajectory: Trajectory, reward_scale: float) -> None:
        """Plan the rows of one trajectory; a truncated one also shows its last state, for the bootstrap value."""
        self._trajectory = index
        rewards = [reward * reward_scale for reward in _rewards_of_replies(trajectory.turns)]
        for number, turn in enumerate(trajectory.turns):
            size = len(turn.response_ids)
            if len(turn.rollout_logprobs) != size:
                raise ValueError(
                    f"turn {number} of {_name(trajectory)} has {size} response ids and {len(turn.rollout_logprobs)} "
                    "log-probabilities; it needs one per id"
                )
            self._add_context(turn.prompt_ids, size, turn.observed, new_row=turn.new_row)
            if size and not self._tokens:
                raise ValueError(
                    f"turn {number} of {_name(trajectory)} has no prompt before its reply, so nothing predicts the "
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
            self._append(_Segment(ids, observed=observed))

    def _add_reply(self, turn: Turn, number: int, reward: float) -> None:
        """The reply in pieces that fit (nearly always one); between two pieces a new window is begun."""
        start, size = 0, len(turn.response_ids)
        while start < size:
            end = min(size, start + self._limit - self._tokens)
            piece = turn.response_ids[start:end], turn.rollout_logprobs[start:end]
            self._append(_Segment(*piece, turn.policy_version, number, reward if end == size else 0.0))
            if end < size:
                self._open_window(turn.response_ids[:0], size - end)
            start = end

    def _append(self, segment: _Segment) -> None:
        self.segments.append(segment)
        self._tokens += len(segment.ids)

    def _open_window(self, delta: np.ndarray, room: int, observed: np.ndarray | None = None) -> None:
        """Begin a row with the tail of the open one and ``delta``, leaving room for ``room`` tokens where possible."""
        half = self._limit // 2
        keep = min(self._limit - room, max(half, len(delta))) if room < self._limit else min(self._limit - 1, half)
        context = np.concatenate([*(segment.ids for segment in self._open()), np.asarray(delta)])[-keep:]
        cut = self._cut or len(context) < self._tokens + len(delta)
        self._close()
        if len(context):
            if observed is not None:  # What stood in the row before is not said again.
                observed = np.concatenate([np.zeros(len(context), bool), observed])[-len(context) :]
            self._append(_Segment(context, observed=observed))
        self._cut = cut

    def _open(self) -> list[_Segment]:
        return self.segments[self.rows[-1].end if self.rows else 0 :]

    def _close(self, needs_bootstrap: bool = False) -> None:
        """End the row, or drop it if there is nothing to learn; without one the row before holds the last state."""
        row = self._open()
        if needs_bootstrap and not row:
            self.rows[-1].needs_bootstrap = True
        elif needs_bootstrap or any(segment.logprobs is not None for segment in row):
            self.rows.append(_PlannedRow(len(self.segments), self._trajectory, needs_bootstrap, self._cut))
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


def _materialise(plan: _Plan, trajectories: Sequence[Trajectory], reward_scale: float) -> list[Row]:
    """Lay all segments end to end once; the rows are views of the result."""
    segments, logprobs, versions, turns, earned, observed = zip(*plan.segments, strict=True)
    sizes = np.fromiter(map(len, segments), np.int64, len(segments))
    ends = np.cumsum(sizes)
    sampled = np.array([each is not None for each in logprobs])
    input_ids = np.concatenate(segments, dtype=np.int32, casting="unsafe")
    policy_version = np.repeat(np.array(versions, np.int32), sizes)
    turn = np.repeat(np.array(turns, np.int32), sizes)
    loss_mask = np.repeat(sampled, sizes)
    rollout_logprobs = np.zeros(len(input_ids), np.float32)
    if sampled.any():
        known = [each for each in logprobs if each is not None]
        rollout_logprobs[loss_mask] = np.concatenate(known, dtype=np.float32, casting="unsafe")
    rewards = np.zeros(len(input_ids))
    rewards[ends[sampled] - 1] = np.array(earned)[sampled]
    stops = ends[np.array([row.end for row in plan.rows]) - 1]
    owners = [row.trajectory for row in plan.rows]
    _check_rewards(rewards, stops, owners, trajectories)
    allowed = allowed_in_turns(turn for index in dict.fromkeys(owners) for turn in trajectories[index].turns)
    per_row: list[AllowedTokens | None] = [None] * len(stops)
    if allowed is not None:
        owner = np.repeat(owners, np.diff(stops, prepend=0))
        allowed = take_out_forced(loss_mask, rewards, owner, allowed)
        per_row = _split(allowed, loss_mask, stops)
        rollout_logprobs[~loss_mask], policy_version[~loss_mask], turn[~loss_mask] = 0.0, -1, -1
    columns = {
        "input_ids": input_ids,
        "loss_mask": loss_mask,
        "rollout_logprobs": rollout_logprobs,
        "rewards": rewards,
        "policy_version": policy_version,
        "turn": turn,
    }
    if any(each is not None for each in observed):
        told = [
            np.zeros(len(ids), bool) if each is None else each for ids, each in zip(segments, observed, strict=True)
        ]
        columns["observed"] = np.concatenate(told)
        columns["observed"][np.concatenate([[0], stops[:-1]])] = False
    rows = list(_cut(columns, stops, plan.rows, trajectories, per_row, reward_scale))
    return rows if allowed is None else [row for row in rows if row.needs_bootstrap or row.loss_mask.any()]


def _cut(
    columns: Mapping[str, np.ndarray],
    stops: np.ndarray,
    planned: Sequence[_PlannedRow],
    trajectories: Sequence[Trajectory],
    allowed: Sequence[AllowedTokens | None],
    reward_scale: float,
) -> Iterator[Row]:
    turns = {row.trajectory: trajectories[row.trajectory].turns for row in planned}
    seen = {index: np.array([turn.observation for turn in played], np.int64) for index, played in turns.items()}
    values = {
        index: np.array([turn.value * _scale_of(trajectories[index], reward_scale) for turn in played], np.float32)
        for index, played in turns.items()
    }
    weights = {index: np.array([turn.weight for turn in played], np.float32) for index, played in turns.items()}
    start = 0
    for row, stop, choices in zip(planned, stops.tolist(), allowed, strict=True):
        trajectory = trajectories[row.trajectory]
        yield Row(
            **{name: column[start:stop] for name, column in columns.items()},
            trajectory=row.trajectory,
            needs_bootstrap=row.needs_bootstrap,
            role=trajectory.role,
            module_id=trajectory.module_id,
            group=trajectory.group,
            game=trajectory.game,
            episode=trajectory.episode_id,
            observations=seen[row.trajectory],
            state_values=values[row.trajectory],
            weights=weights[row.trajectory],
            context_cut=row.context_cut,
            allowed=choices,
            temperature=math.nan if trajectory.temperature is None else trajectory.temperature,
        )
        start = stop


def _split(allowed: AllowedTokens, loss_mask: np.ndarray, stops: np.ndarray) -> list[AllowedTokens | None]:
    tokens = np.cumsum(loss_mask)[stops - 1][:-1]
    counts = np.split(allowed.counts, tokens)
    ids = np.split(allowed.ids, np.cumsum(list(map(np.sum, counts)), dtype=np.int64)[:-1])
    return list(starmap(AllowedTokens, zip(counts, ids, strict=True)))


def _check_rewards(
    rewards: np.ndarray, stops: np.ndarray, owners: Sequence[int], trajectories: Sequence[Trajectory]
) -> None:
    bad = np.flatnonzero(~(np.abs(rewards) <= np.finfo(np.float32).max))
    if len(bad):
        row = int(np.searchsorted(stops, bad[0], side="right"))
        raise ValueError(
            f"{_name(trajectories[owners[row]])} has a reward that is not finite ({rewards[bad[0]]}); "
            "rewards must be numbers"
        )


def _name(trajectory: Trajectory) -> str:
    return f"episode {trajectory.episode_id or '(without id)'}, agent {trajectory.agent_id}"
