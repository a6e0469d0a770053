"""Games on published data sets, fetched from a hub on loopback in the form they are published in."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hub_server import HubServer, parquet_of, quiet, serve_bird, serve_gsm8k, zipped

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.downloads.fetch import fetch
from rllib_lmgame.envs.games.code.bird.game import BIRD
from rllib_lmgame.envs.games.code.code_execution.game import CodeExecution
from rllib_lmgame.envs.games.mathematics.gsm8k import GSM8K


def drawn(game: Any, count: int = 200) -> set[str]:
    return {game.reset(seed=seed)[0].splitlines()[0] for seed in range(count)}


def test_gsm8k_keeps_its_publishers_splits(hub: HubServer) -> None:
    serve_gsm8k(hub)
    fetch("gsm8k", report=quiet)
    seen = {
        split: drawn(GSM8K(data="data:gsm8k", split=split, show_rules=False))
        for split in ("train", "validation", "test", "all")
    }
    assert seen["test"] == {f"test: {n} nuts and one more?" for n in range(9)}
    assert {line.split(":")[0] for line in seen["train"] | seen["validation"]} == {"train"}
    assert seen["train"].isdisjoint(seen["validation"]) and 1 <= len(seen["validation"]) <= 15
    assert {line.split(":")[0] for line in seen["all"]} == {"train", "test"}
    game = GSM8K(data="data:gsm8k:test", split="test", show_rules=False)
    game.reset(seed=3)
    assert game.step(game.expert_action() or "")[1] == 10.0


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ([{"questions": "1 + 1?", "answer": "#### 2"}], r"row 1: field 'question' is missing \(is it 'questions'\?\)"),
        ([{"question": "1 + 1?", "answer": 2}], r"row 1: field 'answer' is int; expected str"),
    ],
)
def test_a_table_with_other_columns_is_named_with_its_row(hub: HubServer, records: Any, says: str) -> None:
    serve_gsm8k(hub, parquet_of(records))
    fetch("gsm8k", report=quiet)
    with pytest.raises(ConfigError, match=rf"test-00000-of-00001\.parquet, {says}"):
        GSM8K(data="data:gsm8k", split="test")


def test_a_table_that_is_none_is_named(hub: HubServer) -> None:
    serve_gsm8k(hub, b"PAR1 cut short")
    fetch("gsm8k", report=quiet)
    with pytest.raises(ConfigError, match=r"is no table in Parquet's form that can be read"):
        GSM8K(data="data:gsm8k", split="test")


@pytest.mark.parametrize(("make", "name"), [(GSM8K, "gsm8k"), (CodeExecution, "mbpp"), (BIRD, "bird:train")])
def test_a_set_that_is_not_here_is_told_when_the_game_is_made(hub: HubServer, make: Any, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"env_config\.data: .*`rllib data fetch {name}` brings it") as error:
        make(data=f"data:{name.partition(':')[0]}")
    assert error.value.path == "env_config.data"


def test_the_real_humaneval_is_played_and_all_of_it_is_for_testing(hub: HubServer) -> None:
    fetch("humaneval", report=quiet)
    with pytest.raises(ConfigError, match=r"data:humaneval has the test split alone.*set it to 'test' or 'all'"):
        CodeExecution(data="data:humaneval")
    game = CodeExecution(data="data:humaneval", split="test", show_rules=False)
    assert len({game.reset(seed=seed)[0] for seed in range(164)}) == 164
    game.reset(seed=5)
    _, reward, terminated, _, info = game.step(game.expert_action() or "")
    assert (reward, terminated, info["success"]) == (1.0, True, True)


def test_mbpp_keeps_its_publishers_splits(hub: HubServer) -> None:
    def programs(split: str) -> bytes:
        return parquet_of(
            [
                {
                    "task_id": n,
                    "text": f"Write a function of the {split} part that adds {n}.",
                    "code": f"def add_{n}(x):\n    return x + {n}",
                    "test_list": [f"assert add_{n}(1) == {n + 1}", f"assert add_{n}(0) == {n}"],
                    "test_setup_code": "",
                    "challenge_test_list": [],
                }
                for n in range(6)
            ]
        )

    hub.repositories["datasets/google-research-datasets/mbpp"] = {
        f"full/{split}-00000-of-00001.parquet": programs(split) for split in ("train", "validation", "test", "prompt")
    } | {"sanitized/test-00000-of-00001.parquet": b"not asked for"}
    fetch("mbpp", report=quiet)
    for split in ("train", "validation", "test"):
        game = CodeExecution(data="data:mbpp", split=split, show_rules=False)
        assert drawn(game, 60) == {f"Write a function of the {split} part that adds {n}." for n in range(6)}
    game.reset(seed=1)
    assert game.step(game.expert_action() or "")[1] == 1.0


EVALPLUS = """{imports}

import numpy as np

