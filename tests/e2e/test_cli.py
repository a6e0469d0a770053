"""The command line as a user has it: in a process of its own, interrupted, resumed, beside another one."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from commands import Command

PATIENCE_S = 240

Rllib = Callable[..., Command]
WriteFile = Callable[..., str]


@pytest.fixture
def write_file(tmp_path, tiny_dict) -> Callable[..., str]:
    """Function ``(name, stop, **config)`` that writes an experiment file."""

    def write(name: str, rl_iterations: int, **config) -> str:
        values = tiny_dict(**config)
        spec = {
            "run": "LMGamePPO",
            "env": values.pop("env"),
            "stop": {"rl_iteration": rl_iterations},
            "config": values,
        }
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump({name: {**spec, "storage_path": str(tmp_path / "results")}}))
        return str(path)

    return write


def checkpoints(tmp_path: Path) -> list[Path]:
    return sorted(path.parent for path in tmp_path.glob("results/*/*/checkpoint_*/manifest.json"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "send"), [(signal.SIGINT, os.kill), (signal.SIGTERM, os.killpg)], ids=["SIGINT", "SIGTERM to the group"]
)
def test_an_interrupted_run_is_saved_leaves_nothing_behind_and_goes_on(
    rllib: Rllib, write_file: WriteFile, tmp_path: Path, number: signal.Signals, send: Callable[[int, int], None]
) -> None:
    file = write_file("interrupted", 8, num_env_runners=2)
    first = rllib(f"train file {file}")
    first.wait_for("iter    1")
    send(first.process.pid, number)
    text = first.finish(128 + number)
    assert "--resume" in text and not re.search(r"Traceback|\.cc:|\.h:", text)
    (saved,) = checkpoints(tmp_path)
    assert (saved / "hf" / "model.safetensors").is_file()

    text = rllib(f"train file {file} --resume").finish()
    assert "iter    1" not in text and "iter    8" in text

    text = rllib(f"evaluate {checkpoints(tmp_path)[-1]} --episodes 8 --json").finish()
    (game,) = json.loads(text[text.index("{") :])["evaluated"]
    assert game["num_episodes"] == 8


@pytest.mark.slow
def test_a_run_on_a_terminal_has_its_screen_and_leaves_the_terminal_as_it_was(write_file: WriteFile) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (50, 120))
    before = termios.tcgetattr(theirs)
    process = subprocess.Popen(
        [sys.executable, "-m", "rllib_lmgame.cli", "train", "file", write_file("watched", 3), "--no-ray-ui"],
        env={**os.environ, "TERM": "xterm-256color"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    written, deadline = b"", time.monotonic() + PATIENCE_S
    try:
        while select.select([ours], [], [], 0.2)[0] or process.poll() is None:
            assert time.monotonic() < deadline, written.decode(errors="replace")
            if select.select([ours], [], [], 0)[0]:
                written += os.read(ours, 65_536)
        shown = written.decode()
        assert process.returncode == 0, shown
        assert termios.tcgetattr(theirs) == before and shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l") >= 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        os.close(ours)
        os.close(theirs)
    assert re.search("preparing the models|starting the engines|starting env runners", shown)
    assert re.search(r"engines +[█░]{20} \d+% busy", shown)
    assert re.search(r"[▁▂▃▄▅▆▇█]{3}  success rate", shown) and "ended: " in shown and "iter    3" in shown


@pytest.mark.slow
def test_an_interrupted_evaluation_says_so_in_one_line(rllib: Rllib, tiny_model_dir: str) -> None:
    settings = "{inference: {engine: transformers}, language_model: {dtype: float32}}"
    command = rllib(f"evaluate {tiny_model_dir} --env lmgame/Sokoban-v0 --episodes 100000 --config '{settings}'")
    deadline = time.monotonic() + PATIENCE_S
    while (
        not any("EngineActor" in line for line in command.processes().values())
        and command.process.poll() is None
        and time.monotonic() < deadline
    ):
        time.sleep(0.2)
    os.killpg(command.process.pid, signal.SIGTERM)
    assert command.finish(128 + signal.SIGTERM) == "interrupted\n"


PLAIN = """
import json, sys
from rllib_lmgame.algorithms.ppo import LMGamePPOConfig

algorithm = LMGamePPOConfig().update_from_dict(json.loads(sys.argv[1])).build_algo()
algorithm.stop()
print("built")
"""


@pytest.mark.slow
def test_a_killed_run_goes_on_and_no_iteration_stands_twice(rllib, write_file, tmp_path) -> None:
    file = write_file("killed", 60)
    first = rllib(f"train file {file} --checkpoint-freq 2")
    first.wait_for("iter    1")
    text = rllib(f"train file {file}").finish(2)
    assert f"process {first.process.pid} on" in text and "--experiment-name" in text
    first.wait_for("iter    5")
    first.process.kill()
    first.finish(-signal.SIGKILL)
    (results,) = tmp_path.glob("results/killed/*/result.json")
    before = iterations(results)
    assert before[:5] == [1, 2, 3, 4, 5]

    stop = f"--stop '{{rl_iteration: {before[-1] + 2}}}'"
    text = rllib(f"train file {file} --checkpoint-freq 2 --resume {stop}").finish()
    assert "iter    2" not in text
    assert iterations(results) == list(range(1, before[-1] + 3))


@pytest.mark.slow
@pytest.mark.parametrize("point", ["write", "copy", "push", "snapshot"])
def test_a_run_that_is_killed_in_the_middle_of_what_it_writes_or_sends_goes_on_from_the_last_whole_state(
    rllib: Rllib, write_file: WriteFile, tmp_path: Path, point: str
) -> None:
    league = {"snapshot_every": 1, "max_members": 4}
    kuhn = {
        "env": "lmgame/KuhnPoker-v0",
        "env_config": {},
        "league": league,
        "token_ppo": {"importance_sampling": None},
    }
    file = write_file("killed", 5, text_rollouts={"constrained_decoding": True}, **kuhn)
    spec = yaml.safe_load(Path(file).read_text())
    spec["killed"] |= {"run": "faulty_games:DiesWithItsDriver", "checkpoint_config": {"checkpoint_frequency": 1}}
    Path(file).write_text(yaml.safe_dump(spec))
    first = rllib(f"train file {file}")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "die").write_text(f"{point} {first.process.pid}")
    first.finish(-signal.SIGKILL)
    whole = checkpoints(tmp_path)
    assert not (tmp_path / "results" / "die").exists() and len(whole) == 2

    text = rllib(f"train file {file} --resume").finish()
    (results,) = tmp_path.glob("results/killed/*/result.json")
    assert iterations(results) == [1, 2, 3, 4, 5]
    assert "iter    2" not in text and "iter    3" in text
    league = json.loads((checkpoints(tmp_path)[-1] / "league" / "league.json").read_text())
    assert len(league["members"]) == 4


def iterations(results: Path) -> list[int]:
    return [json.loads(line)["training_iteration"] for line in results.read_text().splitlines()]
