"""Whole episodes are dealt to the learners."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllib_lmgame.learners.data.rows import assign_balanced, shared_tokens
from rllib_lmgame.rollouts.records import CUSTOM_DATA_KEY, played_parts, turns_of


@dataclass
class WholeEpisodes(TrainingData):
    """Complete multi-agent episodes for ``LearnerGroup.update(training_data=...)``, which RLlib would cut. Guarantees:

    1. Every episode is in exactly one shard, whole and in its original order. Every shard has an episode.
    2. A group is in one shard, unless there are fewer groups than shards and ``needs_groups`` is false.
    3. The tokens of two shards differ by at most those of the largest group.

    Tokens of other than ``modules`` do not count (``None``: all do). With ``share_prompts`` what the first prompts of a
    group have in common counts once.
    """

    modules: Collection[str] | None = None
    needs_groups: bool = False
    share_prompts: bool = False

    def shard(self, num_shards: int, *args: Any, **kwargs: Any) -> list[tuple[TrainingData, dict[str, Any]]]:
        """One part per learner, and further arguments of its ``update`` (none).

        Raises: ValueError: Fewer episodes than learners, or fewer groups where these must stay whole.
        """
        self.solve_refs()
        episodes: list[MultiAgentEpisode] = self.episodes
        if len(episodes) < num_shards:
            raise ValueError(f"{len(episodes)} episodes cannot be shared by {num_shards} learners{_CURE}")
        unit = self._units(num_shards)
        sizes = np.bincount(unit, weights=[max(1, num_tokens(episode, self.modules)) for episode in episodes])
        sizes = sizes.astype(np.int64) - (self._shared(unit) if self.share_prompts else 0)
        chosen = assign_balanced(sizes, num_shards, np.argsort(-sizes, kind="stable"))[unit]
        shards = [[episodes[i] for i in np.flatnonzero(chosen == index)] for index in range(num_shards)]
        whole: Any = self  # Ray's part of the class has no types.
        return [(replace(whole, episodes=shard, episodes_refs=None), {}) for shard in shards]

    def _shared(self, unit: np.ndarray) -> np.ndarray:
        """Tokens of each unit's first prompts that another one of the unit has, int64."""
        prompts: dict[tuple[int, str], list[np.ndarray]] = {}
        for number, episode in zip(unit.tolist(), self.episodes, strict=True):
            for part in played_parts(episode, self.modules):
                if _part_tokens(part):
                    prompts.setdefault((number, str(part.module_id)), []).append(turns_of(part)[0].prompt_ids)
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
            raise ValueError(f"{len(numbers)} groups cannot be shared by {num_shards} learners{_CURE}, or group_size")
        return np.arange(len(self.episodes))


_CURE = "; raise text_rollouts.episodes_per_iteration, or lower num_learners"


def group_of(episode: MultiAgentEpisode) -> str:
    """The group an episode belongs to; empty if it stands alone."""
    return next((about.group for part in played_parts(episode) if (about := part.custom_data.get(CUSTOM_DATA_KEY))), "")


def num_tokens(episode: MultiAgentEpisode, modules: Collection[str] | None = None) -> int:
    """Tokens of an episode's rows, prompts included, of the given modules or of all."""
    return sum(_part_tokens(part) for part in played_parts(episode, modules))


def _part_tokens(part: SingleAgentEpisode) -> int:
    turns, final = turns_of(part), part.custom_data[CUSTOM_DATA_KEY].final_prompt_ids
    if not any(len(turn.response_ids) for turn in turns):
        return 0
    last = 0 if final is None or part.is_terminated else len(final)
    return sum(len(turn.prompt_ids) + len(turn.response_ids) for turn in turns) + last