def is_floats(x) -> bool:
    return isinstance(x, float)


def assertion(out, exp, atol):
    exact_match = out == exp

    if atol == 0 and is_floats(exp):
        atol = 1e-6
    if not exact_match and atol != 0:
        np.testing.assert_allclose(out, exp, atol=atol)
    else:
        assert exact_match

"""
CASES = "inputs = [[1.0], [2.0], [3.0], [4.0]]\nresults = [0.5, 1.0, 1.5, 2.0]\n"
EACH = "for i, (inp, exp) in enumerate(zip(inputs, results)):\n    assertion({name}(*inp), exp, 0)\n"


def indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


HALF = {"task_id": "HumanEval/0", "prompt": 'def half(x):\n    """Half of it."""\n', "entry_point": "half"} | {
    "canonical_solution": "    return x / 2\n",
    "test": f"{EVALPLUS.format(imports='')}\ndef check(candidate):\n{indented(CASES + EACH.format(name='candidate'))}",
}
HALVED = {"task_id": 2, "code": "def half(x):\n    return x / 2", "prompt": "Write a function that halves."} | {
    "source_file": "x.ipynb",
    "test_imports": [],
    "test_list": ["assert half(2) == 1", "assert half(4) == 2"],
    "test": EVALPLUS.format(imports="from math import inf") + CASES + EACH.format(name="half"),
}


@pytest.mark.parametrize(("name", "record"), [("humanevalplus", HALF), ("mbppplus", HALVED)])
def test_each_case_of_evalplus_counts(hub: HubServer, name: str, record: dict[str, Any]) -> None:
    """A wrong number is a failed case, also where numpy raises, and so is a call that raises."""
    hub.repositories[f"datasets/evalplus/{name}"] = {"data/test-00000-of-00001-d5.parquet": parquet_of([record])}
    fetch(name, report=quiet)
    game = CodeExecution(data=f"data:{name}", split="test", show_rules=False)

    def score(program: str) -> float:
        game.reset(seed=0)
        return float(game.step(f"```python\n{program}\n```")[1])

    game.reset(seed=0)
    assert game.step(game.expert_action() or "")[1] == 1.0
    assert score("def half(x):\n    return x * 0.5 + 1e-9") == 1.0, "as near as EvalPlus asks for"
    for wrong in ("return 1.0", "return 'no' if x != 2 else 1.0", "return [x / 2][int(x != 2)]"):
        assert score(f"def half(x):\n    {wrong}") == pytest.approx(0.05 + 0.95 / 4), wrong


def shop(path: Path, names: str) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE item (name TEXT)")
        connection.executemany("INSERT INTO item VALUES (?)", [(name,) for name in names])
    connection.close()
    return path.read_bytes()


def questions(db_id: str, count: int, schema: bool) -> bytes:
    return json.dumps(
        [
            {
                "db_id": db_id,
                "question": f"Which item of {db_id} is number {n + 1}?",
                "evidence": f"number {n + 1} refers to rowid = {n + 1};",
                "SQL": f"SELECT name FROM item WHERE rowid = {n + 1}",
                **({"schema": "CREATE TABLE item (name TEXT)"} if schema else {"difficulty": "simple"}),
            }
            for n in range(count)
        ]
    ).encode()


def test_bird_is_its_training_questions_and_its_dev_set(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    town, port = (shop(tmp_path / name, letters) for name in ("town.sqlite", "port.sqlite"))
    databases = zipped({"dev_databases/port/port.sqlite": port})
    dev = zipped({"dev_20240627/dev.json": questions("port", 9, False), "dev_20240627/dev_databases.zip": databases})
    serve_bird(hub, monkeypatch, dev, zipped({"train_databases/town/town.sqlite": town}))
    hub.repositories["datasets/Yuxuan13/bird_train"]["train_with_schema.json"] = questions("town", 52, True)
    fetch("bird", report=quiet)
    shared = {"data": "data:bird", "show_rules": False}
    test = BIRD(**shared, split="test")
    boards = Counter(test.reset(seed=seed)[0] for seed in range(60))
    assert len(boards) == 9 and all("port" in board and "CREATE TABLE item" in board for board in boards)
    assert all("] number " in board and "refers to rowid" in board for board in boards)
    test.reset(seed=2)
    assert test.step(test.expert_action() or "")[1] == 1.0
    plain = BIRD(**shared, split="validation", hint=False)
    held_out = {plain.reset(seed=seed)[0] for seed in range(200)}
    assert 1 <= len(held_out) < 20 and not any("refers to" in board for board in held_out)
    assert held_out.isdisjoint(BIRD(**shared, hint=False).reset(seed=seed)[0] for seed in range(100))
    both = BIRD(**shared, split="all")
    assert {"town" in both.reset(seed=seed)[0] for seed in range(20)} == {True, False}
    assert both.step(both.expert_action() or "")[1] == 1.0
