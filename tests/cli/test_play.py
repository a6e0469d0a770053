"""``rllib play``: a person in any seat, players of any kind in the others, or everybody watched."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from rllib_lmgame.cli import main
from rllib_lmgame.policies.scripted import RandomPlayer

TIC_TAC_TOE = "lmgame/TicTacToe-v0"
KUHN = ["lmgame/KuhnPoker-v0", "--env-config", "{players: 3}"]
SELF_PLAY = {
    "env": TIC_TAC_TOE,
    "env_config": {"max_invalid_actions": 1},
    "text_rollouts": {"constrained_decoding": True},
}
WATCH = ["--seat", "none", "--no-pause"]

Checkpoint = Callable[..., str]


class Terminal:
    """What is typed, then Ctrl-D; and the prompts that were shown."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.lines: list[str] = []
        self.prompts: list[str] = []
        self._capsys = capsys

    def type(self, prompt: str = "") -> str:
        self.prompts.append(prompt)
        print(prompt, end="")
        if not self.lines:
            raise EOFError
        return self.lines.pop(0)

    def play(self, *arguments: str, typed: str = "", status: int = 0) -> str:
        """What one game prints while the words of ``typed`` are typed."""
        self.lines[:] = typed.split()
        self.prompts.clear()
        assert main(["play", *arguments]) == status
        said = self._capsys.readouterr()
        return said.out + said.err


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    terminal = Terminal(capsys)
    monkeypatch.setattr("builtins.input", terminal.type)
    return terminal


def test_a_person_takes_the_seat_nobody_else_has(terminal: Terminal) -> None:
    out = terminal.play(TIC_TAC_TOE, "--players", "X=random", "--seed", "3", typed="! ! ! ! !")
    assert out.startswith(f"{TIC_TAC_TOE}; X: random, O: you\n") and "You are O." in out
    assert "X (random)> (has replied)" in out and "the game is over" in out


def test_players_without_a_seat_take_the_others(terminal: Terminal) -> None:
    out = terminal.play(TIC_TAC_TOE, "--players", "O=minimax", "random", *WATCH)
    assert out.startswith(f"{TIC_TAC_TOE}; X: random, O: minimax\n") and "X (random)> " in out
    out = terminal.play(TIC_TAC_TOE, "--players", "random", "--seat", "O", typed="! ! ! ! ! !")
    assert "; X: random, O: you" in out
    out = terminal.play(*KUHN, "--players", "player_1=random", "random", "--no-pause", typed="! ! !")
    assert "player_0: you, player_1: random, player_2: random" in out


def test_a_checkpoint_takes_the_seats_nobody_is_named_for(terminal: Terminal, checkpoint: Checkpoint) -> None:
    place = checkpoint(**SELF_PLAY)
    out = terminal.play("--checkpoint", place, "--players", "X=minimax", *WATCH)
    assert "X (minimax)> " in out and f"O ({place})> <answer>" in out
    out = terminal.play("--checkpoint", place, *WATCH, "--temperature", "0")
    assert f"X ({place})> <answer>" in out and f"O ({place})> <answer>" in out and "the game is over" in out


def test_what_others_do_is_not_shown_to_a_person(monkeypatch: pytest.MonkeyPatch, terminal: Terminal) -> None:
    """Neither before the person has decided in a game in which all decide at once, nor after it."""
    order: list[str] = []
    act = RandomPlayer.act

    def told(self, session, agent: str, *args) -> str:
        order.append(agent)
        return act(self, session, agent, *args)

    monkeypatch.setattr(RandomPlayer, "act", told)
    monkeypatch.setattr("builtins.input", lambda prompt="": order.append("me") or "rock")
    game = ["lmgame/RockPaperScissors-v0", "--env-config", "{chat_turns: 0}"]
    out = terminal.play(*game, "--players", "player_0=random", "--seat", "player_1")
    assert order[:4] == ["me", "player_0", "me", "player_0"]
    assert "(random)> (has replied)" in out and not re.search(r"\(random\)> (rock|paper|scissors)", out)


def test_a_person_talks_freely(monkeypatch: pytest.MonkeyPatch, terminal: Terminal) -> None:
    """What a person says the others hear, and the other way round; an action ends it."""
    heard: list[str] = []

    class Answers:
        def act(self, session, agent: str, observation, rng) -> str:
            heard.append(observation.text)
            return "The ball is mine."

    monkeypatch.setattr(f"{__name__}.Answers", Answers, raising=False)
    said = iter(["Shall we share the hats?", "no deal"])
    monkeypatch.setattr("builtins.input", lambda prompt="": next(said))
    out = terminal.play("lmgame/Negotiation-v0", "--players", f"player_1={__name__}:Answers", "--seat", "player_0")
    assert any("[Other player] Shall we share the hats?" in text for text in heard)
    assert "[Other player] The ball is mine." in out and "There is no deal." in out


def test_a_checkpoint_and_a_model_play_each_other(checkpoint, tiny_model_dir, terminal) -> None:
    place = checkpoint(**SELF_PLAY)
    players = [f"X={place}", f"O=hf:{tiny_model_dir}"]
    outputs = [terminal.play(TIC_TAC_TOE, "--players", *players, "--no-pause", "--temperature", "0") for _ in range(2)]
    assert outputs[0] == outputs[1]
    assert f"X ({place})> <answer>" in outputs[0] and f"O (hf:{tiny_model_dir})> " in outputs[0]


