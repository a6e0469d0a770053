"""Markdown tables of options."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from rllib_lmgame.base.group import REQUIRED, declared, default_text, type_name

OPTION_HEAD = ("key", "type", "default", "allowed", "what it is")


def option_table(group: type) -> str:
    """A table of :func:`option_rows`."""
    return table(OPTION_HEAD, option_rows(group))


def option_rows(group: type) -> list[tuple[str, ...]]:
    """Key, type, default, limits and documentation of every field."""
    rows = []
    for key, each in declared(group).items():
        doc = str(each.says.get("doc", ""))
        if each.says.get("of"):
            doc = f"Of {' and '.join(f'`{kind}`' for kind in each.says['of'])}. {doc}"
        default = default_text(each.default) if each.default is REQUIRED else f"`{default_text(each.default)}`"
        rows.append(
            (
                f"`{key}`",
                "a name or options" if each.parts else type_name(each.hint),
                default,
                limits_text(each.says),
                doc,
            )
        )
    return rows


def limits_text(metadata: Mapping[str, Any]) -> str:
    """Choices or range of a field."""
    if metadata.get("choices"):
        return ", ".join(f"`{choice}`" for choice in metadata["choices"])
    words = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
    return ", ".join(f"{sign} {digits(metadata[key])}" for key, sign in words if metadata.get(key) is not None)


def digits(number: float) -> str:
    """A number as text, a whole one with all of its digits."""
    return f"{int(number)}" if abs(number) < 1e15 and number == int(number) else f"{number:g}"


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
