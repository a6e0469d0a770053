"""``rllib play --checkpoint``: a checkpoint made by hand plays in the terminal, without Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rllib_lmgame.cli import main

Checkpoint = Callable[..., str]


def typed(monkeypatch: pytest.MonkeyPatch, lines: list[str]) -> list[str]:
    """Type ``lines``, then Ctrl-D; returns the prompts shown."""
    waiting: Iterator[str] = iter(lines)
    prompts: list[str] = []

    def answer(prompt: str = "") -> str:
        prompts.append(prompt)
        try:
            return next(waiting)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", answer)
    return prompts


def test_watch_the_game_of_the_checkpoint(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = typed(monkeypatch, [])
    assert main(["play", "--checkpoint", checkpoint(), "--no-pause"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("lmgame/Sokoban-v0 {'split': 'test', 'max_turns': 4, 'max_actions': 20}")
    assert "player (4 turns left) (player)> " in out and "<answer>" in out and "reward: player -" in out
    assert "success: none" in out and not prompts


def test_the_same_seed_plays_the_same_game(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, [])
    place = checkpoint()
    outputs = []
    for seed in ("1", "1", "2"):
        assert main(["play", "--checkpoint", place, "--no-pause", "--seed", seed]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] != outputs[2]


def test_pause_and_leave(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = typed(monkeypatch, [""])
    assert main(["play", "--checkpoint", str(Path(checkpoint()).parent)]) == 0
    out = capsys.readouterr().out
    assert len(prompts) == 2 and all("Enter" in prompt for prompt in prompts)
    assert out.count("reward:") == 2 and out.endswith("left\n")


def test_interrupt_leaves(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(prompt: str = "") -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", interrupt)
    assert main(["play", "--checkpoint", checkpoint()]) == 0
    assert capsys.readouterr().out.endswith("left\n")


SELF_PLAY = {
    "env": "lmgame/TicTacToe-v0",
    "env_config": {"max_invalid_actions": 1},
    "text_rollouts": {"legal_moves_only": True},
}


def test_against_the_model(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = typed(monkeypatch, ["!"] * 5)
    assert main(["play", "lmgame/TicTacToe-v0", "--checkpoint", checkpoint(**SELF_PLAY), "--seat", "O"]) == 0
    out = capsys.readouterr().out
    assert "you are O" in out and out.count("X (player)> ") >= 3
    assert all(prompt.startswith("O> ") for prompt in prompts) and "the game is over" in out
    assert "O" in out.rpartition("success: ")[2] or "return: X 0, O 0" in out


def test_watch_two_models(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = typed(monkeypatch, [])
    assert (
        main(["play", "--checkpoint", checkpoint(**SELF_PLAY), "--seat", "none", "--no-pause", "--temperature", "0"])
        == 0
    )
    out = capsys.readouterr().out
    assert "X (player)> <answer>" in out and "O (player)> <answer>" in out
    assert "the game is over" in out and not prompts


def test_scripted_opponent_of_training(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seats = {
        "policies": {"player": {}, "teacher": {"player": "minimax"}},
        "policy_mapping_fn": {"X": "teacher", "O": "player"},
    }
    typed(monkeypatch, [])
    place = checkpoint(**SELF_PLAY, **seats)
    assert main(["play", "--checkpoint", place, "--seat", "none", "--no-pause"]) == 0
    out = capsys.readouterr().out
    assert "X (teacher)> " in out and "O (player)> <answer>" in out
    typed(monkeypatch, ["!"] * 5)
    assert main(["play", "--checkpoint", place, "--seat", "O", "--policy", "player"]) == 0
    assert "X (player)> " in capsys.readouterr().out


def test_a_checkpoint_against_a_scripted_player(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, [])
    assert (
        main(["play", "--checkpoint", checkpoint(**SELF_PLAY), "--against", "minimax", "--seat", "O", "--no-pause"])
        == 0
    )
    out = capsys.readouterr().out
    assert "X (minimax)> " in out and "O (player)> <answer>" in out


def test_out_of_tokens(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, [])
    place = checkpoint(
        language_model={"max_tokens_per_episode": 8},
        env_config={"split": "train", "max_turns": 9, "max_invalid_actions": None},
    )
    assert main(["play", "--checkpoint", place, "--no-pause"]) == 1
    assert "no tokens left for another reply (token_budget)" in capsys.readouterr().out


def test_who_has_no_tokens_left_forfeits(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in training: the game goes on as it says, it does not stop in the middle."""
    typed(monkeypatch, ["!"] * 9)
    place = checkpoint(**SELF_PLAY, language_model={"max_tokens_per_episode": 4})
    assert main(["play", "lmgame/TicTacToe-v0", "--checkpoint", place, "--seat", "O"]) == 0
    out = capsys.readouterr().out
    assert (
        "X has no tokens left for another reply (token_budget)" in out and "the game is over; return: X -1, O 1" in out
    )
    assert out.endswith("success: O\n")


HANGING = """
import threading
from rllib_lmgame.envs.games.duels.tic_tac_toe import TicTacToe

class Hangs(TicTacToe):
    def __init__(self, where, **options):
        super().__init__(**options)
        setattr(self, where, lambda *args, **kwargs: threading.Event().wait())
"""


@pytest.mark.parametrize("where", ["expert_action", "step", "reset"])
def test_a_game_that_hangs_is_left(
    where: str, checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (tmp_path / "hanging_game.py").write_text(HANGING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    typed(monkeypatch, [])
    seats = {
        "policies": {"player": {}, "teacher": {"player": "solver"}},
        "policy_mapping_fn": {"X": "teacher", "O": "player"},
    }
    limit = {"text_rollouts": {"env_step_timeout_s": 0.5}}
    place = checkpoint(**{**SELF_PLAY, **seats, **limit})
    config = f'{{"where": "{where}"}}'
    assert (
        main(
            [
                "play",
                "hanging_game:Hangs",
                "--checkpoint",
                place,
                "--seat",
                "none",
                "--no-pause",
                "--env-config",
                config,
            ]
        )
        == 1
    )
    assert f"{where} took longer than" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["play"], "name a game"),
        (["play", "lmgame/Sokoban-v0", "--seat", "player"], "--seat needs a --checkpoint or --against"),
        (["play", "--checkpoint", "/no/such"], "no such directory"),
        (["play", "--checkpoint", "{}", "--seat", "playr"], "did you mean 'player'"),
        (["play", "--checkpoint", "{}", "--policy", "playr"], "did you mean 'player'"),
        (["play", "--checkpoint", "{}", "--temperature", "-1"], "at least 0"),
        (["play", "--checkpoint", "{}", "--env-config", '{"num_box": 1}'], "did you mean 'num_boxes'"),
        (["play", "lmgame/Sokobn-v0", "--checkpoint", "{}"], "did you mean 'lmgame/Sokoban-v0'"),
    ],
)
def test_mistakes(arguments: list[str], words: str, checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]) -> None:
    place = checkpoint() if "{}" in arguments else ""
    assert main([place if argument == "{}" else argument for argument in arguments]) == 2
    assert words in capsys.readouterr().err


def test_altered_checkpoint_is_refused(checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]) -> None:
    place = checkpoint()
    (Path(place) / "hf" / "config.json").write_text("{}")
    assert main(["play", "--checkpoint", place]) == 2
    assert "config.json is truncated" in capsys.readouterr().err
