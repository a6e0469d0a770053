"""Whole runs of a stock algorithm through the command line: train, fail, stop, resume."""

from __future__ import annotations

import json
import os
import re
import signal

import pytest

CONFIG = {
    "num_env_runners": 0,
    "num_envs_per_env_runner": 1,
    "train_batch_size_per_learner": 200,
    "minibatch_size": 64,
    "num_epochs": 1,
}
SMALL = f"--config '{json.dumps(CONFIG)}'"


@pytest.mark.slow
def test_one_iteration_from_flags(tmp_path, rllib):
    stop = "--stop '{training_iteration: 1}'"
    text = rllib(f"train --algo PPO --env CartPole-v1 {stop} --storage-path {tmp_path} {SMALL}").finish()
    (checkpoint,) = tmp_path.glob("default/*/checkpoint_*")
    assert str(checkpoint) in text
    assert (checkpoint.parent / "progress.csv").is_file()


@pytest.mark.slow
def test_several_experiments_and_search_spaces(tmp_path, rllib):
    file = tmp_path / "x.yaml"
    run = f"{{run: PPO, env: CartPole-v1, stop: {{training_iteration: 1}}, storage_path: {tmp_path}/r, config: %s}}"
    grid = json.dumps({**CONFIG, "lr": {"grid_search": [1e-3, 1e-4]}})
    uniform = json.dumps({**CONFIG, "gamma": {"uniform": [0.9, 0.99]}})
    file.write_text(f"a: {run % grid}\nb: {run % uniform}\n")
    text = rllib(f"train file {file} --ray-num-cpus 2").finish()
    assert len(list((tmp_path / "r" / "a").glob("lr=*/checkpoint_*"))) == 2
    (trial,) = (tmp_path / "r" / "b").glob("gamma=*")
    for name in ("result.json", "progress.csv", "params.json"):
        assert (trial / name).is_file()
    assert 0.9 <= json.loads((trial / "params.json").read_text())["gamma"] <= 0.99
    assert {m.group(1) for m in re.finditer(r"lr=(\S+): done", text)} == {"0.001", "0.0001"}


@pytest.mark.slow
def test_a_failed_trial_gives_exit_code_1_and_its_cause(tmp_path, rllib):
    config = json.dumps({**CONFIG, "env_config": {"nonsense": 1}})
    text = rllib(f"train --algo PPO --env CartPole-v1 --storage-path {tmp_path} --config '{config}'").finish(1)
    assert "nonsense" in text and "failed" in text


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_saves_and_resume_goes_on(tmp_path, number, rllib):
    file = tmp_path / "x.yaml"
    file.write_text(
        f"long: {{run: PPO, env: CartPole-v1, stop: {{training_iteration: 30}}, storage_path: {tmp_path}/r, config: "
        f"{json.dumps(CONFIG)}}}\n"
    )
    command = rllib(f"train file {file}")
    command.wait_for(r"^iter\w*\s+3\b")
    os.kill(command.process.pid, number)
    assert "--resume" in command.finish(128 + number)
    (trial,) = (tmp_path / "r" / "long").glob("PPO*")
    done = [json.loads(line)["training_iteration"] for line in (trial / "result.json").read_text().splitlines()]
    assert list(trial.glob("checkpoint_*"))
    assert 3 <= done[-1] < 30
    rllib(f"train file {file} --resume").finish()
    after = [json.loads(line)["training_iteration"] for line in (trial / "result.json").read_text().splitlines()]
    assert after == list(range(1, 31))
