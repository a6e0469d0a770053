"""Sharding an update over several learners by whole episodes.

RLlib's own sharding cuts episodes at time-step boundaries to even out the number of steps; a trajectory cut in two would
lose its context and the tail of its advantages. Here every episode goes to one learner, whole, and the learners are
balanced by tokens.

Guarantees:
 1. Every episode is in exactly one shard, in its original order; nothing is cut, dropped or repeated.
 2. The tokens of two shards differ by at most those of the longest episode.
 3. Every shard has an episode.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllib_lmgame.learners.batching import assign_balanced
from rllib_lmgame.rollouts.trajectory import CUSTOM_DATA_KEY, PROMPT_IDS, RESPONSE_IDS


@dataclass
class WholeEpisodes(TrainingData):
    """Complete multi-agent episodes for ``LearnerGroup.update(training_data=...)``.

    With ``num_learners: 0`` the learner gets this object itself, with more it gets one of the shards.

    Attributes:
        modules: Modules that are trained; tokens of others do not count. ``None`` counts all.
    """

    modules: Collection[str] | None = None

    def shard(self, num_shards: int, len_lookback_buffer: int | None = None, **kwargs: Any) -> list[tuple[TrainingData, dict[str, Any]]]:
        """One part per learner, with further keyword arguments of its ``update`` (none).

        Args:
            num_shards: Number of learners.
            len_lookback_buffer: Not used: an episode is never cut.
            kwargs: Those of ``LearnerGroup.update``.

        Raises:
            ValueError: Fewer episodes than learners.
        """
        self.solve_refs()
        episodes: list[MultiAgentEpisode] = self.episodes
        if len(episodes) < num_shards:
            raise ValueError(
                f"{len(episodes)} episodes cannot be shared by {num_shards} learners, each needs at least one; "
                "raise text_rollouts.episodes_per_iteration or lower num_learners"
            )
        sizes = np.array([max(1, num_tokens(episode, self.modules)) for episode in episodes])
        largest_first = np.argsort(-sizes, kind="stable")
        chosen = assign_balanced(sizes, num_shards, largest_first)
        shards = [[episodes[i] for i in np.flatnonzero(chosen == index)] for index in range(num_shards)]
        return [(WholeEpisodes(episodes=shard, modules=self.modules), {}) for shard in shards]

    def validate(self) -> None:
        """Only episodes, or references to lists of them, can be sharded whole.

        Raises:
            ValueError: Something else was given, or nothing.
        """
        super().validate()
        if self.episodes is None and self.episodes_refs is None:
            raise ValueError("WholeEpisodes takes `episodes` or `episodes_refs`, no batches and no data iterators")


def played_parts(episode: MultiAgentEpisode, modules: Collection[str] | None = None) -> Iterator[SingleAgentEpisode]:
    """The parts of the agents that acted, in the episode's order, of the given modules or of all."""
    for part in episode.agent_episodes.values():
        if len(part) and (modules is None or part.module_id in modules):
            yield part


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
    """Tokens in a ragged column. The buffer's own indexing costs microseconds per item, so its list is read directly."""
    buffer = part.extra_model_outputs[column]
    return sum(map(len, buffer.data[buffer.lookback :]))
