"""The command line as a user has it: in a process of its own, interrupted, resumed, beside another one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

MARK = "LMGAME_TEST_RUN"
PATIENCE_S = 240


class Command:
    """One run of ``rllib``; every process it starts carries a mark in its environment."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rllib_lmgame.cli", *arguments],
            env={**os.environ, MARK: self.mark, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
            start_new_session=True,
        )
        self.lines: list[str] = []

    def wait_for(self, words: str) -> None:
        """Read until a line holds ``words``."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if words in line:
                return
        raise AssertionError(f"ended without {words!r}:\n{self.text}")

    def finish(self) -> int:
        """Read the rest; returns the exit code."""
        rest, _ = self.process.communicate(timeout=PATIENCE_S)
        self.lines.append(rest)
        return self.process.returncode

    @property
    def text(self) -> str:
        return "".join(self.lines)

    def processes(self) -> list[str]:
        """Command lines of living processes with the mark."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(" ".join(process.cmdline())[:120])
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def end(self) -> None:
        """End whatever is left."""
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark:
                    process.kill()
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue


@pytest.fixture
def rllib() -> Iterator[Callable[..., Command]]:
    """Function that starts ``rllib`` with arguments."""
    commands: list[Command] = []

    def run(*arguments: str, **environment: str) -> Command:
        commands.append(Command(*arguments, **environment))
        return commands[-1]

    yield run
    for command in commands:
        command.end()


@pytest.fixture
def write_file(tmp_path: Path, tiny_dict: Callable[..., dict[str, Any]]) -> Callable[..., str]:
    """Function ``(name, stop, **config)`` that writes an experiment file."""

    def write(name: str, ppo_iterations: int, **config: Any) -> str:
        values = tiny_dict(**config)
        spec = {
            "run": "LMGamePPO",
            "env": values.pop("env"),
            "stop": {"ppo_iteration": ppo_iterations},
            "config": values,
        }
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump({name: {**spec, "storage_path": str(tmp_path / "results")}}))
        return str(path)

    return write


def checkpoints(tmp_path: Path) -> list[Path]:
    return sorted(path.parent for path in tmp_path.glob("results/*/*/checkpoint_*/manifest.json"))


def all_gone(command: Command) -> bool:
    """Whether every process ends; Ray's own take a moment after their parent."""
    deadline = time.monotonic() + PATIENCE_S
    while command.processes() and time.monotonic() < deadline:
        psutil.wait_procs([], timeout=0.2)
        time.sleep(0.1)
    return not command.processes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "send"), [(signal.SIGINT, os.kill), (signal.SIGTERM, os.killpg)], ids=["SIGINT", "SIGTERM to the group"]
)
def test_an_interrupted_run_is_saved_leaves_nothing_behind_and_goes_on(
    rllib: Callable[..., Command],
    write_file: Callable[..., str],
    tmp_path: Path,
    number: signal.Signals,
    send: Callable[[int, int], None],
) -> None:
    file = write_file("interrupted", 8, num_env_runners=2)
    first = rllib("train", "file", file)
    first.wait_for("iter    1")
    send(first.process.pid, number)
    assert first.finish() == 128 + number, first.text
    assert (
        "--resume" in first.text
        and "Traceback" not in first.text
        and ".cc:" not in first.text
        and ".h:" not in first.text
    )
    assert all_gone(first), first.processes()
    (saved,) = checkpoints(tmp_path)
    assert (saved / "hf" / "model.safetensors").is_file()

    second = rllib("train", "file", file, "--resume")
    assert second.finish() == 0, second.text
    assert "iter    1" not in second.text and "iter    8" in second.text
    assert all_gone(second), second.processes()

    third = rllib("evaluate", str(checkpoints(tmp_path)[-1]), "--episodes", "8", "--json")
    assert third.finish() == 0, third.text
    numbers = json.loads(third.text[third.text.index("{") :])
    assert numbers["num_episodes"] == 8
    assert all_gone(third), third.processes()


@pytest.mark.slow
def test_an_interrupted_evaluation_says_so_in_one_line(rllib: Callable[..., Command], tiny_model_dir: str) -> None:
    settings = {"inference": {"engine": "transformers"}, "language_model": {"dtype": "float32"}}
    command = rllib(
        "evaluate",
        tiny_model_dir,
        "--env",
        "lmgame/Sokoban-v0",
        "--episodes",
        "100000",
        "--config",
        yaml.safe_dump(settings),
    )
    deadline = time.monotonic() + PATIENCE_S
    while (
        not any("EngineActor" in line for line in command.processes())
        and command.process.poll() is None
        and time.monotonic() < deadline
    ):
        time.sleep(0.2)
    os.killpg(command.process.pid, signal.SIGTERM)
    assert command.finish() == 128 + signal.SIGTERM, command.text
    assert command.text == "interrupted\n"
    assert all_gone(command), command.processes()


PLAIN = """
import json, sys
from rllib_lmgame.algorithms.ppo import LMGamePPOConfig

algorithm = LMGamePPOConfig().update_from_dict(json.loads(sys.argv[1])).build_algo()
algorithm.stop()
print("built")
"""


