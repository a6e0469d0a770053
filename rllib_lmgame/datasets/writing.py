"""Writes played episodes as conversations, in formats of supervised learning."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rllib_lmgame.envs.contract.session import Observation
from rllib_lmgame.policies.chat.chat_datasets import ASSISTANT, SYSTEM, USER
from rllib_lmgame.policies.chat.messages import MessageConversation
from rllib_lmgame.policies.options import LanguageModelOptions
from rllib_lmgame.rollouts.episodes import level_in

Message = dict[str, Any]
_SHAREGPT = {SYSTEM: SYSTEM, USER: "human", ASSISTANT: "gpt"}


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
    agent, messages, learnt = seat["agent_id"], list[Message](), list[tuple[bool, float]]()
    earned = iter(_earned(record, agent))
    talk = MessageConversation(options, record["instructions"], game=record["game"], role=seat["role"])
    for step in record["steps"]:
        if agent not in step["actions"]:
            continue
        messages = talk.prompt(Observation(step["observations"][agent], turns_left=step["turns_left"].get(agent)))
        action = step["actions"][agent]
        reply = talk.reply_format.write(step["thoughts"].get(agent), action)
        talk.reply(reply)
        learnt.append((bool(action.strip()), next(earned)))
        messages = [*messages, {"role": ASSISTANT, "content": reply}]
        if options.history != "keep":
            yield _marked(messages, learnt[-1:])
    if options.history == "keep":
        yield _marked(messages, learnt)


def _earned(record: Mapping[str, Any], agent: str) -> list[float]:
    """Reward of each reply of a seat, until the next."""
    earned = list[float]()
    for step in record["steps"]:
        if agent in step["actions"]:
            earned.append(0.0)
        if earned:
            earned[-1] += step["rewards"].get(agent, 0.0)
    return earned


def _marked(messages: Sequence[Message], learnt: Sequence[tuple[bool, float]]) -> list[Message]:
    """Messages with ``learnt`` and ``earned`` of the last replies; earlier ones (demonstrations) are not trained on."""
    shown = [message["role"] == ASSISTANT for message in messages].count(True)
    marks = iter([*[(False, 0.0)] * (shown - len(learnt)), *learnt])
    return [
        {**each, **dict(zip(("learnt", "earned"), next(marks), strict=True))} if each["role"] == ASSISTANT else each
        for each in messages
    ]


def _messages(messages: list[Message], record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"messages": [_plain(message, {"weight": 0}) for message in messages]}


def _plain(message: Message, unlearnt: Mapping[str, Any]) -> Message:
    mark = unlearnt if message["role"] == ASSISTANT and not message["learnt"] else {}
    return {"role": message["role"], "content": message["content"], **mark}


def _sharegpt(messages: list[Message], record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    said = [(_SHAREGPT[message["role"]], message) for message in messages]
    yield {
        "conversations": [
            {"from": who, "value": each["content"], **({} if each.get("learnt", True) else {"loss": False})}
            for who, each in said
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
    """One record for each trained reply."""
    plain = [{"role": each["role"], "content": each["content"]} for each in messages]
    for place, message in enumerate(messages):
        if message.get("learnt"):
            yield {"prompt": plain[:place], "completion": plain[place : place + 1]}


def _lmrl(messages: list[Message], record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """LMRL-Gym reads texts end to end, so texts that are no actions end a line."""
    said = [(each["content"], each.get("learnt", False)) for each in messages]
    yield {
        "sequence": [[text if is_action else f"{text}\n", is_action] for text, is_action in said],
        "reward": [each.get("earned", 0.0) for each in messages[1:]],
        "done": record["terminated"],
    }


FORMS: Mapping[str, Callable[[list[Message], Mapping[str, Any]], Iterator[dict[str, Any]]]] = {
    "messages": _messages,
    "sharegpt": _sharegpt,
    "agentgym": _agentgym,
    "prompt_completion": _prompt_and_completion,
    "lmrl": _lmrl,
}
