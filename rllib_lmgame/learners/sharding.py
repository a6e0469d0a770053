"""Sharding an update over several learners by whole episodes.

RLlib's own sharding cuts episodes at time-step boundaries to even out the number of steps; a trajectory cut in two would
lose its context and the tail of its advantages. Here every episode goes to one learner, whole, and the learners are
balanced by tokens.

Guarantees:
 1. Every episode is in exactly one shard, in its original order; nothing is cut, dropped or repeated.
 2. The tokens of two shards differ by at most those of the longest episode.
 3. Every shard has an episode, and every shard knows the same number of minibatches and the same totals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllib_lmgame.learners.batching import assign_balanced
from rllib_lmgame.rollouts.trajectory import CUSTOM_DATA_KEY, PROMPT_IDS, RESPONSE_IDS


@dataclass(frozen=True)
class BatchTotals:
    """What all learners together have in one update; every learner sees the same.

    Attributes:
        learners: Number of learners.
        episodes: Number of episodes.
        roles: All roles, sorted; the order in which learners index them.
        trajectories: Per module, number of trajectories with at least one sampled token.
        action_tokens: Per module, number of sampled tokens; the denominator of a mean over the whole update.
        tokens: Per module, number of tokens, prompts included.
    """

    learners: int
    episodes: int
    roles: tuple[str, ...]
    trajectories: dict[str, int]
    action_tokens: dict[str, int]
    tokens: dict[str, int]


@dataclass
class WholeEpisodes(TrainingData):
    """Complete multi-agent episodes for ``LearnerGroup.update(training_data=...)``.

    With ``num_learners: 0`` the learner gets this object itself, with more it gets one of the shards. In both cases
    ``totals`` is about the whole update.

    Attributes:
        modules: Modules that are trained; tokens of others do not count. ``None`` counts all.
        num_minibatches: Minibatches per epoch, the same on every learner.
        shard_index: Which shard this is.
    """

    modules: Collection[str] | None = None
    num_minibatches: int = 1
    shard_index: int = 0
    _totals: BatchTotals | None = field(default=None, repr=False)

    @property
    def totals(self) -> BatchTotals:
        """Totals over all shards; references must be solved before."""
        if self._totals is None:
            self._totals = _totals_of([_sizes_of(episode, self.modules) for episode in self._episodes()], 1)
        return self._totals

    def shard(self, num_shards: int, len_lookback_buffer: int | None = None, **kwargs: Any) -> list[tuple[TrainingData, dict[str, Any]]]:
        """One part per learner, with the keyword arguments of its ``update``.

        Args:
            num_shards: Number of learners.
            len_lookback_buffer: Not used: an episode is never cut.
            kwargs: Those of ``LearnerGroup.update``; ``num_epochs`` sets ``num_total_minibatches``.

        Raises:
            ValueError: Fewer episodes than learners.
        """
        self.solve_refs()
        episodes = self._episodes()
        if len(episodes) < num_shards:
            raise ValueError(
                f"{len(episodes)} episodes cannot be shared by {num_shards} learners, each needs at least one; "
                "raise text_rollouts.episodes_per_iteration or lower num_learners"
            )
        per_episode = [_sizes_of(episode, self.modules) for episode in episodes]
        totals = _totals_of(per_episode, num_shards)
        sizes = np.array([max(1, sum(size.tokens.values())) for size in per_episode])
        largest_first = np.argsort(-sizes, kind="stable")
        chosen = assign_balanced(sizes, num_shards, largest_first)
        update_kwargs = (
            {} if "num_total_minibatches" in kwargs else {"num_total_minibatches": self.num_minibatches * int(kwargs.get("num_epochs", 1))}
        )
        return [
            (
                WholeEpisodes(
                    episodes=[episodes[i] for i in np.flatnonzero(chosen == index)],
                    modules=self.modules,
                    num_minibatches=self.num_minibatches,
                    shard_index=index,
                    _totals=totals,
                ),
                dict(update_kwargs),
            )
            for index in range(num_shards)
        ]

    def validate(self) -> None:
        """Only episodes, or references to lists of them, can be sharded whole.

        Raises:
            ValueError: Something else was given, or nothing.
        """
        super().validate()
        if self.episodes is None and self.episodes_refs is None:
            raise ValueError("WholeEpisodes takes `episodes` or `episodes_refs`, no batches and no data iterators")

    def _episodes(self) -> list[MultiAgentEpisode]:
        if self.episodes is None:
            raise ValueError("the references are not solved yet: call solve_refs() first")
        return self.episodes


@dataclass(slots=True)
class _Sizes:
    """Counts of one episode, per module."""

    trajectories: Counter[str] = field(default_factory=Counter)
    action_tokens: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    roles: set[str] = field(default_factory=set)


def played_parts(episode: MultiAgentEpisode, modules: Collection[str] | None = None) -> Iterator[SingleAgentEpisode]:
    """The parts of the agents that acted, in the episode's order, of the given modules or of all."""
    for part in episode.agent_episodes.values():
        if len(part) and (modules is None or part.module_id in modules):
            yield part


def _sizes_of(episode: MultiAgentEpisode, modules: Collection[str] | None) -> _Sizes:
    sizes = _Sizes()
    for part in played_parts(episode, modules):
        module = str(part.module_id)
        actions = _count(part, RESPONSE_IDS)
        if not actions:
            continue
        data = part.custom_data[CUSTOM_DATA_KEY]
        final = data["final_prompt_ids"]
        sizes.trajectories[module] += 1
        sizes.action_tokens[module] += actions
        sizes.tokens[module] += actions + _count(part, PROMPT_IDS) + (0 if final is None or part.is_terminated else len(final))
        sizes.roles.add(data["role"])
    return sizes


def _count(part: SingleAgentEpisode, column: str) -> int:
    """Tokens in a ragged column. The buffer's own indexing costs microseconds per item, so its list is read directly."""
    buffer = part.extra_model_outputs[column]
    return sum(map(len, buffer.data[buffer.lookback :]))


def _totals_of(sizes: Iterable[_Sizes], learners: int) -> BatchTotals:
    total, episodes = _Sizes(), 0
    for size in sizes:
        episodes += 1
        total.trajectories += size.trajectories
        total.action_tokens += size.action_tokens
        total.tokens += size.tokens
        total.roles |= size.roles
    return BatchTotals(
        learners=learners,
        episodes=episodes,
        roles=tuple(sorted(total.roles)),
        trajectories=dict(total.trajectories),
        action_tokens=dict(total.action_tokens),
        tokens=dict(total.tokens),
    )
