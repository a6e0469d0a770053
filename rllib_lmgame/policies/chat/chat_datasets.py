"""Recorded conversations as token ids with a mask per message: data for supervised learning.

The model's own chat template writes them. Guarantees, each with a test:

1. A learnt reply stands behind the prompt that the template gives for all before it, and its ids are those that it was
   given with it: what is learnt is what would be played.
2. Its ids go from behind that prompt to the token that ends it, which is learnt too. Nothing else is.
3. Where the template still shows a reply as it was learnt, the next one continues its row. Otherwise (it drops earlier
   reasoning) each learnt reply begins a row, whose context is as the template shows it.
4. No text of a message or tool gives the id of a control token: what is written like one is broken apart.
5. All that a conversation says is shown: texts, calls of tools and their arguments, tools, and the reasoning of what is
   learnt. A template that leaves some of it out cannot write it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from rllib_lmgame.policies.chat.format import ChatFormat
from rllib_lmgame.policies.chat.template import REASONING_KEYS, Job, Messages, TemplateError

SYSTEM, USER, ASSISTANT, TOOL = "system", "user", "assistant", "tool"
ROLES = (SYSTEM, USER, ASSISTANT, TOOL)

_OPENED = 100
"""Characters of a prompt in which a reply may have begun."""
REASONING = REASONING_KEYS[0]
"""What a :class:`Message` has its reasoning under, if that is no part of its text."""


@dataclass(frozen=True)
class Message:
    """One message.

    Attributes:
        role: One of :data:`ROLES`.
        text: What it says.
        weight: What the loss of its tokens counts; 0: it is not learnt. Of the assistant alone above 0.
        more: What else the template may show: ``tool_calls``, ``name``, ``reasoning_content`` ...
    """

    role: str
    text: str
    weight: float = 0.0
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def learnt(self) -> bool:
        return self.weight > 0


@dataclass(frozen=True)
class Transcript:
    """A conversation, and the tools it was given, as JSON schemas.

    ``apart``: each learnt reply sees only what was said since the one before, and begins a row.
    """

    messages: tuple[Message, ...]
    tools: tuple[Any, ...] = ()
    apart: bool = False

    @cached_property
    def learnt(self) -> tuple[int, ...]:
        """Places of the messages that are learnt."""
        return tuple(place for place, said in enumerate(self.messages) if said.learnt)

    @property
    def parts(self) -> Sequence[Transcript]:
        """The conversations that a model sees of it: itself, or one for each learnt reply."""
        if not self.apart:
            return [self]
        starts = (0, *(place + 1 for place in self.learnt))
        ends = (place + 1 for place in self.learnt)
        return [Transcript(self.messages[a:b], self.tools) for a, b in zip(starts, ends, strict=False)]

    @property
    def kind(self) -> tuple[Any, ...]:
        """What a template depends on: the order of roles, what is learnt, and which other fields messages have."""
        seen = [(said.role, said.learnt, tuple(sorted(said.more)), not said.text.strip()) for said in self.messages]
        return (bool(self.tools), *seen)


@dataclass(frozen=True)
class LearntTurn:
    """A learnt reply: int32 ids of what stands before it (all of that if ``new_row``) and of the reply, its weight.

    ``observed`` is bool over the prompt: what users and tools have said since the last learnt reply; ``None``: nobody
    asked.
    """

    prompt_ids: np.ndarray
    reply_ids: np.ndarray
    new_row: bool
    weight: float
    observed: np.ndarray | None = None


class TranscriptWriter:
    """Writes transcripts in one policy's chat format."""

    def __init__(self, chat: ChatFormat) -> None:
        self.chat = chat
        tokens = chat.tokenizer.convert_ids_to_tokens(sorted(chat.sanitizer.vocabulary.control))
        within = [token for token in tokens if any(token in mark for mark in chat.sanitizer.vocabulary.marks)]
        self._control = _any_of(tokens)
        self._control_in_replies = _any_of([token for token in tokens if token not in within])
        self._ends = _any_of(chat.tokenizer.convert_ids_to_tokens(sorted(chat.special_ids)))

    def write(self, transcripts: Sequence[Transcript]) -> list[list[LearntTurn] | TemplateError]:
        """The learnt turns of each, or why the template cannot write it."""
        found: list[list[LearntTurn] | TemplateError] = []
        for transcript in transcripts:
            try:
                found.append([turn for part in transcript.parts for turn in self._turns(part)])
            except TemplateError as error:
                found.append(error)
        return found

    def _jobs(self, transcript: Transcript, messages: Messages) -> Iterator[Job]:
        tools: dict[str, Any] = {"tools": _broken_apart(transcript.tools, self._control)} if transcript.tools else {}
        joined = len(transcript.messages) - len(messages)
        for place in transcript.learnt:
            yield messages[: place - joined], {**tools, "add_generation_prompt": True}
            yield messages[: place - joined + 1], {**tools, "add_generation_prompt": False}

    def _messages(self, transcript: Transcript) -> list[dict[str, Any]]:
        """The messages as the template takes them; one without a system role gets the rules in the first other one."""
        messages = []
        for said in transcript.messages:
            control = self._control_in_replies if said.role == ASSISTANT else self._control
            messages.append(_broken_apart({"role": said.role, "content": said.text, **self._more(said)}, control))
        if self.chat.pieces.middle is None and [said["role"] for said in messages[:2]] == [SYSTEM, USER]:
            first, second, *rest = messages
            messages = [{**second, "content": f"{first['content']}\n\n{second['content']}"}, *rest]
        return messages

    def _more(self, said: Message) -> dict[str, Any]:
        """The other fields of a message, with the names and forms that templates expect."""
        more = dict(said.more)
        if REASONING in more:
            more |= dict.fromkeys(REASONING_KEYS, more[REASONING])
        if "tool_calls" in more and self.chat.call_form.arguments_as_text:
            more["tool_calls"] = [_with_arguments_as_text(call) for call in more["tool_calls"]]
        return more

    def _check_prompt(self, prompt: str, transcript: Transcript) -> None:
        """Raises: TemplateError: the prompt before the last learnt reply leaves out a message, a call or a tool."""
        tools = [tool.get("function", tool) for tool in transcript.tools if isinstance(tool, Mapping)]
        for name in [tool.get("name") for tool in tools if isinstance(tool, Mapping)]:
            self._check_shown(prompt if self.chat.call_form.shows_tools else "", name, f"the tool {name!r}")
        for said in transcript.messages[: transcript.learnt[-1]]:
            if said.role == ASSISTANT:
                self._check_reply(prompt, said, reasoning=False)
            else:  # Some take these words out of a system message and act on them.
                self._check_shown(prompt, re.split(r"/(?:no_)?think\b", said.text), f"what {said.role} says")

    def _check_reply(self, shown: str, said: Message, *, reasoning: bool) -> None:
        """Raises: TemplateError: ``shown`` leaves out some of what a reply says."""
        form = self.chat.reply_format
        thought, text = form.split(said.text)
        self._check_shown(shown, text, "what the assistant says")
        for call in said.more.get("tool_calls", ()):
            function = call.get("function", call) if isinstance(call, Mapping) else {}
            called = [function.get("name"), function.get("arguments")]
            self._check_shown(shown, called, f"a call of {function.get('name')!r}")
        if reasoning:
            hint = f"; write it between {form.think_opening} and {form.think_closing} in front of the text"
            self._check_shown(shown, [thought, said.more.get(REASONING)], "the reasoning of a reply", hint)

    def _check_shown(self, shown: str, said: Any, what: str, hint: str = "") -> None:
        """Raises: TemplateError: a text, number or key of ``said`` is not in ``shown``."""
        for leaf in _leaves(said):
            apart = {_broken_apart(leaf, control) for control in (None, self._control, self._control_in_replies)}
            if not any(form in shown for each in apart for form in _written(each)):
                raise TemplateError(f"it does not show {what}{hint}")

    def _turns(self, transcript: Transcript) -> Iterator[LearntTurn]:
        messages = self._messages(transcript)
        rendered = self.chat.rendered([*self._jobs(transcript, messages)])
        row, joined, last = "", len(transcript.messages) - len(messages), transcript.learnt[-1]
        for number, place in enumerate(transcript.learnt):
            before, whole = rendered[2 * number : 2 * number + 2]
            if problem := before.problem or whole.problem:
                raise TemplateError(problem)
            said = replace(transcript.messages[place], text=messages[place - joined]["content"])
            prompt, reply, ended = self._split(before.text, whole.text, said)
            if place == last:
                self._check_prompt(before.text, transcript)
            elif not ended:
                so_far, after = prompt + reply, rendered[2 * number + 2].text
                end = self._ends.match(after, len(so_far)) if self._ends and after.startswith(so_far) else None
                if end is not None:  # The mark of the message behind it ends it in play, too.
                    reply, ended = reply + end[0], True
            new_row = not row or not prompt.startswith(row)
            shown = prompt if new_row else prompt[len(row) :]
            between = messages[transcript.learnt[number - 1] + 1 - joined : place - joined] if number else []
            yield self._turn(shown, reply, ended, new_row, said.weight, between)
            row = prompt + reply

    def _turn(self, shown: str, reply: str, ended: bool, new_row: bool, weight: float, between: Messages) -> LearntTurn:
        """``between`` are the messages since the last learnt reply; none before the first."""
        sanitizer, tail = self.chat.sanitizer, self.chat.pieces.tail
        prompt_ids = sanitizer.encode_rendered(shown, after=None if new_row else "")
        reply_ids = sanitizer.encode_rendered(reply, after=tail if shown.endswith(tail) else "")
        if not ended:
            reply_ids = [*reply_ids, self.chat.end_id]
        observed = self._observed(prompt_ids, shown, between) if self.chat.tells_observed else None
        return LearntTurn(np.asarray(prompt_ids, np.int32), np.asarray(reply_ids, np.int32), new_row, weight, observed)

    def _observed(self, ids: Sequence[int], shown: str, between: Messages) -> np.ndarray:
        """Which of a prompt's ids hold what users and tools say in ``between``, as far as it is ``shown`` unchanged."""
        end, spans = len(shown), []
        for message in reversed(between):
            text = message["content"].strip() if isinstance(message["content"], str) else ""
            begin = shown.rfind(text, 0, end) if text else -1
            if begin >= 0:
                end = begin
                spans += [(begin, begin + len(text))] if message["role"] in (USER, TOOL) else []
        return self.chat.holding(ids, shown, spans)

    def _split(self, before: str, whole: str, said: Message) -> tuple[str, str, bool]:
        """The prompt, the text of the reply behind it, and whether a token that ends replies is the last of that.

        ``before`` is the prompt as the template gives it, ``whole`` the conversation with the reply.
        """
        prompt, rest = self._behind(before, whole, said)
        self._check_reply(prompt[-_OPENED:] + rest, said, reasoning=True)
        ends = [*self._ends.finditer(rest)] if self._ends else []
        last: re.Match[str] | None = None
        at = len(rest)
        while ends and not rest[ends[-1].end() : at].strip():  # Of several at the end, the first ends the reply.
            last = ends.pop()
            at = last.start()
        if last is not None:
            return prompt, rest[: last.end()], True
        text = said.text.strip()
        found = rest.find(text)
        if found < 0:  # The template shows the reply otherwise, without its reasoning for one.
            found, text = 0, ""
        if text and not said.more:
            end = self._ends.search(rest, found + len(text)) if self._ends else None
        else:  # What calls of tools are written like is the template's.
            end = ends[-1] if ends else None
        if end is not None:
            return prompt, rest[: end.end()], True
        return prompt, rest[: found + len(text)] if text and not said.more else rest.rstrip(), False

    def _behind(self, before: str, whole: str, said: Message) -> tuple[str, str]:
        """The prompt, and what stands behind it in ``whole``: also where the template gives the coming reply more."""
        form, text = self.chat.reply_format, said.text
        reasons = form.think_end(text) is not None
        if whole.startswith(before):
            rest = whole[len(before) :]
            lost = reasons and form.think_closing not in rest
            return before, self._with_reasoning(text, rest) if lost else rest
        base, opening, _ = before.rpartition(form.think_opening)
        if opening and whole.startswith(base):
            given, rest = before[len(base) :], whole[len(base) :]
            if form.think_closing in given:  # The coming reply begins with a closed reasoning.
                return (base if reasons else before), rest
            if not reasons:
                return before, f"{form.think_closing}\n\n{rest.removeprefix(self.chat.pieces.lead)}"
            opened = given if text.lstrip().startswith(given) else form.think_opening
            return before, self._with_reasoning(text, rest).lstrip().removeprefix(opened)
        place = whole.rfind(text.strip())
        if place < 0 or not text.strip():
            raise TemplateError("it does not show a reply behind the prompt that it gives for it")
        return before, self.chat.pieces.lead + whole[place:]

    def _with_reasoning(self, text: str, rest: str) -> str:
        """A reply as it was said, where ``rest`` shows it without its reasoning."""
        answer = text[self.chat.reply_format.think_end(text) :].strip()
        place = rest.find(answer)
        if place < 0:
            raise TemplateError("it does not show what a reply says behind its reasoning")
        return self.chat.pieces.lead + text.strip() + rest[place + len(answer) :]


