"""Calls of tools, as chat templates write them between ``<tool_call>`` tags: as JSON, or as
``<function=look><parameter=where>door</parameter></function>``. Nothing in them is ever run.

Whether a template writes them so is found by rendering a call and reading it back.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rllib_lmgame.base.text import shown
from rllib_lmgame.endpoints.completions import call_data
from rllib_lmgame.policies.chat.function_calls import CLOSING, OPENING, no_number
from rllib_lmgame.policies.chat.rendering import Job, Rendered

Call = tuple[str, str, str]
"""Id, name, and arguments as JSON."""


_ASKED = "Where is the key?"
_NAME, _ARGUMENTS = "look", {"where": "behind\nthe door", "times": 2}
_PARAMETERS = {
    "where": {"type": "string", "description": "where"},
    "times": {"type": "integer", "description": "often"},
}
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "Looks.",
        "parameters": {"type": "object", "properties": _PARAMETERS, "required": ["where"]},
    },
}
EXAMPLES = tuple(call_data("call_00000", _NAME, given) for given in (_ARGUMENTS, json.dumps(_ARGUMENTS)))
"""A call with arguments as a mapping, as most templates take them, and as a text."""
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
    """What a template makes of a call; ``closing`` ends its reasoning. Raises: RenderingStopped: it takes too much."""
    asked = {"role": "user", "content": _ASKED}
    called: list[list[dict[str, Any]]] = [
        [asked, {"role": "assistant", "content": "", "tool_calls": [each]}] for each in EXAMPLES
    ]
    offered = [[asked], [{"role": "system", "content": "Answer."}, asked]]
    jobs: list[Job] = [(each, {"tools": [_TOOL], "add_generation_prompt": False}) for each in (*called, *offered)]
    *found, alone, told = rendered(jobs)
    shows_tools = _NAME in alone.text or _NAME in told.text
    forms = []
    for arguments_as_text, whole in enumerate(found):
        text = whole.text.rpartition(_ASKED)[2]
        if whole.problem or _NAME not in text:
            continue
        written = text[: text.rfind(CLOSING) + len(CLOSING)] if CLOSING in text else text
        _, calls = read_calls(written.rpartition(closing)[2], json.dumps([_TOOL]))
        read = [(name, json.loads(arguments)) for _, name, arguments in calls] == [(_NAME, _ARGUMENTS)]
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


_DECODER = json.JSONDecoder(parse_constant=no_number)


def _schemas(tools: str) -> dict[str, Mapping[str, Any]]:
    """Schemas of the parameters of each tool."""
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
