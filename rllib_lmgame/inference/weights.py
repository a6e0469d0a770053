"""Weights on their way from a learner to the engines: one buffer with its layout and checksum, and how it gets there.

``object_store`` shares the buffer through Ray and copies it once to every other node; it works everywhere. ``nccl`` and
``ipc`` go from GPU to GPU through vLLM's weight-transfer engines, pushed by the learners that hold the tensors.

A *state* is a mapping from the names in a model's Hugging Face checkpoint to numpy arrays or torch tensors. bfloat16,
which numpy does not know, travels as its bytes with the dtype's name beside it.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import socket
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.inference.protocol import EngineDeadError, WeightUpdateError
from rllib_lmgame.policies.model.files import ADAPTER_FILES

if TYPE_CHECKING:
    import torch


ALIGNMENT = 64
"""Bytes every tensor's offset is a multiple of."""
CHECKED_EVERY = 16
"""Of a learner's pushes through the object store one is compared by checksums, which take seconds for 7 B."""
PART_BYTES = 512 << 20
"""Weights that go in parts are in one buffer of this size at a time, or of the largest tensor."""


@dataclass(frozen=True)
class WeightBundle:
    """All weights in one contiguous buffer, uint8 ``[bytes]``, with the sender's :func:`state_checksum` or none.

    Of each tensor: names, shapes, dtypes (``float32``, ``bfloat16``, ...), offsets in bytes.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    offsets: tuple[int, ...]
    buffer: np.ndarray
    version: int
    checksum: str


def pack_state(
    state: Mapping[str, Any], version: int, like: Mapping[str, Any] | None = None, checked: bool = True, to: Any = None
) -> WeightBundle:
    """Copy ``state`` into one buffer (in a file ``to``), tensor by tensor; if it is ``checked``, compute its checksum.

    ``like`` has tensors of the same sizes in the same order, where those of ``state`` are made when they are read.
    """
    offsets, end = [], 0
    for value in (state if like is None else like).values():
        offsets.append(end)
        end += -(-value.nbytes // ALIGNMENT) * ALIGNMENT
    if to is not None:
        os.posix_fallocate(to.fileno(), 0, max(1, end))  # Where it finds no room, a write to the map would kill.
    buffer = np.zeros(end, np.uint8) if to is None else np.memmap(to, np.uint8, "r+")
    arrays = {}
    for offset, (name, value) in zip(offsets, state.items(), strict=True):
        raw, shape, dtype = _as_bytes(value)
        packed = buffer[offset : offset + raw.nbytes]
        packed[:] = raw
        arrays[name] = (packed, shape, dtype)  # ``raw`` may be a copy from a GPU, of which only one exists at a time
    return WeightBundle(
        names=tuple(arrays),
        shapes=tuple(shape for _, shape, _ in arrays.values()),
        dtypes=tuple(dtype for _, _, dtype in arrays.values()),
        offsets=tuple(offsets),
        buffer=buffer,
        version=version,
        checksum=_checksum(arrays) if checked else "",
    )


@dataclass(frozen=True)
class Base:
    """The model that an adapter belongs to: an object whose ``directory()`` is one, or a hub id, on any node."""

    model: Any
    trust_remote_code: bool = False


@dataclass(frozen=True)
class AdapterBundle:
    """An adapter's files in PEFT's form (name, content), with a hash of them: engines merge it into its base."""

    files: tuple[tuple[str, bytes], ...]
    base: Base | None
    version: int
    checksum: str

    @classmethod
    def read(cls, directory: Path, base: Base | None, version: int) -> AdapterBundle:
        """The adapter in a directory. Raises: OSError: a file is missing or cannot be read."""
        files = tuple((name, (directory / name).read_bytes()) for name in ADAPTER_FILES)
        return cls(files, base, version, _files_digest(files))

    def digest(self) -> str:
        """Hash of the files as they are here: the checksum, if they are those that were read."""
        return _files_digest(self.files)

    def write(self, directory: Path) -> None:
        for name, content in self.files:
            (directory / name).write_bytes(content)

    def merged(self) -> dict[str, torch.Tensor]:
        """The weights of the base with the adapter, by the names of its checkpoint.

        Raises: ConfigError: they do not belong together.
        """
        from rllib_lmgame.policies.model.network import merged_checkpoint

        assert self.base is not None
        base = str(self.base.model.directory())
        with tempfile.TemporaryDirectory() as directory:
            self.write(Path(directory))
            return dict(merged_checkpoint(Path(directory), base, trust_remote_code=self.base.trust_remote_code))


def _files_digest(files: Sequence[tuple[str, bytes]]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, content in files:
        digest.update(f"{name}|{len(content)};".encode() + content)
    return digest.hexdigest()


@dataclass(frozen=True)
class SharedBundle:
    """A reference to a bundle in the object store. It is lost with the process that made it."""

    reference: Any
    checksum: str

    @classmethod
    def put(cls, bundle: WeightBundle | AdapterBundle) -> SharedBundle:
        import ray

        return cls(ray.put(bundle), bundle.checksum)


def unpack_state(bundle: WeightBundle) -> dict[str, torch.Tensor]:
    """Tensors that are views of the bundle's buffer. Read them, never write them."""
    import torch

    buffer = bundle.buffer
    if not buffer.flags.writeable:  # from the object store; torch would warn on every tensor
        buffer = np.ctypeslib.as_array((ctypes.c_uint8 * buffer.nbytes).from_address(buffer.ctypes.data))
    flat = torch.from_numpy(buffer)
    state = {}
    for name, shape, dtype_name, offset in zip(bundle.names, bundle.shapes, bundle.dtypes, bundle.offsets, strict=True):
        dtype = getattr(torch, dtype_name)
        num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        state[name] = flat[offset : offset + num_bytes].view(dtype).view(shape)
    return state


