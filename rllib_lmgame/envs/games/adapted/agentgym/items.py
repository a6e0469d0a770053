"""Lists of AgentGym's items: a JSON list of ``{"item_id": "textcraft_12", ...}``, or numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rllib_lmgame.base import json_files
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.storage import expanded
from rllib_lmgame.downloads.places import path_of
from rllib_lmgame.envs.support.datasets import UNREADABLE, open_data, readable
from rllib_lmgame.envs.support.item_lists import MOST_ITEMS, number_of_item, numbers_in


@dataclass(frozen=True, slots=True)
class Item:
    """One item: its id as the list has it, and the number that the server is told."""

    name: str
    number: int


def read_items(source: str | int, task: str, table: str | None, key: str) -> tuple[Item, ...]:
    """The items of a list, in its order; one that stands there twice counts once.

    Args:
        source: File, or ``0-99, 120``.
        task: Whose items they are, for messages.
        table: File that says the numbers of ids that are texts, as ALFWorld's ``mappings_train.json`` does.
        key: Option that named the list.

    Raises:
        ConfigError: if a file cannot be read, or an item has no number; the message says which.
    """
    numbers = numbers_in(source, key)
    if numbers is not None:
        return tuple(Item(str(number), number) for number in numbers)
    source = str(source)
    return _of_file(source, task, table, key, _state(source), _state(table))


def categories_in(folder: str | None, task: str, key: str) -> dict[str, str]:
    """Of each item's id the category: the name of the file that lists it, the first of several.

    The list of all items, ``TASK_test.json``, is no category.

    Raises:
        ConfigError: if there is no such folder, or a file in it is no list of items.
    """
    if folder is None:
        return {}
    there = path_of(folder, key)
    try:
        files = sorted((there.parent if there.is_file() else there).glob("*.json"))
    except OSError as error:
        raise ConfigError(key, f"{folder!r} cannot be read: {error.strerror}") from None
    files = [file for file in files if file.stem != f"{task}_test"]
    if not files:
        raise ConfigError(key, f"{folder!r} is no folder with lists of items, NAME.json for each category")
    found: dict[str, str] = {}
    for file in files:
        for place, entry in enumerate(_list_of(str(file), key)):
            found.setdefault(_name_of(entry, f"{file}, entry {place}", key), file.stem)
    return found


def _state(path: str | None) -> tuple[int, int]:
    """What changes if a file does."""
    try:
        found = expanded(path).stat() if path else None
    except (OSError, ValueError):
        return (0, 0)
    return (0, 0) if found is None else (found.st_mtime_ns, found.st_size)


@lru_cache(16)
def _of_file(source: str, task: str, table: str | None, key: str, *_: tuple[int, int]) -> tuple[Item, ...]:
    numbers = _numbers(table) if table is not None else {}
    items: dict[str, Item] = {}
    for place, entry in enumerate(_list_of(source, key)):
        where = f"{source}, entry {place}"
        name = _name_of(entry, where, key)
        items.setdefault(name, Item(name, _number(name, task, numbers, where, key)))
    if not items:
        raise ConfigError(key, f"{source} has no items")
    return tuple(items.values())


def _name_of(entry: Any, where: str, key: str) -> str:
    name = entry.get("item_id") if isinstance(entry, Mapping) else entry
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise ConfigError(key, f"{where}: expected {{'item_id': ...}}, got {str(entry)[:80]!r}")
    return readable(str(name))


def _number(name: str, task: str, numbers: Mapping[str, int], where: str, key: str) -> int:
    """The number of an item: what the table says, else what stands behind the last ``_``."""
    known = numbers.get(name, numbers.get(name.removeprefix(f"{task}_")))
    if known is not None:
        return known
    number = None if "trial_" in name else number_of_item(name)
    if number is None:
        hint = "; is it in `id_table`?" if numbers else "; `id_table` names the file that has the numbers of such items"
        raise ConfigError(key, f"{where}: the item {name[:100]!r} of {task} ends in no number{hint}")
    return number


def _numbers(table: str) -> dict[str, int]:
    """Numbers by text: of a mapping, or of AgentGym's list of ``{"item_id", "task_type", "task_id"}``."""
    key = "env_config.id_table"
    content = _json_of(table, key)
    if isinstance(content, Mapping):
        pairs = list(content.items())
    elif isinstance(content, list):
        pairs = [pair for place, entry in enumerate(content) for pair in _names(entry, place)]
    else:
        pairs = [("", None)]
    for name, number in pairs:
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise ConfigError(key, f"{table} must map texts to numbers; {name[:80]!r} is {str(number)[:40]}")
    return dict(pairs)


def _names(entry: Any, place: int) -> list[tuple[str, Any]]:
    """The ways in which lists name a game of ALFWorld: its folders, joined."""
    if not isinstance(entry, Mapping):
        return [(f"entry {place}", None)]
    kind, trial, number = str(entry.get("task_type")), str(entry.get("task_id")), entry.get("item_id")
    return [(f"{kind}{mark}{trial}", number) for mark in "_-/"]


def _list_of(source: str, key: str) -> list[Any]:
    content = _json_of(source, key)
    if not isinstance(content, list):
        raise ConfigError(key, f"{source} holds a {type(content).__name__}; expected a list of {{'item_id': ...}}")
    if len(content) > MOST_ITEMS:
        raise ConfigError(key, f"{source} has {len(content):,} items; {MOST_ITEMS:,} at most are read")
    return content


def _json_of(source: str, key: str) -> Any:
    with open_data(source, key) as file:
        try:
            text = file.read()
            return json_files.parse(text)
        except UNREADABLE:
            raise
        except ValueError as error:
            raise ConfigError(key, f"{source} is no JSON: {error}") from None