def _with_arguments_as_text(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), Mapping):
        return call
    return {**call, "function": {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}}


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from value
        yield from _leaves([*value.values()])
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _leaves(each)
    elif value is not None:
        yield value


def _written(leaf: Any) -> tuple[str, ...]:
    """The forms in which a template may write a leaf: as it is, or within JSON, or JSON within JSON."""
    text = leaf.strip() if isinstance(leaf, str) else str(leaf)
    once = [json.dumps(text, ensure_ascii=ascii)[1:-1] for ascii in (False, True)]
    return (text, text.lower(), *once, *(json.dumps(each, ensure_ascii=False)[1:-1] for each in once))


def _any_of(tokens: Sequence[str]) -> re.Pattern[str] | None:
    longest_first = sorted(filter(None, tokens), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def _broken_apart(value: Any, control: re.Pattern[str] | None) -> Any:
    """``value`` with a blank within what is written like a control token, in all of its texts and keys."""
    if isinstance(value, str):
        return value if control is None else control.sub(lambda found: f"{found[0][:1]} {found[0][1:]}", value)
    if isinstance(value, Mapping):
        return {_broken_apart(key, control): _broken_apart(each, control) for key, each in value.items()}
    return [_broken_apart(each, control) for each in value] if isinstance(value, list | tuple) else value
