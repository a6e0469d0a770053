"""Conversations that a program writes itself, as requests for completions, in token ids.

The chat template is rendered with placeholders where the texts of a request go, once for each order of roles (and set
of tools). So the text of a message never becomes structure, and replies are the ids that were sampled:

1. A message that has the text of an earlier reply of the same conversation (blanks at its ends aside), or the ids of
   its calls, becomes that reply's ids, its reasoning included. No reply is tokenised again.
2. A request that goes on from the last reply continues its row: its ids begin with those that the model has seen.
   Whatever else, another conversation, a message that was left out or changed, begins a new row.
3. A reply's reasoning comes off first; what it says of calls makes none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rllib_lmgame.endpoints.completions import TOO_LONG, ChatMessage, ChatReply, ChatRequest, RequestError, call_data
from rllib_lmgame.policies.chat.format import ChatFormat, Prompt
from rllib_lmgame.policies.chat.reply_formats import ParsedReply
from rllib_lmgame.policies.chat.special_token_sanitizer import Part, Source
from rllib_lmgame.policies.chat.tool_calls import OPENING, read_calls
from rllib_lmgame.policies.demonstrations import Demonstration

_PLACE = "\u2402M{}\u2403"
MOST_STRUCTURES = 1024

Key = tuple[Any, ...]
"""Identifies a conversation: the keys of its messages, and the tools."""

Segment = tuple[list[Part], list[int]]
"""Parts of a prompt, and the ids of the reply behind them, if there is one."""


@dataclass
class APIConversation:
    """What a program has asked of one model in one episode: any number of conversations, with branches.

    Args:
        chat: Of :meth:`ChatFormat.for_program`.
    """

    chat: ChatFormat
    demonstrations: Sequence[Demonstration] = ()
    _known: dict[Key, list[int]] = field(default_factory=dict)
    _replies: dict[Key, np.ndarray] = field(default_factory=dict)
    _row: list[int] = field(default_factory=list)
    _ids: list[int] = field(default_factory=list)
    _request: ChatRequest | None = None
    _written: int = 0
    answer: ChatReply | None = None
    """The last reply, as the program gets it."""

    def prompt(self, request: ChatRequest) -> Prompt:
        """What the model is shown; :meth:`read` is next, or another prompt.

        Raises: RequestError: the template cannot show it, or there is no room for a reply.
        """
        known = (each if each.key in self._replies else replace(each, reasoning="") for each in request.messages)
        request = replace(request, messages=tuple(known))
        ids = self._continued(request) or self._whole(request)
        new_row = not self._row or ids[: len(self._row)] != self._row
        delta = ids if new_row else ids[len(self._row) :]
        limit, out_of_context = self._room(len(ids))
        self._request, self._ids = request, ids
        if request.max_tokens is not None and request.max_tokens < limit:
            limit, out_of_context = request.max_tokens, False
        return Prompt(ids, np.asarray(delta, np.int32), new_row, limit, out_of_context)

    def read(self, response_ids: np.ndarray) -> ChatReply:
        """The reply as the program gets it, in :attr:`answer`; :meth:`reply` takes it in."""
        assert self._request is not None
        chat, request = self.chat, self._request
        ended = len(response_ids) > 0 and int(response_ids[-1]) in chat.stop_token_ids
        text = chat.read(response_ids)
        reasoning, said = chat.reply_format.split(text)
        content, calls = read_calls(said, request.tools) if request.tools else (said, ())
        content = content if reasoning is None else content.lstrip()
        reason = "tool_calls" if calls else "stop" if ended else "length"
        self.answer = ChatReply(content, calls, reason, len(self._ids), len(response_ids), reasoning)
        return self.answer

    def reply(self, response_ids: np.ndarray) -> ParsedReply:
        """Take in the reply that was :meth:`read`; its text is the action."""
        assert self._request is not None and self.answer is not None
        self._row = [*self._ids, *response_ids.tolist()]
        self._written += len(response_ids)
        answer = self.answer
        for thought in {answer.reasoning or "", ""}:  # Most clients leave it out of what they send back.
            message = ChatMessage("assistant", answer.content, answer.calls, reasoning=thought)
            self._replies[message.key] = response_ids
            self._known[_key(self._request, (*self._request.messages, message))] = self._row
        return ParsedReply(self.chat.read(response_ids))

    def final_prompt(self) -> Prompt:
        """The last reply and where the next would begin, for the value of what an episode that was cut short left."""
        closed = self._after_reply(self._row, [Part(Source.TEMPLATE, self.chat.pieces.turn_end)])
        return Prompt([*self._row, *closed], np.asarray(closed, np.int32), False, 0)

    def _room(self, prompt: int) -> tuple[int, bool]:
        """Tokens that a reply may have, and whether the context says so. Raises: RequestError: there are none."""
        options = self.chat.options
        room, by_context = self.chat.reply_room(prompt, self._written, 1)
        if not room and by_context:
            message = f"the messages have {prompt} tokens; the context holds {options.context_length}"
            raise RequestError(message, "messages", TOO_LONG)
        if not room:
            message = f"max_tokens_per_episode = {options.max_tokens_per_episode} tokens have been written"
            raise RequestError(message, code="token_budget")
        return room, by_context

    def _continued(self, request: ChatRequest) -> list[int] | None:
        """Ids of a request that goes on from a reply that is known, if it does."""
        messages = request.messages
        for end in range(len(messages), 0, -1):
            if messages[end - 1].role != "assistant":
                continue
            before = self._known.get(_key(request, messages[:end]))
            if before is not None:
                new = (ChatMessage("user"), messages[end - 1], *messages[end:])
                _, *segments = self._segments(request, new)
                return [*before, *self._joined(before, segments)]
        return None

    def _whole(self, request: ChatRequest) -> list[int]:
        (parts, reply), *segments = self._segments(request, request.messages)
        ids = self.chat.sanitizer.encode(parts)
        return [*ids, *self._joined(ids, [([], reply), *segments])]

    def _joined(self, before: Sequence[int], segments: Sequence[Segment]) -> list[int]:
        """Ids of replies and of what stands between them, behind ``before``."""
        ids: list[int] = []
        for parts, reply in segments:
            if parts:
                ids += self._after_reply(ids or before, parts)
            ids += reply
        return ids

    def _after_reply(self, reply: Sequence[int], parts: Sequence[Part]) -> list[int]:
        """Ids of what follows a reply, which may have written the token that ends it itself."""
        return self.chat.behind(reply, self.chat.sanitizer.encode(parts, after=""))

    def _segments(self, request: ChatRequest, messages: Sequence[ChatMessage]) -> list[Segment]:
        """A conversation cut at the replies that are known; what comes before each, and at the end before the next."""
        pieces = self.chat.pieces
        folded = _folded(messages) if pieces.middle is None else list(messages)
        bare = [replace(each, calls=()) if each.key in self._replies else each for each in folded]
        texts = structure(self.chat, bare, request.tools)
        segments: list[Segment] = []
        parts: list[Part] = []
        for text, message in zip(texts, [*folded, None], strict=True):
            template = text
            known = None if message is None else self._replies.get(message.key)
            shown = pieces.opener + pieces.lead
            if known is not None and template.endswith(shown):  # As it stood before the reply was sampled.
                template = template.removesuffix(shown) + pieces.tail
            parts.append(Part(Source.TEMPLATE, template))
            if known is not None:
                segments.append((parts, known.tolist()))
                parts = []
            elif message is not None:
                parts.append(_shown(message, pieces.trims_system if message.role == "system" else pieces.trims_user))
        return [*segments, (parts, [])]


def _key(request: ChatRequest, messages: Sequence[ChatMessage]) -> Key:
    return (request.tools, *(message.key for message in messages))


def _folded(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """For a template without a system role: the first message has it."""
    if len(messages) > 1 and messages[0].role == "system" and messages[1].role == "user":
        return [ChatMessage("user", f"{messages[0].content}\n\n{messages[1].content}"), *messages[2:]]
    return [*messages]


def _shown(message: ChatMessage, trims: tuple[bool, bool]) -> Part:
    """What a program's own messages say may name tags; what users and tools say gives none."""
    text = message.content.lstrip() if trims[0] else message.content
    source = Source.GAME if message.role in ("user", "tool") else Source.OWN
    return Part(source, text.rstrip() if trims[1] else text)


