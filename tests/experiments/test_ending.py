"""What is printed when a run has ended: what to type next."""

from __future__ import annotations

import shlex
import sys

from rllib_lmgame.cli.main import make_parser
from rllib_lmgame.experiments.results.next_commands import next_commands, resume_command
from rllib_lmgame.experiments.results.outcome import TrialSummary


def trial(checkpoint: str | None = "/runs/my run/trial/checkpoint_000002") -> TrialSummary:
    return TrialSummary("mine", "a", "/runs/my run/trial", checkpoint)


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
    assert all(word not in "\n".join(next_commands(trial(), own=False)) for word in ("evaluate", "play"))
    assert "evaluate" not in "\n".join(next_commands(trial(checkpoint=None), own=True))
