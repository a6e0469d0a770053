"""Replies that call a function, as JSON: nothing in them is ever run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from rllib_lmgame.base.group import tag
from rllib_lmgame.policies.chat.replies import ParsedReply, ReplyFormat

if TYPE_CHECKING:
    from rllib_lmgame.envs.contract.functions import GameFunction

OPENING, CLOSING = "<tool_call>", "</tool_call>"
CALLED = '"function_name"'


class FunctionCalling(ReplyFormat):
    """`{"thought": "...", "function_name": "act", "arguments": {"action": "up"}}`: one call of one function.

    A game may list functions of its own; `act`, which takes any action as text, is always there.
    `<tool_call>{"name": "act", "arguments": {...}}</tool_call>` is read, too.
    """

    type: str = tag("function_calling", "Its name.")
    tags = (OPENING, CLOSING)
    marks = (CALLED,)
    stops = (CLOSING,)
    has_thought = True
    thought_form = '"thought"'

    _functions: dict[str, GameFunction] = {}

    def for_game(self, functions: Sequence[GameFunction]) -> FunctionCalling:
        other = self.model_copy()
        other._functions = {function.name: function for function in functions}
        return other

    def _all(self) -> dict[str, GameFunction]:
        return self._functions | {"act": _act()}

    def form(self) -> str:
        thought = "" if self.options.think == "off" else '"thought": "your reasoning", '
        functions = "\n".join(function.signature for function in self._all().values())
        return (
            f'Reply with one JSON object: {{{thought}{CALLED}: "name", "arguments": {{"argument": "value"}}}}. '
            f"Functions:\n{functions}"
        )

    def read(self, text: str) -> ParsedReply:
        before, found, rest = text.partition("{")
        spoken, tagged, _ = before.partition(OPENING)
        thought = spoken.strip() or None if tagged else None
        if not found:
            return ParsedReply(None, thought, "the reply has no JSON object")
        try:
            call, end = json.JSONDecoder(parse_constant=no_number).raw_decode(found + rest)
        except (ValueError, RecursionError):
            return ParsedReply(None, thought, "the reply's JSON cannot be read")
        after = (found + rest)[end:]
        if "{" in after or OPENING in after:
            return ParsedReply(None, thought, "the reply has more than one call")
        if tagged and CLOSING not in after:
            return ParsedReply(None, thought, f"{OPENING} is not closed by {CLOSING}")
        return self._played(call, "name" if tagged else "function_name", thought)

    def _played(self, call: dict[str, Any], key: str, thought: str | None) -> ParsedReply:
        """What a call plays; ``key``: where it names the function."""
        said, arguments = call.get("thought"), call.get("arguments", {})
        thought = said.strip() if isinstance(said, str) else thought
        function = self._all().get(name) if isinstance(name := call.get(key), str) else None
        if function is None:
            return ParsedReply(None, thought, f'"{key}" must be one of {", ".join(self._all())}')
        if not isinstance(arguments, dict):
            return ParsedReply(None, thought, '"arguments" must be a JSON object')
        try:
            return ParsedReply(function.text(arguments).strip(), thought)
        except ValueError as error:
            return ParsedReply(None, thought, str(error))

    def say(self, action: str, thought: str | None) -> str:
        calls = ((each.name, each.arguments(action)) for each in self._all().values())
        name, arguments = next(call for call in calls if call[1] is not None)
        said: dict[str, Any] = {} if thought is None else {"thought": thought}
        return json.dumps({**said, "function_name": name, "arguments": arguments}, ensure_ascii=False)


@cache
def _act() -> GameFunction:
    """The function of every game."""
    from rllib_lmgame.envs.contract.functions import GameFunction

    takes = {"type": "object", "properties": {"action": {"type": "string"}}, "required": ["action"]}
    return GameFunction("act", "{action}", "plays an action, written as the rules say", takes)


def no_number(text: str) -> float:
    """For JSON without ``NaN`` and ``Infinity``, which are no numbers of it."""
    raise ValueError(text)
