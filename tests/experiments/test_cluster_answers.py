"""Whether a cluster's head and this node answer."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest
import ray

from rllib_lmgame.algorithms.cluster import ray_cluster as clusters
from rllib_lmgame.algorithms.cluster.ray_cluster import answers


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
