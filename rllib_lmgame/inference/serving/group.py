"""All engines of one language model: started together, given weights together, restarted when they die."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rllib_lmgame.base.threads import AUTO, threads_here
from rllib_lmgame.inference.options import BUNDLES, InferenceOptions
from rllib_lmgame.inference.protocol import EngineDeadError, EngineStats
from rllib_lmgame.inference.serving.actor import EngineActor, EngineSpec
from rllib_lmgame.inference.serving.client import address
from rllib_lmgame.inference.serving.interruption import StopRequest
from rllib_lmgame.inference.weights import DevicePush, SharedBundle, State, gather, push_shared, share

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class SharedModel:
    """A carried model in the object store, where an engine that Ray starts again still finds it.

    ``reference`` is pickled: Ray keeps its object until the job ends. A plain one is not safe once the actor is up.
    """

    reference: bytes

    @classmethod
    def share(cls, model: Any) -> SharedModel:
        return cls(ray.cloudpickle.dumps(ray.put(model)))

    def directory(self) -> str:
        return str(ray.get(ray.cloudpickle.loads(self.reference)).directory())


MAX_CONCURRENCY = 2048
"""Calls one engine actor serves at once: a poll per client, and submits that wait for weights."""

ANSWER_S = 30.0
"""Longest wait for an engine to answer a question about itself."""

RETRY_S = 1.0
MOST_DEATHS, OF_PUSHES = 10, 20
"""An engine that dies between so many of so many pushes of new weights ends the run."""


class EngineGroup:
    """The engine actors of one language model, by ``names``. Make one with :meth:`create`.

    A thread watches the actors: one that Ray started again gets the last weights at once, so games that wait for it go
    on while the driver waits for them.
    """

    def __init__(
        self, specs: Sequence[EngineSpec], actor_options: Sequence[dict[str, Any]], watch_interval_s: float
    ) -> None:
        self.names = [spec.name for spec in specs]
        self._specs = dict(zip(self.names, specs, strict=True))
        self._actor_options = dict(zip(self.names, actor_options, strict=True))
        self._options = specs[0].options
        self._handles: dict[str, Any] = {}
        self._starts: dict[str, Any] = {}
        self._watch_interval_s = watch_interval_s
        self._last: dict[str | None, tuple[SharedBundle, int]] = {}
        self._device_version: int | None = None
        self._pushes, self._version = 0, -1
        self._known = dict[str, dict[str, Any]]()
        self._deaths: dict[str, dict[int, str]] = {name: {} for name in self.names}
        self._lock = threading.RLock()
        self._stopped = threading.Event()
        self._watcher: threading.Thread | None = None
        self._stop_request = StopRequest()
        self._placement_group: Any = None

    @classmethod
    def create(
        cls,
        name: str,
        model: Any,
        options: InferenceOptions,
        context_length: int,
        *,
        seed: int = 0,
        version: int = 0,
        trust_remote_code: bool = False,
        tokenizer: str | None = None,
        placement_group: Any = None,
        bundle_indices: Sequence[int] | None = None,
        wait: bool = True,
        watch_interval_s: float = 1.0,
    ) -> EngineGroup:
        """Start ``options.num_engines`` engines in parallel.

        Args:
            name: Prefix of the actors' names; unique on the cluster.
            model: Hugging Face directory or hub id, or an object whose ``directory()`` makes one on the engine's node.
            options: The ``inference`` section; with ``num_threads: auto`` the engines share this machine's cores.
            seed: Of requests without a seed; each engine gets another.
            version: Version of the weights in ``model``.
            tokenizer: Directory or hub id, if it is not ``model``; only stop texts need one.
            placement_group, bundle_indices: First bundle of each engine; without, Ray places them.
            wait: Return when all are ready; otherwise call :meth:`wait_until_ready`.
            watch_interval_s: Between two looks at the actors; 0 leaves restarts to :meth:`restart_dead`.

        Raises: MissingDependencyError: naming the package to install; TimeoutError: naming an engine that is late.
        """
        if not isinstance(model, str):
            model = SharedModel.share(model)
        if options.num_threads == AUTO and not options.on_gpu:
            options = options.model_copy(update={"num_threads": threads_here(options.num_engines)})
        own = None
        if placement_group is None and options.over_nodes:
            bundles = bundles_of(options)
            placement_group = own = ray.util.placement_group(bundles * options.num_engines)
            bundle_indices = range(0, len(bundles) * options.num_engines, len(bundles))
        first = EngineSpec(name, model, options, context_length, seed, version, trust_remote_code, tokenizer)
        specs = [dataclasses.replace(first, name=f"{name}-{i}", seed=seed + i) for i in range(options.num_engines)]
        actor_options = [_actor_options(spec, i, placement_group, bundle_indices) for i, spec in enumerate(specs)]
        group = cls(specs, actor_options, watch_interval_s)
        group._placement_group = own
        try:
            for engine in group.names:
                group._spawn(engine)
            if wait:
                group.wait_until_ready()
        except BaseException:
            group.shutdown()
            raise
        return group

    def wait_until_ready(self) -> None:
        """Return when every engine serves. Raises: TimeoutError: after ``start_timeout_s``, naming who is missing."""
        began = time.monotonic()
        starts = dict(self._starts)
        alive = {name: handle.alive.remote() for name, handle in self._handles.items()}
        late = self._wait(list(starts.values()), f"{', '.join(starts)} to start")
        if late:
            waits = [f"{name} ({self._why_late(alive[name])})" for name, call in starts.items() if call in late]
            raise TimeoutError(
                f"{len(waits)} of {len(starts)} engines are not up after {time.monotonic() - began:.0f} s: "
                f"{', '.join(waits)}"
            )
        _, lost = gather(starts, ANSWER_S, "start")
        if lost:
            raise EngineDeadError(f"{', '.join(lost)} died while starting; Ray's logs of these actors say why")
        self._watch()

    def push(self, state: State, version: int, *, adapter: str | None = None) -> None:
        """Give every engine the weights ``state`` as ``version``; one that dies meanwhile is started again with them.

        ``adapter``: which one of engines that have several; ``state`` is then an adapter's bundle.

        Raises: WeightUpdateError: An engine refused the weights; TimeoutError: naming the engines that did not answer;
        EngineDeadError: one dies again and again (:data:`MOST_DEATHS`).
        """
        with self._lock:
            self._count_deaths(version)
            shared = share(state, version)
            self._last[adapter], self._device_version = (shared, version), None
            lost = push_shared(self._handles, shared, version, self._options.start_timeout_s, adapter)
            if lost:
                what = f"weights version {version}" + ("" if adapter is None else f" of {adapter}")
                logger.warning("%s died while %s were pushed", ", ".join(lost), what)
                self.restart_dead()

    def learner_push(self) -> DevicePush:
        """For ``weight_transport: nccl`` and ``ipc``: what a learner calls with its own tensors."""
        return DevicePush(self.names, self._options)

    def note_device_push(self, version: int) -> None:
        """The learners pushed ``version`` themselves: an engine that restarts must wait for their next push."""
        with self._lock:
            self._count_deaths(version)
            self._last, self._device_version = {}, version

    def make_room(self) -> None:
        """Forget the last weights, so that two need not be stored; an engine that starts before the push refuses."""
        with self._lock:
            if None in self._last:
                _, self._device_version = self._last.pop(None)

    def stats(self) -> list[EngineStats]:
        calls = [handle.stats.remote() for handle in self._handles.values()]
        answered, _ = ray.wait(calls, num_returns=len(calls), timeout=ANSWER_S)
        counters = []
        for call in answered:
            with contextlib.suppress(ray.exceptions.RayError):
                counters.append(ray.get(call))
        return [stats for stats in counters if stats is not None]

    def call(self, method: str, *args: Any) -> None:
        """Call every engine's ``sleep``, ``wake_up``, ``pause`` or ``resume``; one that dies is called once more."""
        names = self.names
        for _ in range(2):
            calls = {name: getattr(self._handles[name], method).remote(*args) for name in names}
            _, names = gather(calls, self._options.start_timeout_s, method)
            if not names:
                return
            self.restart_dead()
        raise RuntimeError(f"{', '.join(names)} died twice during {method}")

    def restart_dead(self) -> list[str]:
        """Start dead or broken engines again with the last weights; returns names. Raises: TimeoutError: if late."""
        with self._lock:
            restarted = [name for name in self.names if not self._stopped.is_set() and self._revive(name)]
        if restarted:
            logger.warning("engines started again: %s", ", ".join(restarted))
        return restarted

    def shutdown(self) -> None:
        self._stopped.set()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join(timeout=ANSWER_S)
        for handle in list(self._handles.values()):  # without the lock: a restart in progress must not delay the end
            ray.kill(handle, no_restart=True)
        if self._placement_group is not None:
            ray.util.remove_placement_group(self._placement_group)

    def _spawn(self, name: str, restarted: bool | None = None) -> None:
        actor = ray.remote(EngineActor).options(**self._actor_options[name])
        self._handles[name] = actor.remote(self._specs[name], restarted)
        self._starts[name] = self._handles[name].start.remote()

    def _revive(self, name: str) -> bool:
        """Whether the engine had died or broken; if so it is well again when this returns."""
        deadline = time.monotonic() + self._options.start_timeout_s
        revived, why = False, ""
        while True:
            status = self._status(name)
            well = status is not None and status["error"] is None and status["ready"] and not status["needs_weights"]
            if well or self._stopped.is_set():
                if status is not None:
                    before, self._known[name] = self._known.get(name, status), status
                    if before["incarnation"] != status["incarnation"]:
                        self._deaths[name][self._pushes] = before["log"]
                return revived
            self._stop_request.check(f"{name} to come back{why}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} did not come back within {self._options.start_timeout_s:g} s{why}")
            revived = True
            if status is None or not status["ready"]:
                why = self._start_again(name) or why
            elif status["error"] is not None:
                ray.kill(self._handles[name], no_restart=False)
            else:
                self._give_last_weights(name)

    def _count_deaths(self, version: int) -> None:
        self._pushes, self._version = self._pushes + (version != self._version), version
        for name, died in self._deaths.items():
            logs = [log for push, log in died.items() if push >= self._pushes - OF_PUSHES]
            if len(logs) >= MOST_DEATHS:
                often = f"between {len(logs)} of the last {OF_PUSHES} pushes of weights"
                raise EngineDeadError(f"{name} died {often}; the log of its last process may say why: {logs[-1]}")

    def _status(self, name: str) -> dict[str, Any] | None:
        try:
            status = self._handles[name].status.remote()
            self._wait([status], f"{name} to say how it is", ANSWER_S)
            return ray.get(status, timeout=0)
        except ray.exceptions.RayError:
            return None

    def _start_again(self, name: str) -> str:
        """Try once; why the model did not load, or nothing."""
        try:
            start = self._handles[name].start.remote()
            self._wait([start], f"{name} to come back")
            ray.get(start, timeout=0)
        except ray.exceptions.ActorUnavailableError:
            self._stopped.wait(0.2)
        except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError):
            self._stopped.wait(0.2)
            if _is_gone(self._handles[name]) and not self._stopped.is_set():
                # The name is free a moment after the actor is gone.
                with contextlib.suppress(ray.exceptions.ActorAlreadyExistsError):
                    self._spawn(name, restarted=True)
        except ray.exceptions.RayTaskError as error:
            logger.warning("%s did not start: %s", name, error.cause)
            self._stopped.wait(RETRY_S)
            return f": {error.cause}"
        return ""

    def _wait(self, calls: list[Any], waiting_for: str, timeout_s: float | None = None) -> list[Any]:
        """Wait for calls; returns those late (by default ``start_timeout_s``). Raises: InterruptedWaitError."""
        deadline = time.monotonic() + (self._options.start_timeout_s if timeout_s is None else timeout_s)
        while True:
            left = max(0.0, deadline - time.monotonic())
            _, late = ray.wait(calls, num_returns=len(calls), timeout=min(1.0, left))
            if not late or not left or self._stopped.is_set():
                return late
            self._stop_request.check(waiting_for)

    def _give_last_weights(self, name: str) -> None:
        try:
            if self._last:
                *_, final = self._last
                for adapter, (shared, version) in self._last.items():
                    engine, limit = {name: self._handles[name]}, self._options.start_timeout_s
                    push_shared(engine, shared, version, limit, adapter, more=adapter != final)
            elif self._device_version is not None:
                again = f"started again after weights version {self._device_version}"
                reason = f"{again}; waiting for the learners' next push"
                ray.get(self._handles[name].refuse.remote(reason), timeout=ANSWER_S)
            else:
                ray.get(self._handles[name].confirm_weights.remote(), timeout=ANSWER_S)
        except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError):
            self._stopped.wait(0.2)

    def _why_late(self, alive: Any) -> str:
        done, _ = ray.wait([alive], timeout=0)
        if done:
            return "its process is up, the model is still loading"
        needed = {"CPU": self._options.num_cpus_per_engine, "GPU": self._options.num_gpus_per_engine}
        free = ray.available_resources()
        return f"no process yet: asks for {needed}, free on the cluster: " + str({k: free.get(k, 0) for k in needed})

    def _watch(self) -> None:
        if self._watch_interval_s > 0 and self._watcher is None:
            self._watcher = threading.Thread(target=self._watch_loop, name="lmgame-engines", daemon=True)
            self._watcher.start()

    def _watch_loop(self) -> None:
        while not self._stopped.wait(self._watch_interval_s):
            try:
                self.restart_dead()
            except Exception as error:
                if not self._stopped.is_set():
                    logger.warning("could not bring an engine back: %s", error)


