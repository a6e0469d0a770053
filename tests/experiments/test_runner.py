"""How a cluster is joined or started, and what a failing callback says, without one."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import ray

from rllib_lmgame.errors import ConfigError, MissingDependencyError
from rllib_lmgame.experiments import runner
from rllib_lmgame.experiments.runner import RunOptions, join_or_start


@pytest.fixture
def no_ray(monkeypatch):
    """No Ray is connected to or started."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)


@pytest.mark.parametrize("address", ["foo", "host:notaport"])
def test_what_is_no_address_is_named(address, monkeypatch):
    assert not ray.is_initialized()
    with pytest.raises(ConfigError, match=f"--ray-address {address}: no Ray cluster answers there"):
        join_or_start(address, 0)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigError, match=f"RAY_ADDRESS={address}: no Ray cluster answers there"):
        join_or_start(None, 0)


class Nodes:
    """Stands for Ray's test cluster."""

    address = "here"

    def __init__(self) -> None:
        self.nodes: list[dict] = []

    def add_node(self, **node) -> None:
        self.nodes.append(node)

    def wait_for_nodes(self) -> None:
        pass


def test_the_nodes_of_a_test_cluster_get_what_the_flags_say(monkeypatch):
    monkeypatch.setattr("ray.cluster_utils.Cluster", Nodes)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    options = RunOptions(num_nodes=2, num_cpus=3, object_store_memory=10**8, dashboard=True)
    head, node = runner._local_cluster([], options).nodes
    assert node == {"num_cpus": 3, "num_gpus": 0, "object_store_memory": 10**8}
    assert head == {**node, "include_dashboard": True}


@pytest.mark.parametrize("num_nodes", [None, 2])
def test_a_dashboard_that_is_not_installed_is_named(no_ray, monkeypatch, num_nodes):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(runner, "join_existing", lambda **arguments: False)
    with pytest.raises(MissingDependencyError, match="dashboard"), runner._ray([], RunOptions(num_nodes=num_nodes, num_cpus=1, dashboard=True)):
        pass


def test_a_callback_that_fails_has_its_line(monkeypatch):
    from rllib_lmgame.experiments.source import Source

    def fail(*args):
        raise ConfigError("callbacks[0]", "cannot be made")

    monkeypatch.setattr(runner, "_ray", lambda checked, options: nullcontext())
    monkeypatch.setattr(runner, "_run_one", fail)
    experiment = SimpleNamespace(spec=SimpleNamespace(name="a", source=Source("x.yaml", {"callbacks": "x.yaml:4"})))
    with pytest.raises(ConfigError, match=r"x\.yaml:4: callbacks\[0\]: cannot be made"):
        runner.run_experiments([experiment], RunOptions())
