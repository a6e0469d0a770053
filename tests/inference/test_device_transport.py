"""Weights over devices: the handshake with the engines, what becomes of it when one fails. vLLM's sender is replaced by
a fake.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from fake_engine import kill, request
from inference_reference import ask

from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.inference.protocol import Generation, WeightUpdateError
from rllib_lmgame.inference.weights import DevicePush

torch = pytest.importorskip("torch")
WEIGHTS = {"w": torch.ones(3)}


class Sender:
    """Drives a push as vLLM's sender does; ``during`` is called where tensors would be sent."""

    def __init__(self, client: Any, source: Any, during) -> None:
        self.client, self.source, self.during = client, source, during
        client.init_weight_transfer_engine({"rank_offset": 1})

    def send_weights(self) -> None:
        self.client.start_weight_update()
        self.client.update_weights({"names": [name for name, _ in self.source]})
        self.during()
        self.client.finish_weight_update()


class Direct(DevicePush):
    """Counts its connections."""

    def __init__(self, group: Any, during=lambda: None, timeout_s: float = 600.0) -> None:
        super().__init__(group.names, InferenceOptions(weight_transport="nccl", start_timeout_s=timeout_s))
        self.during, self.connections = during, 0

    def _connect(self, client: Any, source: Any, rank: int) -> Any:
        self.connections += 1
        return Sender(client, source, lambda: self.during())


def push(group: Any, version: int, transport: Direct) -> None:
    group.note_device_push(version)
    transport(WEIGHTS, WEIGHTS, version)


def served(group: Any, timeout_s: float = 600.0) -> list[Generation]:
    return [ask([name], [request(f"{name}/0")], timeout_s)[0] for name in group.names]


@pytest.mark.slow
def test_the_group_is_formed_again_when_an_engine_was_started_again(make_group: Any) -> None:
    group = make_group(2)
    transport = Direct(group)
    for version in (1, 2):
        push(group, version, transport)
    assert transport.connections == 1
    assert [g.policy_version for g in served(group)] == [2, 2]
    kill(group, group.names[0])
    group.restart_dead()
    assert "waiting for the learners' next push" in served(group)[0].error
    push(group, 3, transport)
    assert transport.connections == 2
    assert [g.policy_version for g in served(group)] == [3, 3]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param("hangs", marks=pytest.mark.slow), "raises"])
def test_a_push_that_fails_ends_and_the_next_one_works(make_group: Any, kind: str) -> None:
    group, never = make_group(), threading.Event()

    def during() -> None:
        if kind == "raises":
            raise ConnectionError("no route")
        never.wait()

    transport = Direct(group, during, 3.0)
    with pytest.raises(
        ConnectionError if kind == "raises" else TimeoutError, match="no route" if kind == "raises" else group.names[0]
    ):
        transport(WEIGHTS, WEIGHTS, 1)
    group.note_device_push(1)
    transport.during = lambda: None
    while not group.restart_dead():  # the engine leaves when its last replies are out
        threading.Event().wait(0.1)
    push(group, 2, transport)
    assert transport.connections == 2
    assert served(group)[0].policy_version == 2
    never.set()


@pytest.mark.slow
def test_an_engine_that_dies_during_a_push_ends_it_at_once(make_group: Any) -> None:
    group = make_group(2)
    transport = Direct(group, lambda: kill(group, group.names[0]))
    with pytest.raises(WeightUpdateError, match=f"{group.names[0]} died"):
        transport(WEIGHTS, WEIGHTS, 1)


def learners_on_cards(processes: int, folder: Path, kind: str) -> list[dict[str, Any]]:
    """What the processes of a push say: learners, and workers of engines over NCCL. vLLM's own code, without CUDA."""
    pytest.importorskip("vllm")
    script = Path(__file__).with_name("learners_on_cards.py")
    subprocess.run([sys.executable, script, str(processes), folder, kind], check=True, timeout=120)
    return [json.loads((folder / f"told-{rank}").read_text()) for rank in range(processes)]


@pytest.mark.slow
def test_an_engine_reads_parts_from_the_learner_on_its_card(tmp_path: Path) -> None:
    """Through one buffer, which holds the largest tensor."""
    size = 4 * sum(100 + 300 * n for n in range(5))
    assert learners_on_cards(1, tmp_path, "ipc") == [{"bytes": size, "parts": 6, "same": [True]}]
    assert [buffer.stat().st_size for buffer in tmp_path.glob("buffer-*")] == [5200]


@pytest.mark.slow
def test_each_engine_reads_the_learner_on_its_own_card(tmp_path: Path) -> None:
    """Parts go through one buffer on each card, which holds the largest tensor."""
    first, second = learners_on_cards(2, tmp_path, "ipc")
    size = 4 * sum(100 + 300 * n for n in range(5))
    assert first == {"bytes": size, "same": [True, True], "parts": 6}
    assert second == {"bytes": size, "same": [], "parts": 0}
    assert [buffer.stat().st_size for buffer in tmp_path.glob("buffer-*")] == [5200, 5200]


@pytest.mark.slow
def test_two_workers_take_the_parts_that_the_first_learner_broadcasts(tmp_path: Path) -> None:
    learner, *workers = learners_on_cards(3, tmp_path, "nccl")
    assert learner["parts"] == 2, "one message a push"
    assert [worker["same"] for worker in workers] == [True, True]


@pytest.mark.slow
def test_a_push_by_several_learners_ends_on_each_when_an_engine_dies(tmp_path: Path) -> None:
    first, second = learners_on_cards(2, tmp_path, "dies")
    assert first["error"] == "RuntimeError: an engine died"
    assert second["error"], "it does not wait for ever"
