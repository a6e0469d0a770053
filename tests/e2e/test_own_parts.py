"""Every kind of plug-in at once, none of them a part of this package: from YAML to the evaluated checkpoint."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import yaml
from own_parts import matchmaker

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.cli import main
from rllib_lmgame.envs.registry import ENTRY_POINT_GROUP
from rllib_lmgame.experiments.checks.check import check_experiments, check_quickly
from rllib_lmgame.experiments.files.reading import read_experiments
from rllib_lmgame.rollouts.episode_log import read_log

GAMES = {"own/Sticks-v0": "own_parts:Sticks", "own/ManySticks-v0": "own_parts:ManySticks"}
REWARD_SCALE = 0.5

SITE = tempfile.mkdtemp(prefix="lmgame-tests-site-")
atexit.register(shutil.rmtree, SITE, ignore_errors=True)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), SITE)))  # For Ray's workers.


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch):
    """A package is installed that announces the games, here and in Ray's workers."""
    monkeypatch.syspath_prepend(SITE)
    info = Path(SITE) / "own_parts-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-parts\nVersion: 1.0\n")
    points = [f"{name} = {value}" for name, value in GAMES.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{ENTRY_POINT_GROUP}]", *points, ""]))
    yield
    shutil.rmtree(info)


@pytest.fixture
def experiment(tiny_dict, tmp_path) -> Path:
    """The file of the user: whatever can be brought along is, and nothing is done in Python."""
    config = tiny_dict(
        games=[{"env": name} for name in GAMES],
        language_model={"context_length": 256, "reply_format": "own_parts:Shouted", "reply_prefill": ""},
        policies={"player": {}, "greedy": {"player": "own_parts:TakesTwo"}, "chance": {"player": "random"}},
        policy_mapping_fn="own_parts:matchmaker",
        inference={"engine": {"type": "own_engine:Counting", "count_in": str(tmp_path / "requests")}},
        text_rollouts={
            "episodes_per_iteration": 16,
            "group_size": 2,
            "reward_scale": REWARD_SCALE,
            "constrained_decoding": True,
            "episode_log": "all",
        },
        training={"advantage_estimator": "own_parts:MeanOfGroup", "policy_loss": "own_parts:Gentle"},
    )
    del config["env"], config["env_config"]
    settings = {
        "run": "LMGamePPO",
        "stop": {"rl_iteration": 1},
        "storage_path": str(tmp_path / "results"),
        "config": config,
        "callbacks": [{"type": "own_parts:Diary", "path": str(tmp_path / "diary")}],
        "report": {"type": "own_parts:summary", "path": str(tmp_path / "report.json")},
    }
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump({"own": settings}))
    return file


@pytest.mark.slow
def test_every_kind_of_plug_in_is_brought_along(installed, ray_cluster, experiment, tmp_path, capsys) -> None:
    assert main(["train", "file", str(experiment)]) == 0, capsys.readouterr().err
    (trial,) = (tmp_path / "results" / "own").glob("LMGamePPO_*/")
    results = [json.loads(line) for line in (trial / "result.json").read_text().splitlines()]
    played = [record for log in sorted((trial / "episodes").glob("*.jsonl")) for record in read_log(log)]
    assert len(results) == 1 and len(played) == 16

    check_games_and_seats(played)
    check_update(results, played)
    assert all(turn["text"] in ("!!1!!", "!!2!!") for part in learners_parts(played) for turn in part["turns"])
    assert requests(tmp_path) == sum(len(part["turns"]) for part in learners_parts(played))
    assert (tmp_path / "diary").read_text().split() == ["1"]
    (checkpoint,) = json.loads((tmp_path / "report.json").read_text())

    before = requests(tmp_path)
    out = tmp_path / "evaluated"
    capsys.readouterr()
    command = ["evaluate", checkpoint, "--trust-checkpoint", "--episodes", "8", "--json", "--out", str(out)]
    assert main(command) == 0, capsys.readouterr().err
    evaluated = json.loads(capsys.readouterr().out)["evaluated"]
    assert {row["game"]: row["num_episodes"] for row in evaluated} == dict.fromkeys(GAMES, 8)
    log = read_log(out / "results.jsonl")
    check_games_and_seats(log)
    assert requests(tmp_path) == before + sum(len(part["turns"]) for part in learners_parts(log))


