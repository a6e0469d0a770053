"""The processes of a trial: engines, env runners and learners; calls to them, and weights from learners to engines."""

from __future__ import annotations

import dataclasses
import itertools
import math
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import TYPE_CHECKING, Any, TypeVar

import ray
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.env.env_runner_group import EnvRunnerGroup

from rllib_lmgame.algorithms.cluster.threads import Places, places
from rllib_lmgame.base.threads import AUTO
from rllib_lmgame.inference.options import ADAPTER_ARGUMENTS, VLLM
from rllib_lmgame.inference.serving.group import AdapterOf, EngineGroup, bundles_of
from rllib_lmgame.inference.serving.interruption import StopRequest
from rllib_lmgame.inference.serving.oom import oom_line
from rllib_lmgame.inference.weights import SharedBundle
from rllib_lmgame.learners.options import WeightUse
from rllib_lmgame.policies.model.files import model_directory
from rllib_lmgame.rollouts.plans import EpisodePlan, deal_with_spares, split_plans, stable_seed, with_spares
from rllib_lmgame.rollouts.records import PlayResult, PlaySettings
from rllib_lmgame.rollouts.sources import RolloutError

if TYPE_CHECKING:
    from rllib_lmgame.algorithms.config import LMGameConfig

T = TypeVar("T")

POLL_S = 0.5
"""Between two looks for an env runner that is started again."""

STRAGGLER_S = 30.0
"""How long the others' answers are waited for once a learner has failed: they may be waiting for it for ever."""


# -- engines ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EngineSet:
    """Engines that hold the same weights.

    Attributes:
        key: The policy whose weights they hold, or a league opponent.
        policy: Whose model they load.
        adapters: Policies and league opponents whose adapters they hold; none if they hold whole weights.
    """

    key: str
    policy: str
    count: int
    adapters: tuple[str, ...] = ()

    @property
    def is_opponent(self) -> bool:
        return self.key != self.policy


def opponent_key(number: int) -> str:
    """Key of an engine that holds one member of the league at a time."""
    return f"league:{number}"


def engine_sets(config: LMGameConfig, *, training: bool = True) -> list[EngineSet]:
    """The engines a configuration needs: per policy, and for the league's opponents.

    None where training plays nothing. Only ``training`` has opponents, and engines with several adapters: what is
    saved is merged.
    """
    if training and not config.run.plays:
        return []
    count = config.run.inference.num_engines
    policies, trained = config.language_model_policies(), config.trained_policies()
    league = config.run.league if training else None
    opponents = [opponent_key(number) for number in range(0 if league is None else league.opponent_engines)]
    if not (training and config.run.inference.adapters):
        sets = [EngineSet(policy, policy, count) for policy in policies]
        return [*sets, *(EngineSet(key, trained[0], 1) for key in opponents)]
    return [
        *(EngineSet(policy, policy, count) for policy in policies if policy not in trained),
        EngineSet(trained[0], trained[0], count, (*trained, *opponents)),
    ]


def engine_bundles(config: LMGameConfig) -> list[dict[str, float]]:
    """The resource bundles of all engines, one after the other."""
    count = sum(engines.count for engines in engine_sets(config))
    return [dict(bundle) for _ in range(count) for bundle in bundles_of(config.run.inference)]


def engine_seed(config: LMGameConfig, engines: EngineSet) -> int:
    """Seed of an engine's draws: the run's for the first policy, another one for each other policy.

    With equal draws, simultaneous choices of players would be correlated, and cooperation would seem to pay.
    """
    seed = config.seed or 0
    first = next(iter(config.language_model_policies()))
    return seed if engines.key == first else stable_seed(seed, engines.key)