def test_an_endpoint_plays_and_cannot_write_to_the_terminal(endpoint, terminal) -> None:
    endpoint.text = "\x1b[2J<answer>resign</answer>"
    out = terminal.play(TIC_TAC_TOE, "--players", f"X={endpoint.player}", "random", *WATCH)
    assert "\\x1b[2J<answer>resign</answer>" in out and "\x1b" not in out and "the game is over" in out


def test_watch_the_game_of_the_checkpoint(checkpoint: Checkpoint, terminal: Terminal) -> None:
    place = checkpoint()
    first, again, other = (terminal.play("--checkpoint", place, "--no-pause", "--seed", seed) for seed in "112")
    assert first.startswith("lmgame/Sokoban-v0 {'split': 'test', 'max_turns': 4, 'max_actions': 20}")
    assert f"player (4 turns left) ({place})> " in first and "<answer>" in first and "reward: player -" in first
    assert "success: no\n" in first and not terminal.prompts
    assert first == again != other


def test_pause_and_leave(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, terminal: Terminal) -> None:
    place = str(Path(checkpoint()).parent)
    out = terminal.play("--checkpoint", place, typed="on")
    assert len(terminal.prompts) == 2 and all("Enter" in prompt for prompt in terminal.prompts)
    assert out.count("reward:") == 2 and out.endswith("left\n")

    def interrupt(prompt: str = "") -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", interrupt)
    assert terminal.play("--checkpoint", place).endswith("left\n")
    assert terminal.play(TIC_TAC_TOE).endswith("left\n")


def test_against_the_model(checkpoint: Checkpoint, terminal: Terminal) -> None:
    place = checkpoint(**SELF_PLAY)
    out = terminal.play(TIC_TAC_TOE, "--checkpoint", place, "--seat", "O", typed="! ! ! ! !")
    assert "O: you" in out and out.count(f"X ({place})> ") >= 3
    assert all(prompt.startswith("O> ") for prompt in terminal.prompts) and "the game is over" in out
    assert "O" in out.rpartition("success: ")[2] or "return: X 0, O 0" in out


def test_who_has_no_tokens_left(checkpoint: Checkpoint, terminal: Terminal) -> None:
    """As in training: who plays alone is at the end, of several the game goes on as it says."""
    alone = {"split": "train", "max_turns": 9, "max_invalid_actions": None}
    place = checkpoint(language_model={"max_tokens_per_episode": 8}, env_config=alone)
    out = terminal.play("--checkpoint", place, "--no-pause", status=1)
    assert "no tokens left for another reply (token_budget)" in out


def test_who_has_no_tokens_left_forfeits(checkpoint: Checkpoint, terminal: Terminal) -> None:
    place = checkpoint(**SELF_PLAY, language_model={"max_tokens_per_episode": 4})
    out = terminal.play(TIC_TAC_TOE, "--checkpoint", place, "--seat", "O", typed="! ! ! ! ! ! ! ! !")
    assert "X has no tokens left for another reply (token_budget)" in out
    assert "the game is over; return: X -1, O 1" in out and out.endswith("success: O\n")


HANGING = """
import threading
from rllib_lmgame.envs.games.duels.tic_tac_toe import TicTacToe

class Hangs(TicTacToe):
    def __init__(self, where, **options):
        super().__init__(**options)
        setattr(self, where, lambda *args, **kwargs: threading.Event().wait())
"""


@pytest.mark.parametrize("where", ["expert_action", "step", "reset"])
def test_a_game_that_hangs_is_left(where, checkpoint, tmp_path, monkeypatch, terminal) -> None:
    (tmp_path / "hanging_game.py").write_text(HANGING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    rollouts = {**SELF_PLAY["text_rollouts"], "env_step_timeout_s": 0.5}  # type: ignore[dict-item]
    place = checkpoint(**{**SELF_PLAY, "text_rollouts": rollouts})
    game = ["hanging_game:Hangs", "--checkpoint", place, "--players", "minimax", "--env-config", f"{{where: {where}}}"]
    assert f"{where} took longer than" in terminal.play(*game, *WATCH, status=1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name a game"),
        ([TIC_TAC_TOE, "--port", "8011"], "--port goes with --web"),
        ([TIC_TAC_TOE, "--players", "Y=random"], "has no seat 'Y'; seats: X, O"),
        ([TIC_TAC_TOE, "--players", "X=random", "--seat", "none"], "nobody takes the seat 'O'"),
        ([TIC_TAC_TOE, "--players", "random", "minimax"], "write SEAT=PLAYER for each of X, O"),
        ([*KUHN, "--players", "player_1=solver", "random", *WATCH], "KuhnPoker-v0 has no solver with these options"),
        (
            [TIC_TAC_TOE, "--players", "X=openai:m@http://127.0.0.1:1/v1", "--config", "{endpoint: {attempts: 1}}"],
            "no answer from http://127.0.0.1:1/v1",
        ),
        (["--checkpoint", "/no/such"], "no such directory"),
        (["--checkpoint", "{}", "--seat", "playr"], "did you mean 'player'"),
    ],
)
def test_mistakes(arguments: list[str], words: str, checkpoint: Checkpoint, terminal: Terminal) -> None:
    place = checkpoint() if "{}" in arguments else ""
    assert words in terminal.play(*(place if argument == "{}" else argument for argument in arguments), status=2)


def test_altered_checkpoint_is_refused(checkpoint: Checkpoint, terminal: Terminal) -> None:
    place = checkpoint()
    (Path(place) / "hf" / "config.json").write_text("{}")
    assert "config.json is truncated" in terminal.play("--checkpoint", place, status=2)
