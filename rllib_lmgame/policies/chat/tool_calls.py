"""Calls of functions and tools: as JSON, alone or between ``<tool_call>`` tags as chat templates write them, or as
``<function=look><parameter=where>door</parameter></function>``. Nothing in them is ever run.

Whether a template writes them so is found by rendering a call and reading it back.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from rllib_lmgame.base.group import tag
from rllib_lmgame.base.text import shown
from rllib_lmgame.policies.chat.reply_formats import ParsedReply, ReplyFormat
from rllib_lmgame.policies.chat.template import CALLED, CALLS, GIVEN, Job, Rendered

if TYPE_CHECKING:
    from rllib_lmgame.envs.contract.functions import GameFunction

OPENING, CLOSING = "<tool_call>", "</tool_call>"
FUNCTION_KEY = '"function_name"'


class FunctionCalling(ReplyFormat):
    """`{"thought": "...", "function_name": "act", "arguments": {"action": "up"}}`: one call of one function.

    A game may list functions of its own; `act`, which takes any action as text, is always there.
    `<tool_call>{"name": "act", "arguments": {...}}</tool_call>` is read, too.
    """

    type: str = tag("function_calling", "Its name.")
    tags = (OPENING, CLOSING)
    marks = (FUNCTION_KEY,)
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
            f'Reply with one JSON object: {{{thought}{FUNCTION_KEY}: "name", "arguments": {{"argument": "value"}}}}. '
            f"Functions:\n{functions}"
        )

    def read(self, text: str) -> ParsedReply:
        before, found, rest = text.partition("{")
        spoken, tagged, _ = before.partition(OPENING)
        thought = spoken.strip() or None if tagged else None
        if not found:
            return ParsedReply(None, thought, "the reply has no JSON object")
        try:
            call, end = _DECODER.raw_decode(found + rest)
        except (ValueError, RecursionError):
            return ParsedReply(None, thought, "the reply's JSON cannot be read")
        after = (found + rest)[end:]
        if "{" in after or OPENING in after:
            return ParsedReply(None, thought, "the reply has more than one call")
        if tagged and CLOSING not in after:
            return ParsedReply(None, thought, f"{OPENING} is not closed by {CLOSING}")
        return self._played(call, "name" if tagged else "function_name", thought)

    def _played(self, call: dict[str, Any], key: str, thought: str | None) -> ParsedReply:
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
    from rllib_lmgame.envs.contract.functions import GameFunction

    takes = {"type": "object", "properties": {"action": {"type": "string"}}, "required": ["action"]}
    return GameFunction("act", "{action}", "plays an action, written as the rules say", takes)


def no_number(text: str) -> float:
    """For JSON without ``NaN`` and ``Infinity``, which are no numbers of it."""
    raise ValueError(text)


_DECODER = json.JSONDecoder(parse_constant=no_number)

Call = tuple[str, str, str]
"""Id, name, and arguments as JSON."""


_ASKED = "Where is the key?"
_PARAMETERS = {
    "where": {"type": "string", "description": "where"},
    "times": {"type": "integer", "description": "often"},
}
_TOOL = {
    "type": "function",
    "function": {
        "name": CALLED,
        "description": "Looks.",
        "parameters": {"type": "object", "properties": _PARAMETERS, "required": ["where"]},
    },
}
_FUNCTION = re.compile(rf"<function=([^>\n]+)>(.*?)</function>\s*{CLOSING}", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>\s*", re.DOTALL)


class CallForm(NamedTuple):
    """How a template writes calls: why they cannot be read back, if so; whether it takes arguments as JSON text; and
    whether it shows the tools that there are.
    """

    problem: str
    arguments_as_text: bool
    shows_tools: bool


def form_of_calls(rendered: Callable[[Sequence[Job]], Sequence[Rendered]], closing: str) -> CallForm:
    """What a template makes of a call; ``closing`` ends its reasoning."""
    asked = {"role": "user", "content": _ASKED}
    called: list[list[dict[str, Any]]] = [
        [asked, {"role": "assistant", "content": "", "tool_calls": [each]}] for each in CALLS
    ]
    offered = [[asked], [{"role": "system", "content": "Answer."}, asked]]
    jobs: list[Job] = [(each, {"tools": [_TOOL], "add_generation_prompt": False}) for each in (*called, *offered)]
    *found, alone, told = rendered(jobs)
    shows_tools = CALLED in alone.text or CALLED in told.text
    forms = []
    for arguments_as_text, whole in enumerate(found):
        text = whole.text.rpartition(_ASKED)[2]
        if whole.problem or CALLED not in text:
            continue
        written = text[: text.rfind(CLOSING) + len(CLOSING)] if CLOSING in text else text
        _, calls = read_calls(written.rpartition(closing)[2], json.dumps([_TOOL]))
        read = [(name, json.loads(arguments)) for _, name, arguments in calls] == [(CALLED, GIVEN)]
        problem = "" if read else f"it writes them as {shown(text.strip())}"
        forms.append(CallForm(problem, bool(arguments_as_text), shows_tools))
    none = CallForm(found[0].problem or "it does not show them", False, shows_tools)
    return min(forms, key=lambda form: bool(form.problem), default=none)


def read_calls(text: str, tools: str = "") -> tuple[str, tuple[Call, ...]]:
    """The text of a reply, behind its reasoning, without the calls in it, and these, each with an id of its own.

    What looks like a call but cannot be read makes the whole reply text. ``tools``, as JSON, say which arguments are
    text where a call does not.
    """
    before, found, rest = text.partition(OPENING)
    calls: list[Call] = []
    schemas = _schemas(tools) if found else {}
    while found:
        try:
            name, arguments, rest = _read_call(rest.lstrip(), schemas)
            as_text = json.dumps(arguments, allow_nan=False)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return text, ()
        calls.append((f"call_{uuid.uuid4().hex[:24]}", name, as_text))
        between, found, rest = rest.partition(OPENING)
        if between.strip():
            return text, ()
    return (before.strip() if calls else text), tuple(calls)


def _read_call(text: str, schemas: Mapping[str, Any]) -> tuple[str, dict[str, Any], str]:
    """Name and arguments of the call that ``text`` begins with, and what follows. Raises: ValueError, KeyError ..."""
    if written := _FUNCTION.match(text):
        name, left, pairs = written[1].strip(), written[2].lstrip(), dict[str, str]()
        while each := _PARAMETER.match(left):
            pairs[each[1].strip()], left = each[2], left[each.end() :]
        if left:
            raise ValueError(left)
        known = schemas.get(name, {})
        return name, {key: _typed(value, known.get(key)) for key, value in pairs.items()}, text[written.end() :]
    call, end = _DECODER.raw_decode(text)
    name, arguments, rest = call["name"], call.get("arguments", {}), text[end:].lstrip()
    if not (isinstance(name, str) and isinstance(arguments, dict) and rest.startswith(CLOSING)):
        raise ValueError(text)
    return name, arguments, rest.removeprefix(CLOSING)


def _schemas(tools: str) -> dict[str, Mapping[str, Any]]:
    found = {}
    for tool in json.loads(tools) if tools else ():
        parameters = tool["function"].get("parameters")
        properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
        found[tool["function"]["name"]] = properties if isinstance(properties, Mapping) else {}
    return found


def _typed(text: str, schema: Any) -> Any:
    """An argument, which is text unless its schema allows none."""
    schema = schema if isinstance(schema, Mapping) else {}
    choices = [each for key in ("anyOf", "oneOf") for each in schema.get(key) or () if isinstance(each, Mapping)]
    kinds = [each.get("type") for each in (schema, *choices)]
    allowed = [kind for each in kinds if each for kind in (each if isinstance(each, list) else [each])]
    if not allowed or "string" in allowed:
        return text
    try:
        return _DECODER.decode(text)
    except ValueError:
        return {"True": True, "False": False, "None": None}.get(text.strip(), text)  # As Jinja writes them.