@dataclasses.dataclass(frozen=True)
class AdapterOf:
    """One adapter of a group whose engines hold several: pushes its weights and names its engines."""

    group: EngineGroup
    adapter: str

    @property
    def names(self) -> list[str]:
        """What clients call the engines."""
        return [address(name, self.adapter) for name in self.group.names]

    def push(self, state: State, version: int) -> None:
        """As :meth:`EngineGroup.push`."""
        self.group.push(state, version, adapter=self.adapter)

    def make_room(self) -> None:
        """Nothing: an adapter is small, and an engine that starts again needs it."""


def bundles_of(options: InferenceOptions) -> list[dict[str, float]]:
    """An engine's bundles: one, hence on one node, or one per GPU, of which the engine itself shares the first."""
    gpus = 1.0 if options.over_nodes else options.num_gpus_per_engine
    first = {"CPU": float(options.num_cpus_per_engine)} | ({"GPU": gpus} if gpus else {})
    return [first, *({"GPU": 1.0} for _ in range(options.split - 1 if options.over_nodes else 0))]


def _actor_options(
    spec: EngineSpec, index: int, placement_group: Any, bundle_indices: Sequence[int] | None
) -> dict[str, Any]:
    options = spec.options
    values: dict[str, Any] = {
        "name": spec.name,
        "num_cpus": options.num_cpus_per_engine,
        "num_gpus": 0 if options.over_nodes else options.num_gpus_per_engine,  # Else its workers have them.
        "max_restarts": -1,
        "max_task_retries": 0,
        "max_concurrency": MAX_CONCURRENCY,
    }
    environment = options.engine.variables(options)
    if options.over_nodes and bundle_indices is not None:
        environment[BUNDLES] = ",".join(str(bundle_indices[index] + bundle) for bundle in range(options.split))
    if environment:
        values["runtime_env"] = {"env_vars": environment}
    if placement_group is not None:
        bundle = bundle_indices[index] if bundle_indices is not None else -1
        values["scheduling_strategy"] = PlacementGroupSchedulingStrategy(placement_group, bundle)
    return values


def _is_gone(handle: Any) -> bool:
    """Whether Ray will not start the actor again by itself."""
    try:
        ray.get(handle.alive.remote(), timeout=ANSWER_S)
    except (ray.exceptions.ActorUnavailableError, ray.exceptions.GetTimeoutError):
        return False
    except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError):
        return True
    return False
