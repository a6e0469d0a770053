"""Demonstrations: example turns that stand in the conversation before a game's own first turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import Group, build, option
from rllib_lmgame.base.json_files import parse
from rllib_lmgame.base.storage import expanded
from rllib_lmgame.base.text import first_line

KEY = "config.language_model.demonstrations"
MOST = 64
"""Demonstrations of one game, at most."""
MOST_LISTED = 100 * MOST


class Demonstration(Group):
    """One turn: what a player saw, and the reply that was right."""

    observation: str = option("", "What the player saw, as the game says it.")
    action: str = option("", "What it answered, without tags.")
    think: str | None = option(None, "Its reasoning, where `think` is on.")
    turns_left: int | None = option(None, "Turns it had left, for `turn_suffix`.", ge=0)
    game: str = option("", "Game it belongs to; empty: all.")
    role: str = option("", "Role it belongs to; empty: all.")
    level: str = option("", "Level it is from, as a game says `info['level']`; it is then not played.")


Given = int | list[dict[str, Any]]
"""How many are to be made, or those there are, as plain mappings."""


def read_demonstrations(value: Any) -> Given:
    """The option's value; a file, JSON or JSON lines, is read. Raises: ConfigError: it is no list of demonstrations."""
    if isinstance(value, int):
        if not 0 <= value <= MOST:
            raise ConfigError(KEY, f"must be 0 to {MOST}, got {value}")
        return value
    entries = _entries(value) if isinstance(value, str) else value
    where = f" ({value})" if isinstance(value, str) else ""
    if not isinstance(entries, list | tuple) or not entries or len(entries) > MOST_LISTED:
        raise ConfigError(KEY, f"expected a list of 1 to {MOST_LISTED:,} mappings with observation and action{where}")
    return [_written(entry, n, where) for n, entry in enumerate(entries)]


def _entries(name: str) -> Any:
    path = expanded(name)
    try:
        text = path.read_text(encoding="utf-8-sig")
        return [parse(line) for line in text.split("\n") if line.strip()] if path.suffix == ".jsonl" else parse(text)
    except (OSError, ValueError) as error:
        raise ConfigError(KEY, f"{name} cannot be read as JSON: {first_line(error)}") from None


def _written(entry: Any, number: int, where: str) -> dict[str, Any]:
    if not isinstance(entry, Mapping) or not {"observation", "action"} <= set(entry):
        raise ConfigError(KEY, f"entry {number + 1} is no mapping with observation and action{where}")
    build(Demonstration, entry, f"{KEY}[{number}]")
    return {key: each for key, each in entry.items() if each not in ("", None) or key in ("observation", "action")}
