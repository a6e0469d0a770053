"""What readers make of a record, and its fields; a wrong field is a ``ValueError`` that names it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rllib_lmgame.base.text import is_writable, shown
from rllib_lmgame.policies.chat.chat_datasets import Transcript


@dataclass(frozen=True)
class ChatExample:
    """One conversation of a file.

    Attributes:
        episode_return, success: Result, if it is known.
        game, level: For selection; empty if unknown.
        rewards: Reward of each trained reply; if only the return is known, the last one has it. ``None``: unknown;
            empty: the record is one step of an episode.
        ended: The episode was not truncated.
        where: File and line.
    """

    transcript: Transcript
    episode_return: float | None = None
    success: bool | None = None
    level: str = ""
    rewards: tuple[float, ...] | None = None
    ended: bool = True
    game: str = ""
    where: str = ""


def list_of(record: Mapping[str, Any], key: str, of: str = "messages") -> list[Any]:
    """A non-empty list."""
    if key not in record:
        raise ValueError(f"it has no {key}; its columns are {', '.join(map(str, record)) or 'none'}")
    value = record[key]
    if not isinstance(value, list) or not value:
        raise ValueError(f"{key} must be a list of {of}, not {shown(value)}")
    return value


def text_of(content: Any, name: str) -> str:
    """A text, or the texts of a list of parts."""
    if isinstance(content, list) and content:
        parts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
        texts = [part for part in parts if isinstance(part, str)]
        if len(texts) == len(parts):
            content = "".join(texts)
    if not isinstance(content, str):
        raise ValueError(f"{name} must be a text, not {shown(content)}")
    return content if is_writable(content) else content.encode("utf-8", "replace").decode("utf-8")


def number_of(value: Any, name: str) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= 1e30:
        raise ValueError(f"{name} is {shown(value)}, not a finite number")
    return float(value)


def unpacked(value: Any, name: str) -> Any:
    """The value in a text of JSON; other values unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise ValueError(f"{name} is no JSON: {shown(value)}") from None
