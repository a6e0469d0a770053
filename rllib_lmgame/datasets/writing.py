"""Writes played episodes as conversations, in formats of supervised learning."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rllib_lmgame.envs.contract.session import Observation
from rllib_lmgame.policies.chat.chat_datasets import ASSISTANT, SYSTEM
from rllib_lmgame.policies.chat.messages import MessageConversation
from rllib_lmgame.policies.options import LanguageModelOptions
from rllib_lmgame.rollouts.episodes import level_in

Message = dict[str, Any]


def conversations(record: Mapping[str, Any], form: str, options: LanguageModelOptions) -> Iterator[dict[str, Any]]:
    """The conversation of each seat in an episode's record (:func:`~.episode_log.episode_record`), in one of
    :data:`FORMS` and with the reply format of ``options``; with game, level, role and return.

    Unless ``history`` is ``keep``, each reply has its own conversation, in which only it is trained on. Empty or
    unreadable replies are not trained on.
    """
    infos = (record["infos"], *(step["infos"] for step in record["steps"]))
    for seat in record["trajectories"]:
        about = {
            "game": record["game"],
            "level": level_in(infos) or str(record["seed"]),
            "role": seat["role"],
            "return": seat["return"],
            "success": seat["success"],
        }
        for messages in _said(record, seat, options):
            if any(message["role"] == ASSISTANT and message["learnt"] for message in messages):
                for columns in FORMS[form](messages, record):
                    yield {**columns, **about}


def _said(record: Mapping[str, Any], seat: Mapping[str, Any], options: LanguageModelOptions) -> Iterator[list[Message]]:
    agent, messages, learnt = seat["agent_id"], list[Message](), list[bool]()
    talk = MessageConversation(options, record["instructions"], game=record["game"], role=seat["role"])
    for step in record["steps"]:
        if agent not in step["actions"]:
            continue
        messages = talk.prompt(Observation(step["observations"][agent], turns_left=step["turns_left"].get(agent)))
        action = step["actions"][agent]
        reply = talk.reply_format.write(step["thoughts"].get(agent), action)
        talk.reply(reply)
        learnt.append(bool(action.strip()))
        messages = [*messages, {"role": ASSISTANT, "content": reply}]
        if options.history != "keep":
            yield _marked(messages, learnt[-1:])
    if options.history == "keep":
        yield _marked(messages, learnt)


def _marked(messages: Sequence[Message], learnt: Sequence[bool]) -> list[Message]:
    """Messages with ``learnt`` of the last replies; earlier ones (demonstrations) are not trained on."""
    shown = [message["role"] == ASSISTANT for message in messages].count(True)
    marks = iter([*[False] * (shown - len(learnt)), *learnt])
    return [{**each, "learnt": next(marks)} if each["role"] == ASSISTANT else each for each in messages]


def _messages(messages: list[Message], record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield {
        "messages": [
            {"role": each["role"], "content": each["content"], **({} if each.get("learnt", True) else {"weight": 0})}
            for each in messages
        ]
    }


def _agentgym(messages: list[Message], record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rules are the first message of the human, with a reply that is not trained on."""
    said = []
    for each in messages:
        learnt = each["learnt"] if each["role"] == ASSISTANT else None
        who = "gpt" if each["role"] == ASSISTANT else "human"
        said.append({"from": who, "loss": learnt, "value": each["content"]})
        if each["role"] == SYSTEM:
            said.append({"from": "gpt", "loss": False, "value": "OK."})
    yield {"conversations": said, "item_id": f"{record['game'].rpartition('/')[2]}_{record['seed']}"}


def _prompt_and_completion(messages: list[Message], record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    plain = [{"role": each["role"], "content": each["content"]} for each in messages]
    for place, message in enumerate(messages):
        if message.get("learnt"):
            yield {"prompt": plain[:place], "completion": plain[place : place + 1]}


FORMS: Mapping[str, Callable[[list[Message], Mapping[str, Any]], Iterator[dict[str, Any]]]] = {
    "messages": _messages,
    "agentgym": _agentgym,
    "prompt_completion": _prompt_and_completion,
}
