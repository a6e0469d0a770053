"""What a cluster can never place, and what is said while a trial waits: without a cluster."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from ray.tune import PlacementGroupFactory

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.experiments.checks import resources
from rllib_lmgame.experiments.checks.resources import asked_by, check_placeable
from rllib_lmgame.experiments.run import callbacks
from rllib_lmgame.experiments.run.callbacks import WaitingCallback


def request(*bundles: dict[str, float], strategy: str = "PACK") -> PlacementGroupFactory:
    return PlacementGroupFactory(list(bundles), strategy=strategy)


CPU, GPU = {"CPU": 1.0}, {"CPU": 1.0, "GPU": 1.0}


def experiment(own: bool = True, **config):
    algorithm = SimpleNamespace(own=own)
    return SimpleNamespace(spec=SimpleNamespace(name="mine"), algorithm=algorithm, configs=[SimpleNamespace(**config)])


def test_a_cluster_that_cannot_grow_refuses_and_names_the_keys(monkeypatch):
    monkeypatch.setattr(resources, "request_of", lambda experiment: request(CPU, GPU))
    run = SimpleNamespace(inference=SimpleNamespace(num_gpus_per_engine=1.0))
    asking = experiment(num_gpus_per_learner=0, run=run)
    with pytest.raises(
        ConfigError, match=r"mine: a trial asks for 1 GPU, there are 0 \(config\.inference\.num_gpus_per_engine: 1\)"
    ):
        check_placeable([asking], {"CPU": 4.0})
    check_placeable([asking], {"CPU": 4.0, "GPU": 1.0})
    monkeypatch.setattr(resources, "request_of", lambda experiment: request(*[{"CPU": 0.1}] * 10))
    check_placeable([asking], {"CPU": 1.0})
    run.inference.num_gpus_per_engine = 0
    assert asked_by(experiment(num_gpus_per_learner=0.5, run=run)) == "config.num_gpus_per_learner: 0.5"
    assert asked_by(experiment(False, num_gpus_per_learner=1)) == "config.num_gpus_per_learner: 1", "RLlib's own"


def test_it_is_said_every_half_minute(monkeypatch, capsys):
    now, pending = [0.0], {"a": {"state": "PENDING"}}
    monkeypatch.setattr(callbacks.time, "monotonic", lambda: now[0])
    monkeypatch.setattr("ray.util.placement_group_table", lambda: pending)
    monkeypatch.setattr("ray.available_resources", lambda: {"CPU": 2.0, "memory": 7.0})
    callback = WaitingCallback(request(CPU, GPU), "a key")
    for now[0], status in (
        (10, "PENDING"),
        (31, "PENDING"),
        (40, "PENDING"),
        (62, "PENDING"),
        (70, "RUNNING"),
        (95, "PENDING"),
        (101, "PENDING"),
        (200, "TERMINATED"),
        (300, "RUNNING"),
    ):
        callback.on_step_begin(0, [SimpleNamespace(status=status)])
    said = "waiting for resources: a trial asks for 2 CPU (free 2), 1 GPU (free 0) (a key)\n"
    assert capsys.readouterr().err == said * 3
    pending.clear()  # It has them: its processes are starting.
    now[0] = 400
    callback.on_step_begin(0, [SimpleNamespace(status="PENDING")])
    assert capsys.readouterr().err == ""