def state_checksum(state: Mapping[str, Any]) -> str:
    """Digest over names, dtypes, shapes and bytes, in any order: BLAKE2b over tensors' sorted CRC-32 (several GB/s)."""
    return _checksum({name: _as_bytes(value) for name, value in state.items()})


def tensors_of(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The state as torch tensors, sharing memory where it can."""
    import torch

    return {
        name: value if isinstance(value, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(value))
        for name, value in state.items()
    }


def check_weights(state: Mapping[str, torch.Tensor], expected: Mapping[str, tuple[int, ...]], tied_head: bool) -> None:
    """Check ``state`` against the ``expected`` parameters, if any (name to shape); a tied head may be left out.

    Raises: ValueError: naming a weight that is missing, unknown or of another shape, or holds NaN or infinity.
    """
    optional = {name for name in {*state, *expected} if tied_head and name.endswith("lm_head.weight")}
    for problem, names in (
        ("are missing", set(expected) - set(state) - optional),
        ("are unknown to the model", set(state) - set(expected) - optional if expected else ()),
    ):
        if names:
            raise ValueError(f"{len(names)} weights {problem}, e.g. {min(names)}")
    for name, tensor in state.items():
        if name in expected and tuple(tensor.shape) != tuple(expected[name]):
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, the model's is {tuple(expected[name])}")
    if (broken := not_finite(state)) is not None:
        raise ValueError(f"{broken} holds NaN or infinity")


def not_finite(state: Mapping[str, torch.Tensor]) -> str | None:
    """Name of a tensor that holds NaN or infinity, or ``None``; its extremes show both, without a copy."""
    import torch

    for name, tensor in state.items():
        numbers = tensor.is_floating_point() and tensor.numel()
        if numbers and not all(torch.isfinite(extreme) for extreme in torch.aminmax(tensor)):
            return name
    return None


def _as_bytes(value: Any) -> tuple[np.ndarray, tuple[int, ...], str]:
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value).reshape(-1).view(np.uint8), tuple(value.shape), str(value.dtype)
    import torch

    tensor = value.detach().cpu().contiguous()
    dtype = str(tensor.dtype).removeprefix("torch.")
    return tensor.reshape(-1).view(torch.uint8).numpy(), tuple(tensor.shape), dtype


def _checksum(arrays: Mapping[str, tuple[np.ndarray, tuple[int, ...], str]]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(arrays):
        raw, shape, dtype = arrays[name]
        digest.update(f"{name}|{dtype}|{shape}|{zlib.crc32(raw.data):08x};".encode())
    return digest.hexdigest()


State = Mapping[str, Any] | WeightBundle | AdapterBundle | SharedBundle
"""Weights to push: arrays or tensors named as in the model's checkpoint, packed, as an adapter, or in the object store.
"""


def push_shared(
    engines: Mapping[str, Any],
    shared: SharedBundle,
    version: int,
    timeout_s: float,
    adapter: str | None = None,
    more: bool = False,
) -> list[str]:
    """Send weights through Ray to all ``engines`` (name to actor handle) at once; names those that died meanwhile.

    ``adapter``: which one of the engines is replaced; ``more``: others follow at once.

    Raises: WeightUpdateError: naming an engine that did not take them; TimeoutError: naming those without an answer.
    """
    rest = () if adapter is None else (adapter, more)
    calls = {name: engine.update_weights.remote(shared.reference, version, *rest) for name, engine in engines.items()}
    answers, lost = gather(calls, timeout_s, f"take weights version {version}")
    wrong = [name for name, checksum in answers.items() if checksum != shared.checksum]
    if wrong:
        raise WeightUpdateError(f"{', '.join(wrong)} loaded other weights than were sent (checksum {shared.checksum})")
    return lost


@contextmanager
def on_nodes(state: Mapping[str, Any]) -> Iterator[bytes]:
    """Inside it, the pickled reference of a bundle in Ray's object store, of which a node gets one copy."""
    import ray
    from ray._private.worker import global_worker

    reference = ray.put(pack_state(state, 0, checked=False))
    try:
        yield ray.cloudpickle.dumps(reference)  # After which Ray would keep the object for good.
    finally:
        global_worker.core_worker.remove_object_ref_reference(reference)


@contextmanager
def in_file(state: Mapping[str, Any], folder: str | None) -> Iterator[tuple[str, WeightBundle]]:
    """Inside it, a file that processes of this node may map, and what is in it. A kill leaves nothing of it."""
    with tempfile.TemporaryFile(dir=folder) as file:  # Without a name.
        bundle = pack_state(state, 0, checked=False, to=file)
        yield f"/proc/{os.getpid()}/fd/{file.fileno()}", replace(bundle, buffer=np.empty(0, np.uint8))


def opened(source: Mapping[str, Any] | tuple[str, WeightBundle] | bytes) -> Mapping[str, Any]:
    """Tensors by name: themselves, or those of :func:`in_file` or :func:`on_nodes`."""
    if isinstance(source, bytes):
        import ray

        return unpack_state(ray.get(ray.cloudpickle.loads(source)))
    if isinstance(source, tuple):
        return unpack_state(replace(source[1], buffer=np.memmap(source[0], np.uint8, "c")))
    return source


def share(state: State, version: int) -> SharedBundle:
    """``state`` in the object store, packed as ``version`` if it is not packed yet."""
    if isinstance(state, SharedBundle):
        return state
    return SharedBundle.put(state if isinstance(state, WeightBundle | AdapterBundle) else pack_state(state, version))


class DevicePush:
    """Sends tensors from GPU to GPU by vLLM's trainer-side engine, in parts: ``nccl`` broadcasts them from the first
    learner, ``ipc`` passes handles of each learner's part to the engines on its GPU. Written against vLLM 0.32 without
    a GPU at hand. It can be pickled until it is used.

    Every learner calls it with the same tensors in the same order; the first one talks to the engines.

    1. The group of processes is formed at the first push, and again after an engine was started again or a push failed.
    2. A push ends: with an error if an engine fails or the time is over. What waits for a process that died cannot be
       called back; it stays behind in a thread.
    3. Engines that took part in a push that failed start again, and refuse to serve until the next one.
    4. Weights are not compared with the sender's.
    """

    def __init__(self, names: Sequence[str], options: InferenceOptions) -> None:
        self.names, self.options = list(names), options
        self._members: dict[str, str] = {}
        self._trainer: Any = None
        self._source = _StateSource()

    def __call__(
        self, state: Mapping[str, Any], like: Mapping[str, Any], version: int, rank: int = 0, device: Any = "cpu"
    ) -> None:
        """Send ``state`` (Hugging Face named tensors, read in order and perhaps made by all learners together) as
        ``version`` to all engines, from the ``rank``-th learner's ``device``; ``like`` has the dtypes and shapes.

        Raises: WeightUpdateError: an engine failed; TimeoutError: the time is over.
        """
        import ray

        timeout_s = self.options.start_timeout_s
        engines = {name: ray.get_actor(name) for name in self.names} if rank == 0 else {}
        client = _SyncClient(engines, version, self.options.split, timeout_s)
        members = client.incarnations()
        trainer, self._trainer = self._trainer if members == self._members else None, None
        self._source.state, self._source.like = state, like
        sent = _in_thread(lambda: self._send(trainer, client, rank), device)
        try:
            done, _ = wait([sent, client.failure], timeout=timeout_s, return_when=FIRST_COMPLETED)
            if not done:
                late = ", ".join(engines) or "the engines, as far as the first learner says"
                raise TimeoutError(f"weights version {version} did not reach {late} within {timeout_s:g} s")
            self._trainer = (client.failure if client.failure in done else sent).result()
        except BaseException:
            for engine in engines.values():
                engine.abandon_device_update.remote()
            raise
        self._members, self._source.state, self._source.like = members, {}, {}

    def _send(self, trainer: Any, client: _SyncClient, rank: int) -> Any:
        trainer = trainer or self._connect(client, self._source, rank)
        trainer.client = client
        trainer.send_weights()
        return trainer

    def _connect(self, client: _SyncClient, source: _StateSource, rank: int) -> Any:
        largest = max(math.prod(tensor.shape) * tensor.dtype.itemsize for tensor in source.like.values())
        parts: dict[str, Any] = {"packed": True, "packed_buffer_size_bytes": max(PART_BYTES, largest)}
        if self.options.weight_transport == "ipc":
            from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo, IPCTrainerWeightTransferEngine

            ipc = IPCTrainerInitInfo(rank=rank, **parts)
            return IPCTrainerWeightTransferEngine.trainer_init(ipc, client=client, source=source)
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo, NCCLTrainerWeightTransferEngine

        address, port = _free_address()
        nccl = NCCLTrainerInitInfo(address, port, world_size=1 + client.num_workers, rank=rank, **parts)
        return NCCLTrainerWeightTransferEngine.trainer_init(nccl, client=client, source=source)


def gather(calls: Mapping[str, Any], timeout_s: float, doing: str) -> tuple[dict[str, Any], list[str]]:
    """Results of concurrent actor calls, and the names of the actors that died or whose engine broke.

    Raises: TimeoutError: naming who did not answer; Exception: whatever an actor raised, from its own cause.
    """
    import ray

    _, late = ray.wait(list(calls.values()), num_returns=len(calls), timeout=timeout_s)
    if late:
        names = ", ".join(name for name, call in calls.items() if call in late)
        raise TimeoutError(f"{names} did not {doing} within {timeout_s:g} s")
    answers, lost = {}, []
    for name, call in calls.items():
        try:
            answers[name] = ray.get(call)
        except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError):
            lost.append(name)
        except ray.exceptions.RayTaskError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, EngineDeadError):
                lost.append(name)
                continue
            raise (cause if isinstance(cause, Exception) else error) from None
    return answers, lost


