"""Problems of mathematics from files, in the forms they are published in.

JSON lines, one JSON array, or parquet. A record has ``problem`` or ``question``, and ``answer`` or a ``solution`` that
ends in ``\\boxed{}`` (GSM8K: an ``answer`` ending in ``#### number``); perhaps ``options`` or ``choices`` to choose
from, and ``subject``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.contract.base import InvalidAction
from rllib_lmgame.envs.support.datasets import category_in, once_per_file, readable
from rllib_lmgame.envs.support.json_stream import stream_records
from rllib_lmgame.envs.support.mathematics.results import Answer, read_answer

KEY = "env_config.data"
LETTERS = "ABCDEFGHIJ"
QUESTIONS, ANSWERS, CHOICES = ("problem", "question"), ("answer", "solution"), ("options", "choices")


@dataclass(frozen=True)
class MathProblem:
    """A problem.

    Attributes:
        question: As it is asked, the choices below it.
        gold: Its answer.
        answer: The same as text.
        choice: Of a multiple choice, what stands behind the right letter.
        solution: The worked solution, where there is one.
        subject: As the data set says it.
    """

    question: str
    gold: Answer
    answer: str
    choice: Answer | None = None
    solution: str = ""
    subject: str = ""


@once_per_file
def load_problems(path: str) -> tuple[MathProblem, ...]:
    """Problems of a file. Raises: ConfigError: names file and record of what is wrong."""
    found = tuple(_problem(record, where) for where, record in stream_records(path, {}, KEY))
    if not found:
        raise ConfigError(KEY, f"{path} holds no problems; expected records with `problem` and `answer`")
    return found


def _problem(record: Mapping[str, Any], where: str) -> MathProblem:
    question, choices = _field(record, QUESTIONS, where), _choices(record, where)
    said = _field(record, ANSWERS, where)
    if choices and said.isdigit() and not isinstance(record.get("answer"), str):
        said = LETTERS[int(said)] if int(said) < len(choices) else said  # a place in the list
    try:
        gold = read_answer(said)
        right = LETTERS.find(gold.text.strip("()").upper()) if choices else -1
        choice = read_answer(choices[right]) if 0 <= right < len(choices) else None
    except InvalidAction as error:
        raise ConfigError(KEY, f"{where}: its answer cannot be read: {error}") from None
    if choices and choice is None:
        raise ConfigError(KEY, f"{where}: the answer is none of the letters {LETTERS[: len(choices)]} of its choices")
    listed = [f"({letter}) {text}" for letter, text in zip(LETTERS, choices, strict=False)]
    worked = record.get("solution") or (said if "####" in said else "")
    text, solution = "\n".join((question, *listed)), readable(str(worked)).strip()
    return MathProblem(text, gold, gold.said, choice, solution, category_in(record, "subject"))


def _field(record: Mapping[str, Any], names: tuple[str, str], where: str) -> str:
    """The first of two fields that holds something, as text."""
    for name in names:
        value = record.get(name)
        if isinstance(value, bool) or not isinstance(value, str | int | float | None):
            raise ConfigError(KEY, f"{where}: field {name!r} is {type(value).__name__}; expected text or a number")
        if value is not None and (text := readable(str(value)).strip()):
            return text
    has = ", ".join(map(repr, record)) or "none"
    raise ConfigError(KEY, f"{where}: expected a field {names[0]!r} or {names[1]!r} that is not empty; it has {has}")


def _choices(record: Mapping[str, Any], where: str) -> list[str]:
    found: Any = next((record[name] for name in CHOICES if record.get(name) is not None), [])
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise ConfigError(KEY, f"{where}: choices must be a list of texts")
    if len(found) > len(LETTERS):
        raise ConfigError(KEY, f"{where}: {len(found)} choices; there are letters for {len(LETTERS)}")
    return [readable(text).strip() for text in found]
