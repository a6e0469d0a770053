"""Pairs of trajectories of a level, and trajectories as episodes of their own."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from rllib_lmgame.datasets.options import DPOOptions
from rllib_lmgame.rollouts.episodes import module_of_agent
from rllib_lmgame.rollouts.records import CUSTOM_DATA_KEY, TURN, turns_of

if TYPE_CHECKING:
    from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

EQUAL = 1e-9
"""Tolerance of comparisons with ``reward_gap``."""


class Candidate(NamedTuple):
    """A trajectory; those with the same ``key`` are compared by ``value``."""

    key: Hashable
    value: float
    item: Any


Pairs = list[tuple[Any, Any]]
"""Pairs of chosen and rejected."""


def choose_pairs(candidates: Sequence[Candidate], options: DPOOptions) -> Pairs:
    """Pairs of candidates with the same key whose values differ by ``reward_gap``.

    ``pairs_per_level: one`` takes the best and the worst of each key, the first ones among equals.
    """
    least, found = options.chosen_min, []
    for better in _by_key(candidates).values():
        worse = better
        if options.pairs_per_level == "one":
            better, worse = [max(better, key=_value)], [min(better, key=_value)]
        found += [
            (chosen.item, rejected.item)
            for chosen in better
            for rejected in worse
            if chosen.value - rejected.value >= options.reward_gap - EQUAL and (least is None or chosen.value >= least)
        ]
    return found


def parted(candidates: Sequence[Candidate], options: DPOOptions) -> Iterator[tuple[Any, bool]]:
    """Each item with whether it is good: by ``chosen_min``, else by the mean of its key, less those near it."""
    for some in _by_key(candidates).values():
        bound = options.chosen_min
        mean = sum(each.value for each in some) / len(some) if bound is None else bound
        for each in some:
            if bound is not None or abs(each.value - mean) >= options.reward_gap / 2 - EQUAL:
                yield each.item, each.value >= mean


def _value(candidate: Candidate) -> float:
    return candidate.value


def _by_key(candidates: Iterable[Candidate]) -> dict[Hashable, list[Candidate]]:
    found: dict[Hashable, list[Candidate]] = {}
    for each in candidates:
        found.setdefault(each.key, []).append(each)
    return found


def has_choice(part: SingleAgentEpisode) -> bool:
    """Whether a token of a player's replies was a free choice; otherwise nothing of them is trained on."""
    return any(turn.has_choice for turn in turns_of(part))


def side_of(part: SingleAgentEpisode, group: str, name: str, chosen: bool) -> MultiAgentEpisode:
    """One player's part as an episode, one side of the pair ``group``; the sign of its reward says if it is chosen."""
    return alone(part, name, group=group, reward=1.0 if chosen else -1.0)


def alone(
    part: SingleAgentEpisode, name: str, *, group: str = "", reward: float = 0.0, weight: float = 1.0
) -> MultiAgentEpisode:
    """One player's part as an episode of another group; the part is not changed.

    ``reward`` of the last turn replaces all rewards; ``weight`` is that of the replies in the supervised loss. The
    game's temperature is dropped, and the new name is in no log.
    """
    from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
    from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer

    agent = part.agent_id
    one = copy.copy(part)
    one.multi_agent_episode_id = name
    one.rewards = InfiniteLookbackBuffer([0.0] * (len(part) - 1) + [reward])
    about = part.custom_data[CUSTOM_DATA_KEY]
    own = replace(about, group=group, temperature=None, logged=False, final_prompt_ids=None)  # No value is asked for.
    one._custom_data = {**part.custom_data, CUSTOM_DATA_KEY: own}
    if weight != 1.0:
        turns = [replace(turn, weight=weight) for turn in turns_of(part)]
        one.extra_model_outputs = {**part.extra_model_outputs, TURN: InfiniteLookbackBuffer(turns)}
    episode = MultiAgentEpisode(
        id_=name, agent_module_ids={agent: part.module_id}, agent_to_module_mapping_fn=module_of_agent
    )
    episode.env_t = len(part)
    episode.agent_episodes[agent] = one
    episode.is_terminated = True
    return episode
