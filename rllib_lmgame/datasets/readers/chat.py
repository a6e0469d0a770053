"""Readers of formats of conversations.

Replies of the assistant are trained on, unless the record says which: ``loss`` (true or false) or ``weight`` (a number)
of a message. In AgentGym's format only messages with ``loss: true`` are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rllib_lmgame.base.errors import ConfigError, did_you_mean
from rllib_lmgame.base.text import shown
from rllib_lmgame.datasets.readers import lmrl_gym
from rllib_lmgame.datasets.readers.fields import ChatExample as ChatExample
from rllib_lmgame.datasets.readers.fields import list_of, number_of, text_of, unpacked
from rllib_lmgame.policies.chat.chat_datasets import (
    ASSISTANT,
    REASONING,
    ROLES,
    SYSTEM,
    TOOL,
    USER,
    Message,
    Transcript,
)
from rllib_lmgame.policies.chat.template import REASONING_KEYS

LOG = "log"
SPEAKERS = {
    **{role: role for role in ROLES},
    "developer": SYSTEM,
    **dict.fromkeys(("human", "user"), USER),
    **dict.fromkeys(("gpt", "assistant", "model", "bot", "chatgpt"), ASSISTANT),
    **dict.fromkeys(("tool", "function", "observation", "function_response", "tool_response", "ipython"), TOOL),
}
"""Speaker in a file -> role of the chat template."""
_KEPT = ("tool_calls", "name", "tool_call_id")
"""Other fields of a message, for templates that show them."""
_RETURNS, _LEVELS, _GAMES = ("reward", "return"), ("item_id", "level"), ("game", "env")


def is_log(record: Mapping[str, Any]) -> bool:
    """Whether a record is of an episode log."""
    return "trajectories" in record or "final_observations" in record


def form_of(record: Mapping[str, Any]) -> str:
    """The format of a record. Raises: ValueError: it is unknown."""
    if is_log(record):
        return LOG
    found = next((form for form, (is_one, _) in FORMS.items() if is_one(record)), None)
    if found is None:
        known = f"{', '.join(FORMS)} and {LOG}"
        raise ValueError(f"its columns are {', '.join(map(str, record)) or 'none'}; known are {known}")
    return found


def read_record(record: Mapping[str, Any], where: str) -> ChatExample:
    """The conversation in a record. Raises: ConfigError: names ``where`` and what is wrong."""
    try:
        parsed = FORMS[form_of(record)][1](record)
        learnt = parsed.transcript.learnt
        if not learnt:
            raise ValueError("nothing of it is learnt: it has no reply of the assistant, or none with a loss")
        if not learnt[0]:
            raise ValueError("it begins with a learnt reply, and nothing stands before that")
        success = record.get("success")
        return replace(
            parsed,
            transcript=replace(parsed.transcript, tools=tuple(_tools(record.get("tools")))),
            game=_first(record, _GAMES),
            level=parsed.level or _first(record, _LEVELS),
            success=success if isinstance(success, bool) else parsed.success,
            rewards=_rewards_of(parsed, len(learnt)),
            where=where,
        )
    except ValueError as error:
        raise ConfigError("data", f"{where}: {error}") from None


def _rewards_of(parsed: ChatExample, replies: int) -> tuple[float, ...] | None:
    """Reward of each trained reply; ``None``: unknown."""
    if parsed.rewards is not None and len(parsed.rewards) in (0, replies):
        return parsed.rewards or None
    return None if parsed.episode_return is None else (*[0.0] * (replies - 1), parsed.episode_return)


def read_pair(record: Mapping[str, Any], where: str) -> tuple[ChatExample, ChatExample]:
    """The chosen and the rejected conversation in a record. Raises: ConfigError: names ``where``."""
    try:
        sides = []
        for key in ("chosen", "rejected"):
            if record.get(key) is None:
                raise ValueError(f"it has no {key}; its columns are {', '.join(map(str, record))}")
            sides.append(_side(record, key, ASSISTANT))
        before = [Message(SYSTEM, text_of(record["system"], "system"))] if record.get("system") else []
        prompt = _side(record, "prompt", USER) if record.get("prompt") is not None else []
        if prompt and not all(_says_again(side, prompt) for side in sides):
            before += [Message(said.role, said.text, more=said.more) for said in prompt]
        else:
            shared = next(
                (n for n, (a, b) in enumerate(zip(*sides, strict=False)) if _words(a) != _words(b)),
                min(map(len, sides)),
            )
            before += [Message(said.role, said.text, more=said.more) for said in sides[0][:shared]]
            sides = [side[shared:] for side in sides]
        if not before and isinstance(record["chosen"], str) and isinstance(record["rejected"], str):
            raise ValueError("chosen and rejected are texts, which need a prompt beside them")
        if not before:
            raise ValueError("chosen and rejected begin differently and have no prompt; a pair is of one level")
        for key, side in zip(("chosen", "rejected"), sides, strict=True):
            if not any(said.learnt for said in side):
                raise ValueError(f"{key} has no reply of the assistant" + " that is its own" * ("prompt" not in record))
        if list(map(_words, sides[0])) == list(map(_words, sides[1])):
            raise ValueError("chosen and rejected say the same")
        tools, game = tuple(_tools(record.get("tools"))), _first(record, _GAMES)
        level = _first(record, _LEVELS)
        chosen, rejected = (
            ChatExample(Transcript((*before, *side), tools), level=level, game=game, where=where) for side in sides
        )
        return chosen, rejected
    except ValueError as error:
        raise ConfigError("data", f"{where}: {error}") from None


def _side(record: Mapping[str, Any], key: str, speaker: str) -> list[Message]:
    """A text as one message of the speaker, or a list of messages in any format."""
    value = record[key]
    if isinstance(value, str):
        if not value.strip():
            raise ValueError(f"{key} is empty")
        return [Message(speaker, text_of(value, key), float(speaker == ASSISTANT))]
    messages = list_of(record, key)
    marked = isinstance(messages[0], Mapping) and "from" in messages[0]
    return list(_all_said(messages, *(("from", "value") if marked else ("role", "content"))))


def _says_again(side: Sequence[Message], prompt: Sequence[Message]) -> bool:
    """Whether a side repeats the prompt, perhaps behind a system message."""
    words, own = list(map(_words, side)), list(map(_words, prompt))
    return own == words[: len(own)] or (side[0].role == SYSTEM and own == words[1 : len(own) + 1])


def _words(said: Message) -> tuple[Any, ...]:
    return said.role, said.text.strip(), said.more


def _first(record: Mapping[str, Any], keys: Sequence[str]) -> str:
    return str(next((record[key] for key in keys if record.get(key) is not None), ""))


def _return_of(record: Mapping[str, Any]) -> float | None:
    value = next((record[key] for key in _RETURNS if record.get(key) is not None), None)
    return None if value is None else number_of(value, "its return")


def _conversations(record: Mapping[str, Any]) -> Iterator[Message]:
    system = record.get("system")
    if system:
        yield Message(SYSTEM, text_of(system, "system"))
    yield from _all_said(list_of(record, "conversations"), speaker="from", text="value")


def _is_agentgym(record: Mapping[str, Any]) -> bool:
    """Whether each message has ``loss`` and one is true; if only some have it, the format is ShareGPT's."""
    said = record.get("conversations")
    messages = said if isinstance(said, Sequence) else ()
    losses = [each.get("loss", "") if isinstance(each, Mapping) else "" for each in messages]
    return "" not in losses and True in losses


