"""What a cluster can never place, and what is said while a trial waits: without a cluster."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.experiments.checks import resources
from rllib_lmgame.experiments.checks.resources import ResourceRequest, asked_by, check_placeable, shortfall
from rllib_lmgame.experiments.run import callbacks
from rllib_lmgame.experiments.run.callbacks import WaitingCallback, waiting_line


def request(*bundles: dict[str, float], strategy: str = "PACK") -> ResourceRequest:
    return ResourceRequest(bundles, strategy)


CPU, GPU = {"CPU": 1.0}, {"CPU": 1.0, "GPU": 1.0}


@pytest.mark.parametrize(
    ("asked", "nodes", "words"),
    [
        (request(CPU, GPU), [{"CPU": 8.0}], "1 GPU, there are 0"),
        (request(CPU, {"GPU": 0.5}, {"GPU": 0.5}), [{"CPU": 8.0, "GPU": 1.0}], None),
        (request({"GPU": 2.0}), [{"CPU": 8.0, "GPU": 1.0}] * 2, "2 GPU on one node"),
        (request(GPU, GPU), [{"CPU": 1.0, "GPU": 1.0}] * 2, None),
        (request(CPU, {"CPU": 1.0, "A100": 1.0}), [{"CPU": 8.0, "GPU": 1.0}], "1 A100, there are 0"),
        (request(*[{"CPU": 0.1}] * 10), [{"CPU": 1.0}], None),
    ],
)
def test_what_can_never_be_placed_is_known(asked, nodes, words):
    missing = shortfall(asked, nodes)
    assert (missing is None) if words is None else (words in missing)


def experiment(**config):
    return SimpleNamespace(spec=SimpleNamespace(name="mine"), configs=[SimpleNamespace(**config)])


def test_a_cluster_that_cannot_grow_refuses_and_names_the_keys(monkeypatch):
    monkeypatch.setattr(resources, "request_of", lambda experiment: request(CPU, GPU))
    run = SimpleNamespace(inference=SimpleNamespace(num_gpus_per_engine=1.0))
    asking = experiment(num_gpus_per_learner=0, run=run)
    with pytest.raises(
        ConfigError, match=r"mine: a trial asks for 1 GPU, there are 0 \(config\.inference\.num_gpus_per_engine: 1\)"
    ):
        check_placeable([asking], [{"CPU": 4.0}])
    check_placeable([asking], [{"CPU": 4.0, "GPU": 1.0}])
    assert asked_by(experiment(num_gpus_per_learner=0.5)) == "config.num_gpus_per_learner: 0.5"


def test_what_is_waited_for():
    asked = request(CPU, GPU)
    assert "waiting for nodes: a trial asks for 1 GPU, there are 0 (a key)" in waiting_line(
        asked, "a key", [{"CPU": 8.0}], {"CPU": 8.0}, ["PENDING"]
    )
    nodes = [{"CPU": 8.0, "GPU": 1.0}]
    assert "1 GPU (free 0)" in waiting_line(asked, "", nodes, {"CPU": 8.0}, ["CREATED", "PENDING"])
    assert waiting_line(asked, "", nodes, {"CPU": 6.0}, ["CREATED"]) is None  # It has them: its processes are starting.


def test_it_is_said_every_half_minute(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(callbacks.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(callbacks, "_look", lambda request, keys: "waiting")
    said = io.StringIO()
    callback = WaitingCallback(request(CPU), "", said)
    for now[0], status in (
        (10, "PENDING"),
        (31, "PENDING"),
        (40, "PENDING"),
        (62, "PENDING"),
        (70, "RUNNING"),
        (95, "PENDING"),
        (101, "PENDING"),
    ):
        callback.on_step_begin(0, [SimpleNamespace(status=status)])
    assert said.getvalue() == "waiting\n" * 3
    for now[0], status in ((200, "TERMINATED"), (300, "RUNNING")):
        callback.on_step_begin(0, [SimpleNamespace(status=status)])
    assert said.getvalue() == "waiting\n" * 3
