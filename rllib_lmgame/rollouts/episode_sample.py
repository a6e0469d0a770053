"""Selects the episodes that a log keeps, and keeps the log small."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from rllib_lmgame.rollouts.episode_log import TOKENS
from rllib_lmgame.rollouts.episodes import own_return, summarize
from rllib_lmgame.rollouts.options import EPISODES_OF_SAMPLE
from rllib_lmgame.rollouts.plans import stable_seed
from rllib_lmgame.rollouts.play import PlayedEpisode

SAMPLE_BYTES = 500_000_000
"""Most bytes of a trial's sample of episodes, and of the token data of its updates."""
_OF_ITERATION = re.compile(rb'\{"episode_id": "[a-z0-9-]*?(\d+)-\d+(?:\+\d+)?"')


def log_of_training(episode_log: str) -> dict[str, Any]:
    """``text_rollouts.episode_log`` as fields of :class:`~rllib_lmgame.rollouts.records.PlaySettings`."""
    return {
        "log": None if episode_log == "off" else "train",
        "log_most": EPISODES_OF_SAMPLE if episode_log == "sample" else None,
    }


def chosen(played: Sequence[PlayedEpisode], most: int) -> list[PlayedEpisode]:
    """At most ``most`` episodes, in their order: the same number of each game, the best and the worst in turn.

    Ties are broken at random, by id.
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


def thin(path: Path, most: int) -> None:
    """Remove whole iterations from a log of more than ``most`` bytes, until it has half of them.

    Every second iteration stays, or every fourth, ..., and the last, so that logs of several runners keep the same
    ones. A file that cannot be rewritten stays as it is.
    """
    with suppress(OSError):
        if path.stat().st_size <= most:
            return
        sizes: dict[int, int] = {}
        with path.open("rb") as file:
            for line in file:
                sizes[_iteration(line)] = sizes.get(_iteration(line), 0) + len(line)
        last, every = max(sizes), 2
        while sum(size for each, size in sizes.items() if each % every == 0) > most // 2 and every <= last:
            every *= 2
        _keep(path, lambda iteration: iteration == last or iteration % every == 0)


def end_before(directory: str | None, iteration: int) -> None:
    """Remove ``iteration`` and later ones, which are played again, from the logs of training.

    A file that cannot be rewritten stays as it is.
    """
    endings = [] if directory is None else ["train-*.jsonl", f"*{TOKENS}"]
    for path in (path for ending in endings for path in Path(str(directory)).glob(ending)):
        with suppress(OSError):
            with path.open("rb") as file:
                again = any(_iteration(line) >= iteration for line in file)
            if again:
                _keep(path, lambda each: each < iteration)


def _keep(path: Path, wanted: Callable[[int], bool]) -> None:
    """Keep the records of some iterations in a file, in one step. Raises: OSError: it stays as it is."""
    new = path.with_name(f".{path.name}.new")
    try:
        with path.open("rb") as file, new.open("wb") as kept:
            kept.writelines(line for line in file if wanted(_iteration(line)))
        os.replace(new, path)
    except OSError:
        with suppress(OSError):
            new.unlink()
        raise


def _iteration(line: bytes) -> int:
    """The iteration of a record; -1 for other lines."""
    found = _OF_ITERATION.match(line)
    return -1 if found is None else int(found[1])
