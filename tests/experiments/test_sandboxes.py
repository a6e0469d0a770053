"""The sandbox is shown by the dry run and when a run starts; a fall-back is a warning."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.experiments import runner
from rllib_lmgame.experiments.checks import outside
from rllib_lmgame.experiments.checks.check import CheckedExperiment, check_experiments, check_quickly
from rllib_lmgame.experiments.checks.dry_run import dry_run_lines
from rllib_lmgame.experiments.files.reading import read_experiments
from rllib_lmgame.experiments.run.cluster import RunOptions
from rllib_lmgame.sandbox import programs
from rllib_lmgame.sandbox.programs import SandboxReport, report_sandbox

WEAK = SandboxReport("b", "seccomp; at most 8 programs at once", "no namespaces can be made here", False)
NONE = SandboxReport("c", "limits; at most 8 programs at once", "refused unless X=1 is set", True)


def checked(tmp_path, config: str) -> list[CheckedExperiment]:
    """One experiment with a model without weights."""
    file = tmp_path / "run.yaml"
    model = "language_model: {tiny: {hidden_size: 32, num_layers: 1, num_heads: 2}}, inference: {engine: transformers}"
    file.write_text(
        f"a: {{run: LMGamePPO, stop: {{rl_iteration: 1}}, storage_path: {tmp_path}, config: {{{config}, {model}}}}}\n"
    )
    specs = read_experiments(str(file), [])
    check_quickly(specs)
    return check_experiments(specs)


def test_the_dry_run_shows_the_sandbox_of_games_that_need_one(tmp_path, monkeypatch) -> None:
    (experiment,) = checked(tmp_path, "games: [{env: lmgame/CodeExecution-v0}, {env: lmgame/Sokoban-v0}]")
    lines = dry_run_lines(experiment)
    place = lines.index("# sandbox for what players of lmgame/CodeExecution-v0 write (this machine)")
    assert (
        lines[place + 1] == f"#   {report_sandbox().text}"
        and programs.describe_mode(programs.find_mode()) in lines[place + 1]
    )
    monkeypatch.setattr(outside, "report_sandbox", lambda: WEAK)
    assert "#   warning: no namespaces can be made here" in dry_run_lines(experiment)
    (plain,) = checked(tmp_path, "env: lmgame/Sokoban-v0")
    assert not any("sandbox" in line for line in dry_run_lines(plain))


def test_games_of_the_evaluation_count(tmp_path) -> None:
    (experiment,) = checked(
        tmp_path, "env: lmgame/Sokoban-v0, evaluation_interval: 1, evaluation_config: {games: [{env: lmgame/BIRD-v0}]}"
    )
    assert outside.sandboxed_games(experiment) == ["lmgame/BIRD-v0"]


def test_a_run_says_it_when_it_starts(tmp_path, monkeypatch, capsys) -> None:
    order: list[str] = []

    def run_one(*_):
        order.append(capsys.readouterr().out)
        return []

    monkeypatch.setattr(runner, "running_cluster", lambda *_: nullcontext())
    monkeypatch.setattr(runner, "_run_one", run_one)
    runner.run_experiments(checked(tmp_path, "env: lmgame/ToolUse-v0"), RunOptions())
    assert order == [f"sandbox for programs: {report_sandbox().text}\n"]


def test_a_fall_back_is_a_warning_and_a_refusal_ends_the_run(tmp_path, monkeypatch, capsys) -> None:
    experiments = checked(tmp_path, "env: lmgame/CodeExecution-v0")
    monkeypatch.setattr(outside, "report_sandbox", lambda: WEAK)
    outside.tell_sandbox(experiments)
    said = capsys.readouterr()
    assert said.out == f"sandbox for programs: {WEAK.text}\n"
    assert said.err == "warning: sandbox for programs: no namespaces can be made here\n"
    monkeypatch.setattr(outside, "report_sandbox", lambda: NONE)
    with pytest.raises(ConfigError, match="cannot be played: refused unless X=1"):
        outside.tell_sandbox(experiments)
