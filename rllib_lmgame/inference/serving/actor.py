"""An engine as a Ray actor: a mailbox per client, weights with a version, errors that reach the driver.

Guarantees, beside those of :mod:`rllib_lmgame.inference.engines.threaded`:

1. Replies leave as they finish: a poll brings everything that finished since the last one, and waits for nothing else.
2. What a client sent is answered, or the client can learn that it is lost (:meth:`EngineActor.missing`).
3. An actor that Ray started again holds the weights it was created with. Requests wait until the right weights are
   pushed, or until it is told that the first ones are right.
4. Weights that came with another checksum than the sender's, if it made one, are never sampled from. A failed update
   over devices ends the engine's process. After any other that failed, requests are refused until one succeeds, of an
   adapter one of the same.
5. When the engine breaks, or cannot load in a process that Ray started again, its process ends soon after the last
   replies, and Ray starts it anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import re
import tempfile
import uuid
import warnings
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rllib_lmgame.inference.engines.threaded import ThreadedEngine
from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.inference.protocol import (
    EngineDeadError,
    EngineStats,
    Generation,
    Packed,
    WeightUpdateError,
    decode_requests,
    encode_generations,
    failed,
)
from rllib_lmgame.inference.weights import AdapterBundle, WeightBundle, unpack_state

logger = logging.getLogger(__name__)

PARTS = ("weights", "kv_cache")
"""What sleeps, in the order in which it wakes; vLLM's names."""

LAST_REPLIES_S = 0.5
"""Time for the last replies to leave before the process of a broken engine ends."""


@dataclass(frozen=True)
class EngineSpec:
    """Everything an actor needs to make its engine, also after a restart.

    ``model`` is a Hugging Face directory or hub id, or an object whose ``directory()`` makes one on this node. The
    other fields are as of :meth:`EngineGroup.create`.
    """

    name: str
    model: Any
    options: InferenceOptions
    context_length: int
    seed: int = 0
    version: int = 0
    trust_remote_code: bool = False
    tokenizer: str | None = None


def make_engine(spec: EngineSpec) -> ThreadedEngine:
    engine: ThreadedEngine = spec.options.engine.engine_class()(
        spec.model if isinstance(spec.model, str) else str(spec.model.directory()),
        spec.options,
        context_length=spec.context_length,
        seed=spec.seed,
        version=spec.version,
        trust_remote_code=spec.trust_remote_code,
        tokenizer=spec.tokenizer,
    )
    return engine