def start_engines(
    config: LMGameConfig, found: Places | None = None, *, training: bool = True
) -> dict[str, EngineGroup | AdapterOf]:
    """Start engines on the last bundles of the placement group; policy or opponent -> group, as :func:`engine_sets`.

    ``found`` are the places of the trial's processes, where they are known already.
    """
    sets = engine_sets(config, training=training)
    placement_group = ray.util.get_current_placement_group()
    bundles = None
    if placement_group is not None:
        each = len(bundles_of(config.run.inference))
        first = placement_group.bundle_count - each * sum(engines.count for engines in sets)
        if first < 1:  # Not a placement group of this algorithm's own request.
            placement_group = None
        else:
            bundles = iter(range(first, placement_group.bundle_count, each))
    shared = config.run.engine_options.constrained(config.run.text_rollouts.constrained_decoding)
    if shared.engine.outside and not training:  # Its weights are not those that are evaluated.
        shared = shared.model_copy(update={"engine": VLLM()})
    if shared.num_threads == AUTO and not shared.on_gpu:
        found = found or places(config, sum(engines.count for engines in sets))
        shared = shared.model_copy(update={"num_threads": found.engine_threads()})
    groups: dict[str, EngineGroup] = {}
    try:
        for engines in sets:
            options = config.language_model_of(engines.policy)
            inference = shared.model_copy(update={"num_engines": engines.count})
            if engines.is_opponent:  # Members come from files, not from a learner's device.
                inference = inference.model_copy(update={"weight_transport": "object_store"})
            if engines.adapters:
                own = adapter_arguments(config, len(engines.adapters))
                inference = inference.model_copy(update={"engine_kwargs": inference.engine_kwargs | own})
            groups[engines.key] = EngineGroup.create(
                f"lmgame-{engines.key}-{uuid.uuid4().hex[:12]}",
                config.model_files[engines.policy],
                inference,
                context_length=options.context_length,
                seed=engine_seed(config, engines),
                trust_remote_code=options.trust_remote_code,
                tokenizer=None if options.tokenizer is None else model_directory(options.tokenizer),
                placement_group=placement_group,
                bundle_indices=None if bundles is None else [next(bundles) for _ in range(engines.count)],
                wait=False,
            )
        for engines in sets:
            groups[engines.key].wait_until_ready()
    except BaseException:
        for group in groups.values():
            group.shutdown()
        raise
    found_groups = dict[str, EngineGroup | AdapterOf](groups)
    for engines in sets:
        found_groups |= {key: AdapterOf(groups[engines.key], key) for key in engines.adapters}
    return found_groups


def adapter_arguments(config: LMGameConfig, count: int) -> dict[str, Any]:
    """What vLLM needs to hold as many adapters as trained policies and members have.

    Other layers than those with adapters have no place for any: not the head, whose place vLLM 0.32 has for one row of
    a request on CPUs, where replies that are scored have many.
    """
    from rllib_lmgame.policies.model.adapters import served_modules, served_rank

    policies = config.trained_policies()
    directory = model_directory(config.model_files[policies[0]].directory())
    ranks, modules = [], set()
    for options in map(config.language_model_of, policies):
        assert options.lora is not None
        ranks.append(served_rank(options.lora))
        modules |= served_modules(options.lora, directory, trust_remote_code=options.trust_remote_code)
    values = (True, count, count, max(ranks), sorted(modules))
    return dict(zip(ADAPTER_ARGUMENTS, values, strict=True))


def each_group(groups: Mapping[str, EngineGroup | AdapterOf]) -> list[EngineGroup]:
    return list(dict.fromkeys(each.group if isinstance(each, AdapterOf) else each for each in groups.values()))


def engine_stats(groups: Mapping[str, EngineGroup | AdapterOf]) -> dict[str, float]:
    """Counters over all engines."""
    stats = [each for group in each_group(groups) for each in group.stats()]
    counted = ("generated_tokens", "prompt_tokens", "prompt_tokens_computed", "busy_s")
    return {key: float(sum(getattr(each, key) for each in stats)) for key in counted} | {"engines": float(len(stats))}