class _SyncClient:
    """vLLM's ``VLLMWeightSyncClient`` over our engine actors, which each have their own place in the NCCL group."""

    def __init__(self, engines: Mapping[str, Any], version: int, split: int, timeout_s: float) -> None:
        self._engines = engines
        self._version = version
        self._split = split
        self._timeout = timeout_s
        self.failure: Future[Any] = Future()
        self.num_workers = len(engines) * split

    def incarnations(self) -> dict[str, str]:
        statuses = self._run({name: engine.status.remote() for name, engine in self._engines.items()})
        return {name: statuses[name]["incarnation"] for name in self._engines}

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Connect every worker; ranks follow the order of the engines."""
        infos = [dict(init_info) for _ in self._engines]
        for i, info in enumerate(infos):
            if "rank_offset" in info:
                info["rank_offset"] += i * self._split
        self._all("init_weight_transfer_engine", [{"init_info": info} for info in infos])

    def start_weight_update(self) -> None:
        self._run({n: e.begin_device_update.remote(self._version) for n, e in self._engines.items()})

    def update_weights(self, update_info: Any) -> None:
        self._all("update_weights", [{"update_info": update_info}] * len(self._engines))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Finish on every worker, and serve the new weights."""
        self._run({n: e.finish_device_update.remote(self._version) for n, e in self._engines.items()})

    def _all(self, operation: str, arguments: Sequence[dict[str, Any]]) -> None:
        calls = zip(self._engines.items(), arguments, strict=True)
        self._run({name: engine.device_call.remote(operation, **own) for (name, engine), own in calls})

    def _run(self, calls: Mapping[str, Any]) -> dict[str, Any]:
        """Results of all calls; the first that fails ends the push, since others may wait for that engine."""
        import ray

        deadline = time.monotonic() + self._timeout
        answers: dict[str, Any] = {}
        names = {call: name for name, call in calls.items()}
        while names:
            done, _ = ray.wait(list(names), timeout=max(0.0, deadline - time.monotonic()))
            if not done:
                late = f"{', '.join(names.values())} did not take part in a weight transfer within {self._timeout:g} s"
                self._fail(TimeoutError(late))
            name = names.pop(done[0])
            try:
                answer, lost = gather({name: done[0]}, 0, "take part")
            except Exception as error:
                self._fail(error)
            if lost:
                self._fail(WeightUpdateError(f"{name} died during a weight transfer"))
            answers |= answer
        return answers

    def _fail(self, error: Exception) -> NoReturn:
        if not self.failure.done():
            self.failure.set_exception(error)
        raise error


def _in_thread(function: Callable[[], Any], device: Any) -> Future[Any]:
    """Result of ``function`` in a thread of its own, which may never end."""
    result: Future[Any] = Future()

    def run() -> None:
        import torch

        try:
            if torch.device(device).type == "cuda":  # each thread has its own present device and gradient mode
                torch.cuda.set_device(device)
            with torch.no_grad():
                result.set_result(function())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name="lmgame-push", daemon=True).start()
    return result


@dataclass
class _StateSource:
    """vLLM's ``WeightSource`` over tensors that are replaced before each push, and are read once in it."""

    state: Mapping[str, Any] = field(default_factory=dict)
    like: Mapping[str, Any] = field(default_factory=dict)

    def metadata(self) -> list[Any]:
        from vllm.distributed.weight_transfer import ParamMeta

        return [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self.like.items()]

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(self.state.items())


def _free_address() -> tuple[str, int]:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    import ray

    return ray.util.get_node_ip_address(), port
