"""``rllib init``: what it writes keeps the contract, passes its own test and can be trained on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.cli.init import config_text, write_new
from rllib_lmgame.cli.main import main


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    return tmp_path


@pytest.mark.parametrize(
    ("players", "algorithm"), [("1", "LMGamePPO"), pytest.param("2", "LMGameGRPO", marks=pytest.mark.slow)]
)
def test_a_game_passes_the_checks_its_own_test_and_a_dry_run(
    players: str, algorithm: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, title = f"my_game_{players}", f"MyGame{players}"
    assert main(["init", "game", name, "--players", players, "--algo", algorithm]) == 0
    *_, check, own_test, play, dry_run = capsys.readouterr().out.splitlines()
    assert check == f"rllib games check {name}:{title}" and play == f"rllib play {name}:{title}"
    assert own_test == f"python -m pytest test_{name}.py"
    checked = subprocess.run([sys.executable, *own_test.split()[1:], "-q"], capture_output=True, text=True)
    assert checked.returncode == 0 and "2 passed" in checked.stdout, checked.stdout
    assert main(check.split()[1:]) == 0
    assert f"{name}:{title}: keeps the contract" in capsys.readouterr().out
    assert main(dry_run.split()[1:]) == 0
    text = capsys.readouterr().out
    assert f"# {name}: {algorithm}, 1 trial" in text and "GuessNumber" not in text + (here / f"{name}.py").read_text()
    assert main(["init", "game", name]) == 2
    assert f"{name}.py, test_{name}.py, {name}.yaml exists" in capsys.readouterr().err


def test_a_file_for_a_game_that_is_there_passes_a_dry_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for game, seats in (("lmgame/KuhnPoker-v0", True), ("lmgame/Sokoban-v0", False)):
        assert main(["init", "config", "mine", "--env", game, "--dir", game]) == 0
        text = (here / game / "mine.yaml").read_text()
        assert ("policy_mapping_fn: shared" in text) == seats and "expert: solver" in text
        assert f"cd {game}" in capsys.readouterr().out
    assert main(["train", "file", "lmgame/KuhnPoker-v0/mine.yaml", "--dry-run"]) == 0


def test_a_file_for_a_program_begins_without_an_expert(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = "agent:rllib_lmgame.envs.games.adapted.agent_program.trail:follow"
    assert main(["init", "config", "mine", "--env", program]) == 0
    text = (here / "mine.yaml").read_text()
    assert "warm_start" not in text and f"# A tiny language model learns {program}.\n" in text
    assert main(["train", "file", "mine.yaml", "--dry-run"]) == 0
    for expert in ("random", "solver"):
        assert main(["train", "file", "mine.yaml", "--dry-run", "--set", f"config.warm_start.expert={expert}"]) == 2
        said = f"config.warm_start.expert: {program} is a program, which `{expert}` cannot answer; set warm_start.data"
        assert said in capsys.readouterr().err
    explored = ["--set", "run=LMGameAgentEvol", "--set", "config.agentevol={original_episodes: 0}"]
    assert main(["train", "file", "mine.yaml", "--dry-run", *explored, "--set", "stop={training_iteration: 2}"]) == 0


@pytest.mark.parametrize("engine", [True, False])
def test_the_engine_is_one_that_is_here(engine: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: engine or None)
    text = config_text("a", "b:C", "LMGamePPO", 1, "random")
    assert (
        "expert: random" in text
        and ("engine: vllm" if engine else "engine: transformers") in text
        and "policies" not in text
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["game", "json"], "there is a module 'json' already"),
        (["game", "3x"], "names no module of Python"),
        (["game", "my-game"], "names no module of Python"),
        (["game", "class"], "names no module of Python"),
        (["game", "none"], "its class would be None"),
        (["game", "text_game"], "its class would be TextGame"),
        (["config", "a/b", "--env", "lmgame/Sokoban-v0"], "NAME"),
        (["config", "a", "--env", "lmgame/Sokobn-v0"], "did you mean"),
    ],
)
def test_a_name_that_cannot_be_is_explained_and_nothing_written(
    arguments: list[str], words: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", *arguments]) == 2
    assert words in capsys.readouterr().err and not any(here.iterdir())


def test_all_files_are_written_or_none(here: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        write_new(here, {"a.py": "a", "no/such/b.py": "b"})
    assert not any(here.iterdir())
