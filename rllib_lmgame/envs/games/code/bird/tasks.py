"""Questions with their gold queries, read from the files BIRD is published in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.support.datasets import category_in, once_per_file, readable
from rllib_lmgame.envs.support.json_stream import stream_records

FIELDS: dict[str, type | tuple[type, ...]] = {"question": str, "SQL": str, "db_id": str}
DATA, ROOT = "env_config.data", "env_config.db_root"


@dataclass(frozen=True)
class Task:
    """A question about a database.

    Attributes:
        db_id: The database.
        question: In words.
        sql: The gold query.
        schema: Its ``CREATE TABLE`` statements.
        path: File of the database; ``None`` for one of ours.
        difficulty: As BIRD's dev set says it.
    """

    db_id: str
    question: str
    sql: str
    schema: str
    path: str | None = None
    difficulty: str = ""


@once_per_file
def read_tasks(data: str, db_root: str, hint: bool = True) -> tuple[Task, ...]:
    """Questions of a file in BIRD's form, a JSON array or one object per line: ``question``, ``SQL`` and ``db_id``. Two
    keys may be left out: ``schema`` (else it is read from the database) and ``evidence`` (put before the question, if
    ``hint``).

    Raises: ConfigError: names the file and the line or record, or the database that is missing.
    """
    root = Path(db_root).expanduser()
    if not db_root or not root.is_dir():
        raise ConfigError(
            ROOT, f"{db_root!r} is no folder; give the one that holds <db_id>/<db_id>.sqlite for every db_id of {DATA}"
        )
    files: dict[str, str] = {}
    tasks = tuple(
        _read_task(record, where, root.resolve(), hint, files) for where, record in stream_records(data, FIELDS, DATA)
    )
    if not tasks:
        raise ConfigError(DATA, f"{data} holds no questions")
    return tasks


def _read_task(record: dict[str, Any], where: str, root: Path, hint: bool, files: dict[str, str]) -> Task:
    db_id = record["db_id"]
    if db_id not in files:
        files[db_id] = _database_of(db_id, where, root)
    evidence = record.get("evidence")
    question = f"{evidence} {record['question']}" if hint and isinstance(evidence, str) else record["question"]
    schema = record.get("schema")
    shown = readable(schema) if isinstance(schema, str) else ""
    difficulty = category_in(record, "difficulty")
    return Task(db_id, readable(question.strip()), readable(record["SQL"]), shown, files[db_id], difficulty)


def _database_of(db_id: str, where: str, root: Path) -> str:
    """File of a database. Raises: ConfigError: it is not there, or not below ``root``."""
    file = root / db_id / f"{db_id}.sqlite"
    try:
        inside, there = file.resolve().is_relative_to(root), file.is_file()
    except (OSError, ValueError) as error:  # Too long for a name of a file, or no text for one.
        raise ConfigError(DATA, f"{where}: db_id {db_id[:80]!r} names no database ({error})") from None
    if not inside:
        raise ConfigError(DATA, f"{where}: db_id {db_id!r} leads out of {root}")
    if not there:
        raise ConfigError(ROOT, f"{where} asks about {db_id!r}, but {file} does not exist")
    return str(file)