def structure(chat: ChatFormat, messages: Sequence[ChatMessage], tools: str) -> list[str]:
    """What the template writes before each message's text, and at the end before the coming reply.

    A message of calls alone has none: it is written with what stands before the next one. All is kept: conversations of
    one program have few orders of roles. Raises: RequestError: it cannot show them.
    """
    key = (tuple((message.role, message.name, message.calls, _speaks(message)) for message in messages), tools)
    if key not in chat.structures:
        if len(chat.structures) >= MOST_STRUCTURES:
            chat.structures.clear()
        chat.structures[key] = _cut(chat, messages, tools)
    return chat.structures[key]


def _cut(chat: ChatFormat, messages: Sequence[ChatMessage], tools: str) -> list[str]:
    own: dict[str, Any] = {"tools": json.loads(tools)} if tools else {}
    as_text = any(message.calls for message in messages) and chat.call_form.arguments_as_text
    data = [_as_data(message, place, as_text) for place, message in enumerate(messages)]
    text = _rendered(chat, data, own)
    if tools:
        _check_tools(chat, tools, text)
    called = [part for message in messages for call in message.calls for part in call]
    _check_marks(chat, [tools, *called, *(message.name for message in messages)])
    pieces = []
    for place, message in enumerate(messages):
        if not _speaks(message):
            pieces.append("")
            continue
        before, found, text = text.partition(_PLACE.format(place))
        if not found or _PLACE.format(place) in text:
            said = f"the chat template does not show message {place} ({message.role}) once, in its place"
            raise RequestError(f"{said}; send it in another role", f"messages[{place}]")
        pieces.append(before)
    return [*pieces, text]


