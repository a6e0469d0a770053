"""The command line as a user has it: in a process of its own, interrupted, resumed, beside another one."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from commands import Command

from rllib_lmgame.algorithms.checkpoints.background import WRITTEN
from rllib_lmgame.algorithms.checkpoints.manifest import iteration_of, manifest_problem

Rllib = Callable[..., Command]
WriteFile = Callable[..., str]


@pytest.fixture
def write_file(tmp_path, tiny_dict) -> Callable[..., str]:
    """Function ``(name, stop, **config)`` that writes an experiment file."""

    def write(name: str, rl_iterations: int, **config) -> str:
        values = tiny_dict(**config)
        spec = {"run": "LMGamePPO", "env": values.pop("env"), "stop": {"rl_iteration": rl_iterations}, "config": values}
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
def test_checkpoints_that_are_written_while_training_goes_on_are_kept_as_others(rllib, write_file, tmp_path) -> None:
    file = write_file("beside", 5)
    kept = "--checkpoint-freq 1 --set checkpoint_config.asynchronous=true --set checkpoint_config.num_to_keep=2"
    rllib(f"train file {file} {kept}").finish()
    whole = checkpoints(tmp_path)
    assert [(place.name, iteration_of(place), manifest_problem(place)) for place in whole] == [
        ("checkpoint_000003", 4, None),
        ("checkpoint_000004", 5, None),
    ]
    (results,) = tmp_path.glob("results/beside/*/result.json")
    assert iterations(results) == [1, 2, 3, 4, 5] and WRITTEN not in results.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("beside", ["false", "true"])
def test_a_killed_run_goes_on_and_no_iteration_stands_twice(rllib, write_file, tmp_path, beside) -> None:
    file = write_file("killed", 60)
    with_checkpoints = f"--checkpoint-freq 2 --set checkpoint_config.asynchronous={beside}"
    first = rllib(f"train file {file} {with_checkpoints}")
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
    text = rllib(f"train file {file} {with_checkpoints} --resume {stop}").finish()
    assert "iter    2" not in text
    assert iterations(results) == list(range(1, before[-1] + 3))


@pytest.mark.slow
def test_a_run_that_is_killed_with_replies_under_way_trains_on_each_item_once(rllib, write_file, tmp_path) -> None:
    """Weights change while they are sampled; what was in play is played again, on the same levels."""
    long = {"max_tokens_per_turn": 120, "context_length": 1024, "history": "keep"}
    listed = {
        "env": "faulty_games:Listed",
        "env_config": {"max_turns": 3},
        "language_model": long,
        "num_env_runners": 1,
    }
    logged = {"text_rollouts": {"episode_log": "all"}, "async_rollouts": {"max_staleness": 3}}
    file = write_file("killed", 8, **listed, **logged)
    first = rllib(f"train file {file} --checkpoint-freq 1")
    first.wait_for("iter    4")
    first.process.kill()
    first.finish(-signal.SIGKILL)
    rllib(f"train file {file} --checkpoint-freq 1 --resume").finish()
    (results,) = tmp_path.glob("results/killed/*/result.json")
    assert iterations(results) == list(range(1, 9))
    numbers = [json.loads(line) for line in results.read_text().splitlines()]
    assert all(each["learners"]["player"]["staleness_max"] <= 3 for each in numbers)
    assert not any(count for each in numbers for count in each["env_runners"]["dropped"].values())
    logs = results.parent.glob("episodes/train-*.jsonl")
    records = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    trained = [each for each in records if int(each["episode_id"].split("-")[1]) < 8]
    assert len({each["episode_id"] for each in trained}) == len(trained) == 8 * 16
    seeds = sorted(each["seed"] for each in trained)
    assert seeds == list(range(seeds[0], seeds[0] + len(seeds)))
    turns = [turn for each in trained for part in each["trajectories"] for turn in part["turns"]]
    assert any(turn.get("later_versions") for turn in turns)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["write", "copy", "push", "snapshot"])
def test_a_run_that_is_killed_in_the_middle_of_what_it_writes_or_sends_goes_on_from_the_last_whole_state(
    rllib: Rllib, write_file: WriteFile, tmp_path: Path, point: str
) -> None:
    league = {"snapshot_every": 1, "max_members": 4}
    kuhn = {"env": "lmgame/KuhnPoker-v0", "env_config": {}, "league": league, "training": {"importance_sampling": None}}
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