def engine_metrics(before: Mapping[str, float], after: Mapping[str, float], wall_s: float) -> dict[str, float]:
    """What the engines did between two calls of :func:`engine_stats`, as metrics."""
    delta = {key: max(0.0, after[key] - before[key]) for key in after}
    prompt = max(1.0, delta["prompt_tokens"])
    return {
        "engine_busy_fraction": delta["busy_s"] / max(1e-9, wall_s * max(1.0, after["engines"])),
        "prompt_tokens_computed_fraction": delta["prompt_tokens_computed"] / prompt,
    }


# -- env runners ------------------------------------------------------------------------------------------------------


Share = tuple[Sequence[EpisodePlan], PlaySettings]
"""What one runner plays, and how."""


class RunnerGroup:
    """Deals plans to healthy remote runners, or to the local one.

    ``timeout_s`` limits the wait for answers, and for a runner where none is left; ``heal`` restarts what died, runners
    only if ``restarts``.
    """

    def __init__(
        self,
        group: EnvRunnerGroup,
        timeout_s: float | None,
        heal: Callable[[EnvRunnerGroup], None],
        restarts: bool = True,
    ) -> None:
        self._group = group
        self._timeout_s = timeout_s
        self._heal = heal
        self._restarts = restarts

    def play(self, plans: Sequence[EpisodePlan], settings: PlaySettings) -> PlayResult:
        """Play ``plans``; of those whose runner died or gave no answer in time nothing comes back."""
        result = PlayResult()
        if not self._group.num_remote_env_runners():
            result.extend(self._group.local_env_runner.play(plans, settings))
            return result
        for part in self._ask({number: methodcaller("play", *share) for number, share in self._dealt(plans, settings)}):
            result.extend(part)
        return result

    def _dealt(self, plans: Sequence[EpisodePlan], settings: PlaySettings) -> Iterator[tuple[int, Share]]:
        """Healthy remote runners, and what each one plays."""
        healthy = self._group.healthy_worker_ids()
        split = deal_with_spares if with_spares(plans) else split_plans
        shares = [share for share in split(plans, len(healthy)) if share] if healthy else []
        for number, share in enumerate(shares):
            if (most := settings.log_most) is not None:  # Of the episodes that all together write.
                most = most * (number + 1) // len(shares) - most * number // len(shares)
            yield healthy[number], (share, dataclasses.replace(settings, log_most=most))

    def _ask(self, calls: Mapping[int, Callable[[Any], Any]]) -> list[Any]:
        """Answers of these remote runners; of those that died or gave none in time nothing comes back."""
        if not calls:
            return []
        answers: list[Any] = self._group.foreach_env_runner(
            [*calls.values()], local_env_runner=False, remote_worker_ids=[*calls], timeout_seconds=self._timeout_s
        )
        return answers

    def heal(self) -> None:
        """Bring back engines and runners that died; if no runner is left, wait until one is up again.

        Raises: RolloutError: none came up in time; InterruptedWaitError: the run is to stop.
        """
        self._heal(self._group)
        deadline = time.monotonic() + (math.inf if self._timeout_s is None else self._timeout_s)
        stop = StopRequest()
        while self._restarts and self._group.num_remote_env_runners() and not self._group.healthy_worker_ids():
            if time.monotonic() >= deadline:
                raise RolloutError(f"no env runner came up again within sample_timeout_s={self._timeout_s:g}")
            stop.check("an env runner that is started again")
            time.sleep(POLL_S)
            self._heal(self._group)


SLICE_S = 0.25
"""Longest time in one call that a runner plays for several threads of the driver."""


