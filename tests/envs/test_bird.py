"""BIRD: questions, rewards, tries, published files."""

from __future__ import annotations

import json
import random
import sqlite3

import pytest

from rllib_lmgame.base.errors import ConfigError
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


def test_each_try_halves_the_reward() -> None:
    game = shop()
    for sql in ("SELECT 1", "SELECT nothing FROM purchase", "SELECT DISTINCT status FROM purchase"):
        _, reward, terminated, truncated, _ = game.step(block(sql))
        assert (reward, terminated, truncated) == (0.0, False, False)
    assert game.step(block("SELECT code FROM purchase WHERE status = 'open'"))[1] == 0.125


def test_duplicates_count_and_so_does_the_order_of_columns() -> None:
    game = shop()
    game.start(Task("shop", "", "SELECT status, amount > 100 FROM purchase", ""))
    assert game.step(block("SELECT DISTINCT status, amount > 100 FROM purchase"))[1] == 0.0
    assert game.step(block("SELECT amount > 100, status FROM purchase"))[1] == 0.0
    assert game.step(block("SELECT status, (amount > 100) * 1.0 FROM purchase"))[1] == 0.25


@pytest.mark.parametrize(
    "reply",
    [
        "SELECT code FROM purchase WHERE status = 'open'",
        "```python\nprint(1)\n```",
        "",
        "```sql\n```",
        block("SELECT 1") + block("SELECT 2"),
        "x" * 20_000,
    ],
)
def test_no_block_ends_the_game(reply: str) -> None:
    _, reward, terminated, truncated, info = shop().step(reply)
    assert (reward, terminated, truncated, info["invalid_action"], info["success"]) == (-0.5, True, False, True, False)


def test_what_a_wrong_try_reads_is_its_own() -> None:
    game = shop()
    assert game.step(block("SELECT code FROM purchase LIMIT 5"))[0].endswith(
        "Your query returned 5 rows:\n" + "\n".join(row[2] for row in filled("shop").children[:3])
    )
    assert "no such column: nowhere" in game.step(block("SELECT nowhere FROM purchase"))[0]
    assert "not authorized" in game.step(block("DELETE FROM purchase"))[0]
    assert "returned 0 rows." in game.step(block("SELECT 1 WHERE 0"))[0]


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


def test_an_evaluation_has_a_row_for_each_difficulty(published) -> None:
    rows = json.loads((published / "dev.json").read_text())
    kinds = ["simple", "moderate", "challenging", None, 3]
    (published / "dev.json").write_text(
        json.dumps([{**row, "difficulty": kind} for row, kind in zip(rows, kinds, strict=True)])
    )
    game = BIRD(data=str(published / "dev.json"), db_root=str(published / "root"), split="all")
    told = {game.reset(seed=seed)[1].get("category") for seed in range(40)}
    assert told == {"simple", "moderate", "challenging", None}


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


def test_what_is_wrong_with_a_file_is_said(published, tmp_path) -> None:
    root = str(published / "root")
    for row, words in (
        ({"question": "q", "SQL": "s"}, "line 1: field 'db_id' is missing"),
        ({"question": "q", "sql": "s", "db_id": "zoo"}, "line 1: field 'SQL' is missing"),
        ({"question": "q", "SQL": "s", "db_id": "farm"}, "asks about 'farm'"),
        ({"question": "q", "SQL": "s", "db_id": "../../etc"}, "leads out"),
        ({"question": "q", "SQL": "s", "db_id": "a\0b"}, "line 1: db_id 'a.x00b' names no database"),
        ({"question": "q", "SQL": "s", "db_id": "zoo" * 200}, "line 1: db_id 'zoo.* names no database"),
    ):
        bad = tmp_path / "bad.jsonl"
        bad.write_text(json.dumps(row) + "\n")
        with pytest.raises(ConfigError, match=words):
            BIRD(data=str(bad), db_root=root)
    with pytest.raises(ConfigError, match="db_root"):
        BIRD(data=str(published / "dev.json"))
