"""Where data sets lie, and the path that ``data:NAME[:PART]`` stands for.

They lie in ``$RLLIB_LMGAME_DATA``, by default in ``data`` of the package's cache, each in a folder of its name with a
``SOURCE.json``. That file says which parts are there whole; it is written when they are.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rllib_lmgame.base import json_files
from rllib_lmgame.base.errors import ConfigError, did_you_mean
from rllib_lmgame.base.storage import expanded, own_cache
from rllib_lmgame.base.text import size_text
from rllib_lmgame.downloads.table import SETS, TRAIN, VALIDATION, DataSet

PREFIX = "data:"
SOURCE = "SOURCE.json"
_MOST_BYTES = 64 << 20
"""Largest ``SOURCE.json`` that is read."""


def data_root() -> Path:
    """The folder of all data sets."""
    named = os.environ.get("RLLIB_LMGAME_DATA")
    return expanded(named).absolute() if named else own_cache() / "data"


def is_named(value: Any) -> bool:
    """Whether a value is ``data:NAME`` or ``data:NAME:PART``, whatever the name."""
    return isinstance(value, str) and value.startswith(PREFIX)


class DataMissing(ConfigError):
    """A data set that is known is not here, whole: the message says how to bring it."""


@dataclass(frozen=True)
class Named:
    """A data set that a configuration names.

    Attributes:
        name: Of the set.
        part: Of it, empty where none is named.
        key: Option that named it, for messages.
    """

    name: str
    part: str
    key: str

    @property
    def set(self) -> DataSet:
        """Its entry in the table."""
        return SETS[self.name]

    @property
    def folder(self) -> Path:
        """The directory of its files."""
        return data_root() / self.name

    @property
    def fetched_by(self) -> str:
        """The command that brings it: a part alone, where that saves anything."""
        apart = any(self.part in source.parts for source in self.set.sources)
        return f"rllib data fetch {self.name}:{self.part}" if apart else f"rllib data fetch {self.name}"

    def paths(self) -> list[Path]:
        """Files of the part, in order. Raises: ConfigError: it is not here, whole."""
        return self._found(self.set.parts[self.part] if self.part else self._all())

    def paths_here(self) -> list[Path]:
        """Files of the part that are here, whether it is whole or not."""
        return [path for pattern in self.set.parts[self.part] for path in sorted(self.folder.glob(pattern))]

    def beside(self, option: str) -> str | None:
        """What the set says of another option of the game. Raises: ConfigError: as :meth:`paths`."""
        said = self.set.beside.get(option, {})
        pattern = said.get(self.part, said.get(""))
        return None if pattern is None else str(self._found((pattern,))[0])

    def source(self) -> dict[str, Any]:
        """The content of ``SOURCE.json``. Raises: DataMissing: it is missing or damaged."""
        try:
            return read_source(self.folder)
        except FileNotFoundError:
            raise self._missing("is not here") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._missing(f"has a {SOURCE} that cannot be read ({error})") from None

    def check_here(self) -> dict[str, Any]:
        """The content of ``SOURCE.json``. Raises: DataMissing: the part is not here."""
        source = self.source()
        wanted = [self.part] if self.part else list(self.set.parts)
        if missing := [part for part in wanted if part not in source["parts"]]:
            raise self._missing(f"is here in part only, without {', '.join(missing)}")
        return source

    def _all(self) -> tuple[str, ...]:
        return tuple(pattern for patterns in self.set.parts.values() for pattern in patterns)

    def _found(self, patterns: tuple[str, ...]) -> list[Path]:
        """Files of the patterns, and none that has another size than it was fetched with."""
        files = self.check_here()["files"]
        found = [path for pattern in patterns for path in sorted(self.folder.glob(pattern))]
        if not found:
            raise self._missing(f"holds no {' or '.join(patterns)}")
        for path in found:
            about = files.get(path.relative_to(self.folder).as_posix())
            if about is not None and (size := path.stat().st_size) != about["bytes"]:
                raise self._missing(f"was altered: {path} has {size:,} bytes instead of {about['bytes']:,}")
        return list(dict.fromkeys(found))

    def _missing(self, what: str) -> DataMissing:
        size = size_text(self.set.part_sizes.get(self.part, self.set.size))
        return DataMissing(
            self.key, f"data set {self.name!r} {what}; `{self.fetched_by}` brings it ({size}) into {self.folder}"
        )


def read_source(folder: Path) -> dict[str, Any]:
    """What a folder's ``SOURCE.json`` says.

    Raises: FileNotFoundError: there is none; OSError, ValueError, KeyError, TypeError: it is damaged.
    """
    said = json_files.read_mapping(folder / SOURCE, _MOST_BYTES)
    for about in json_files.mapping_of(said["files"], "files").values():
        json_files.number_of(about["bytes"], "bytes", low=0)
    list(said["parts"])
    return said


def here(chosen: Named) -> list[str]:
    """Parts of the set that are here."""
    try:
        parts = read_source(chosen.folder)["parts"]
        return [part for part in chosen.set.parts if part in parts]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def named(value: str, key: str = "data") -> Named:
    """The data set that ``data:NAME[:PART]`` names. Raises: ConfigError: there is none of that name or part."""
    name, _, part = value.removeprefix(PREFIX).partition(":")
    check_name(name, key)
    parts = SETS[name].parts
    if part and part not in parts:
        raise ConfigError(
            key, f"data set {name!r} has no part {part!r}; {did_you_mean(part, parts, 'it has ' + ', '.join(parts))}"
        )
    if value != PREFIX + name + (f":{part}" if part else ""):
        raise ConfigError(key, f"expected data:NAME or data:NAME:PART, got {value!r}")
    return Named(name, part, key)


def check_name(name: str, key: str) -> None:
    """Raises: ConfigError: no set has this name; the message names the nearest."""
    if name not in SETS:
        raise ConfigError(key, f"no data set is called {name!r}; {did_you_mean(name, SETS, 'see `rllib data list`')}")


def paths_of(value: str | Path, key: str = "data") -> list[Path]:
    """Files that a path or ``data:NAME[:PART]`` stands for.

    Without a part these are the training files, where the set has such, and all of it where not.

    Raises: ConfigError: the set or part is not known, or not here.
    """
    if not is_named(value):
        return [expanded(value)]
    chosen = named(str(value), key)
    if not chosen.part and TRAIN in chosen.set.parts:
        chosen = Named(chosen.name, TRAIN, key)
    return chosen.paths()


def path_of(value: str | Path, key: str = "data") -> Path:
    """The only file that :func:`paths_of` returns. Raises: ConfigError: there are several."""
    paths = paths_of(value, key)
    if len(paths) != 1:
        parts = ", ".join(named(str(value), key).set.parts)
        raise ConfigError(key, f"{value} is {len(paths)} files; name one part, as {value}:PART (parts: {parts})")
    return paths[0]


@dataclass(frozen=True)
class LevelFiles:
    """Files that hold a game's levels of one split.

    Attributes:
        files: Paths, in order.
        published: The split that the publisher gave them; ``None``: none, or they are of several.
        has_validation: Whether the publisher has a validation split.
    """

    files: tuple[Path, ...]
    published: str | None = None
    has_validation: bool = False

    def split_of(self, by_hash: str) -> str:
        """Split of a level: the publisher's. Where it has no validation split, a tenth of the training levels is it.

        Args:
            by_hash: Split by the level's hash.
        """
        if self.published is None:
            return by_hash
        if self.published == TRAIN and not self.has_validation and by_hash == VALIDATION:
            return VALIDATION
        return self.published


def level_files(value: str, split: str, key: str = "env_config.data") -> LevelFiles:
    """Files that hold the levels of a split: of a set with splits of its publisher only those that are needed.

    Args:
        value: A path or ``data:NAME[:PART]``.
        split: ``train``, ``validation``, ``test`` or ``all``.
        key: Option that named it.

    Raises: ConfigError: the set has no such split, or is not here.
    """
    if not is_named(value):
        return LevelFiles((expanded(value),))
    chosen = named(value, key)
    published = chosen.set.published
    if not published or (chosen.part and chosen.part not in published):
        return LevelFiles(tuple(chosen.paths()))
    wanted = _splits_for(split, published)
    if chosen.part:
        wanted = [part for part in wanted if part == chosen.part]
    if not wanted:
        raise ConfigError(
            key.rpartition(".")[0] + ".split",
            f"{value} has the {chosen.part or ' and '.join(published)} split alone, and `split` is {split!r}; set it "
            f"to {(chosen.part or published[-1])!r} or 'all'",
        )
    files = tuple(path for part in wanted for path in Named(chosen.name, part, key).paths())
    return LevelFiles(files, wanted[0] if split != "all" else None, VALIDATION in published)


def beside(value: str, file: Path, option: str, key: str = "env_config.data") -> str | None:
    """What a set says of another option of the game, for one of its files: the part that the file belongs to decides.

    Raises: ConfigError: it is not here.
    """
    chosen = named(value, key)
    part = next((part for part in chosen.set.parts if file in Named(chosen.name, part, key).paths_here()), "")
    return Named(chosen.name, part, key).beside(option)


def _splits_for(split: str, published: tuple[str, ...]) -> list[str]:
    if split == "all":
        return list(published)
    if split == VALIDATION and VALIDATION not in published:
        return [TRAIN] if TRAIN in published else []
    return [split] if split in published else []
