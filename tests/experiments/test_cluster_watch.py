"""When the head of a cluster counts as lost."""

from __future__ import annotations

import socket
import threading

import psutil
import pytest

from rllib_lmgame.algorithms.cluster import ray_cluster as clusters
from rllib_lmgame.algorithms.cluster.ray_cluster import answers, node_is_alive
from rllib_lmgame.experiments.run import cluster_watch
from rllib_lmgame.experiments.run.cluster_watch import Silence, watched_head


def test_silence_counts_from_the_first_knock_without_answer():
    silence = Silence(30)
    knocks = [(0, True), (5, False), (30, False), (34, True), (40, False), (69, False), (70, False)]
    assert [silence.too_long(answered, now) for now, answered in knocks] == [False] * 6 + [True]


def test_who_answers():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert answers(address)
    assert not answers(address)
    assert answers("ray://host:10001") and answers("auto") and answers("host:port")  # Not ours to judge.


@pytest.mark.parametrize(
    ("listens", "alive", "says"), [(False, True, "{}"), (True, None, "the head"), (True, False, "this machine")]
)
def test_a_head_that_is_lost_or_says_nothing_good_ends_the_run(monkeypatch, listens, alive, says):
    monkeypatch.setattr(cluster_watch, "KNOCK_S", 0.01)
    monkeypatch.setattr(cluster_watch, "PATIENCE_S", 0.05)
    monkeypatch.setattr(cluster_watch, "node_is_alive", lambda timeout_s: alive)
    said = []
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        if not listens:
            server.close()
        with watched_head(address, lambda message: (said.append(message), ended.set())):
            assert ended.wait(20)
    assert len(said) == 1 and says.format(address) in said[0] and "--resume" in said[0]


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