@pytest.mark.slow
def test_an_algorithm_without_ray_starts_it_quietly(tiny_dict: Callable[..., dict[str, Any]]) -> None:
    environment = {key: value for key, value in os.environ.items() if key not in ("RAY_ADDRESS", "RAY_AUTH_MODE")}
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, json.dumps(tiny_dict(num_env_runners=2))],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("built\n")
    assert "authentication" not in done.stderr and "Started a local Ray" not in done.stderr, done.stderr


@pytest.mark.slow
def test_a_killed_run_with_a_damaged_state_goes_on_and_no_iteration_stands_twice(
    rllib: Callable[..., Command], write_file: Callable[..., str], tmp_path: Path
) -> None:
    file = write_file("killed", 60)
    first = rllib("train", "file", file, "--checkpoint-freq", "2")
    first.wait_for("iter    1")
    second = rllib("train", "file", file)
    assert second.finish() == 2
    assert f"process {first.process.pid} on" in second.text and "--experiment-name" in second.text
    first.wait_for("iter    5")
    first.process.kill()
    first.finish()
    assert all_gone(first), first.processes()
    (state,) = tmp_path.glob("results/killed/experiment_state-*.json")
    state.write_bytes(state.read_bytes()[: state.stat().st_size // 2])
    (results,) = tmp_path.glob("results/killed/*/result.json")
    before = iterations(results)
    assert before[:5] == [1, 2, 3, 4, 5]

    third = rllib(
        "train",
        "file",
        file,
        "--checkpoint-freq",
        "2",
        "--resume",
        "--stop",
        json.dumps({"ppo_iteration": before[-1] + 2}),
    )
    assert third.finish() == 0, third.text
    assert "last whole copy" in third.text and "iter    2" not in third.text
    assert iterations(results) == list(range(1, before[-1] + 3))


@pytest.mark.slow
@pytest.mark.parametrize("point", ["write", "copy", "push", "snapshot"])
def test_a_run_that_is_killed_in_the_middle_of_what_it_writes_or_sends_goes_on_from_the_last_whole_state(
    rllib: Callable[..., Command], write_file: Callable[..., str], tmp_path: Path, point: str
) -> None:
    league = {"snapshot_every": 1, "max_members": 4}
    kuhn = {"env": "lmgame/KuhnPoker-v0", "env_config": {}, "league": league, "token_ppo": {"importance": None}}
    file = write_file("killed", 5, text_rollouts={"legal_moves_only": True}, **kuhn)
    spec = yaml.safe_load(Path(file).read_text())
    spec["killed"] |= {"run": "faulty_games:DiesWithItsDriver", "checkpoint_config": {"checkpoint_frequency": 1}}
    Path(file).write_text(yaml.safe_dump(spec))
    first = rllib("train", "file", file)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "die").write_text(f"{point} {first.process.pid}")
    assert first.finish() == -signal.SIGKILL, first.text
    assert all_gone(first), first.processes()
    whole = checkpoints(tmp_path)
    assert not (tmp_path / "results" / "die").exists() and len(whole) == 2

    second = rllib("train", "file", file, "--resume")
    assert second.finish() == 0, second.text
    (results,) = tmp_path.glob("results/killed/*/result.json")
    assert iterations(results) == [1, 2, 3, 4, 5]
    assert "iter    2" not in second.text and "iter    3" in second.text
    league = json.loads((checkpoints(tmp_path)[-1] / "league" / "league.json").read_text())
    assert len(league["members"]) == 4


def iterations(results: Path) -> list[int]:
    return [json.loads(line)["training_iteration"] for line in results.read_text().splitlines()]


@pytest.mark.slow
def test_two_runs_at_once_do_not_meet(
    rllib: Callable[..., Command], write_file: Callable[..., str], tmp_path: Path
) -> None:
    commands = [rllib("train", "file", write_file(name, 2)) for name in ("one", "two")]
    assert [command.finish() for command in commands] == [0, 0], [command.text for command in commands]
    assert len(checkpoints(tmp_path)) == 2
    assert all(all_gone(command) for command in commands)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "config"),
    [("vllm", {"inference": {"engine": "vllm"}}), ("deepspeed", {"deepspeed": {"zero_optimization": {"stage": 0}}})],
    ids=["vllm", "deepspeed"],
)
def test_a_missing_package_is_named(
    rllib: Callable[..., Command], write_file: Callable[..., str], tmp_path: Path, package: str, config: dict[str, Any]
) -> None:
    stub = tmp_path / "hidden" / package
    stub.mkdir(parents=True)
    (stub / "__init__.py").write_text(
        f"raise ModuleNotFoundError({f'No module named {package!r}'!r}, name={package!r})\n"
    )
    command = rllib("train", "file", write_file("missing", 1, **config), PYTHONPATH=str(stub.parent))
    assert command.finish() in (1, 2), command.text
    assert package in command.text and "rllib-lmgame[" in command.text
    assert "Traceback" not in command.text, command.text
    assert all_gone(command), command.processes()
