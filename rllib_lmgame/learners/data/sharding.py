"""Sharding an update over several learners by whole episodes.

RLlib's own sharding cuts episodes at time-step boundaries to even out the number of steps; a trajectory cut in two
would lose its context and the tail of its advantages. Here every episode goes to one learner, whole, with the others of
its group (episodes of one game and seed), and the learners are balanced by tokens.

Guarantees:
 1. Every episode is in exactly one shard, in its original order; nothing is cut, dropped or repeated.
 2. The episodes of a group are in one shard. Only where there are fewer groups than shards, and nobody asked for whole
    groups, is every episode dealt for itself.
 3. The tokens of two shards differ by at most those of the largest group, also where it is more than a fair share.
 4. Every shard has an episode.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllib_lmgame.learners.data.batching import assign_balanced
from rllib_lmgame.rollouts.records import CUSTOM_DATA_KEY, PROMPT_IDS, RESPONSE_IDS, line_up_of


@dataclass
class WholeEpisodes(TrainingData):
    """Complete multi-agent episodes for ``LearnerGroup.update(training_data=...)``.

    With ``num_learners: 0`` the learner gets this object itself, with more it gets one of the shards.

    Attributes:
        modules: Modules that are trained; tokens of others do not count. ``None`` counts all.
        needs_groups: The episodes of a group are compared with each other: they must not be parted.
    """

    modules: Collection[str] | None = None
    needs_groups: bool = False

    def shard(
        self, num_shards: int, len_lookback_buffer: int | None = None, **kwargs: Any
    ) -> list[tuple[TrainingData, dict[str, Any]]]:
        """One part per learner, with further keyword arguments of its ``update`` (none).

        Args:
            num_shards: Number of learners.
            len_lookback_buffer: Not used: an episode is never cut.
            kwargs: Those of ``LearnerGroup.update``.

        Raises:
            ValueError: Fewer episodes than learners, or fewer groups where these must stay whole.
        """
        self.solve_refs()
        episodes: list[MultiAgentEpisode] = self.episodes
        if len(episodes) < num_shards:
            raise ValueError(
                f"{len(episodes)} episodes cannot be shared by {num_shards} learners, each needs at least one; "
                "raise text_rollouts.episodes_per_iteration or lower num_learners"
            )
        unit = self._units(num_shards)
        sizes = np.bincount(unit, weights=[max(1, num_tokens(episode, self.modules)) for episode in episodes]).astype(
            np.int64
        )
        largest_first = np.argsort(-sizes, kind="stable")
        chosen = assign_balanced(sizes, num_shards, largest_first)[unit]
        shards = [[episodes[i] for i in np.flatnonzero(chosen == index)] for index in range(num_shards)]
        return [
            (WholeEpisodes(episodes=shard, modules=self.modules, needs_groups=self.needs_groups), {})
            for shard in shards
        ]

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
        """Only episodes, or references to lists of them, can be sharded whole.

        Raises:
            ValueError: Something else was given, or nothing.
        """
        super().validate()
        if self.episodes is None and self.episodes_refs is None:
            raise ValueError("WholeEpisodes takes `episodes` or `episodes_refs`, no batches and no data iterators")


def played_parts(episode: MultiAgentEpisode, modules: Collection[str] | None = None) -> Iterator[SingleAgentEpisode]:
    """The parts of the agents that acted and whose seats are trained, in the episode's order, of the given modules or
    of all.

    Where the episode has no line-up, every seat of the modules is trained.
    """
    line_up = line_up_of(episode)
    for agent, part in episode.agent_episodes.items():
        trained = agent not in line_up or line_up[agent].trained
        if len(part) and trained and (modules is None or part.module_id in modules):
            yield part


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
    """Tokens in a ragged column. The buffer's own indexing costs microseconds per item, so its list is read
    directly.
    """
    buffer = part.extra_model_outputs[column]
    return sum(map(len, buffer.data[buffer.lookback :]))
