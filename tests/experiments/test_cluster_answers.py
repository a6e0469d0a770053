"""Whether a cluster's head and this node answer."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest
import ray

from rllib_lmgame.algorithms.cluster import ray_cluster as clusters
from rllib_lmgame.algorithms.cluster.ray_cluster import answers
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.experiments.run import cluster
from rllib_lmgame.experiments.spec import Source, make_spec


def test_who_answers():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert answers(address)
    assert not answers(address)
    assert answers("ray://host:10001") and answers("auto") and answers("host:port")  # Not ours to judge.


@pytest.mark.parametrize(("alive", "killed"), [([True], 0), ([False], 1), (None, 1)])
def test_shutting_down_does_not_wait_for_a_node_that_does_not_answer(monkeypatch, alive, killed):
    done: list[str] = []

    def check_alive(nodes: list[str], timeout: float) -> list[bool]:
        if alive is None:
            raise ray.exceptions.RpcError("no answer")
        return alive

    worker = SimpleNamespace(gcs_client=SimpleNamespace(check_alive=check_alive), current_node_id="a")
    node = SimpleNamespace(kill_all_processes=lambda **how: done.append("kill"))
    monkeypatch.setattr("ray._private.worker.global_worker", worker)
    monkeypatch.setattr("ray._private.worker._global_node", node)
    monkeypatch.setattr("ray.shutdown", lambda: done.append("shutdown"))
    clusters.shut_down()
    assert done == ["kill"] * killed + ["shutdown"]


def test_variables_of_a_run_reach_all_its_processes_unless_its_experiments_differ(monkeypatch) -> None:
    def checked(**variables: str | int) -> SimpleNamespace:
        return SimpleNamespace(spec=make_spec("a", {"run": "LMGamePPO", "env_vars": variables}, Source("x.yaml")))

    asked: list[dict] = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "0")
    monkeypatch.setattr(cluster, "quieten_ray", lambda verbosity: 0)
    monkeypatch.setattr(cluster, "shut_down", lambda: None)
    monkeypatch.setattr(cluster, "join_existing", lambda **how: asked.append(how) or True)
    options = cluster.RunOptions(dashboard=False)
    for experiments in ([checked(A=1), checked(B="x", A="1")], [checked()]):
        with cluster.running_cluster(experiments, options):
            pass
    assert [how.get("runtime_env") for how in asked] == [{"env_vars": {"A": "1", "B": "x"}}, None]
    with (
        pytest.raises(ConfigError, match="another experiment"),
        cluster.running_cluster([checked(A=1), checked(A=2)], options),
    ):
        pass
