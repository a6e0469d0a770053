"""Which of the played episodes a log keeps that shows some of each iteration."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import Any

from rllib_lmgame.rollouts.episodes import own_return, summarize
from rllib_lmgame.rollouts.plans import stable_seed
from rllib_lmgame.rollouts.play import PlayedEpisode
from rllib_lmgame.settings.sections.text_rollouts import EPISODES_OF_SAMPLE


def log_of_training(episode_log: str) -> dict[str, Any]:
    """What ``text_rollouts.episode_log`` is in :class:`~rllib_lmgame.rollouts.records.PlaySettings`."""
    return {
        "log": None if episode_log == "off" else "train",
        "log_most": EPISODES_OF_SAMPLE if episode_log == "sample" else None,
    }


def chosen(played: Sequence[PlayedEpisode], most: int) -> list[PlayedEpisode]:
    """At most ``most`` of ``played``, in their order: of each game as many, the best and the worst by turns.

    Among equals chance decides, by their ids.
    """
    games: dict[str, list[int]] = {}
    for place, one in enumerate(played):
        games.setdefault(one.called, []).append(place)
    summaries = [summarize(one) for one in played]
    keys = [(s.success or 0.0, own_return(s), stable_seed(s.episode_id)) for s in summaries]
    ranked = [_by_turns(sorted(places, key=lambda place: keys[place])) for _, places in sorted(games.items())]
    order = [place for place in chain.from_iterable(zip_longest(*ranked)) if place is not None]
    return [played[place] for place in sorted(order[:most])]


def _by_turns(ranked: Sequence[int]) -> list[int]:
    """The last, the first, the last but one, the second, ..."""
    half = -(-len(ranked) // 2)
    pairs = zip_longest(ranked[::-1][:half], ranked[: len(ranked) - half])
    return [place for place in chain.from_iterable(pairs) if place is not None]