@contextlib.asynccontextmanager
async def alone_on_card(options: InferenceOptions) -> AsyncIterator[None]:
    """Inside it no other engine of this user starts on the same part of a machine's GPUs.

    vLLM measures the free memory before and after its own start, and counts what others take meanwhile as its own.
    """
    if not 0 < options.num_gpus_per_engine < 1:
        yield
        return
    cards = re.sub(r"\W", "-", os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
    path = Path(tempfile.gettempdir()) / f"rllib-lmgame-{os.getuid()}-card-{cards}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        await asyncio.get_running_loop().run_in_executor(None, fcntl.flock, descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@dataclass
class Mailbox:
    """Finished replies of one client, and the ids it still waits for."""

    finished: list[Generation] = field(default_factory=list)
    waiting: set[str] = field(default_factory=set)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    on_done: Callable[[list[Generation]], Any] | None = None

    def put(self, generations: list[Generation]) -> None:
        """Add replies, unless the client gave them up."""
        kept = [g for g in generations if g.request_id in self.waiting]
        self.waiting.difference_update(g.request_id for g in kept)
        self.finished += kept
        if kept:
            self.arrived.set()

    def take(self) -> list[Generation]:
        finished, self.finished = self.finished, []
        self.arrived.clear()
        return finished


class EngineActor:
    """Serves one engine to any number of clients. Meant for ``ray.remote`` with a large ``max_concurrency``."""

    def __init__(self, spec: EngineSpec, restarted: bool | None = None) -> None:
        # The model's files are waited for in a thread of its own, which Ray takes for the actor's event loop.
        os.environ.setdefault("RAY_WARN_BLOCKING_GET_INSIDE_ASYNC", "0")
        self._spec = spec
        self._incarnation = uuid.uuid4().hex
        self._mailboxes: dict[str, Mailbox] = {}
        self._engine: Any = None
        self._start: asyncio.Task[None] | None = None
        self._needs_weights = _was_restarted() if restarted is None else restarted
        self._serving = asyncio.Event()
        self._refusals: dict[str | None, str] = {}
        self._updates = asyncio.Lock()
        self._asleep: list[str] = []
        self._dropped = False

    async def alive(self) -> int:
        """Process id; answers as soon as the process is up, long before the model is."""
        return os.getpid()

    async def start(self) -> dict[str, Any]:
        """Load the model; returns :meth:`status` when the first request can be served."""
        if self._start is None:
            self._start = asyncio.ensure_future(self._load())
        await asyncio.shield(self._start)
        return await self.status()

    async def status(self) -> dict[str, Any]:
        """What the engine says of itself; ``ready``: the model is loaded."""
        from ray._private import worker

        ready = self._is_ready()
        error = None
        if ready:
            try:
                await self._engine.health()
            except WeightUpdateError as refusal:
                if not self._refusals:
                    self._refusals[None] = str(refusal)
            except Exception as broken:
                error = f"{type(broken).__name__}: {broken}"
        return {
            "name": self._spec.name,
            "pid": os.getpid(),
            "incarnation": self._incarnation,
            "ready": ready,
            "needs_weights": self._needs_weights,
            "version": await self._engine.version() if ready else self._spec.version,
            "refusal": self._refusal,
            "error": error,
            "log": worker.global_worker.get_err_file_path(),
        }

    async def stats(self) -> EngineStats | None:
        """Counters of the engine; ``None`` while it loads."""
        return await self._engine.stats() if self._is_ready() else None

    async def shutdown(self) -> None:
        if self._engine is not None:
            await self._engine.shutdown()

    async def submit(self, client_id: str, packed: Packed, adapter: str | None = None) -> None:
        """Queue one tick's requests of a client, which an ``adapter`` answers if the engine has several."""
        requests = decode_requests(packed)
        if adapter is not None:
            requests = [replace(request, adapter=adapter) for request in requests]
        box = self._mailbox(client_id)
        box.waiting.update(r.request_id for r in requests)
        await self.start()
        await self._serving.wait()
        requests = [r for r in requests if r.request_id in box.waiting]
        if self._refusal is not None:
            version = await self._engine.version()
            box.put([failed(r.request_id, f"{self._spec.name}: {self._refusal}", version) for r in requests])
        else:
            self._engine.submit(requests, box.on_done)

    async def poll(self, client_id: str, max_wait_s: float) -> tuple[str, str | None, Packed]:
        """Incarnation, refusal if there is one, and replies that finished, or none after ``max_wait_s``."""
        box = self._mailbox(client_id)
        if not box.finished:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max_wait_s):
                    await box.arrived.wait()
        finished = box.take()
        if any(g.error is not None for g in finished):
            await self._leave_if_broken()
        return self._incarnation, self._refusal, encode_generations(finished)

    async def missing(self, client_id: str, request_ids: Sequence[str]) -> list[str]:
        """Those of ``request_ids`` that this actor knows nothing of."""
        box = self._mailbox(client_id)
        known = box.waiting | {g.request_id for g in box.finished}
        return [i for i in request_ids if i not in known]

    async def abort(self, client_id: str, request_ids: Sequence[str] | None = None) -> None:
        """Forget requests of a client; ``None``: all of them, and the client."""
        box = self._mailbox(client_id)
        ids = list(box.waiting if request_ids is None else box.waiting.intersection(request_ids))
        box.waiting.difference_update(ids)
        if request_ids is None:
            del self._mailboxes[client_id]
        if self._engine is not None:
            self._engine.abort(ids)

    async def update_weights(
        self, bundle: WeightBundle | AdapterBundle, version: int, adapter: str | None = None, more: bool = False
    ) -> str:
        """Load a bundle and serve as ``version``; returns the checksum of the weights or files that came, if any.

        Args:
            adapter: The one that is replaced, of an engine that has several.
            more: Others follow at once: requests wait for them too.

        Raises: WeightUpdateError: They did not arrive whole, fit, or load; requests are refused until an update
        succeeds; EngineDeadError: The engine is broken; it has to be started again.
        """
        await self.start()
        async with self._updates:
            self._begin_update(version, adapter)
            try:
                await self._engine.pause(drain=False)
                await self._wake("weights")
                checksum = await self._load_bundle(bundle, version, adapter)
                if checksum != bundle.checksum:
                    raise WeightUpdateError(
                        f"weights version {version} arrived with checksum {checksum}, were sent with {bundle.checksum}"
                    )
                self._accept(adapter, more)
            except Exception as error:
                self._serving.set()
                if isinstance(error, EngineDeadError):
                    raise
                self._refusals[adapter] = f"{error}; waiting for good weights"
                await self._engine.end_running(self._refusals[adapter])
                raise WeightUpdateError(f"{self._spec.name}: {error}") from error
            finally:
                await self._engine.resume()
            return checksum

    async def _load_bundle(self, bundle: WeightBundle | AdapterBundle, version: int, adapter: str | None) -> str:
        if isinstance(bundle, WeightBundle):
            if adapter is not None:
                raise WeightUpdateError(f"whole weights came for the adapter {adapter!r}, under which the base lies")
            return await self._engine.update_weights(unpack_state(bundle), version, bool(bundle.checksum))
        checksum = bundle.digest()
        if checksum != bundle.checksum:
            return checksum
        if adapter is None:
            state = await asyncio.get_running_loop().run_in_executor(None, bundle.merged)
            await self._engine.update_weights(state, version, False)
        else:
            with tempfile.TemporaryDirectory() as directory:
                bundle.write(Path(directory))
                await self._engine.update_adapter(adapter, directory, version)
        return checksum

    async def confirm_weights(self) -> None:
        """After a restart: the weights this actor was created with are the right ones."""
        await self.start()
        self._accept()

    async def refuse(self, reason: str) -> None:
        """After a restart: answer requests with an error until new weights arrive, unless they are there."""
        async with self._updates:
            if self._needs_weights:
                self._refusals[None], self._needs_weights = reason, False
                self._serving.set()

    async def begin_device_update(self, version: int) -> None:
        """Pause for weights that arrive on the device (NCCL, IPC); requests wait for :meth:`finish_device_update`."""
        await self.start()
        await self._updates.acquire()
        self._begin_update(version)
        await self._engine.pause(drain=False)
        await self._wake("weights")
        await self._engine.call("worker_call", "start_weight_update")

    async def device_call(self, method: str, **kwargs: Any) -> None:
        await self.start()
        await self._engine.call("worker_call", method, **kwargs)

    async def finish_device_update(self, version: int) -> None:
        """All weights have arrived: serve them."""
        await self._engine.call("worker_call", "finish_weight_update")
        await self._engine.accept_version(version)
        self._accept()
        await self._engine.resume()
        self._updates.release()

    async def abandon_device_update(self) -> None:
        """The update failed: weights may be mixed and a worker may wait for ever, so this process ends."""
        self._leave("a weight update over devices failed")

    async def pause(self) -> None:
        await self.start()
        await self._engine.pause()

    async def resume(self) -> None:
        await self.start()
        await self._engine.resume()

    async def sleep(self, level: int = 1) -> None:
        """Wait for running requests and give device memory back (GPU only).

        At ``level`` 2 weights are dropped: the next update wakes their memory and loads them, and requests wait for
        both that and :meth:`wake_up`.
        """
        await self.start()
        async with self._updates:
            if level == 2:
                self._dropped = True
                self._serving.clear()
            await self._engine.pause()
            if not self._asleep:
                await self._engine.call("sleep", level)
                self._asleep = list(PARTS)

    async def wake_up(self) -> None:
        await self.start()
        async with self._updates:
            await self._wake(*PARTS)
            await self._engine.resume()
            if not self._dropped and not self._needs_weights:
                self._serving.set()

    async def _wake(self, *parts: str) -> None:
        for part in [part for part in parts if part in self._asleep]:
            await self._engine.call("wake_up", part)
            self._asleep.remove(part)

    async def _load(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with alone_on_card(self._spec.options):
                self._engine = await loop.run_in_executor(None, make_engine, self._spec)
                await self._engine.start()
        except Exception as error:
            if self._needs_weights:  # started again: what it lacks may be there soon (memory of the process before it)
                self._leave(error)
            raise
        if not self._needs_weights:
            self._serving.set()

    def _is_ready(self) -> bool:
        return self._start is not None and self._start.done() and self._start.exception() is None

    @property
    def _refusal(self) -> str | None:
        return next(iter(self._refusals.values()), None)

    def _begin_update(self, version: int, adapter: str | None = None) -> None:
        """Requests wait from now on; those of an update that fails are refused."""
        self._refusals[adapter] = f"an update to weights version {version} did not finish"
        self._serving.clear()

    def _accept(self, adapter: str | None = None, more: bool = False) -> None:
        self._refusals.pop(adapter, None)
        if not more:
            self._needs_weights = self._dropped = False
            if not self._asleep:
                self._serving.set()

    def _mailbox(self, client_id: str) -> Mailbox:
        box = self._mailboxes.get(client_id)
        if box is None:
            box = self._mailboxes[client_id] = Mailbox()
            loop = asyncio.get_running_loop()
            box.on_done = lambda generations: loop.call_soon_threadsafe(box.put, generations)
        return box

    async def _leave_if_broken(self) -> None:
        """End this process, shortly, if its engine can never serve again."""
        try:
            await self._engine.health()
        except WeightUpdateError:
            return
        except Exception as error:
            self._leave(error)

    def _leave(self, reason: object) -> None:
        """End this process when the last replies are out."""
        logger.error("%s ends: %s", self._spec.name, reason)
        asyncio.get_running_loop().call_later(LAST_REPLIES_S, os._exit, 1)


def _was_restarted() -> bool:
    import ray

    if not ray.is_initialized():
        return False
    with warnings.catch_warnings():  # Ray's own property calls a deprecated one
        warnings.simplefilter("ignore")
        return bool(ray.get_runtime_context().was_current_actor_reconstructed)
