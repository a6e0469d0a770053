"""What a chat template writes around messages, found by rendering conversations of placeholders."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from rllib_lmgame.endpoints.completions import call_data

PLAIN_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '### ' + message['role'] + '\n' + message['content'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '### assistant\n' }}{% endif %}"
)
"""For a tokenizer that has none."""
TINY_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
REASONING_MARKS = {
    "[THINK]": "[THINK]",
    "<|START_THINKING|>": "<|START_THINKING|>",
    "<|channel>": "<|channel>thought...<channel|>",
    "<|channel|>": "<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>",
}
"""Control tokens with which models of today begin their reasoning, and the option that names its marks."""
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
"""What a message has its reasoning under, if that is no part of its text, by templates and by who writes files."""
_SYSTEM, _USER, _REPLY, _NEXT, _REASON = (
    f"\u2402{name}\u2403" for name in ("SYSTEM", "USER", "REPLY", "NEXT", "REASON")
)
CALLED, GIVEN = "look", {"where": "behind\nthe door", "times": 2}
CALLS = tuple(call_data("call_00000", CALLED, given) for given in (GIVEN, json.dumps(GIVEN)))
"""A call with arguments as a mapping, as most templates take them, and as a text."""
_BLANKS = ("\n\t ", " \t\n")
_MARK = re.compile(r"\s*(<[^<>\s]+>|\[/?[A-Z_]+\])")


Messages = Sequence[Mapping[str, Any]]

Job = tuple[Messages, Mapping[str, Any]]
"""A conversation and its own template arguments."""


class Rendered(NamedTuple):
    """What a template makes of one conversation: a text, or why there is none."""

    text: str
    problem: str = ""


class TemplateError(ValueError):
    """The template cannot be used."""


@dataclass(frozen=True)
class TemplatePieces:
    """A chat template cut where the texts go.

    Attributes:
        bare_head: Before the first user message, without a system prompt.
        head: Before the system prompt.
        middle: Between system prompt and first user message; ``None`` for a template without a system role, or one
            that shows the system prompt in the last user message only.
        tail: Between the first user message and the coming reply.
        turn_end: Between a reply and the next user message.
        turn_tail: Between a later user message and the coming reply.
        opener: Between a user message and an earlier reply, up to where its text begins.
        lead: What the template writes next, before a reply's text: a blank, or a mark that replies begin with.
        trims_system, trims_first, trims_user: Whether blanks before and behind the text are left out: of the system
            prompt, of the user message after it, of every other one.
        trims_reasoning: So are line ends behind the reasoning of earlier replies.
        reasoning: The marks between which it writes the reasoning of a reply, if it does.
        inside: What it writes within a reply of its own, before the text.
        called: A reply that reasons and calls a tool, with what ends it.
    """

    bare_head: str
    head: str
    middle: str | None
    tail: str
    turn_end: str
    turn_tail: str
    opener: str
    lead: str = ""
    trims_system: tuple[bool, bool] = (False, False)
    trims_first: tuple[bool, bool] = (False, False)
    trims_user: tuple[bool, bool] = (False, False)
    trims_reasoning: bool = False
    reasoning: tuple[str, str] | None = None
    inside: str = ""
    called: str = ""

    @property
    def heads(self) -> tuple[str, ...]:
        return (self.bare_head, self.head)

    @property
    def between(self) -> tuple[str, ...]:
        texts = (self.middle, self.tail, self.turn_end, self.turn_tail, self.opener + self.lead)
        return tuple(dict.fromkeys(text for text in texts if text is not None))


def cut(render: Callable[[Sequence[Job]], Sequence[Rendered]], reasoning: tuple[str, str]) -> TemplatePieces:
    """The pieces of a template; ``render`` opens the coming reply, ``reasoning`` marks a reply's.

    Raises: TemplateError: if it cannot be used.
    """
    system, user, replied, after = ("system", _SYSTEM), ("user", _USER), ("assistant", _REPLY), ("user", _NEXT)
    before, behind = _BLANKS
    blank = tuple((role, before + text + behind) for role, text in (system, user))
    thought = ("assistant", f"{reasoning[0]}{_REASON}{reasoning[1]}\n\n{_REPLY}")
    conversations = (
        *((user,), (user, replied, after), (system, user), (system, user, replied, after)),
        *(blank[1:], blank, (user, thought, after)),
    )
    plain: list[Job] = [
        ([{"role": role, "content": text} for role, text in messages], {}) for messages in conversations
    ]
    own = {"role": "assistant", **dict.fromkeys(REASONING_KEYS, _REASON)}
    said: list[dict[str, Any]] = [
        {**own, "content": _REPLY},
        *({**own, "content": "", "tool_calls": [call]} for call in CALLS),
    ]
    asked = {"role": "user", "content": _USER}
    answered: list[Job] = [([asked, reply], {"add_generation_prompt": False}) for reply in said]
    bare, bare_turn, first, turn, blank_user, blank_system, reasoned, *own_replies = render([*plain, *answered])
    bare_head, tail = _split(_text(bare), _USER)
    head, middle = _system_pieces(first, bare_head)
    start, rest = _split(_text(bare_turn), _REPLY)
    turn_end, turn_tail = _split(rest, _NEXT)
    shown = _split(start, _USER)[1]
    if middle is not None and not turn.problem:
        start, rest = _split(turn.text, _REPLY)
        between, behind_next = _split(rest, _NEXT)
        if _SYSTEM in between:
            head, middle = bare_head, None
        else:
            turn_end, turn_tail, shown = between, behind_next, _split(start, _USER)[1]
    # What stands before an earlier reply and before the coming one, which the template may give a reasoning.
    bases = (tail, *(tail.rpartition(opening)[0] for opening in (reasoning[0], *REASONING_MARKS)))
    opener = next((base for base in bases if base and shown.startswith(base)), shown)
    lead = shown.removeprefix(opener)
    spoken, *called = [each.text.partition(_USER)[2].removeprefix(opener) for each in own_replies]
    pieces = TemplatePieces(bare_head, head, middle, tail, turn_end, turn_tail, opener, lead)
    # A template that shows earlier replies without reasoning leaves out the line ends behind it too.
    before, found, _ = reasoned.text.partition(_REPLY)
    return replace(
        pieces,
        trims_system=_trims(blank_system, _SYSTEM),
        trims_first=_trims(blank_user if middle is None else blank_system, _USER),
        trims_user=_trims(blank_user, _USER),
        trims_reasoning=bool(found) and _REASON not in before and not before.endswith("\n\n"),
        reasoning=next(filter(None, map(_reasoning_marks, (spoken, *called))), None),
        inside=spoken.partition(_REPLY)[0].replace(_REASON, ""),
        called=next(filter(None, called), ""),
    )


def _reasoning_marks(reply: str) -> tuple[str, str] | None:
    """The marks around the reasoning of a reply that the template has written."""
    opening, found, rest = reply.partition(_REASON)
    between, text, _ = rest.partition(_REPLY)
    if not text:
        mark = _MARK.match(rest)
        between = mark[1] if mark else ""
    marks = opening.strip(), between.strip()
    return marks if found and all(marks) else None


def _system_pieces(first: Rendered, bare_head: str) -> tuple[str, str | None]:
    """Template text before and after the system prompt; without a system role that goes into the user message."""
    try:
        head, rest = _split(_text(first), _SYSTEM)
        return head, _split(rest, _USER)[0]
    except TemplateError:
        return bare_head, None


def _trims(rendered: Rendered, marker: str) -> tuple[bool, bool]:
    before, found, behind = rendered.text.partition(marker)
    return (not before.endswith(_BLANKS[0]), not behind.startswith(_BLANKS[1])) if found else (False, False)


def _text(rendered: Rendered) -> str:
    if rendered.problem:
        raise TemplateError(rendered.problem)
    return rendered.text


def _split(text: str, marker: str) -> tuple[str, str]:
    if text.count(marker) != 1:
        raise TemplateError(f"it shows a message {text.count(marker)} times instead of once")
    before, after = text.split(marker)
    return before, after
