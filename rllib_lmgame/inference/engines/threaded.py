"""An engine that runs its backend in a thread of its own.

The thread owns the model: it takes requests from a queue, steps as long as there is work, and hands back the replies
that ended in a step in one call. Guarantees:

1. One bad request never harms another: it is answered with an ``ENGINE_ERROR`` and the reason.
2. Each token has the version of the weights that sampled it. An update comes between two steps: running replies go
   on under the new weights, with the keys and values that they have, which no later request uses.
3. An update that fails ends running replies with an ``ENGINE_ERROR``; nothing is generated until one succeeded, of an
   adapter one of the same.
4. When the backend breaks, its thread ends: every request it holds is answered with an ``ENGINE_ERROR``, as is every
   later one, and whoever waits for anything else gets an :class:`~rllib_lmgame.inference.protocol.EngineDeadError`.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

from rllib_lmgame.inference.engines.stop_strings import StopStrings
from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.inference.protocol import (
    EngineDeadError,
    EngineStats,
    Generation,
    GenerationRequest,
    SamplingSpec,
    WeightUpdateError,
    failed,
)
from rllib_lmgame.inference.weights import state_checksum


class Core(ABC):
    """A model that generates in steps. Lives in one thread; no method is called from another.

    ``vocab_size`` is its number of token ids, ``context_length`` the most tokens of prompt and reply together.
    """

    vocab_size: int
    context_length: int
    ends: StopStrings
    """Where replies end by their text; set by who makes the core."""
    adapters: Collection[str | None] = (None,)
    """What may reply: the weights themselves (``None``), or adapters by their names."""
    loads: Mapping[str | None, int] = MappingProxyType({})
    """How often each of ``adapters`` has come; set by who makes the core. Prefixes cached before are not used again."""

    @abstractmethod
    def __init__(
        self, model_dir: str, options: InferenceOptions, context_length: int, seed: int, trust_remote_code: bool
    ) -> None:
        """Load the model; arguments as those of :class:`~rllib_lmgame.inference.engines.threaded.ThreadedEngine`."""

    @abstractmethod
    def add(self, request: GenerationRequest) -> None:
        """Queue a valid request."""

    @abstractmethod
    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget requests; unknown ones are ignored."""

    @abstractmethod
    def has_work(self) -> bool:
        """Whether a request is queued or running."""

    @abstractmethod
    def step(self) -> Sequence[Generation]:
        """Advance every running request by one token; the replies that ended, without ``policy_version``."""

    @abstractmethod
    def lengths(self) -> Mapping[str, int]:
        """How many tokens each running reply has, by request, those of a step under way included."""

    @abstractmethod
    def load(self, state: Mapping[str, Any]) -> None:
        """Replace all weights with these, named as in a Hugging Face checkpoint. What runs goes on with them."""

    @abstractmethod
    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix."""

    @abstractmethod
    def fill_stats(self, stats: EngineStats) -> None:
        """Add what only the backend knows."""

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Backend-specific operations (sleep, device weight transfer)."""
        operation = getattr(self, method, None)
        if operation is None:
            raise ValueError(f"{type(self).__name__} has no operation {method!r}")
        return operation(*args, **kwargs)

    def close(self) -> None:  # noqa: B027 - most backends have nothing to stop
        """Stop what the backend started."""

    def stops(self, sampling: SamplingSpec, ids: Sequence[int]) -> bool:
        """The last of a reply's ``ids`` ends it."""
        if ids[-1] in sampling.stop_token_ids:
            return True
        return bool(sampling.stop_strings) and self.ends.ended(ids, sampling.stop_strings, sampling.reasoning)

    def request_error(self, request: GenerationRequest) -> str | None:
        """What is wrong with ``request``, or ``None``. A bad request must not reach :meth:`add`."""
        prompt, sampling = request.prompt_ids, request.sampling
        if request.adapter not in self.adapters:
            return "the engine was given no adapter" + ("" if request.adapter is None else f" {request.adapter}")
        replies = request.choices if request.scored is None else (request.scored,)
        if not prompt or (replies is not None and not (replies and all(replies))):
            return "the prompt, a choice or the reply to be scored is empty"
        parts = (prompt, *(replies or ()))
        lowest, highest = min(map(min, parts)), max(map(max, parts))
        if lowest < 0 or highest >= self.vocab_size:
            token = highest if lowest >= 0 else lowest
            return f"token {token} is outside the vocabulary of {self.vocab_size}"
        longest = max(map(len, replies)) if replies else 1
        room = self.context_length - (request.scored is not None)  # vLLM needs one more behind what it scores.
        if len(prompt) + longest > room:
            return f"the prompt has {len(prompt)} tokens, the reply {longest}; the context holds {room}"
        if sampling.max_tokens < 1:
            return f"max_tokens must be at least 1, got {sampling.max_tokens}"
        if sampling.temperature < 0 or not 0 < sampling.top_p <= 1 or sampling.top_k < 0:
            return f"impossible sampling: {sampling}"
        if sampling.stop_strings and (problem := self.ends.problem()):
            return problem
        return choices_error(request)