class SharedRunners(RunnerGroup):
    """Remote runners that play for several threads at once: the games of all are in play side by side.

    Each thread waits for its own plans; one of them asks the runners to go on, for all.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._changed, self._asking = threading.Condition(), False
        self._keys = itertools.count()
        self._in_play: dict[int, int] = {}
        """Share -> its runner."""
        self._begun: dict[int, dict[int, Share]] = defaultdict(dict)
        self._results: dict[int, PlayResult] = {}

    def play(self, plans: Sequence[EpisodePlan], settings: PlaySettings) -> PlayResult:
        if not self._group.num_remote_env_runners():
            return super().play(plans, settings)
        mine: set[int] = set()
        with self._changed:
            for runner, share in self._dealt(plans, settings):
                mine.add(key := next(self._keys))
                self._in_play[key], self._begun[runner][key] = runner, share
        while True:
            with self._changed:
                self._changed.wait_for(lambda: not self._asking or mine.isdisjoint(self._in_play))
                if mine.isdisjoint(self._in_play):
                    break
                self._asking = True
            try:
                self._go_on()
            finally:
                with self._changed:
                    self._asking = False
                    self._changed.notify_all()
        result = PlayResult()
        for key in sorted(mine & self._results.keys()):
            result.extend(self._results.pop(key))
        return result

    def _go_on(self) -> None:
        with self._changed:
            asked, begun, self._begun = dict(self._in_play), self._begun, defaultdict(dict)
        healthy = [number for number in self._group.healthy_worker_ids() if number in asked.values()]
        answers = self._ask({number: methodcaller("go_on", number, begun[number], SLICE_S) for number in healthy})
        with self._changed:
            self._results |= {key: part for _, done, _ in answers for key, part in done.items() if key in asked}
            left = {key for _, _, playing in answers for key in playing}
            for key in asked.keys() - left:  # Done, or lost with its runner.
                del self._in_play[key]


# -- learners ---------------------------------------------------------------------------------------------------------


class LearnerError(RuntimeError):
    """The learners cannot go on; Tune starts the trial again from its last checkpoint (``max_failures``)."""


def update_learners(
    learner_group: LearnerGroup, data: Any, timesteps: Mapping[str, Any], **kwargs: Any
) -> list[dict[str, Any]]:
    """One update on all learners; their metrics. Raises: LearnerError: if one died or failed, with the cause."""
    if learner_group.is_local:
        return list(learner_group.update(training_data=data, timesteps=dict(timesteps), **kwargs))
    workers = learner_group._workers
    shards = [shard for shard, _ in data.shard(len(workers))]
    # RLlib's own call waits for all learners for ever, also for those that wait for one that failed.
    calls = [
        worker.update.remote(training_data=shard, timesteps=dict(timesteps), **kwargs)
        for worker, shard in zip(workers, shards, strict=True)
    ]
    try:
        return _answers(calls)
    except ray.exceptions.RayError as error:
        raise _learner_error(learner_group, error) from error


def _learner_error(learner_group: LearnerGroup, error: object) -> LearnerError:
    workers = list(learner_group._workers or [])
    lost = [number for number, worker in enumerate(workers) if not _is_alive(worker)]
    cause = oom_line(str(error)) or (str(error).strip().splitlines() or [type(error).__name__])[-1]
    what = f"learner {', '.join(map(str, lost))} of {len(workers)} died" if lost else "a learner failed"
    return LearnerError(f"{what} ({cause}); training goes on from the last checkpoint with max_failures or --resume")


def _is_alive(actor: Any) -> bool:
    try:
        ray.get(actor.__ray_ready__.remote(), timeout=10)
    except ray.exceptions.GetTimeoutError:
        return True
    except ray.exceptions.RayError:
        return False
    return True


def foreach_learner(learner_group: LearnerGroup, function: Callable[[Any], T]) -> list[T]:
    """Results of ``function(learner)`` on all learners at once.

    RLlib's version never asks a learner again after an error; here training can go on.

    Raises: LearnerError: a learner died, now or before; otherwise what the function raised.
    """
    if learner_group.is_local:
        return [function(learner_group._learner)]
    return answers_of_learners(learner_group, [worker.apply.remote(function) for worker in learner_group._workers])


def measured_losses(learner_group: LearnerGroup, episodes: Sequence[Any], objective: Any) -> dict[str, float]:
    """Each policy's mean loss on episodes, which nothing is learnt from; raises as :func:`foreach_learner`."""

    def measured(learner: Any, shard: Sequence[Any]) -> dict[str, float]:
        return learner.measured_losses(shard, objective)

    if learner_group.is_local:
        return measured(learner_group._learner, episodes)
    learners = learner_group._workers
    calls = [one.apply.remote(measured, shard=episodes[n :: len(learners)]) for n, one in enumerate(learners)]
    found: dict[str, float] = answers_of_learners(learner_group, calls)[0]
    return found


