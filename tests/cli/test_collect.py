"""``rllib collect``: experts' episodes as a log that supervised learning reads."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from episode_parts import logged, sessions

from rllib_lmgame.cli import main
from rllib_lmgame.rollouts.episode_log import read_log


def collect(out: Path, *more: str, game: str = "lmgame/Sokoban-v0") -> int:
    return main(["collect", game, "--episodes", "70", "--out", str(out), *more])


def test_the_log_holds_the_experts_episodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "expert.jsonl"
    assert collect(out) == 0
    assert "70 episodes" in capsys.readouterr().out
    records = read_log(out)
    assert len(records) == 70 and len({record["infos"]["player"]["level"] for record in records}) > 60
    assert all(record["infos"]["player"]["success"] for record in records)
    assert len(sessions(out)) == 70


def test_a_terminal_shows_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    shown.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stderr", shown)
    assert collect(tmp_path / "bar.jsonl") == 0
    assert "/70 [" in shown.getvalue()


def test_the_same_seed_gives_the_same_file(tmp_path: Path) -> None:
    for name, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        assert collect(tmp_path / name, "--player", "random", "--seed", seed, game="lmgame/KuhnPoker-v0") == 0
    files = [(tmp_path / name).read_bytes() for name in "abc"]
    assert files[0] == files[1] != files[2]


def test_successes_only(tmp_path: Path) -> None:
    assert collect(tmp_path / "all", "--player", "random", game="lmgame/FrozenLake-v0") == 0
    assert collect(tmp_path / "won", "--player", "random", "--successes-only", game="lmgame/FrozenLake-v0") == 0
    won = [record for record in read_log(tmp_path / "all") if record["infos"]["player"]["success"]]
    assert 0 < len(won) < 70 and read_log(tmp_path / "won") == won


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lmgame/Sokobann-v0", "--out", "new"], "did you mean 'lmgame/Sokoban-v0'"),
        (["lmgame/Sokoban-v0", "--out", "new", "--env-config", '{"num_box": 1}'], "did you mean 'num_boxes'"),
        (["lmgame/Sokoban-v0", "--out", "old"], "exists"),
    ],
)
def test_bad_input_is_named_and_nothing_is_written(arguments, message, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("old").write_text("kept")
    assert main(["collect", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["old"] and Path("old").read_text() == "kept"


def test_a_game_that_breaks_leaves_no_half_file(tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "breaking.py").write_text(
        "from rllib_lmgame.envs.games.grids.sokoban import Sokoban\n"
        "class Breaking(Sokoban):\n"
        "    def play_move(self, move):\n"
        "        raise RuntimeError('broken')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    out = tmp_path / "out.jsonl"
    assert collect(out, game="breaking:Breaking") == 1
    assert "RuntimeError: broken" in capsys.readouterr().err
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize(("game", "letters"), [("Letters", "abcde"), ("Count", "123"), ("Together", "ab")])
def test_a_game_of_others_is_played_with_texts_of_its_action_space(game, letters, tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "envs"))
    for name in ("one", "two"):
        assert collect(tmp_path / name, "--player", "random", game=f"author_games:{game}") == 0
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    steps = [step for record in read_log(tmp_path / "one") for step in record["steps"]]
    assert {action for step in steps for action in step["actions"].values()} == set(letters)


ENDLESS = """
from rllib_lmgame.envs.games.duels.tic_tac_toe import TicTacToe

class Endless(TicTacToe):
    def step(self, action):
        pass
"""


def test_a_game_without_an_end_is_given_up(tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "endless.py").write_text(ENDLESS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("rllib_lmgame.rollouts.collect.MOST_STEPS", 50)
    assert collect(tmp_path / "log", "--player", "random", game="endless:Endless") == 1
    assert "is not over after 50 steps; limit it in --env-config" in capsys.readouterr().err
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("form", ["messages", "agentgym", "prompt_completion"])
def test_conversations_that_supervised_learning_reads(form: str, tmp_path: Path) -> None:
    assert collect(tmp_path / "x.jsonl", "--format", form, "--successes-only", game="lmgame/FrozenLake-v0") == 0
    found = logged(tmp_path / "x.jsonl").training
    assert len(found) >= 70 and all(each.episode_return >= 0.5 for each in found)
    assert all(each.transcript.learnt for each in found)


def test_replies_are_written_as_the_options_say(tmp_path: Path) -> None:
    react = "{language_model: {reply_format: react, system_prompt: Play.}}"
    assert collect(tmp_path / "x", "--format", "messages", "--config", react, game="lmgame/FrozenLake-v0") == 0
    said = json.loads((tmp_path / "x").read_text().partition("\n")[0])["messages"]
    assert said[0] == {"role": "system", "content": "Play."} and said[2]["content"].startswith("Action:\n")


def test_an_endpoint_plays_and_what_fails_is_left_out(tmp_path: Path, endpoint, capsys) -> None:
    endpoint.refused = {3}
    out, game = tmp_path / "x", "lmgame/RockPaperScissors-v0"
    arguments = ["--episodes", "4", "--player", endpoint.player, "--parallel", "1", "--format", "messages"]
    assert main(["collect", game, *arguments, "--env-config", "{rounds: 2}", "--out", str(out)]) == 0
    told = capsys.readouterr()
    assert "1 of 4 episodes failed" in told.err and "3 episodes in" in told.out and "requests: " in told.out
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == 6, "both seats of each"
    assert {said["content"] for row in rows for said in row["messages"] if said["role"] == "assistant"} == {
        "<answer>rock</answer>"
    }


@pytest.mark.parametrize("who", ["checkpoint", pytest.param("model", marks=pytest.mark.slow)])
def test_a_checkpoint_or_a_model_plays(who: str, checkpoint, tiny_model_dir: str, tmp_path: Path, capsys) -> None:
    """What it says is a log, and conversations of others' form, that supervised learning reads."""
    legal = {"constrained_decoding": True}
    player = checkpoint(text_rollouts=legal) if who == "checkpoint" else f"hf:{tiny_model_dir}"
    config = json.dumps({"text_rollouts": legal})
    own = ["--player", player, "--episodes", "3", "--config", config]
    command = ["collect", "lmgame/TicTacToe-v0", *own, "--parallel", "1"]
    assert main([*command, "--out", str(tmp_path / "log")]) == 0
    assert "3 episodes in" in capsys.readouterr().out
    assert main([*command, "--format", "messages", "--out", str(tmp_path / "said")]) == 0
    records, rows = read_log(tmp_path / "log"), [json.loads(line) for line in (tmp_path / "said").open()]
    assert len(records) == 3 and len(logged(tmp_path / "log").training) == 3
    assert len(rows) == len(logged(tmp_path / "said").training) == 6, "both seats of each"
    assert {each["player"] for record in records for each in record["assignments"].values()} == {"language_model"}


def test_an_endpoint_that_is_not_there_writes_nothing(tmp_path: Path, capsys) -> None:
    settings = "{endpoint: {attempts: 1}}"
    arguments = ["--player", "openai:x@http://127.0.0.1:9/v1", "--config", settings, "--episodes", "2"]
    assert main(["collect", "lmgame/FrozenLake-v0", *arguments, "--out", str(tmp_path / "x")]) in (1, 2)
    assert "127.0.0.1:9" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_levels_of_a_split(tmp_path: Path) -> None:
    levels = {}
    for split in ("train", "test"):
        assert collect(tmp_path / split, "--split", split, game="lmgame/FrozenLake-v0") == 0
        levels[split] = {record["infos"]["player"]["level"] for record in read_log(tmp_path / split)}
    assert levels["train"] and levels["train"].isdisjoint(levels["test"])
