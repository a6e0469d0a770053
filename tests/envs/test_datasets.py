"""Files of tasks that users bring: odd ones are read, damaged ones named."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub_server import parquet_of

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs import make_game
from rllib_lmgame.envs.games.talk.debate.topics import read_topics
from rllib_lmgame.envs.games.talk.negotiation.contexts import read_contexts
from rllib_lmgame.envs.support.datasets import numbered_jsonl
from rllib_lmgame.envs.support.json_stream import stream_records

Reader = Callable[[Path], Any]
READERS: dict[str, Reader] = {
    "lines": lambda path: [*numbered_jsonl(path, {"n": int})],
    "records": lambda path: [*stream_records(path, {"n": int})],
    "contexts": lambda path: read_contexts(str(path)),
    "topics": lambda path: read_topics(str(path)),
}


@pytest.fixture(params=READERS)
def read(request: pytest.FixtureRequest) -> Reader:
    return READERS[request.param]


def records(count: int) -> bytes:
    return "".join(json.dumps({"n": n}) + "\n" for n in range(count)).encode()


@pytest.mark.parametrize("name", ["lines", "records"])
@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz"])
def test_a_byte_order_mark_is_no_part_of_the_text(name: str, ending: str, tmp_path: Path) -> None:
    path, content = tmp_path / f"tasks.{ending}", b"\xef\xbb\xbf" + records(3)
    path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    assert [record["n"] for _, record in READERS[name](path)] == [0, 1, 2]


@pytest.mark.parametrize("damage", ["overwritten", "cut", "no gzip at all"])
def test_a_damaged_gz_is_named(read: Reader, damage: str, tmp_path: Path) -> None:
    packed = gzip.compress(records(100))
    damaged = {
        "overwritten": packed[:10] + b"\xff" * 64 + packed[74:],
        "cut": packed[:15],
        "no gzip at all": records(2),
    }
    path = tmp_path / "tasks.gz"
    path.write_bytes(damaged[damage])
    with pytest.raises(ConfigError, match=r"tasks\.gz.* \(or a broken \.gz\)"):
        read(path)


@pytest.mark.parametrize("damage", ["page", "text", "cut", "empty"])
def test_a_damaged_table_is_named_in_one_line(damage: str, tmp_path: Path) -> None:
    content = parquet_of(
        [{"n": number, "text": f"text {number}" + ", quirk" * (number == 50)} for number in range(300)]
    )
    at = content.index(b"quirk") if damage == "text" else 4
    path = tmp_path / "tasks.parquet"
    path.write_bytes({"cut": content[:300], "empty": b""}.get(damage, content[:at] + b"\xff" * 4 + content[at + 4 :]))
    with pytest.raises(
        ConfigError, match=r"tasks\.parquet is no table .* \(.*\); name a whole one, or a file of JSON"
    ) as said:
        [*stream_records(path, {"n": int})]
    assert "\n" not in said.value.message


Q = {"question": "q", "answer": "1"}
FAULTS = [
    ("GSM8K", ["{"], "line 1: not JSON"),
    ("GSM8K", [{"question": "q", "anwser": "#### 1"}], "line 1: field 'answer' is missing (is it 'anwser'?)"),
    ("GSM8K", [{"question": "q", "answer": "42"}], "line 1: field 'answer' does not end in '#### number'"),
    ("GSM8K", ["", {"question": "q", "answer": "#### none"}], "line 2: what follows '####' in field 'answer' is no"),
    ("MathProblems", [Q, {"question": "q"}], "line 2: expected a field 'answer' or 'solution'"),
    ("MathProblems", [Q, {**Q, "answer": ["1"]}], "line 2: field 'answer' is list"),
    ("MathProblems", [Q, {**Q, "answer": "1" * 2000}], "line 2: its answer cannot be read"),
    ("MathProblems", [{**Q, "options": ["a", "b"], "answer": "C"}], "none of the letters AB"),
    ("MathProblems", [{**Q, "options": "a", "answer": "A"}], "must be a list of texts"),
    ("MathProblems", [], "holds no problems"),
    (
        "DeepSearch",
        [Q, {"question": "q"}],
        "line 2: no answer; expected one of the fields golden_answers, answers, answer",
    ),
    ("DeepSearch", [{"question": "q", "answers": []}], "answers must be a text or a list of texts that is not empty"),
    ("DeepSearch", [{**Q, "question": 5}], "line 1: field 'question' is int"),
    ("ToolUse", [{"question": "q"}], "field 'answer' is missing"),
    ("ToolUse", [{**Q, "calls": [{"name": "fly", "arguments": {}}]}], "there is no tool 'fly'"),
    ("ToolUse", [{**Q, "calls": [{"name": "submit"}]}], "field 'arguments' is missing"),
    ("ToolUse", [], "holds no tasks"),
    ("Negotiation", ["1 1 2 3 3 1"], "1 lines"),
    ("Negotiation", ["1 1 2 3 3 1", "1 2 2 1 3"], "line 1"),
    ("Negotiation", ["1 1 2 3 3 1", "1 2 2 1 3 x"], "6 numbers"),
    ("Negotiation", ["1 1 2 3 3 1", "1 2 2 1 4 2"], "no context"),
    ("Debate", ["a | b"], "line 1"),
    ("Debate", ["a | b | c"] * 4, "each once"),
    ("Debate", [], "three"),
]
"""Game, lines of a file, and what is said of it."""


@pytest.mark.parametrize(("game", "rows", "said"), FAULTS)
def test_what_is_wrong_with_a_file_is_named(game: str, rows: list[Any], said: str, tmp_path: Path) -> None:
    path, corpus = tmp_path / "tasks.jsonl", tmp_path / "corpus.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    corpus.write_text('{"title": "t", "text": "x"}')
    with pytest.raises(ConfigError) as caught:
        make_game(f"lmgame/{game}-v0", {"data": str(path)} | ({"corpus": str(corpus)} if game == "DeepSearch" else {}))
    assert caught.value.path == "env_config.data" and said in str(caught.value)
