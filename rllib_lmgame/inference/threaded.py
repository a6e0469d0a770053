"""An engine that runs its backend in a thread of its own.

The thread owns the model: it takes requests from a queue, steps as long as there is work, and hands back the replies
that ended in a step in one call. Guarantees:

1. One bad request never harms another: it is answered with an ``ENGINE_ERROR`` and the reason.
2. All tokens of a reply come from one version of the weights: an update waits until nothing runs, and requests that
   arrive meanwhile wait for the new weights.
3. After an update that failed, nothing is generated until one succeeded.
4. When the backend breaks, every request it holds is answered with an ``ENGINE_ERROR``, as is every later one.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, ClassVar

from rllib_lmgame.inference.core import Core, EngineDeadError, WeightUpdateError, failed
from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.inference.protocol import EngineStats, Generation, GenerationRequest
from rllib_lmgame.inference.weights import state_checksum

logger = logging.getLogger(__name__)

OnDone = Callable[[list[Generation]], None]


class ThreadedEngine:
    """Implements :class:`~rllib_lmgame.inference.protocol.InferenceEngine` over a :class:`Core`; an engine names its ``core_class``.

    Args:
        model_dir: Hugging Face directory or hub id.
        options: The ``inference`` section.
        context_length: Most tokens of prompt and reply together.
        seed: Of requests without a seed of their own.
        version: Version of the weights in ``model_dir``.
    """

    core_class: ClassVar[type[Core]]
    """The backend; made in the engine's thread."""

    def __init__(self, model_dir: str, options: InferenceOptions, *, context_length: int, seed: int = 0, version: int = 0) -> None:
        self._make_core = partial(type(self).core_class, model_dir, options, context_length, seed)
        self._version = version
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._core: Core | None = None
        self._thread: threading.Thread | None = None
        self._ready: Future[None] = Future()
        self._waiters: dict[str, OnDone] = {}
        self._paused = False
        self._held: list[tuple[GenerationRequest, OnDone]] = []
        self._drained: list[Future[None]] = []
        self._refusal: str | None = None
        self._dead: str | None = None
        self._stats = EngineStats()
        self._started_at = time.monotonic()

    # --- protocol

    async def start(self) -> None:
        """Load the model; returns when the first request can be served."""
        if self._thread is None:
            self._started_at = time.monotonic()
            self._thread = threading.Thread(target=self._run, name="lmgame-engine", daemon=True)
            self._thread.start()
        await asyncio.shield(asyncio.wrap_future(self._ready))

    async def generate(self, request: GenerationRequest) -> Generation:
        """Sample one reply. Concurrent calls are batched by the engine. Never raises for one bad request."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Generation] = loop.create_future()

        def on_done(generations: list[Generation]) -> None:
            loop.call_soon_threadsafe(_resolve, done, generations[0])

        self.submit([request], on_done)
        try:
            return await done
        except asyncio.CancelledError:
            self.abort([request.request_id])
            raise

    async def update_weights(self, state: Mapping[str, Any], version: int) -> str:
        """Drain, load Hugging Face named tensors, reset the prefix cache; returns the checksum of what is loaded.

        Raises:
            WeightUpdateError: The weights do not fit the model or hold NaN, or loading failed. The engine then answers
                every request with an error until an update succeeds.
        """
        was_paused = self._paused
        await self.pause()
        try:
            return await self._call(lambda core: self._load(core, state, version))
        finally:
            if not was_paused:
                await self.resume()

    async def pause(self) -> None:
        """Stop taking new requests into steps and wait for running ones."""
        drained: Future[None] = Future()

        def pause() -> None:
            self._paused = True
            self._drained.append(drained)

        self._post(pause)
        await asyncio.wrap_future(drained)

    async def resume(self) -> None:
        """Undo :meth:`pause`."""

        def resume(core: Core) -> None:
            self._paused = False
            held, self._held = self._held, []
            for request, on_done in held:
                self._admit([request], on_done)

        await self._call(resume)

    async def reset_prefix_cache(self) -> None:
        """Forget every cached prefix. Waits for running requests."""
        was_paused = self._paused
        await self.pause()
        try:
            await self._call(lambda core: core.reset_prefix_cache())
        finally:
            if not was_paused:
                await self.resume()

    async def version(self) -> int:
        """Version of the loaded weights."""
        return self._version

    async def health(self) -> None:
        """Raise :class:`EngineDeadError` if the engine cannot serve, :class:`WeightUpdateError` if it refuses to."""
        if self._dead is not None:
            raise EngineDeadError(self._dead)
        if self._refusal is not None:
            raise WeightUpdateError(self._refusal)

    async def stats(self) -> EngineStats:
        """Counters."""
        return await self._call(self._snapshot)

    async def shutdown(self) -> None:
        """Stop the thread and whatever the backend started."""
        if self._thread is None or not self._thread.is_alive():
            return
        self._inbox.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join, 30.0)

    # --- beyond the protocol

    def submit(self, requests: Sequence[GenerationRequest], on_done: OnDone) -> None:
        """Queue requests; ``on_done`` is called in the engine's thread with those of them that ended in one step."""
        if self._dead is not None:
            on_done([failed(r.request_id, self._dead, self._version) for r in requests])
            return
        self._post(lambda: self._admit(requests, on_done))

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget requests without an answer."""
        ids = set(request_ids)

        def abort() -> None:
            self._held = [(r, f) for r, f in self._held if r.request_id not in ids]
            known = [i for i in ids if self._waiters.pop(i, None) is not None]
            if self._core is not None and known:
                self._core.abort(known)

        self._post(abort)

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Run a backend-specific operation in the engine's thread."""
        return await self._call(lambda core: core.call(method, *args, **kwargs))

    def refuse(self, reason: str | None) -> None:
        """Answer every request with an error from now on (``None``: serve again)."""
        self._refusal = reason

    def accept_version(self, version: int) -> None:
        """Say which version the backend holds after weights arrived by another way than :meth:`update_weights`."""
        self._version, self._refusal = version, None

    # --- the engine's thread

    def _run(self) -> None:
        try:
            self._core = self._make_core()
        except BaseException as error:
            self._dead = f"the engine did not start: {error}"
            self._ready.set_exception(error)
            self._answer_rest()
            return
        self._ready.set_result(None)
        try:
            self._serve(self._core)
        finally:
            self._core.close()

    def _serve(self, core: Core) -> None:
        while True:
            if not self._take_commands(block=self._dead is not None or not core.has_work()):
                self._dead = "the engine was shut down"
                self._fail_waiters(self._dead)
                self._answer_rest()
                return
            if self._dead is None and core.has_work():
                self._step(core)
            if self._drained and (self._dead is not None or not core.has_work()):
                drained, self._drained = self._drained, []
                for future in drained:
                    future.set_result(None)

    def _take_commands(self, block: bool) -> bool:
        while True:
            try:
                command = self._inbox.get(block=block)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()
            block = False

    def _step(self, core: Core) -> None:
        began = time.perf_counter()
        try:
            finished = core.step()
        except Exception as error:
            logger.exception("the engine broke while generating")
            self._dead = f"the engine broke while generating: {type(error).__name__}: {error}"
            self._fail_waiters(self._dead)
            return
        self._stats.steps += 1
        self._stats.busy_s += time.perf_counter() - began
        if not finished:
            return
        batches: dict[OnDone, list[Generation]] = {}
        for reply in finished:
            on_done = self._waiters.pop(reply.request_id, None)
            if on_done is None:
                continue
            self._stats.generated_tokens += len(reply.response_ids)
            batches.setdefault(on_done, []).append(Generation(reply.request_id, reply.response_ids, reply.logprobs, reply.stop_reason, self._version))
        for on_done, generations in batches.items():
            _deliver(on_done, generations)

    def _admit(self, requests: Sequence[GenerationRequest], on_done: OnDone) -> None:
        core, errors = self._core, []
        assert core is not None
        for request in requests:
            refusal = self._dead or (self._refusal if not self._paused else None)
            error = refusal or core.request_error(request)
            if error is None and request.request_id in self._waiters:
                error = f"request id {request.request_id!r} is already being generated"
            if error is not None:
                errors.append(failed(request.request_id, error, self._version))
            elif self._paused:
                self._held.append((request, on_done))
            else:
                self._waiters[request.request_id] = on_done
                self._stats.requests += 1
                self._stats.prompt_tokens += len(request.prompt_ids)
                core.add(request)
        if errors:
            _deliver(on_done, errors)

    def _load(self, core: Core, state: Mapping[str, Any], version: int) -> str:
        self._refusal = f"an update to weights version {version} did not finish"
        try:
            checksum = state_checksum(state)
            core.load(state)
            core.reset_prefix_cache()
        except Exception as error:
            self._refusal = f"the update to weights version {version} failed ({type(error).__name__}: {error}); waiting for good weights"
            raise WeightUpdateError(self._refusal) from error
        self._version, self._refusal = version, None
        return checksum

    def _snapshot(self, core: Core) -> EngineStats:
        self._stats.uptime_s = time.monotonic() - self._started_at
        core.fill_stats(self._stats)
        self._stats.waiting += len(self._held)
        return EngineStats(**{f: getattr(self._stats, f) for f in EngineStats.__dataclass_fields__})

    def _fail_waiters(self, reason: str) -> None:
        waiters, self._waiters = self._waiters, {}
        held, self._held = self._held, []
        for request_id, on_done in [*waiters.items(), *((r.request_id, f) for r, f in held)]:
            _deliver(on_done, [failed(request_id, reason, self._version)])

    def _answer_rest(self) -> None:
        """After the thread's end: run what is queued, so that nobody waits for ever."""
        while True:
            try:
                command = self._inbox.get(block=False)
            except queue.Empty:
                return
            if command is not None and self._core is not None:
                command()

    # --- crossing into the engine's thread

    def _post(self, command: Callable[[], None]) -> None:
        self._inbox.put(command)

    async def _call(self, function: Callable[[Core], Any]) -> Any:
        if self._thread is None or not self._thread.is_alive():
            raise EngineDeadError(self._dead or "the engine was not started")
        result: Future[Any] = Future()

        def command() -> None:
            assert self._core is not None
            try:
                result.set_result(function(self._core))
            except BaseException as error:
                result.set_exception(error)

        self._post(command)
        return await asyncio.wrap_future(result)


def _resolve(done: asyncio.Future[Generation], generation: Generation) -> None:
    if not done.done():
        done.set_result(generation)


def _deliver(on_done: OnDone, generations: list[Generation]) -> None:
    try:
        on_done(generations)
    except Exception:  # a receiver that went away (closed loop) must not stop the others
        logger.exception("could not deliver %d generations", len(generations))
