"""The processes of pushes over devices, on made-up cards, for ``test_device_transport``: COUNT FOLDER KIND.

vLLM's own senders and receivers run. CUDA's handles are files that all processes map, and gloo stands for NCCL.
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from vllm.distributed.weight_transfer import ipc_engine, nccl_engine, packed_tensor
from vllm.model_executor.model_loader import mtp_validation  # noqa: F401 -- imported by receivers; takes long.

from rllib_lmgame.inference import weights
from rllib_lmgame.inference.options import InferenceOptions

BUFFER = 4096


class Cards:
    """``torch`` for vLLM's transfers: memory of a card is a file, with the card's name for its handle."""

    accelerator = SimpleNamespace(current_device_index=lambda: 0)

    def __init__(self, card: str, folder: Path) -> None:
        self.card, self.folder = card, folder
        stream = SimpleNamespace(synchronize=lambda: None)
        self.cuda = SimpleNamespace(
            get_device_properties=lambda index: SimpleNamespace(uuid=self.card),
            current_stream=lambda: stream,
            stream=nullcontext,
            synchronize=lambda: None,
            ipc_collect=lambda: None,
            is_available=lambda: False,
        )
        for module in (ipc_engine, nccl_engine, packed_tensor):
            module.torch = self
        packed_tensor._get_streams = lambda device, count: (stream,) * count
        packed_tensor.reduce_tensor = lambda buffer: (None, (card, buffer.numel(), 0, 0, 0, 0, 0))
        torch.multiprocessing.reductions.rebuild_cuda_tensor = lambda card, size, *rest: self.mapped(card, size)
        gloo = SimpleNamespace(broadcast=lambda tensor, src: dist.broadcast(tensor, src))
        nccl_engine.open_trainer_endpoint = nccl_engine.worker_init_process_group = lambda *args: gloo

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def mapped(self, card: str, size: int) -> torch.Tensor:
        return torch.from_file(str(self.folder / f"buffer-{card}"), shared=True, size=size, dtype=torch.uint8)

    def empty(self, size: int, dtype: Any = None, device: Any = None) -> torch.Tensor:
        return torch.empty(size, dtype=dtype) if device == "cpu" else self.mapped(self.card, size)


class Worker:
    """An engine's, on one card."""

    def __init__(self, cards: Cards, card: str, kind: Any) -> None:
        self.cards, self.card, self.loaded = cards, card, dict[str, torch.Tensor]()
        config = SimpleNamespace(parallel_config=None, model_config=None)
        device = torch.device("cuda", 0) if kind is ipc_engine.IPCWeightTransferEngine else "cpu"
        self.engine = kind(None, config, device, SimpleNamespace(load_weights=self.loaded.update))

    def call(self, method: str, info: dict[str, Any]) -> None:
        own, self.cards.card = self.cards.card, self.card
        if method == "init":
            self.engine.init_transfer_engine(self.engine.parse_init_info(info))
        else:
            self.engine.receive_weights(self.engine.parse_update_info(info))
        self.cards.card = own


class Client:
    """The engines as the first learner sees them; ``dies`` with the second part. Other processes hear by ``tell``."""

    def __init__(self, workers: list[Worker], num_workers: int, dies: bool, tell: Any) -> None:
        self.failure: Future[Any] = Future()
        self.workers, self.num_workers, self.dies, self.tell, self.parts = workers, num_workers, dies, tell, 0

    def incarnations(self) -> dict[str, str]:
        return {"engine": "first"}

    def init_weight_transfer_engine(self, info: dict[str, Any]) -> None:
        self.call("init", info)

    def update_weights(self, info: dict[str, Any]) -> None:
        self.parts += 1
        if self.dies and self.parts == 2:
            raise RuntimeError("an engine died")
        self.call("update", info)

    def call(self, method: str, info: dict[str, Any]) -> None:
        self.tell([method, info])
        for worker in self.workers:
            worker.call(method, info)

    def start_weight_update(self) -> None: ...

    finish_weight_update = start_weight_update


class ReadOnce(dict[str, torch.Tensor]):
    """As what all learners put together, which is not to be done again for the sizes."""

    def items(self) -> Any:
        while self:
            yield (name := next(iter(self))), self.pop(name)


def weights_of(version: int) -> dict[str, torch.Tensor]:
    """The same everywhere."""
    torch.manual_seed(version)
    return {f"layer.{n}": torch.randn(100 + 300 * n) for n in range(5)}


def is_version(worker: Worker, version: int) -> bool:
    state = weights_of(version)
    return worker.loaded.keys() == state.keys() and all(torch.equal(worker.loaded[name], state[name]) for name in state)


def main(rank: int, world: int, folder: Path, kind: str) -> dict[str, Any]:
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=world)
    orders, cards = dist.new_group(), Cards(f"card-{rank}", folder)
    over_nccl = kind == "nccl"
    if over_nccl and rank:
        worker, order = Worker(cards, cards.card, nccl_engine.NCCLWeightTransferEngine), [None, None]
        for _ in range(3):
            dist.broadcast_object_list(order, 0, orders)
            worker.call(*order)
        return {"same": is_version(worker, 2)}
    workers = (
        []
        if over_nccl or rank
        else [Worker(cards, f"card-{n}", ipc_engine.IPCWeightTransferEngine) for n in range(world)]
    )
    tell = (lambda order: dist.broadcast_object_list(order, 0, orders)) if over_nccl else (lambda order: None)
    client = Client(workers, world - 1, kind == "dies", tell)
    weights._SyncClient, weights.PART_BYTES = lambda *args: client, BUFFER
    weights._free_address = lambda: ("nowhere", 1)
    push = weights.DevicePush(
        [], InferenceOptions(weight_transport="nccl" if over_nccl else "ipc", start_timeout_s=30.0)
    )
    try:
        for version in (1, 2):
            push(ReadOnce(weights_of(version)), weights_of(0), version, rank)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    same = [is_version(worker, 2) for worker in workers]
    return {"bytes": sum(tensor.nbytes for tensor in weights_of(0).values()), "parts": client.parts, "same": same}


if __name__ == "__main__":
    processes, place = int(sys.argv[1]), Path(sys.argv[2])
    for number in range(processes):
        if os.fork() == 0:  # vLLM is imported once, which takes longest.
            (place / f"told-{number}").write_text(json.dumps(main(number, processes, place, sys.argv[3])))
            os._exit(0)  # A thread may wait for another learner for ever.
    for _ in range(processes):
        os.wait()
