"""Selects the conversations that are trained on, and those that are held out."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.datasets.options import SupervisedOptions


class Facts(NamedTuple):
    """Place, game, level ("" if unknown), return and success of a conversation; ``digest`` identifies it without
    level.
    """

    where: str
    game: str
    level: str
    episode_return: float | None
    digest: str = ""
    success: bool | None = None


class Chosen(NamedTuple):
    """Indices of conversations: those that are trained on, and those held out."""

    training: list[int]
    validation: list[int]


def choose(facts: Sequence[Facts], options: SupervisedOptions) -> Chosen:
    """Apply ``successes_only``, ``min_return``, ``one_per_level``, ``top_share``, ``validation_share``, in this order.

    Raises: ConfigError: a conversation lacks a return or level that is needed, or nothing is left.
    """
    kept = list(range(len(facts)))
    if options.successes_only:
        kept = [place for place in kept if _succeeded(facts[place])]
        if not kept:
            raise ConfigError("successes_only", f"leaves none of {len(facts)} conversations: none was a success")
    if options.min_return is not None:
        least = _least(options.min_return, {each.game for each in facts})
        before = kept
        kept = [place for place in before if _return_of(facts[place], "min_return") >= least(facts[place].game)]
        if not kept:
            best = max(_return_of(facts[place], "min_return") for place in before)
            raise ConfigError(
                "min_return", f"leaves none of {len(before)} conversations; their best return is {best:g}"
            )
    if options.one_per_level is not None:
        kept = _one_per_level(facts, kept, options.one_per_level)
    if options.top_share is not None:
        kept = _top(facts, kept, options.top_share)
    held_out = _held_out(facts, kept, options.validation_share)
    training = [place for place in kept if place not in held_out]
    validation = [place for place in kept if place in held_out]
    if options.validation_share and not (training and validation):
        raise ConfigError("validation_share", f"of {len(kept)} conversations leaves none to hold out, or to learn from")
    return Chosen(training, validation)


def _succeeded(facts: Facts) -> bool:
    if facts.success is None:
        raise ConfigError("successes_only", f"needs to know it, but {facts.where} says none (`success`)")
    return facts.success


def _return_of(facts: Facts, key: str) -> float:
    if facts.episode_return is None:
        raise ConfigError(key, f"needs returns, but {facts.where} says none (`reward` or `return`)")
    return facts.episode_return


def _least(least: float | dict[str, float], games: AbstractSet[str]) -> Callable[[str], float]:
    if not isinstance(least, dict):
        return lambda game: least
    for game in least:
        if game not in games:
            there = ", ".join(sorted(filter(None, games))) or "none, for no record says its `game`"
            raise ConfigError("min_return", f"no conversation is of a game {game!r}; games of the data: {there}")
    return lambda game: least.get(game, -math.inf)


def _one_per_level(facts: Sequence[Facts], kept: Iterable[int], which: str) -> list[int]:
    found: dict[tuple[str, str], int] = {}
    for place in kept:
        each = facts[place]
        if not each.level:
            raise ConfigError("one_per_level", f"needs levels, but {each.where} says none (`item_id` or `level`)")
        other = found.setdefault((each.game, each.level), place)
        if which == "best" and _return_of(each, "one_per_level") > _return_of(facts[other], "one_per_level"):
            found[each.game, each.level] = place
    return sorted(found.values())


def _top(facts: Sequence[Facts], kept: Sequence[int], share: float) -> list[int]:
    """The best of each game, at least one; the first ones among equals."""
    games: dict[str, list[int]] = {}
    for place in kept:
        games.setdefault(facts[place].game, []).append(place)
    found: list[int] = []
    for places in games.values():
        best = sorted(places, key=lambda place: -_return_of(facts[place], "top_share"))
        found += best[: max(1, math.floor(share * len(places) + 1e-9))]
    return sorted(found)


def _held_out(facts: Sequence[Facts], kept: Sequence[int], share: float) -> set[int]:
    """A share of whole levels, by a hash: independent of order and other options."""
    if not share:
        return set()
    levels: dict[str, list[int]] = {}
    for place in kept:
        each = facts[place]
        levels.setdefault(f"{each.game} {each.level or each.digest or each.where}", []).append(place)
    wanted, found = max(1, round(share * len(kept))), set[int]()
    for name in sorted(levels, key=lambda name: hashlib.blake2b(name.encode("utf-8", "replace")).digest()):
        if len(found) >= wanted:
            break
        found.update(levels[name])
    return found