def _speaks(message: ChatMessage) -> bool:
    """Whether a message is more than calls: templates write them otherwise behind a text."""
    return not message.calls or bool(message.content.strip())


def _as_data(message: ChatMessage, place: int, arguments_as_text: bool) -> dict[str, Any]:
    data: dict[str, Any] = {"role": message.role, "content": _PLACE.format(place) if _speaks(message) else ""}
    if message.calls:
        data["tool_calls"] = []
    for call_id, name, arguments in message.calls:
        given: Any = arguments
        with suppress(ValueError, RecursionError):
            given = arguments if arguments_as_text else json.loads(arguments)
        data["tool_calls"].append(call_data(call_id, name, given))
    return data | ({"name": message.name} if message.name else {})


def _rendered(chat: ChatFormat, messages: Sequence[Mapping[str, Any]], own: Mapping[str, Any]) -> str:
    (rendered,) = chat.rendered([(messages, own)])
    if rendered.problem:
        roles = ", ".join(str(message["role"]) for message in messages)
        raise RequestError(f"the chat template cannot show messages of {roles}: {rendered.problem}", "messages")
    return rendered.text


def _check_tools(chat: ChatFormat, tools: str, shown: str) -> None:
    """Raises: RequestError: the template shows no tools, or has calls written in another form than is read here."""
    names = [tool["function"]["name"] for tool in json.loads(tools)]
    form = chat.call_form
    hidden = not form.shows_tools or any(name not in shown for name in names)
    problem = "it does not show them" if hidden else form.problem
    if problem:
        message = (
            f"the chat template of {chat.options.model} does not offer tools with calls between {OPENING} tags, as "
            f"JSON or <function=...>: {problem}; describe tools in a message instead"
        )
        raise RequestError(message, "tools", "unsupported_parameter")


def _check_marks(chat: ChatFormat, texts: Sequence[str]) -> None:
    """Raises: RequestError: what the template writes itself, without a placeholder, holds a control token."""
    marks = chat.tokenizer.convert_ids_to_tokens(sorted(chat.special_ids))
    hidden = next((mark for mark in marks if any(mark in text for text in texts)), None)
    if hidden is not None:
        raise RequestError(f"tools, calls of them or names hold {hidden!r}, which the model takes for structure")
