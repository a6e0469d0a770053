"""Whole runs of a stock algorithm through the command line: train, fail, stop, resume, evaluate."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys

import psutil
import pytest

CONFIG = {
    "num_env_runners": 0,
    "num_envs_per_env_runner": 1,
    "train_batch_size_per_learner": 200,
    "minibatch_size": 64,
    "num_epochs": 1,
}
SMALL = ["--config", json.dumps(CONFIG)]


BROKEN_ENV = """
import gymnasium as gym

class Broken(gym.Env):
    observation_space = gym.spaces.Box(0, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, config=None):
        raise RuntimeError("the environment is broken")
"""
BROKEN_EXPERIMENT = """
import sys
sys.path.insert(0, {directory!r})
import broken_env
from ray import cloudpickle
from ray.rllib.algorithms.ppo import PPOConfig

cloudpickle.register_pickle_by_value(broken_env)
config = PPOConfig().environment(broken_env.Broken).env_runners(num_env_runners=0)
stop = {{"training_iteration": 1}}
storage_path = {directory!r}
"""


def rllib(*arguments: str) -> subprocess.Popen[str]:
    """The command in a process of its own, which leads its own process group."""
    environment = {**os.environ, "RAY_memory_monitor_refresh_ms": "0", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "rllib_lmgame.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    return process.communicate(timeout=280)[0]


def read_until(process: subprocess.Popen[str], pattern: str) -> str:
    """Output up to the first line that ``pattern`` is found in."""
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if re.search(pattern, line):
            return text
    raise AssertionError(f"{pattern!r} was never printed:\n{text}")


def left_behind(session: int) -> list[psutil.Process]:
    """Processes whose session is ``session`` and that do not end; Ray's workers end a moment after Ray."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.Error):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return psutil.wait_procs(found, timeout=120)[1]


@pytest.mark.slow
def test_one_iteration_from_flags_then_evaluate(tmp_path):
    arguments = [
        "train",
        "--algo",
        "PPO",
        "--env",
        "CartPole-v1",
        "--stop",
        '{"training_iteration": 1}',
        "--storage-path",
        str(tmp_path),
        *SMALL,
    ]
    process = rllib(*arguments)
    text = finish(process)
    assert process.returncode == 0, text
    (checkpoint,) = tmp_path.glob("default/*/checkpoint_*")
    assert str(checkpoint) in text
    assert (checkpoint.parent / "progress.csv").is_file()
    evaluation = rllib("evaluate", str(tmp_path / "default"), "--episodes", "3", "--json")
    text = finish(evaluation)
    assert evaluation.returncode == 0, text
    numbers = json.loads(text[text.index("{") :])
    assert numbers["num_episodes"] == 3
    assert 3 <= numbers["episode_return_mean"] <= 500


@pytest.mark.slow
def test_several_experiments_and_search_spaces(tmp_path):
    file = tmp_path / "x.yaml"
    lines = [
        (
            f"{name}: {{run: PPO, env: CartPole-v1, stop: {{training_iteration: 1}}, storage_path: {tmp_path}/r, "
            "config: %s}"
        )
        for name in "ab"
    ]
    grid = json.dumps({**CONFIG, "lr": {"grid_search": [1e-3, 1e-4]}})
    uniform = json.dumps({**CONFIG, "gamma": {"uniform": [0.9, 0.99]}})
    file.write_text(f"{lines[0] % grid}\n{lines[1] % uniform}\n")
    process = rllib("train", "file", str(file), "--ray-num-cpus", "2")
    text = finish(process)
    assert process.returncode == 0, text
    assert len(list((tmp_path / "r" / "a").glob("PPO*/checkpoint_*"))) == 2
    (trial,) = (tmp_path / "r" / "b").glob("PPO*")
    for name in ("result.json", "progress.csv", "params.json"):
        assert (trial / name).is_file()
    assert 0.9 <= json.loads((trial / "params.json").read_text())["gamma"] <= 0.99
    assert {m.group(1) for m in re.finditer(r"lr=(\S+): done", text)} == {"0.001", "0.0001"}


@pytest.mark.slow
def test_a_failed_trial_gives_exit_code_1_and_its_cause(tmp_path):
    module = tmp_path / "broken_env.py"
    module.write_text(BROKEN_ENV)
    file = tmp_path / "x.py"
    file.write_text(BROKEN_EXPERIMENT.format(directory=str(tmp_path)))
    process = rllib("train", "file", str(file))
    text = finish(process)
    assert process.returncode == 1, text
    assert "the environment is broken" in text
    assert "failed" in text


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_resume_goes_on(tmp_path, number):
    file = tmp_path / "x.yaml"
    file.write_text(
        f"long: {{run: PPO, env: CartPole-v1, stop: {{training_iteration: 30}}, storage_path: {tmp_path}/r, config: "
        f"{json.dumps(CONFIG)}}}\n"
    )
    process = rllib("train", "file", str(file))
    read_until(process, r"^iter\w*\s+3\b")
    os.kill(process.pid, number)
    text = finish(process)
    assert process.returncode == 128 + number, text
    assert "--resume" in text
    assert left_behind(process.pid) == []
    (trial,) = (tmp_path / "r" / "long").glob("PPO*")
    done = [json.loads(line)["training_iteration"] for line in (trial / "result.json").read_text().splitlines()]
    assert list(trial.glob("checkpoint_*"))
    assert 3 <= done[-1] < 30
    resumed = rllib("train", "file", str(file), "--resume")
    text = finish(resumed)
    assert resumed.returncode == 0, text
    after = [json.loads(line)["training_iteration"] for line in (trial / "result.json").read_text().splitlines()]
    assert after == list(range(1, 31))


def test_there_must_be_something_to_resume(tmp_path):
    process = rllib(
        "train", "--algo", "PPO", "--env", "CartPole-v1", "--storage-path", str(tmp_path), "--resume", *SMALL
    )
    text = finish(process)
    assert process.returncode == 2
    assert "nothing to resume" in text
