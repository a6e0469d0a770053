"""Games whose levels are items of a list: seeds that follow each other are its items one after another."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from operator import is_
from typing import Any, ClassVar

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.contract.base import TextGame
from rllib_lmgame.envs.contract.splits import ALL, level_digest
from rllib_lmgame.envs.support.item_order import item_of_seed

MOST_LISTS = 16
"""Lists of which a process remembers what falls into a split: games are made by the hundred."""
_FOUND: dict[tuple[type, str], tuple[Sequence[Any], Sequence[Any]]] = {}
"""Class and options of a game -> its candidates, and those of them that are of its split."""


class ListedLevels(TextGame):
    """A game of such a list (:attr:`~rllib_lmgame.envs.contract.base.TextGame.lists_levels`)."""

    lists_levels: ClassVar[bool | str] = True
    _place: int | None = None

    @property
    @abstractmethod
    def listed(self) -> Sequence[Any]:
        """All items."""

    @property
    def candidates(self) -> Sequence[Any]:
        """Those among which the ones of the split that is played are looked for."""
        return self.listed

    def made_up(self, rng: random.Random) -> Iterator[Any]:
        """Levels of a game whose list an option names, where it names none."""
        raise NotImplementedError

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin the item of ``seed``; without a seed, any item of the split."""
        self._place = seed
        return super().reset(seed=seed, options=options)

    def check_split(self) -> None:
        """For the end of a constructor, or ``check_ready``: else the first episode would find out.

        Raises: ConfigError: the list has no item of the split that is played.
        """
        if self._has_list and not self._of_split:
            what = f"none of the {len(self.listed)} levels listed falls into split {self.options.split!r}"
            raise ConfigError("env_config.split", f"{what}; list more, or take split 'all'")

    @property
    def _has_list(self) -> bool:
        option = self.lists_levels
        return not isinstance(option, str) or getattr(self.options, option) is not None

    @property
    def num_levels(self) -> int:
        """The number of items that are played: those of the split."""
        return len(self._of_split or self.listed)

    def _info(self, invalid: bool) -> dict[str, Any]:
        size = {"num_levels": self.num_levels} if self._has_list else {}
        return {**super()._info(invalid), **size}

    def levels(self, rng: random.Random) -> Iterator[Any]:
        if not self._has_list:
            yield from self.made_up(rng)
        items = self._of_split or self.listed
        if self._place is not None:
            yield items[item_of_seed(self._place, self.num_levels)]
        while True:
            yield rng.choice(items)

    @cached_property
    def _of_split(self) -> Sequence[Any]:
        """The items of the split that is played; of the same list they are looked for once per process."""
        items, split, key = self.candidates, self.options.split, (type(self), repr(self.options))
        known = _FOUND.get(key)
        if known is not None and len(known[0]) == len(items) and all(map(is_, known[0], items)):
            return known[1]
        found = tuple(
            item for item in items if split in (ALL, self.split_of_level(level_digest(self.level_key(item)), item))
        )
        if len(_FOUND) >= MOST_LISTS:
            _FOUND.clear()
        _FOUND[key] = items, found
        return found
