"""Markdown tables of options."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from rllib_lmgame.settings.schema import REQUIRED, declared, digits, given, tag_of, type_name, value_at

OPTION_HEAD = ("key", "type", "default", "allowed", "what it is")


def option_table(group: type) -> str:
    """A table of :func:`option_rows`."""
    return table(OPTION_HEAD, option_rows(group))


def option_rows(group: type) -> list[tuple[str, ...]]:
    """Key, type, default, limits and documentation of every field."""
    rows = []
    for key, each in declared(group).items():
        if each.says.get("arguments"):
            continue
        doc = str(each.says.get("doc", ""))
        if each.says.get("of"):
            doc = f"Of {' and '.join(f'`{kind}`' for kind in each.says['of'])}. {doc}"
        rows.append((f"`{key}`", type_name(each.hint), default_text(each.default), limits_text(each.says), doc))
    return rows


def default_text(default: Any) -> str:
    """A default as YAML would have it; of a long text its beginning."""
    if default is REQUIRED:
        return "must be given"
    text = yaml_text(_plain(default))
    return f"`{text}`" if len(text) <= 100 else f'`{text[:60].rsplit(" ", 1)[0]} ..."`'


def _plain(value: Any) -> Any:
    """A group as YAML would have it: its type alone if nothing else is set, else what is set."""
    if not dataclasses.is_dataclass(value):
        return value
    kind = tag_of(type(value))
    said = {key: _plain(value_at(value, key)) for key in sorted(given(value))}
    return value_at(value, kind) if kind and said.keys() <= {kind} else said


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
    words = (("low", "≥"), ("above", ">"), ("high", "≤"), ("below", "<"))
    return ", ".join(f"{sign} {digits(metadata[key])}" for key, sign in words if metadata.get(key) is not None)


def wrapped(page: str, width: int = 120) -> str:
    """A page with its paragraphs and items of lists in lines of ``width`` characters."""
    parts = re.split(r"(^```.*?^```$)", page, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else _wrapped_lines(part, width) for part in parts)


def _wrapped_lines(text: str, width: int) -> str:
    units: list[str] = []
    for line in text.split("\n"):
        begins = not units or not units[-1] or not line.strip() or re.match(r"\s*([-*] |\d+\. |\||#|<!--)", line)
        if begins or units[-1].startswith(("|", "#", "<!--")):
            units.append(line)
        else:
            units[-1] += " " + line.strip()
    lines: list[str] = []
    for unit in units:
        indent = " " * len(re.match(r"\s*(?:[-*] |\d+\. )?", unit)[0])  # type: ignore[index]
        wrapper = textwrap.TextWrapper(width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        lines += [unit] if unit.startswith(("|", "#", "<!--")) or not unit else wrapper.wrap(unit)
    return "\n".join(lines)


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table; bars inside cells are escaped."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows]
    return "\n".join(lines)
