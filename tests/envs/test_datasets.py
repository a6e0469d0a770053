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


@pytest.mark.parametrize("where", ["is_file", "open"])
def test_a_file_that_must_not_be_read_is_named(read, where, tmp_path, monkeypatch) -> None:
    def refuse(path: Path, *args: Any, **kwargs: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    path = tmp_path / "tasks.jsonl"
    path.write_bytes(records(2))
    monkeypatch.setattr(Path, where, refuse)
    with pytest.raises(ConfigError, match=r"env_config.data: cannot open '.*tasks.jsonl': Permission denied"):
        read(path)
