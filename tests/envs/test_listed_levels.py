"""Games on lists of levels: an evaluation plays each once before any comes again, and so does what is collected."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.games.code.bird import tasks
from rllib_lmgame.envs.registry import make_game
from rllib_lmgame.rollouts.collect import plans_of
from rllib_lmgame.rollouts.item_order import evaluated_levels, is_list
from rllib_lmgame.rollouts.options import GameConfig

COUNT = 60
GOLD = "SELECT name FROM animal WHERE id = "


def gsm8k(number: int) -> dict[str, Any]:
    return {"question": f"What is {number} + 1?", "answer": f"#### {number + 1}"}


def problem(number: int) -> dict[str, Any]:
    return {"problem": f"What is {number} + 1?", "answer": str(number + 1)}


def mbpp(number: int) -> dict[str, Any]:
    return {"task_id": number, "text": f"Add {number}.", "code": "", "test_list": [f"assert add(1) == {number + 1}"]}


def bird(number: int) -> dict[str, Any]:
    return {"db_id": "zoo", "question": f"Who is {number}?", "SQL": f"{GOLD}{number}"}


def search(number: int) -> dict[str, Any]:
    return {"question": f"Who is {number}?", "answer": str(number)}


FORMS: dict[str, tuple[Callable[[int], dict[str, Any]], dict[str, Any]]] = {
    "lmgame/GSM8K-v0": (gsm8k, {}),
    "lmgame/MathProblems-v0": (problem, {}),
    "lmgame/CodeExecution-v0": (mbpp, {}),
    "lmgame/BIRD-v0": (bird, {"db_root": "."}),
    "lmgame/DeepSearch-v0": (search, {"corpus": "corpus.jsonl"}),
    "lmgame/ToolUse-v0": (search, {}),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What questions are about: a database and a corpus."""
    (tmp_path / "zoo").mkdir()
    with sqlite3.connect(tmp_path / "zoo" / "zoo.sqlite") as connection:
        connection.execute("CREATE TABLE animal (id INTEGER PRIMARY KEY, name TEXT)")
        connection.executemany("INSERT INTO animal VALUES (?, ?)", [(i, f"animal {i}") for i in range(COUNT)])
    connection.close()
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"title": "Zoo", "text": "There are animals."}))
    return tmp_path


def configured(game: str, folder: Path, split: str) -> GameConfig:
    """The game on a file of :data:`COUNT` levels."""
    record, beside = FORMS[game]
    (folder / "data.jsonl").write_text("".join(json.dumps(record(number)) + "\n" for number in range(COUNT)))
    files = {name: str(folder / file) for name, file in {"data": "data.jsonl", **beside}.items()}
    return GameConfig(env=game, env_config={**files, "split": split, "show_rules": False})


def times(game: GameConfig, seeds: list[int]) -> Counter[str]:
    """How often each first observation comes."""
    env = make_game(game.env, game.env_config)
    seen = Counter(env.reset(seed=seed)[0] for seed in seeds)
    env.close()
    return seen


@pytest.mark.parametrize("game", FORMS)
def test_each_level_of_a_file_comes_as_often(game: str, folder: Path) -> None:
    seen = {}
    for split in ("all", "train", "validation", "test"):
        config = configured(game, folder, split)
        seeds = [plan.seed for plan in evaluated_levels([config], 2 * COUNT)]
        levels = times(config, seeds)
        least, rest = divmod(2 * COUNT, len(levels))
        assert Counter(levels.values()) == Counter({least: len(levels) - rest, **({least + 1: rest} if rest else {})})
        assert set(levels) == set(times(config, [plan.seed for plan in plans_of(config, len(levels), seed=3)]))
        seen[split] = set(levels)
    assert len(seen["all"]) == COUNT == sum(len(seen[split]) for split in ("train", "validation", "test"))
    assert seen["train"] | seen["validation"] | seen["test"] == seen["all"] and min(map(len, seen.values())) >= 1


def test_stories_in_files_are_a_list(folder: Path) -> None:
    pytest.importorskip("textworld")
    for number in range(COUNT):
        (folder / f"{number}.json").write_text("{}")
    config = GameConfig(env="lmgame/TextNav-v0", env_config={"files": str(folder), "split": "all"})
    game = make_game(config.env, config.env_config)
    drawn = set()
    for plan in evaluated_levels([config], COUNT):
        game._place = plan.seed  # The files are no games: they cannot be begun.
        drawn.add(next(game.levels(game.random)).name)
    assert len(drawn) == COUNT and not is_list(GameConfig(env="lmgame/TextNav-v0"))


@pytest.mark.parametrize("game", FORMS)
def test_a_file_without_a_level_of_the_split_is_refused_when_the_game_is_made(game: str, folder: Path) -> None:
    """Else a run would find out at its first evaluation."""
    config = configured(game, folder, "test")
    record, _ = FORMS[game]
    (folder / "data.jsonl").write_text(json.dumps(record(0)) + "\n")
    refused = []
    for split in ("train", "validation", "test"):
        try:
            make_game(game, {**config.env_config, "split": split})
        except ConfigError as error:
            refused.append(str(error))
    assert len(refused) == 2 and all("env_config.split: none of the 1 levels listed" in said for said in refused)


def test_a_file_is_read_once_for_all_games_of_a_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    stream = tasks.stream_records
    monkeypatch.setattr(tasks, "stream_records", lambda path, *rest: (read.append(path), stream(path, *rest))[1])
    config = configured("lmgame/BIRD-v0", folder, "all")
    for _ in range(3):
        times(config, [0, 1])
    assert len(read) == 1
    (folder / "data.jsonl").write_text(json.dumps(bird(COUNT - 1)) + "\n")
    assert len(times(config, [0, 1])) == 1 and len(read) == 2
