"""Readers of the formats of LMRL-Gym.

Texts of the game become messages of the user, actions replies of the assistant. The game's last text is dropped, since
no reply follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rllib_lmgame.base.text import shown
from rllib_lmgame.datasets.readers.fields import ChatExample, list_of, number_of, text_of
from rllib_lmgame.envs.games.words.car_dealer.market import sale_value
from rllib_lmgame.policies.chat.chat_datasets import ASSISTANT, USER, Message, Transcript

STEP_KEYS = {"state", "action", "reward", "done"}
"""Keys of each step in LMRL-Gym's files of mazes and chess."""
STEPS = "steps"
"""Column of a line that is a list of such steps."""


def _steps(record: Mapping[str, Any]) -> ChatExample:
    """``steps``, each with ``state``, ``action``, ``reward``, ``done``: mazes and chess. A state is complete, so
    LMRL-Gym's policies see only the last one.
    """
    said, rewards = list[tuple[str, bool]](), list[float]()
    steps = list_of(record, STEPS, "steps")
    for place, step in enumerate(steps, 1):
        if not isinstance(step, Mapping) or not step.keys() >= STEP_KEYS:
            raise ValueError(f"step {place} is {shown(step)}, not one with {', '.join(sorted(STEP_KEYS))}")
        said += [(text_of(step[key], f"step {place}: {key}"), key == "action") for key in ("state", "action")]
        rewards.append(0.0 if step["reward"] is None else number_of(step["reward"], f"step {place}: reward"))
    ended = steps[-1]["done"] is not False
    return ChatExample(_joined(said, apart=True), sum(rewards), rewards=tuple(rewards), ended=ended)


def _sequence(record: Mapping[str, Any]) -> ChatExample:
    """``sequence`` of ``[text, is_action]``, ``reward`` (of all but the first text), ``done``: Wordle's, and any."""
    said = []
    for place, pair in enumerate(list_of(record, "sequence", "pairs"), 1):
        if not isinstance(pair, list) or len(pair) != 2 or pair[1] not in (0, 1):
            raise ValueError(f"entry {place} of sequence is {shown(pair)}, not [text, is_action]")
        said.append((text_of(pair[0], f"entry {place} of sequence"), bool(pair[1])))
    rewards = _by_reply(said, record.get("reward"))
    return ChatExample(_joined(said), _sum(record, "reward"), rewards=rewards, ended=record.get("done") is not False)


def _text_history(record: Mapping[str, Any]) -> ChatExample:
    """``text_history``, in which actions have the odd places, and ``rewards``: TextNav's, and of half-seen mazes."""
    history = list_of(record, "text_history", "texts")
    said = [(text_of(each, f"entry {place + 1} of text_history"), place % 2 == 1) for place, each in enumerate(history)]
    rewards, dones = _by_reply(said, record.get("rewards")), record.get("dones")
    ended = not (isinstance(dones, list) and dones) or bool(dones[-1])
    return ChatExample(_joined(said), _sum(record, "rewards"), rewards=rewards, ended=ended)


def _pair(prompt: str, reply: str) -> Callable[[Mapping[str, Any]], ChatExample]:
    """A reader of records with one reply; ``return`` is that of the episode."""

    def read(record: Mapping[str, Any]) -> ChatExample:
        said = [(text_of(record[key], key), key == reply) for key in (prompt, reply)]
        rewarded = next((key for key in ("return", "reward") if record.get(key) is not None), None)
        value = None if rewarded is None else number_of(record[rewarded], f"its {rewarded}")
        return ChatExample(_joined(said), value, rewards=() if record.keys() >= STEP_KEYS else None)

    return read


def _lines(record: Mapping[str, Any]) -> ChatExample:
    """``lines``: questions with answers, or a talk of seller and buyer."""
    lines = list_of(record, "lines", "lines")
    return _sale(record, lines) if "buyer_info" in record else _questions(record, lines)


def _questions(record: Mapping[str, Any], lines: Sequence[Any]) -> ChatExample:
    """Twenty questions and cities: -1 for each question, 0 for the last if it was right."""
    said = [("Questions:\n", False)]
    for place, line in enumerate(lines, 1):
        question, mark, answer = text_of(line, f"line {place}").rpartition("? ")
        if not mark:
            raise ValueError(f"line {place} is {shown(line)}, not a question with its answer")
        said += [(question + "?", True), (answer, False)]
    correct, word = record.get("correct"), record.get("word")
    if not isinstance(correct, bool):
        raise ValueError(f"correct is {shown(correct)}, not true or false")
    level = str(word[0] if isinstance(word, list) and word else word or "")
    rewards = (*[-1.0] * (len(lines) - 1), float(correct) - 1.0)
    return ChatExample(_joined(said), float(correct - len(lines)), correct, level=level, rewards=rewards)


