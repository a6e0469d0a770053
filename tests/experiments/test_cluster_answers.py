"""Whether a cluster's head and this node answer."""

from __future__ import annotations

import socket

import psutil
import pytest

from rllib_lmgame.algorithms.cluster import ray_cluster as clusters
from rllib_lmgame.algorithms.cluster.ray_cluster import answers, node_is_alive


def test_who_answers():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert answers(address)
    assert not answers(address)
    assert answers("ray://host:10001") and answers("auto") and answers("host:port")  # Not ours to judge.


def test_a_stopped_head_gives_no_reply(ray_cluster):
    (head,) = (p for p in psutil.Process().children() if p.name() == "gcs_server")
    address = ray_cluster.get_runtime_context().gcs_address
    head.suspend()
    try:
        assert answers(address) and node_is_alive(1.0) is None
    finally:
        head.resume()
    assert node_is_alive(60.0) is True


@pytest.mark.parametrize(("alive", "killed"), [(True, 0), (False, 1), (None, 1)])
def test_shutting_down_does_not_wait_for_a_node_that_does_not_answer(monkeypatch, alive, killed):
    done: list[str] = []
    monkeypatch.setattr(clusters, "node_is_alive", lambda: alive)
    monkeypatch.setattr(clusters, "kill_own_processes", lambda: done.append("kill"))
    monkeypatch.setattr("ray.shutdown", lambda: done.append("shutdown"))
    clusters.shut_down()
    assert done == ["kill"] * killed + ["shutdown"]