def tied_embeddings(config: Mapping[str, Any]) -> bool:
    """Whether a ``config.json`` ties the output head to the input embedding."""
    text = config.get("text_config")
    return bool(config.get("tie_word_embeddings", (text or {}).get("tie_word_embeddings", False)))


def choices_error(request: GenerationRequest) -> str | None:
    """What is wrong with the choices, or ``None``. Each must end with a stop token, its only one, or a stop text."""
    stops = set(request.sampling.stop_token_ids)
    for choice in request.choices or ():
        if choice[-1] not in stops and not request.sampling.stop_strings:
            return f"choice {tuple(choice)} does not end with one of the stop tokens {tuple(sorted(stops))}"
        if stops.intersection(choice[:-1]):
            return f"choice {tuple(choice)} holds a stop token before its end"
        if len(choice) > request.sampling.max_tokens:
            return f"choice {tuple(choice)} has {len(choice)} tokens, max_tokens is {request.sampling.max_tokens}"
    return None


logger = logging.getLogger(__name__)

OnDone = Callable[[list[Generation]], None]


class ThreadedEngine:
    """An engine over a :class:`Core`, its ``core_class``. Its methods are coroutines, so one actor serves many clients.

    Args:
        model_dir: Hugging Face directory or hub id.
        options: The ``inference`` section.
        context_length: Most tokens of prompt and reply together.
        seed: Of requests without a seed of their own.
        version: Version of the weights in ``model_dir``.
        trust_remote_code: Run code that comes with the model.
        tokenizer: Directory or hub id, if it is not ``model_dir``.
    """

    core_class: ClassVar[type[Core]]
    """The backend; made in the engine's thread."""

    def __init__(
        self,
        model_dir: str,
        options: InferenceOptions,
        *,
        context_length: int,
        seed: int = 0,
        version: int = 0,
        trust_remote_code: bool = False,
        tokenizer: str | None = None,
    ) -> None:
        self._ends = StopStrings(tokenizer or model_dir, trust_remote_code)
        self._make_core = partial(type(self).core_class, model_dir, options, context_length, seed, trust_remote_code)
        self._version = version
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._core: Core | None = None
        self._thread: threading.Thread | None = None
        self._ready: Future[None] = Future()
        self._waiters: dict[str, OnDone] = {}
        self._adapter_of: dict[str, str] = {}
        self._adapter_versions: dict[str, int] = {}
        self._versions: dict[str, list[tuple[int, int]]] = {}
        self._loads: Counter[str | None] = Counter()
        self._paused = self._frozen = False
        self._held: list[tuple[GenerationRequest, OnDone]] = []
        self._drained: list[Future[None]] = []
        self._refusals: dict[str | None, str] = {}
        self._dead: str | None = None
        self._stats = EngineStats()

    async def start(self) -> None:
        """Load the model; returns when the first request can be served."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lmgame-engine", daemon=True)
            self._thread.start()
        await asyncio.shield(asyncio.wrap_future(self._ready))

    async def generate(self, request: GenerationRequest) -> Generation:
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

    async def update_weights(self, state: Mapping[str, Any], version: int, checked: bool = True) -> str:
        """Load Hugging Face named tensors between two steps; returns the checksum of what is loaded, or nothing if it
        is not ``checked``.

        Raises: WeightUpdateError: The weights do not fit the model or hold NaN, or loading failed. Every request is
        then answered with an error until an update succeeds.
        """
        return await self._call(lambda core: self._load(core, state, version, checked))

    async def update_adapter(self, name: str, directory: str, version: int) -> None:
        """Let the adapter of a directory, in PEFT's form, reply as ``name``, in place of the one before it.

        Raises: WeightUpdateError: as :meth:`update_weights`.
        """
        await self._call(lambda core: self._load_adapter(core, name, directory, version))

    async def pause(self, drain: bool = True) -> None:
        """Hold new requests until :meth:`resume`. Waits for running ones, or, without ``drain``, stops them."""
        self._check_alive()
        drained: Future[None] = Future()

        def pause() -> None:
            self._paused, self._frozen = True, not drain
            if self._dead is None and drain:
                self._drained.append(drained)
            else:
                _settle(drained, self._check_alive)

        self._post(pause)
        await asyncio.wrap_future(drained)

    async def resume(self) -> None:
        def resume(core: Core) -> None:
            self._paused = self._frozen = False
            held, self._held = self._held, []
            for request, on_done in held:
                self._admit([request], on_done)

        await self._call(resume)

    async def end_running(self, reason: str) -> None:
        await self._call(lambda core: self._fail_running(reason))

    async def version(self) -> int:
        return self._version

    async def health(self) -> None:
        """Raise :class:`EngineDeadError` if the engine cannot serve, :class:`WeightUpdateError` if it refuses to."""
        self._check_alive()
        if self._refusal is not None:
            raise WeightUpdateError(self._refusal)

    async def stats(self) -> EngineStats:
        return await self._call(self._snapshot)

    async def shutdown(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            return
        self._inbox.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join, 30.0)

    def submit(self, requests: Sequence[GenerationRequest], on_done: OnDone) -> None:
        """Queue requests; ``on_done`` is called in the engine's thread with those of them that ended in one step."""
        self._post(lambda: self._admit(requests, on_done))

    def abort(self, request_ids: Iterable[str]) -> None:
        ids = set(request_ids)

        def abort() -> None:
            if self._dead is not None:
                return
            self._held = [(r, f) for r, f in self._held if r.request_id not in ids]
            known = [i for i in ids if self._waiters.pop(i, None) is not None]
            for request_id in known:
                self._adapter_of.pop(request_id, None)
                del self._versions[request_id]
            if self._core is not None and known:
                self._core.abort(known)

        self._post(abort)

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Run an operation of the backend: ``sleep``, ``wake_up``, or ``worker_call`` (its first argument names a
        weight-transfer operation of vLLM's workers).
        """
        return await self._call(lambda core: core.call(method, *args, **kwargs))

    async def accept_version(self, version: int) -> None:
        """The backend holds ``version``, whose weights did not come through :meth:`update_weights`."""

        def accept(core: Core) -> None:
            with self._updating("the update", version):
                self._go_on_as(core, version)

        await self._call(accept)

    # --- the engine's thread

    def _run(self) -> None:
        try:
            self._core = self._make_core()
            self._core.ends, self._core.loads = self._ends, self._loads
        except BaseException as error:
            self._end(f"the engine did not start: {error}")
            self._ready.set_exception(error)
            return
        self._ready.set_result(None)
        reason = "the engine was shut down"
        try:
            self._serve(self._core)
        except BaseException as error:
            logger.exception("the engine broke")
            reason = f"the engine broke: {type(error).__name__}: {error}"
        self._end(reason)
        self._core.close()

    def _serve(self, core: Core) -> None:
        while self._take_commands(block=self._frozen or not core.has_work()):
            if core.has_work() and not self._frozen:
                self._step(core)
            if self._drained and not core.has_work():
                self._end_pauses()

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
        finished = core.step()
        self._stats.steps += 1
        self._stats.busy_s += time.perf_counter() - began
        if not finished:
            return
        batches: dict[OnDone, list[Generation]] = {}
        for reply in finished:
            on_done = self._waiters.pop(reply.request_id, None)
            self._adapter_of.pop(reply.request_id, None)
            if on_done is None:
                continue
            (_, version), *others = self._versions.pop(reply.request_id)
            later = tuple(other for other in others if other[0] < len(reply.response_ids))
            self._stats.generated_tokens += len(reply.response_ids)
            batches.setdefault(on_done, []).append(replace(reply, policy_version=version, later_versions=later))
        for on_done, generations in batches.items():
            _deliver(on_done, generations)

    def _admit(self, requests: Sequence[GenerationRequest], on_done: OnDone) -> None:
        errors = []
        for request in requests:
            try:
                error = self._dead or self._take(request, on_done)
            except Exception as unexpected:
                logger.exception("the engine did not take request %r", request.request_id)
                error = f"the engine did not take the request: {type(unexpected).__name__}: {unexpected}"
            if error is not None:
                errors.append(failed(request.request_id, error, self._version))
        if errors:
            _deliver(on_done, errors)

    def _take(self, request: GenerationRequest, on_done: OnDone) -> str | None:
        """Begin one request, or hold it while paused; why that cannot be, or ``None``."""
        assert self._core is not None
        error = (self._refusal if not self._paused else None) or self._core.request_error(request)
        if error is None and request.request_id in self._waiters:
            error = f"request id {request.request_id!r} is already being generated"
        if error is None and self._paused:
            self._held.append((request, on_done))
        elif error is None:
            self._core.add(request)
            self._waiters[request.request_id] = on_done
            version = self._version if request.adapter is None else self._adapter_versions[request.adapter]
            self._versions[request.request_id] = [(0, version)]
            if request.adapter is not None:
                self._adapter_of[request.request_id] = request.adapter
            self._stats.requests += 1
            self._stats.prompt_tokens += len(request.prompt_ids)
        return error

    @property
    def _refusal(self) -> str | None:
        """Why requests are refused, if they are; asked from any thread."""
        return next(iter(list(self._refusals.values())), None)

    @contextmanager
    def _updating(self, what: str, version: int, adapter: str | None = None) -> Iterator[None]:
        """Requests are refused unless what is done inside succeeds; no prefix cached before is used behind it."""
        self._refusals[adapter] = f"{what} to weights version {version} did not finish"
        self._loads[adapter] += 1
        try:
            yield
        except Exception as error:
            cause = f"{type(error).__name__}: {error}"
            self._refusals[adapter] = f"{what} to weights version {version} failed ({cause}); waiting for good weights"
            self._fail_running(self._refusals[adapter])
            raise WeightUpdateError(self._refusals[adapter]) from error
        del self._refusals[adapter]

    def _load(self, core: Core, state: Mapping[str, Any], version: int, checked: bool) -> str:
        with self._updating("the update", version):
            checksum = state_checksum(state) if checked else ""
            core.load(state)
            self._go_on_as(core, version)
        return checksum

    def _load_adapter(self, core: Core, name: str, directory: str, version: int) -> None:
        with self._updating(f"the update of {name}", version, name):
            core.call("load_adapter", name, directory)
            self._note_version(core, version, name)
        self._adapter_versions[name] = version

    def _go_on_as(self, core: Core, version: int) -> None:
        if not core.has_work():
            core.reset_prefix_cache()
        self._note_version(core, version)
        self._version = version

    def _note_version(self, core: Core, version: int, adapter: str | None = None) -> None:
        lengths = core.lengths()
        for request_id, versions in self._versions.items():
            if self._adapter_of.get(request_id) == adapter:
                length = lengths.get(request_id, 0)
                if versions[-1][0] == length:  # The version before has sampled nothing.
                    versions.pop()
                versions.append((length, version))

    def _fail_running(self, reason: str) -> None:
        if self._core is not None and self._dead is None and self._waiters:
            self._core.abort(list(self._waiters))
        waiters, self._waiters = self._waiters, {}
        self._versions, self._adapter_of = {}, {}
        for request_id, on_done in waiters.items():
            _deliver(on_done, [failed(request_id, reason, self._version)])

    def _snapshot(self, core: Core) -> EngineStats:
        core.fill_stats(self._stats)
        self._stats.waiting += len(self._held)
        return EngineStats(**{f: getattr(self._stats, f) for f in EngineStats.__dataclass_fields__})

    def _end_pauses(self) -> None:
        drained, self._drained = self._drained, []
        for future in drained:
            _settle(future, self._check_alive)

    def _end(self, reason: str) -> None:
        self._dead = reason
        self._fail_running(reason)
        held, self._held = self._held, []
        for request, on_done in held:
            _deliver(on_done, [failed(request.request_id, reason, self._version)])
        self._end_pauses()
        self._answer_rest()

    def _answer_rest(self) -> None:
        """Run what is still queued once the engine has ended: every command then says so to its sender."""
        while not self._take_commands(block=False):
            pass

    # --- crossing into the engine's thread

    def _check_alive(self) -> None:
        if self._dead is not None or self._thread is None or not self._thread.is_alive():
            raise EngineDeadError(self._dead or "the engine was not started")

    def _post(self, command: Callable[[], None]) -> None:
        self._inbox.put(command)
        if self._dead is not None:  # perhaps since the engine's thread last looked
            self._answer_rest()

    async def _call(self, function: Callable[[Core], Any]) -> Any:
        self._check_alive()
        result: Future[Any] = Future()

        def operation() -> Any:
            self._check_alive()
            return function(self._core)  # type: ignore[arg-type]  # made before the first command is run

        self._post(lambda: _settle(result, operation))
        return await asyncio.wrap_future(result)


def _settle(future: Future[Any], function: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)


def _resolve(done: asyncio.Future[Generation], generation: Generation) -> None:
    if not done.done():
        done.set_result(generation)


def _deliver(on_done: OnDone, generations: list[Generation]) -> None:
    try:
        on_done(generations)
    except Exception:  # a receiver that went away (closed loop) must not stop the others
        logger.exception("could not deliver %d generations", len(generations))
