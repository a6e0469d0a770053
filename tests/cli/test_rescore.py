"""``rllib rescore``: new rewards of stored episodes, in a table and in a log."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from episode_parts import collected, sessions
from scipy.stats import spearmanr

from rllib_lmgame.cli import main
from rllib_lmgame.cli.rescore import rank_correlation
from rllib_lmgame.rollouts.episode_log import EpisodeLog, episode_record, read_log

PAGE = Path(__file__).parents[2] / "docs" / "monitoring.md"
LAKE, XO = "lmgame/FrozenLake-v0", "lmgame/TicTacToe-v0"
FUNCTIONS = """
import numpy as np
def same(trajectory):
    agent = trajectory["agent_id"]
    own = [step["actions"][agent] for step in trajectory["steps"] if agent in step["actions"]]
    assert own == [turn["action"] for turn in trajectory["turns"]]
    trajectory["steps"].clear()
    return [turn.pop("reward") for turn in trajectory["turns"]]
def nan(trajectory):
    return float("nan")
def short(trajectory):
    return [1.0] * (len(trajectory["turns"]) - 1)
def misspelt(trajectory):
    return {"reward": 1, "succes": True}
def text(trajectory):
    return "1" * len(trajectory["turns"])
def judged(trajectory):
    return {"reward": np.float32(1), "success": "no"}
def tensor(trajectory):
    return np.array(1.0)
def raises(trajectory):
    return {"success": True}["reward"] if trajectory["episode_id"].endswith("-3") else 0
"""


@pytest.fixture
def log(here: Path) -> Path:
    """The log of a run, beside a module with functions."""
    (shown,) = re.findall(r"```python\n(def brief.*?)```", PAGE.read_text(), re.DOTALL)
    (here / "rewards.py").write_text(shown + FUNCTIONS)
    log = EpisodeLog(here / "run" / "trial" / "episodes" / "train-0.jsonl")
    log.path.with_name("learner-0.tokens").write_text("{}\n")
    log.write([episode_record(each) for each in collected(LAKE, episodes=6)])
    log.write([episode_record(each) for each in collected(XO, player="random", episodes=2)])
    return log.path


def test_the_table_and_the_log_have_the_new_numbers(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rescore", "run", "--reward", "rewards:brief", "--out", "new.jsonl"]) == 0
    head, _, lake, *_ = capsys.readouterr().out.splitlines()
    wanted = [1 - 0.02 * len(each["steps"]) for each in read_log(log)[:6]]
    assert [each["return"] for each in read_log("new.jsonl")[:6]] == pytest.approx(wanted)
    cells = (("seats", "6"), ("success", "1.000"), ("new return", f"{sum(wanted) / 6:+.3f}"), ("changed", "6"))
    for name, cell in (*cells, ("log", "trial/episodes/train"), ("new success", "1.000")):
        assert cell in lake[head.index(name) - 20 : head.index(name) + 20].split()
    for session, value in zip(sessions("new.jsonl"), wanted, strict=False):
        assert session.mean_return == pytest.approx(value) and session.success is True
    assert main(["rescore", "run", "--reward", "rewards:brief", "--out", "new.jsonl"]) == 2, "it is there already"


def test_the_games_own_rewards_change_nothing(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rescore", str(log), "--reward", "rewards:same", "--out", "new.jsonl"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3 and not err, "no episode has changed"
    old, new = read_log(log), read_log("new.jsonl")
    assert old[:6] == new[:6], "of one player nothing moves"
    for key in ("trajectories", "return", "success", "infos"):
        assert [each[key] for each in old] == [each[key] for each in new]


def test_only_seats_that_learn_are_judged(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = read_log(log)
    for record in records[6:]:
        record["assignments"]["X"]["trained"] = True
        record |= {"success": 0.5, "evaluated": {"summary": {}}}
        record["steps"][1]["rewards"]["X"] = 0.5
        record["trajectories"][0]["success"] = None
    EpisodeLog(Path("own.jsonl")).write(records)
    assert main(["rescore", "own.jsonl", "--reward", "rewards:brief", "--out", "new.jsonl"]) == 0
    assert capsys.readouterr().out.count(" -> ") == 5, "of eight that changed"
    for old, new in zip(records[6:], read_log("new.jsonl")[6:], strict=True):
        (own, other), (mine, others) = (each["trajectories"] for each in (old, new))
        moves = sum("X" in step["actions"] for step in old["steps"])
        assert others == other and new["evaluated"] == {} and new["success"] == 0 and own["success"] is None
        assert mine["return"] == new["return"] == pytest.approx(-0.02 * moves) and not new["infos"]["X"]["success"]
        assert sum(step["rewards"].get("X", 0.0) for step in new["steps"]) == mine["return"]


def test_seats_are_counted_and_penalties_of_training_change_nothing(log: Path, capsys) -> None:
    record = episode_record(*collected(XO, player="random"))
    record["steps"][0]["rewards"]["O"], record["trajectories"][1]["return"] = 1.0, 0.0  # Before its first turn.
    for seat in record["trajectories"]:
        seat["turns"] = [{"reward": -0.25} for step in record["steps"] if seat["agent_id"] in step["actions"]]
    EpisodeLog(Path("a.jsonl")).write([record])
    assert main(["rescore", "a.jsonl", "--reward", "rewards:same"]) == 0
    head, row, *changed = capsys.readouterr().out.splitlines()
    assert dict(zip(head.split(), row.split(), strict=False))["seats"] == "2" and not changed


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("nan", "episode collect-0-0 fails: ValueError: return a number up to 1e+09, a list of"),
        ("short", "line 1: the reward of player in episode collect-0-0 fails: ValueError: return a number"),
        ("misspelt", "or {'reward': one of these, 'success': bool}; got {'reward': 1, 'succes': True}"),
        ("text", "or {'reward': one of these, 'success': bool}; got '11'"),
        ("judged", "fails: ValueError: success must be true, false or null, got 'no'"),
        ("raises", "line 4: the reward of player in episode collect-0-3 fails: KeyError: 'reward' (rewards.py:"),
    ],
)
def test_mistakes_name_the_episode_and_write_nothing(log: Path, function: str, words: str, capsys) -> None:
    assert main(["rescore", "run", "--reward", f"rewards:{function}", "--out", "new.jsonl"]) == 2
    assert words in capsys.readouterr().err and not list(Path().glob("new.jsonl*"))


def test_a_run_without_episodes_and_damaged_lines(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    assert main(["rescore", "empty", "--reward", "rewards:same"]) == 2
    assert "a run writes them with text_rollouts.episode_log" in capsys.readouterr().err
    with log.open("a") as file:
        for key, value in (("return", None), ("success", "no"), ("module_id", [])):
            record = read_log(log)[0]
            record["trajectories"][0][key] = value
            file.write(json.dumps(record) + "\n")
        file.write(json.dumps({**record, "game": None}) + '\n{"steps": []}\n{"cut off')
    assert main(["rescore", "run", "--reward", "rewards:tensor"]) == 0
    said = capsys.readouterr()
    assert all(f"line {line}: no episode is read from it" in said.err for line in (9, 10, 13))
    assert "no whole line" in said.err and XO in said.out


def test_rank_correlation_is_scipys() -> None:
    before, after = [0.0, 1.0, 1.0, 2.0, 5.0, 1.0], [1.0, 1.0, 3.0, 2.0, -1.0, 0.0]
    assert rank_correlation([*zip(before, after, strict=True)]) == pytest.approx(spearmanr(before, after).statistic)
    assert rank_correlation([(0.0, 1.0), (0.0, 2.0)]) is None