def check_games_and_seats(played) -> None:
    """Both games were played, by whom the mapping names, alike on one level; the scripted player typed its actions."""
    assert {record["game"] for record in played} == set(GAMES)
    met = set()
    sat: dict[tuple[str, str, int], set[tuple[str, ...]]] = {}
    for record in played:
        seats = tuple(record["assignments"])
        assignments = {seat: assignment["module_id"] for seat, assignment in record["assignments"].items()}
        assert any(
            assignments == {seat: matchmaker(seat, agent_ids=seats, seed=seed) for seat in seats} for seed in range(4)
        )
        met.add(tuple(assignments.values()))
        iteration = record["episode_id"].rpartition("-")[0]
        sat.setdefault((iteration, record["game"], record["seed"]), set()).add(tuple(assignments.values()))
        for step in record["steps"]:
            assert all(action == "2" for seat, action in step["actions"].items() if assignments[seat] == "greedy")
    assert all(len(agent_mapper) == 1 for agent_mapper in sat.values())
    possible = {("player", "greedy"), ("player", "chance"), ("greedy", "player"), ("chance", "player")}
    assert met <= possible and len(met) > 2


def check_update(results, played) -> None:
    """The learner used the estimator's advantages, of whole groups, and the policy loss."""
    for iteration, result in enumerate(results):
        learner = result["learners"]["player"]
        advantages = advantages_of(
            [record for record in played if record["episode_id"].startswith(f"train-{iteration}-")]
        )
        told = [learner[f"advantage_{name}"] for name in ("mean", "std", "min", "max")]
        expected = [advantages.mean(), advantages.std(), advantages.min(), advantages.max()]
        assert told == pytest.approx(expected, abs=1e-6) and learner["advantage_std"] > 0
        assert learner["drift"] > 0
        assert {"drift", "advantage_mean"} <= set(learner)


def advantages_of(played) -> np.ndarray:
    """What ``MeanOfGroup`` should give, by the log: an entry for each token that had an alternative."""
    groups = defaultdict(list)
    for record in played:
        (part,) = learners_parts([record])
        tokens = sum(count > 1 for turn in part["turns"] for count in turn["allowed_counts"])
        groups[record["game"], record["seed"], part["role"]].append((part["return"] * REWARD_SCALE, tokens))
    entries = []
    for group in groups.values():
        returns, tokens = zip(*group, strict=True)
        entries.append(np.repeat(np.array(returns) - np.mean(returns), tokens))
    return np.concatenate(entries)


def learners_parts(played):
    """The trajectories of the trained policy."""
    return [part for record in played for part in record["trajectories"] if part["module_id"] == "player"]


def requests(directory: Path) -> int:
    """How many the engine counted so far."""
    return sum(int(line) for line in (directory / "requests").read_text().split())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("config.games", [{"env": "own_parts:Stick"}]),
        ("config.policies", {"player": {}, "greedy": {"player": "own_parts:TakesToo"}}),
        ("config.language_model.reply_format", "own_parts:Shoutd"),
        ("config.training.advantage_estimator", "own_parts:MeanOfGroups"),
        ("callbacks", ["own_parts:Diry"]),
        ("run", "own_parts:PPO"),
    ],
)
def test_a_plug_in_that_is_not_there_is_named_before_anything_starts(installed, experiment, key, value) -> None:
    file = yaml.safe_load(experiment.read_text())
    section, *rest = [file["own"], *key.split(".")]
    for name in rest[:-1]:
        section = section.setdefault(name, {})
    section[rest[-1]] = value
    experiment.write_text(yaml.safe_dump(file))
    with pytest.raises(ConfigError, match=r"'own_\w+' has no") as caught:
        specs = read_experiments(str(experiment))
        check_quickly(specs)
        check_experiments(specs)
    assert key.split(".")[-1] in caught.value.path
