"""What is printed when a run has ended: how its final policy does, and what to type next."""

from __future__ import annotations

import shlex
import sys
from types import SimpleNamespace

import pytest

from rllib_lmgame.cli.main import make_parser
from rllib_lmgame.evaluation import evaluate
from rllib_lmgame.experiments.results.next_commands import (
    next_commands,
    print_final_evaluation,
    resume_command,
    wants_final_evaluation,
)
from rllib_lmgame.experiments.results.outcome import TrialSummary
from rllib_lmgame.inference.protocol import StopReason
from rllib_lmgame.rollouts.seats import EpisodeFailed

EVALUATED = {"evaluation": {"env_runners": {"num_episodes": 8, "success_rate": 0.5}}}


def trial(checkpoint: str | None = "/runs/my run/trial/checkpoint_000002", **last_result) -> TrialSummary:
    last = {"learners": {"player": {}, "__all_modules__": {}}, **last_result}
    return TrialSummary("mine", "a", "/runs/my run/trial", checkpoint, last)


def test_what_to_type_next_can_be_typed(monkeypatch, tmp_path) -> None:
    """By whoever called the program by a path, in a directory with a space, too."""
    program = tmp_path / "rllib"
    program.touch()
    given = ["train", "file", "my run.yaml", "--stop", "{rl_iteration: 3}"]
    monkeypatch.setattr(sys, "argv", [str(program), *given])
    lines = next_commands(trial(), own=True)
    commands = [shlex.split(line[line.index(str(program)) :]) for line in lines if str(program) in line]
    assert [command[1] for command in commands] == ["evaluate", "play", "train"]
    for command in commands:
        parsed, rest = make_parser(command[1]).parse_known_args(command[1:])
        assert not rest and parsed.run
    assert commands[0][2] == commands[1][3] == trial().checkpoint and commands[2][1:] == [*given, "--resume"]
    assert "raise `stop`, then" in lines[2]
    monkeypatch.setattr(sys, "argv", [str(program), *given, "--resume"])
    assert resume_command().count("--resume") == 1
    alone = next_commands(trial(), own=True, plays=False)
    assert "--env GAME" in alone[0] and "play GAME --checkpoint" in alone[1]
    assert not any("Train on" in line for line in next_commands(trial(), own=True, stopped=False))
    stock = "\n".join(next_commands(trial(), own=False))
    assert "evaluate" in stock and "play" not in stock and "--split" not in stock
    assert "evaluate" not in "\n".join(next_commands(trial(checkpoint=None), own=True))


@pytest.mark.parametrize(
    ("interval", "trials", "due"),
    [
        (2, [trial()], True),
        (None, [trial()], False),
        (2, [trial(**EVALUATED)], False),
        (2, [trial(checkpoint=None)], False),
        (2, [trial(checkpoint="s3://runs/checkpoint")], False),
        (2, [trial(), trial()], False),
    ],
)
def test_the_final_policy_is_evaluated_where_an_evaluation_is_configured_and_not_just_made(
    interval: int | None, trials: list[TrialSummary], due: bool
) -> None:
    assert wants_final_evaluation(SimpleNamespace(evaluation_interval=interval), trials) is due


def test_the_final_policy_is_told_with_its_interval(monkeypatch, capsys) -> None:
    game = {
        "game": "lmgame/Sokoban-v0",
        "split": "validation",
        "num_episodes": 64,
        "success_rate": 0.25,
        "success_interval": [0.16, 0.37],
        "levels": 60,
        "seat_returns_mean": {"player": {"player": 1.5}},
        "format_error_rate": 0.0,
    }
    monkeypatch.setattr(evaluate, "evaluate_as_in_training", lambda checkpoint: {"evaluated": [game]})
    print_final_evaluation(trial())
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == (
        "final policy, 64 episodes of lmgame/Sokoban-v0, validation:  success 0.250 (0.160 - 0.370 over 60 "
        "levels)  return +1.50  unreadable 0.000"
    )

    def fail(checkpoint: str):
        raise EpisodeFailed(StopReason.ENGINE_ERROR, "the engine is gone")

    monkeypatch.setattr(evaluate, "evaluate_as_in_training", fail)
    print_final_evaluation(trial())
    assert "could not be evaluated: the engine is gone" in capsys.readouterr().err