def ask_learner(learner_group: LearnerGroup, learner: Any, function: Callable[..., T], *args: Any) -> T:
    """Result of ``function(*args)`` in the process of one learner; raises as :func:`foreach_learner`."""
    answer: T = answers_of_learners(learner_group, [learner.apply.remote(lambda _: function(*args))])[0]
    return answer


def answers_of_learners(learner_group: LearnerGroup, calls: list[Any]) -> list[Any]:
    """Results of one call to every learner; errors as :func:`foreach_learner` says."""
    try:
        return _answers(calls)
    except ray.exceptions.RayError as error:
        raise (
            error.cause if isinstance(error, ray.exceptions.RayTaskError) else _learner_error(learner_group, error)
        ) from error


def _answers(calls: list[Any]) -> list[Any]:
    """Results of one call to every learner. Raises the likely cause; then waits only shortly for the others."""
    waiting = list(calls)
    errors: list[ray.exceptions.RayError] = []
    while waiting:
        done, waiting = ray.wait(waiting, timeout=STRAGGLER_S if errors else None)
        if not done:
            break
        try:
            ray.get(done[0])
        except ray.exceptions.RayError as error:
            errors.append(error)
    if errors:
        raise min(errors, key=_is_a_consequence)
    return list(ray.get(calls))


def _is_a_consequence(error: ray.exceptions.RayError) -> int:
    """Order of errors: a learner that died, one that failed, one that says another failed."""
    from rllib_lmgame.learners.process import OtherLearnerError

    if not isinstance(error, ray.exceptions.RayTaskError):
        return 0
    return 2 if isinstance(error.cause, OtherLearnerError) else 1


def push_from_learners(
    learner_group: LearnerGroup, group: EngineGroup | AdapterOf, module_id: str, version: int, use: WeightUse
) -> None:
    """Send one policy's weights, or its adapter alone, to its engines as ``version``.

    By the object store, the first learner packs them; on devices (NCCL, IPC) tensors are sent. All learners take part,
    since gathering sharded weights is collective. Where that fails on devices, several learners may wait for each
    other, so they end.
    """
    if isinstance(group, AdapterOf):
        group.push(share_weights(learner_group, module_id, version, use, adapter=True), version)
        return
    push = group.learner_push()
    if push.options.over_devices:
        try:
            foreach_learner(learner_group, lambda learner: learner.push_on_device(module_id, push, version, use))
        except Exception:
            learners = [] if learner_group.is_local else learner_group._workers
            for learner in learners[1:] and learners:
                ray.kill(learner)
            raise
        group.note_device_push(version)
    else:
        group.make_room()
        group.push(share_weights(learner_group, module_id, version, use), version)


def share_weights(
    learner_group: LearnerGroup, module_id: str, version: int, use: WeightUse, *, adapter: bool = False
) -> SharedBundle:
    """Put one policy's weights, or its ``adapter``, into the object store, owned by this process.

    Raises as :func:`foreach_learner`. They outlive the first learner, which leaves them there, so a restarted engine
    can still get them.
    """

    def packed(learner: Any) -> Any:
        return (learner.pack_adapter if adapter else learner.pack_weights)(module_id, version, use)

    def pack(learner: Any) -> tuple[str | None, Any]:
        bundle = packed(learner)
        return (None if bundle is None else bundle.checksum), bundle

    if learner_group.is_local:
        return SharedBundle.put(packed(learner_group._learner))
    # Two results, so that one can be looked at while the other stays where it is.
    calls = [worker.apply.options(num_returns=2).remote(pack) for worker in learner_group._workers]
    sums = answers_of_learners(learner_group, [checksum for checksum, _ in calls])
    return next(SharedBundle(bundle, own) for own, (_, bundle) in zip(sums, calls, strict=True) if own is not None)
