"""BIRD: questions, rewards, tries, published files."""

from __future__ import annotations

import json
import random
import sqlite3

import pytest

from rllib_lmgame.envs.games.code.bird.game import BIRD
from rllib_lmgame.envs.games.code.bird.tasks import Task
from rllib_lmgame.envs.synthetic.database_questions import FAMILIES
from rllib_lmgame.envs.synthetic.databases import SCHEMAS, filled
from tests.envs.begun import begun


def block(sql: str) -> str:
    """A reply."""
    return f"Let me see.\n```sql\n{sql}\n```"


def shop(**config: object) -> BIRD:
    """A question set by hand: purchases that are open."""
    game = begun(BIRD(**{"show_rules": False, "max_turns": 5, **config}))
    schema = SCHEMAS["shop"]
    game.start(
        Task("shop", "Give the codes of open purchases.", "SELECT code FROM purchase WHERE status = 'open'", schema.ddl)
    )
    return game


def test_rows_in_another_order_and_by_another_query_are_right() -> None:
    observation, reward, terminated, truncated, info = shop().step(
        block("SELECT code FROM purchase WHERE status LIKE 'OPEN' ORDER BY amount")
    )
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
    assert observation.endswith("Right.")


def test_gold_answers_agree_with_the_rows() -> None:
    """Independent reference: the same answers from the Python rows, for the families where that is short."""
    game = BIRD()
    for name in SCHEMAS:
        content = filled(name)
        child_groups = [row[3] for row in content.children]
        for seed in range(4):
            question, sql = FAMILIES[0](random.Random(seed), content)
            value = question.split("'")[1]
            assert game._ask(content.database, sql).rows == ((child_groups.count(value),),)
            question, sql = FAMILIES[8](random.Random(seed), content)
            year = question.rstrip(".").split()[-1]
            busy = {row[1] for row in content.children if row[5].startswith(year)}
            assert sorted(game._ask(content.database, sql).rows) == sorted(
                (row[1],) for row in content.parents if row[0] not in busy
            )
            question, sql = FAMILIES[9](random.Random(seed), content)
            mean, value = sum(row[4] for row in content.children) / len(content.children), question.split("'")[1]
            assert game._ask(content.database, sql).rows == (
                (sum(row[3] == value and row[4] > mean for row in content.children),),
            )


@pytest.fixture
def published(tmp_path):
    """A folder in the form of the published data set."""
    (tmp_path / "root" / "zoo").mkdir(parents=True)
    with sqlite3.connect(tmp_path / "root" / "zoo" / "zoo.sqlite") as connection:
        connection.execute("CREATE TABLE animal (id INTEGER PRIMARY KEY, name TEXT, legs INTEGER)")
        connection.executemany("INSERT INTO animal VALUES (?, ?, ?)", [(i, f"animal {i}", i % 5) for i in range(50)])
    connection.close()
    count = "SELECT COUNT(*) FROM animal WHERE legs ="
    rows = [{"db_id": "zoo", "question": f"How many animals have {i} legs?", "SQL": f"{count} {i}"} for i in range(5)]
    rows[0]["schema"] = "CREATE TABLE animal (...)"
    rows[2]["evidence"] = "half a pair: \ud83d"
    rows[1]["evidence"] = "legs is the number of legs."
    (tmp_path / "dev.json").write_text(json.dumps(rows))
    (tmp_path / "dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.mark.parametrize("name", ["dev.json", "dev.jsonl"])
def test_published_files(published, name) -> None:
    game = BIRD(data=str(published / name), db_root=str(published / "root"), split="all", show_rules=False)
    seen = set()
    for seed in range(30):
        seen.add(game.reset(seed=seed)[0])
        assert game.step(game.expert_action())[1] == 1.0
    assert len(seen) == 5
    assert any("[DB schema:\nCREATE TABLE animal (...)] How many animals have 0 legs?" in text for text in seen)
    assert any(
        "name TEXT, legs INTEGER);] legs is the number of legs. How many animals have 1 legs?" in text for text in seen
    )


def test_a_player_cannot_change_the_gold_database(published) -> None:
    file = published / "root" / "zoo" / "zoo.sqlite"
    before = file.read_bytes()
    game = begun(BIRD(data=str(published / "dev.json"), db_root=str(published / "root"), split="all", max_turns=5))
    for sql in ("DELETE FROM animal", "UPDATE animal SET legs = 0", "PRAGMA writable_schema = 1", "VACUUM"):
        assert game.step(block(sql))[1] == 0.0
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == ["zoo.sqlite"]


def test_a_right_query_may_return_as_much_as_the_gold_one(published) -> None:
    """More rows, and more bytes, than any query may otherwise."""
    many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 12000) SELECT i FROM n"
    large = "SELECT hex(zeroblob(400000)) FROM animal WHERE id < 2"
    for sql in (many, large):
        (published / "large.jsonl").write_text(json.dumps({"db_id": "zoo", "question": "Which?", "SQL": sql}))
        game = begun(
            BIRD(data=str(published / "large.jsonl"), db_root=str(published / "root"), split="all", max_turns=2)
        )
        more = sql.replace("i < 12000", "i < 100001").replace("400000", "17000000")
        assert game.step(block(more))[1] == 0.0 and "The query failed" in game.board()
        assert "12000" not in game.board() and "800000" not in game.board()
        assert game.step(game.expert_action())[1] == 0.5
