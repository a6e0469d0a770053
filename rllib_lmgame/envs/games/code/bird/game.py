"""BIRD: answer a question about a database with an SQL query."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from rllib_lmgame.base.group import option
from rllib_lmgame.base.trust import is_data_set
from rllib_lmgame.downloads.places import beside, is_named
from rllib_lmgame.envs.contract.base import GameError, TextGameOptions, Variant
from rllib_lmgame.envs.games.code.bird.tasks import Task, read_tasks
from rllib_lmgame.envs.support.published import PublishedLevels
from rllib_lmgame.envs.support.replies import WholeReplyGame, as_block, only_block
from rllib_lmgame.envs.synthetic.database_questions import generated_questions
from rllib_lmgame.envs.synthetic.databases import filled
from rllib_lmgame.sandbox.queries.database import Database, QueryLimits, QueryResult, same_rows
from rllib_lmgame.sandbox.queries.pool import SqlPool, sql_pool

GOLD_LIMITS = QueryLimits(seconds=30.0, rows=100_000, bytes=32 * 2**20)
SCHEMA_QUERY = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid"
LANGUAGES = ("sql", "sqlite")
SHOWN_ROWS, SHOWN_CELL, SHOWN_SCHEMA, SHOWN_ERROR = 3, 60, 8_000, 300
REMEMBERED = 2_048

RULES = """You answer a question about an SQLite database. The schema is given.
Reply with one query in one block:
```sql
SELECT ...
```
It is right if it returns the same rows as the reference query, in any order; \
columns in the order the question asks for. {tries}"""
ONE_TRY = "You have one try and cannot see the rows before it: a right answer gives 1."
SEVERAL_TRIES = (
    "You have {tries} tries: the first earns 1 if it is right, each later one half of the one before.\n"
    "A wrong query earns 0 and shows some of the rows it returned."
)


class BIRDOptions(TextGameOptions):
    """``env_config`` of BIRD."""

    max_turns: int = option(1, "Tries.", ge=1)
    invalid_action_penalty: float = option(-0.5, "Reward of a reply without an SQL block.", le=0)
    max_invalid_actions: int | None = option(
        1, "Replies in a row without an SQL block that end the episode; null never ends it.", ge=1
    )
    query_seconds: float = option(2.0, "Seconds of processor time a query may take.", gt=0, le=60)
    data: str | None = option(
        None,
        "File of questions in BIRD's form (JSON or Parquet), or `data:bird`; null plays questions about generated "
        "databases.",
        path=True,
        stranger=is_data_set,
    )
    db_root: str | None = option(
        None, "Folder with `<db_id>/<db_id>.sqlite` for the questions of `data`; `data:bird` has its own.", path=True
    )
    hint: bool = option(True, "Put the `evidence` of a question of `data` in front of it (GRL does not).")


class BIRD(PublishedLevels, WholeReplyGame):
    """Write an SQL query that answers a question.

    Observation: ``[DB schema: CREATE TABLE ...] question``; after a wrong try the query's error, or the first rows it
        returned.
    Action: one query in a fenced block marked ``sql``.
    Reward: 1/2^(k-1) for the right rows at try k; 0 for wrong rows or a failing query; -0.5 and the end for a reply
        without an SQL block (GRL). Rows are compared as a multiset, numbers to nine significant digits: a query that
        repeats or drops duplicates is wrong, which BIRD's own measure, of rows as a set, lets pass.
    Horizon: 1 try, or 5 as ``BIRDFiveTries``.
    Levels: one of 10 generated databases and of 12 kinds of question (filters, aggregates, groups, joins, missing rows,
        averages, dates, shares) with values drawn from its rows; or the questions of BIRD itself (option ``data``). Of
        ``data:bird`` the 1,534 questions of its dev set are ``test``, and a tenth of the training questions, by hash,
        is ``validation``.
    Solver: the gold query.

    Queries run in a confined process that can only read; the databases, gold results included, cannot be
    changed by a player.
    """

    variants = (
        Variant("lmgame/BIRD-v0", (-0.5, 1.0), "Answer a question with an SQL query, one try."),
        Variant("lmgame/BIRDFiveTries-v0", (-0.5, 1.0), "BIRD with five tries.", {"max_turns": 5}),
    )
    Options: ClassVar[type[TextGameOptions]] = BIRDOptions
    real_levels = ("data", "BIRD (`data: data:bird`)")
    turns_are_tries = True
    slow_calls = True  # queries run in a process of their own
    uses_sandbox = True
    options: BIRDOptions

    def __init__(self, render_mode: str | None = None, **env_config: object) -> None:
        super().__init__(render_mode, **env_config)
        data, root = self.options.data or "", self.options.db_root
        files = tuple((file, root or _own_root(data, file)) for file in self.published.files)
        self._roots = [str(Path(root).expanduser().resolve()) for _, root in files]
        self._tasks = [task for file, root in files for task in read_tasks(file, root, self.options.hint)]
        self.check_split()

    @property
    def rules(self) -> str:
        chosen = self.options
        tries = ONE_TRY if chosen.max_turns == 1 else SEVERAL_TRIES.format(tries=chosen.max_turns)
        return RULES.format(tries=tries)

    @property
    def success(self) -> bool:
        return self._right

    @property
    def listed(self) -> Sequence[Task]:
        return self._tasks

    def made_up(self, rng: random.Random) -> Iterator[Task]:
        tasks = (Task(*parts) for parts in generated_questions(rng))
        return (task for task in tasks if self._ask(filled(task.db_id).database, task.sql).rows)

    def level_key(self, level: Task) -> str:
        return f"bird\0{level.db_id}\0{level.question}\0{level.sql}"

    def category(self, level: Task) -> str:
        return level.difficulty

    def start(self, level: Task) -> None:
        self._task = level
        self._database = filled(level.db_id).database if level.path is None else Database.of_file(level.path)
        self._tries = 0
        self._right = False

    def board(self) -> str:
        question = f"[DB schema:\n{self._schema()}] {self._task.question}"
        return f"{question}\n\n{self._said}" if self._said else question

    def read_move(self, text: str) -> str:
        return only_block(text, LANGUAGES)

    def play_move(self, move: str) -> float:
        self._tries += 1
        gold, limits = self._gold_result(), QueryLimits(seconds=self.options.query_seconds)
        if len(gold.rows) > limits.rows or gold.size > limits.bytes:  # Which a player is told.
            limits = replace(limits, rows=GOLD_LIMITS.rows, bytes=GOLD_LIMITS.bytes)
        result = self._pool.query(self._database, move, limits)
        self._right = same_rows(result, gold)
        self._said = remark(result, self._right)
        return 0.5 ** (self._tries - 1) if self._right else 0.0

    def expert_action(self) -> str:
        """The gold query."""
        return as_block(self._task.sql, "sql")

    @cached_property
    def _results(self) -> dict[tuple[str, str], Any]:
        """Gold results and schemas already asked for."""
        return {}

    @property
    def _pool(self) -> SqlPool:
        return sql_pool(os.path.commonpath(self._roots) if self._roots else None)

    def _gold_result(self) -> QueryResult:
        result = self._ask(self._database, self._task.sql)
        if result.error:
            raise GameError(f"the gold query about {self._task.db_id!r} fails ({result.error}): {self._task.sql[:200]}")
        return result

    def _schema(self) -> str:
        if not self._task.schema:
            return "\n".join(f"{row[0]};" for row in self._ask(self._database, SCHEMA_QUERY).rows)[:SHOWN_SCHEMA]
        return self._task.schema[:SHOWN_SCHEMA]

    def _ask(self, database: Database, sql: str) -> QueryResult:
        key = (database.name, sql)
        if key not in self._results:
            if len(self._results) >= REMEMBERED:
                self._results.pop(next(iter(self._results)))
            self._results[key] = self._pool.query(database, sql, GOLD_LIMITS)
        return self._results[key]


def _own_root(data: str, file: Path) -> str:
    """Folder of the databases of one of a data set's files; empty for a file of one's own."""
    return (beside(data, file, "db_root", "env_config.data") or "") if is_named(data) else ""


def remark(result: QueryResult, right: bool) -> str:
    """What a player reads about a try; never anything of the gold result."""
    if right:
        return "Right."
    if result.error:
        return f"The query failed: {result.error[:SHOWN_ERROR]}"
    shown = "\n".join(" | ".join(_cell(value) for value in row[:20]) for row in result.rows[:SHOWN_ROWS])
    rows = f"{len(result.rows)} row{'' if len(result.rows) == 1 else 's'}"
    return f"These are not the right rows. Your query returned {rows}" + (f":\n{shown}" if shown else ".")


def _cell(value: Any) -> str:
    text = "NULL" if value is None else f"{value:.12g}" if isinstance(value, float) else str(value)
    return text if len(text) <= SHOWN_CELL else text[: SHOWN_CELL - 3] + "..."
