"""Questions and passages from files, in the forms open-domain question answering is published in.

Questions: JSON lines, or one JSON array as HotpotQA has it, with ``question`` and one of ``answer``,
``answers``, ``golden_answers``, a text or a list of texts. Passages: JSON lines with ``title`` and ``text``, or with
``contents``, whose first line is then the title.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import islice
from typing import Any

from rllib_lmgame.envs.games.web.deep_search.corpus import Corpus, Passage, Question
from rllib_lmgame.envs.support.datasets import check_fields, read_jsonl, readable
from rllib_lmgame.envs.support.json_stream import stream_records
from rllib_lmgame.errors import ConfigError

DATA_KEY, CORPUS_KEY = "env_config.data", "env_config.corpus"
ANSWER_FIELDS = ("golden_answers", "answers", "answer")


@lru_cache(maxsize=2)
def load_corpus(data: str, corpus: str, max_passages: int | None) -> Corpus:
    """Questions of ``data`` about the passages of ``corpus``; read once per process.

    Raises:
        ConfigError: for a file that cannot be used; the message names file and line (or record).
    """
    questions = [_question(record, where) for where, record in stream_records(data, {}, DATA_KEY)]
    passages = [
        _passage(record, f"{corpus}, passage {i}")
        for i, record in enumerate(islice(read_jsonl(corpus, {}, CORPUS_KEY), max_passages), 1)
    ]
    for key, path, found in ((DATA_KEY, data, questions), (CORPUS_KEY, corpus, passages)):
        if not found:
            raise ConfigError(key, f"{path} is empty")
    return Corpus(passages, questions)


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
    return Question(text, tuple(map(readable, answers)), text)


def _passage(record: dict[str, Any], where: str) -> Passage:
    if "contents" in record and "text" not in record:
        check_fields(record, {"contents": str}, CORPUS_KEY, where)
        title, _, text = record["contents"].partition("\n")
        return Passage(readable(title.strip().strip('"')), readable(text.strip()))
    check_fields(record, {"title": str, "text": str}, CORPUS_KEY, where)
    return Passage(readable(record["title"].strip()), readable(record["text"].strip()))