def _sale(record: Mapping[str, Any], lines: Sequence[Any]) -> ChatExample:
    """Car dealer; the seller is trained."""
    said = [("Start\n", False)]
    for place, line in enumerate(lines, 1):
        if not isinstance(line, Mapping) or line.get("role") not in ("Seller", "Buyer"):
            raise ValueError(f"line {place} is {shown(line)}, not what a Seller or a Buyer says")
        said.append((text_of(line.get("text"), f"line {place}") + "\n", line["role"] == "Seller"))
    output, buyer = record.get("output"), record["buyer_info"]
    if output is None:
        return ChatExample(_joined(said))
    if not isinstance(output, Mapping) or not isinstance(buyer, Mapping):
        raise ValueError(f"output and buyer_info must be mappings, not {shown(output)} and {shown(buyer)}")
    sold, price = output.get("car_bought") is True, output.get("buy_price")
    list_price, budget = number_of(output.get("msrp"), "msrp"), number_of(buyer.get("budget"), "budget")
    if list_price <= 0 or budget < 0 or (sold and price is None):
        return ChatExample(_joined(said), 0.0, sold)  # As LMRL-Gym takes what was not written down.
    return ChatExample(
        _joined(said), sale_value(number_of(price, "buy_price") if sold else None, list_price, budget), sold
    )


def _sum(record: Mapping[str, Any], key: str) -> float | None:
    """The return: ``return``, else the sum of rewards."""
    if record.get("return") is not None:
        return number_of(record["return"], "its return")
    if record.get(key) is None:
        return None
    return sum(number_of(value, f"a {key.removesuffix('s')}") for value in list_of(record, key, "numbers"))


def _by_reply(said: Sequence[tuple[str, bool]], rewards: Any) -> tuple[float, ...] | None:
    """Rewards of all texts, or all but the first, as rewards of the replies that :func:`_joined` makes.

    The reward of a game's text belongs to the reply before it. ``None``: there are none.
    """
    if not isinstance(rewards, list) or len(said) - len(rewards) not in (0, 1):
        return None
    numbers = [0.0] * (len(said) - len(rewards)) + [number_of(each, "a reward") for each in rewards]
    found, before, early = list[float](), False, 0.0
    for (_, is_action), reward in zip(said, numbers, strict=True):
        if is_action and not before:
            found.append(0.0)
        if found:
            found[-1] += reward
        else:
            early += reward
        before = is_action
    return (found[0] + early, *found[1:]) if found else None


def _joined(said: Iterable[tuple[str, bool]], apart: bool = False) -> Transcript:
    """A conversation from texts and whether they are actions; consecutive texts of one kind are one message."""
    messages: list[Message] = []
    for words, is_action in said:
        before = messages.pop().text if messages and messages[-1].learnt == is_action else ""
        messages.append(Message(ASSISTANT if is_action else USER, before + words, float(is_action)))
    for message in messages:
        if message.learnt and not message.text.strip():
            raise ValueError("an action is empty, and a reply that says nothing is not learnt")
    return Transcript(tuple(messages[:-1] if messages and not messages[-1].learnt else messages), apart=apart)


_LMRL: Mapping[tuple[str, ...], Callable[[Mapping[str, Any]], ChatExample]] = {
    ("sequence",): _sequence,
    ("text_history",): _text_history,
    ("in_text", "out_text"): _pair("in_text", "out_text"),
    ("from_state", "action"): _pair("from_state", "action"),
    ("state", "action"): _pair("state", "action"),
    ("lines",): _lines,
    (STEPS,): _steps,
}
"""Distinctive columns -> reader."""


def is_lmrl(record: Mapping[str, Any]) -> bool:
    """Whether a record has the columns of one of LMRL-Gym's formats."""
    return any(all(key in record for key in keys) for keys in _LMRL)


def lmrl(record: Mapping[str, Any]) -> ChatExample:
    """Read a record of LMRL-Gym. Raises: ValueError: what is wrong."""
    return next(read for keys, read in _LMRL.items() if all(key in record for key in keys))(record)
