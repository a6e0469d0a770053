"""Markdown tables of options."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from rllib_lmgame.settings.schema import digits, type_name


def option_table(group: type) -> str:
    """Key, type, default, limits and documentation of every field."""
    hints = typing.get_type_hints(group)
    rows = []
    for field in dataclasses.fields(group):
        doc = str(field.metadata.get("doc", "")) or _GAME_FIELDS.get(field.name, "")
        rows.append(
            (f"`{field.name}`", type_name(hints[field.name]), default_text(field), limits_text(field.metadata), doc)
        )
    return table(("key", "type", "default", "allowed", "what it is"), rows)


_GAME_FIELDS = {
    "env": "Id of the game, or `package.module:Class`.",
    "env_config": "Its options.",
    "weight": "Share of the episodes, relative to the other games.",
}


def default_text(field: dataclasses.Field[Any]) -> str:
    """A field's default as YAML would have it."""
    if field.default is not dataclasses.MISSING:
        return f"`{yaml_text(field.default)}`"
    if field.default_factory is not dataclasses.MISSING:
        return f"`{yaml_text(field.default_factory())}`"
    return "must be given"


def yaml_text(value: Any) -> str:
    """A simple value as it stands in YAML."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value if value and re.fullmatch(r"[\w./-]+", value) else f'"{value}"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(yaml_text(v) for v in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {yaml_text(v)}" for k, v in value.items()) + "}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def limits_text(metadata: Mapping[str, Any]) -> str:
    """Choices or range of a field."""
    if metadata.get("choices"):
        return ", ".join(f"`{choice}`" for choice in metadata["choices"])
    words = (("low", "≥"), ("above", ">"), ("high", "≤"))
    return ", ".join(f"{sign} {digits(metadata[key])}" for key, sign in words if metadata.get(key) is not None)


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table; bars inside cells are escaped."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows]
    return "\n".join(lines)
