"""Reading one tool call: JSON, bare, in a fenced block, or between the tags of a chat template."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from rllib_lmgame.envs.contract.base import InvalidAction
from rllib_lmgame.envs.support.replies import fenced_blocks

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MAX_NESTING = 8
HOW = 'reply with one tool call: {"name": ..., "arguments": {...}}.'


@dataclass(frozen=True)
class ToolCall:
    """A tool's name and its arguments (all texts, once they were checked)."""

    name: str
    arguments: dict[str, Any]

    def __hash__(self) -> int:
        return hash(self.text())

    def text(self) -> str:
        """As a player writes it."""
        return json.dumps({"name": self.name, "arguments": self.arguments}, ensure_ascii=False)


def read_call(text: str) -> ToolCall:
    """The one call in a reply. ``arguments`` may also be a text that holds JSON, as some chat templates write it.

    Raises: InvalidAction: says what is missing, or that there are two different calls.
    """
    calls = {call.text(): call for call in map(_call, _candidates(text))}
    if not calls:
        raise InvalidAction(HOW)
    if len(calls) > 1:
        raise InvalidAction(f"there are {len(calls)} different tool calls; {HOW}")
    return next(iter(calls.values()))


def _candidates(text: str) -> list[str]:
    if OPEN in text:
        return [part.split(CLOSE, 1)[0].strip() for part in text.split(OPEN)[1:]]
    blocks = fenced_blocks(text, ("json", "tool_call", ""))
    return [block.strip() for block in blocks] if blocks else [text.strip()]


def _call(text: str) -> ToolCall:
    record = _load(text)
    name, arguments = record.get("name"), record.get("arguments", record.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = _load(arguments)
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise InvalidAction(f'"name" must be text and "arguments" an object; {HOW}')
    return ToolCall(name, arguments)


def _load(text: str) -> dict[str, Any]:
    """A JSON object, nested no deeper than a call can be."""
    if not text.startswith("{"):
        raise InvalidAction(HOW)
    if _nesting(text) > MAX_NESTING:
        raise InvalidAction(f"the JSON is nested too deeply; {HOW}")
    try:
        record = json.loads(text, parse_constant=_refuse, strict=False)
    except (ValueError, RecursionError) as error:
        reason = (
            f"{error.msg} at character {error.pos + 1}"
            if isinstance(error, json.JSONDecodeError)
            else "a number is out of range"
        )
        raise InvalidAction(f"this is not JSON ({reason}); {HOW}") from error
    if not isinstance(record, dict):
        raise InvalidAction(HOW)
    return record


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def _nesting(text: str) -> int:
    """Deepest nesting of brackets outside strings."""
    depth = deepest = 0
    inside = escaped = False
    for character in text:
        if inside:
            inside = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            inside = True
        elif character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest
