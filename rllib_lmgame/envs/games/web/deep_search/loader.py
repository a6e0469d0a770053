"""Questions and passages from files, in the forms open-domain question answering is published in.

Questions: Parquet, JSON lines, or one JSON array as HotpotQA has it. A record has ``question`` and one of ``answer``,
``answers``, ``golden_answers``, a text or a list of texts. It may have ``data_source``, ``id`` and a split, as
FlashRAG and Search-R1 have them. Passages: JSON lines with ``title`` and ``text``, or with ``contents``, whose first
line is then the title.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.contract.splits import TEST, TRAIN
from rllib_lmgame.envs.games.web.deep_search.corpus import Question
from rllib_lmgame.envs.support.datasets import changed_ns, check_fields, read_jsonl, readable
from rllib_lmgame.envs.support.item_lists import number_of_item, numbers_in
from rllib_lmgame.envs.support.json_stream import stream_array, stream_records
from rllib_lmgame.envs.support.retrieval.passages import Passage, passage_of

DATA_KEY, CORPUS_KEY, IDS_KEY = "env_config.data", "env_config.corpus", "env_config.ids"
ANSWER_FIELDS = ("golden_answers", "answers", "answer")
FIRST_NUMBERS = {
    TEST: {
        "nq": 0,
        "triviaqa": 3610,
        "popqa": 14923,
        "hotpotqa": 29190,
        "2wikimultihopqa": 36595,
        "musique": 49171,
        "bamboogle": 51588,
    },
    TRAIN: {"nq": 51713, "hotpotqa": 130881},
}
"""AgentGym's number of the first question of each set of Search-R1; the others follow in FlashRAG's order."""
TESTED_ON = {"dev": TEST, "validation": TEST}
"""Splits that Search-R1 tests on where a set's answers to its test are not public."""
_PLACE = re.compile(r"(?:(train|test|dev|validation)_)?(\d{1,9})")


def load_passages(corpus: str, max_passages: int | None) -> list[Passage]:
    """The passages of a file.

    Raises: ConfigError: for a file that cannot be used; the message names file and line (or record).
    """
    passages = [
        passage_of(record, CORPUS_KEY, f"{corpus}, passage {i}")
        for i, record in enumerate(islice(read_jsonl(corpus, {}, CORPUS_KEY), max_passages), 1)
    ]
    if not passages:
        raise ConfigError(CORPUS_KEY, f"{corpus} is empty")
    return passages


def load_questions(files: tuple[str, ...], sets: tuple[str, ...], ids: str | int | None) -> list[Question]:
    """The questions of files, of certain data sets and AgentGym's numbers if these are named; files that have not
    changed are read once per process.

    Raises: ConfigError: as :func:`load_passages`; or no question is left.
    """
    return _questions_of(files, tuple(map(changed_ns, files)), sets, ids)


@lru_cache(maxsize=4)
def _questions_of(
    files: tuple[str, ...], changed: tuple[int, ...], sets: tuple[str, ...], ids: str | int | None
) -> list[Question]:
    data = ", ".join(files)
    questions = [_question(record, where) for file in files for where, record in stream_records(file, {}, DATA_KEY)]
    if not questions:
        raise ConfigError(DATA_KEY, f"{data} is empty")
    if sets:
        known = sorted({question.source for question in questions} - {""})
        for name in sets:
            if name not in known:
                raise ConfigError("env_config.sets", f"{data} has no {name!r}; it has {', '.join(known) or 'no names'}")
        questions = [question for question in questions if question.source in sets]
    if ids is not None:
        wanted = frozenset(_numbers(ids))
        questions = [question for question in questions if question.number in wanted]
        if not questions:
            raise ConfigError(IDS_KEY, f"{data} has none of the {len(wanted)} questions that {ids} lists")
    return questions


def _question(record: dict[str, Any], where: str) -> Question:
    check_fields(record, {"question": str}, DATA_KEY, where)
    name = next((name for name in ANSWER_FIELDS if record.get(name) is not None), None)
    if name is None:
        raise ConfigError(
            DATA_KEY,
            f"{where}: no answer; expected one of the fields {', '.join(ANSWER_FIELDS)}, it has {', '.join(record)}",
        )
    answers = [record[name]] if isinstance(record[name], str) else record[name]
    if not isinstance(answers, list) or not answers or not all(isinstance(answer, str) for answer in answers):
        raise ConfigError(DATA_KEY, f"{where}: {name} must be a text or a list of texts that is not empty")
    text = readable(record["question"]).strip()
    source = record.get("data_source") or ""
    if not isinstance(source, str):
        raise ConfigError(DATA_KEY, f"{where}: field 'data_source' is {type(source).__name__}; expected str")
    split, number = _place(record, source)
    return Question(text, tuple(map(readable, answers)), text, source=source, split=split, number=number)


def _place(record: dict[str, Any], source: str) -> tuple[str, int | None]:
    """Split and AgentGym's number of a question, where the record tells them."""
    extra = record.get("extra_info")
    found = _PLACE.fullmatch(str(record.get("id")))
    named = record.get("split") or (extra.get("split") if isinstance(extra, dict) else None)
    split = named if isinstance(named, str) else (found[1] if found and found[1] else "")
    split = TESTED_ON.get(split, split)
    split = split if split in (TRAIN, TEST) else ""
    if found is None:
        return split, None
    if not found[1]:  # A number of its own, as AgentGym has them.
        return split, int(found[2])
    first = FIRST_NUMBERS.get(split, {}).get(source)
    return split, None if first is None else first + int(found[2])


def _numbers(ids: str | int) -> Iterator[int]:
    """AgentGym's numbers: ``0-9, 44``, or a JSON array of ``{"item_id": "searchqa_12"}``, of texts or of numbers."""
    numbers = numbers_in(ids, IDS_KEY)
    if numbers is not None:
        yield from numbers
        return
    for where, record in stream_array(str(ids), IDS_KEY):
        item = record.get("item_id") if isinstance(record, dict) else record
        number = number_of_item(str(item)) if isinstance(item, int | str) and not isinstance(item, bool) else None
        if number is None:
            raise ConfigError(IDS_KEY, f'{where}: expected {{"item_id": "searchqa_12"}}, a text or a number')
        yield number