def _agentgym(record: Mapping[str, Any]) -> Iterator[Message]:
    """Messages, of which only those with ``loss: true`` are trained on."""
    said = [
        {**each, "loss": False} if isinstance(each, Mapping) and each.get("loss") is None else each
        for each in list_of(record, "conversations")
    ]
    yield from _conversations({**record, "conversations": said})


def _messages(record: Mapping[str, Any]) -> Iterator[Message]:
    yield from _all_said(list_of(record, "messages"))


def _prompt_and_completion(record: Mapping[str, Any]) -> Iterator[Message]:
    for key, role, learnt in (("prompt", USER, False), ("completion", ASSISTANT, True)):
        value = record.get(key)
        if isinstance(value, str):
            yield Message(role, text_of(value, key), float(learnt))
        else:
            for said in _all_said(list_of(record, key)):
                yield said if learnt else Message(said.role, said.text, more=said.more)


Reader = Callable[[Mapping[str, Any]], ChatExample]


def _with(*keys: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda record: record.keys() >= {*keys}


def _parsed(read: Callable[[Mapping[str, Any]], Iterator[Message]]) -> Reader:
    return lambda record: ChatExample(Transcript(tuple(read(record))), _return_of(record))


FORMS: Mapping[str, tuple[Callable[[Mapping[str, Any]], bool], Reader]] = {
    "agentgym": (_is_agentgym, _parsed(_agentgym)),
    "sharegpt": (_with("conversations"), _parsed(_conversations)),
    "messages": (_with("messages"), _parsed(_messages)),
    "prompt_completion": (_with("prompt", "completion"), _parsed(_prompt_and_completion)),
    "lmrl": (lmrl_gym.is_lmrl, lmrl_gym.lmrl),
}
"""Format -> test of a record, tried in this order, and reader."""


def _all_said(messages: Sequence[Any], speaker: str = "role", text: str = "content") -> Iterator[Message]:
    for number, message in enumerate(messages, 1):
        try:
            if not isinstance(message, Mapping):
                raise ValueError(f"must be a mapping, not {shown(message)}")
            yield _said(message, speaker, text)
        except ValueError as error:
            raise ValueError(f"message {number}: {error}") from None


def _said(message: Mapping[str, Any], speaker: str, text: str) -> Message:
    who = message.get(speaker)
    if who is None:
        raise ValueError(f"has no {speaker!r}; it has {', '.join(map(str, message)) or 'nothing'}")
    role = SPEAKERS.get(who.lower()) if isinstance(who, str) else None
    if role is None:
        hint = did_you_mean(who, SPEAKERS, f"known are {', '.join(SPEAKERS)}")
        raise ValueError(f"{speaker} {shown(who)} is unknown; {hint}")
    more = {key: message[key] for key in _KEPT if message.get(key)}
    if message.get("function_call"):
        raise ValueError("has a function_call; write calls as tool_calls")
    reasoning = next((message[key] for key in REASONING_KEYS if message.get(key)), None)
    if reasoning is not None:
        more[REASONING] = text_of(reasoning, "its reasoning")
    if "tool_calls" in more:
        more["tool_calls"] = [_call(call) for call in list_of(more, "tool_calls")]
    content = message.get(text)
    if content is None and "tool_calls" in more:
        content = ""
    said = text_of(content, text)
    weight = _weight(message, role)
    if weight and not (said.strip() or more):
        raise ValueError(f"{text} is empty, and a reply that says nothing is not learnt")
    return Message(role, said, weight, more)


def _weight(message: Mapping[str, Any], role: str) -> float:
    """Weight of the message's loss: the given one, else 1 for replies and 0 for others."""
    loss, weight = message.get("loss"), message.get("weight")
    if loss is not None and not isinstance(loss, bool):
        raise ValueError(f"loss is {shown(loss)}; it must be true, false or null")
    if weight is not None and (
        isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= 1e30
    ):
        raise ValueError(f"weight is {shown(weight)}; it must be a number of at least 0")
    asked = (loss is None or loss) and (weight is None or weight > 0)
    if role != ASSISTANT:
        if loss or weight:
            raise ValueError(f"asks for a loss of what {role} says; replies of the assistant alone are learnt")
        return 0.0
    return (1.0 if weight is None else float(weight)) if asked else 0.0


def _call(call: Any) -> Any:
    """A tool call with its arguments as a mapping, as templates expect."""
    function = call.get("function") if isinstance(call, Mapping) else None
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    if not isinstance(arguments, str):
        return call
    read = unpacked(arguments or "{}", "what a tool is called with")
    return {**call, "function": {**function, "arguments": read}}  # type: ignore[dict-item]


def _tools(tools: Any) -> Sequence[Any]:
    tools = unpacked(tools or None, "tools")
    if tools is None:
        return ()
    if not isinstance(tools, list):
        raise ValueError(f"tools must be a list, not {shown(tools)}")
    return tools
