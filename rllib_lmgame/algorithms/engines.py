"""Engines and learners as the algorithm handles them: start, resources, weights, shards."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import ray
from ray.rllib.core.learner.learner_group import LearnerGroup

from rllib_lmgame.algorithms.checkpoints.learner_files import read_by_learners, written_by_learners
from rllib_lmgame.algorithms.checkpoints.manifest import hf_directory
from rllib_lmgame.inference.serving.group import EngineGroup
from rllib_lmgame.inference.serving.out_of_memory import memory_line
from rllib_lmgame.inference.weights.bundles import SharedBundle, WeightBundle
from rllib_lmgame.learners.ranks import OtherLearnerError
from rllib_lmgame.learners.weight_choice import WeightUse

if TYPE_CHECKING:
    from rllib_lmgame.algorithms.config import LMGameConfig

T = TypeVar("T")

LEARNER_SHARDS = "learners"

STRAGGLER_S = 30.0
"""Once a learner has failed: how long it is waited for the next answer of the others, which may be waiting for it for
ever.
"""


def engine_bundles(config: LMGameConfig) -> list[dict[str, float]]:
    """One resource bundle per engine; a tensor-parallel engine's GPUs are one bundle, hence on one node."""
    inference = config.inference_options
    bundle = {"CPU": inference.num_cpus_per_engine}
    if inference.num_gpus_per_engine:
        bundle["GPU"] = inference.num_gpus_per_engine
    return [dict(bundle) for _ in config.language_model_policies() for _ in range(inference.num_engines)]


def start_engines(config: LMGameConfig) -> dict[str, EngineGroup]:
    """Start the engines of every language-model policy on the last bundles of the trial's placement group.

    Returns:
        Policy -> engine group, in the order of the policies.
    """
    count = config.inference_options.num_engines
    placement_group = ray.util.get_current_placement_group()
    first = None
    if placement_group is not None:
        first = placement_group.bundle_count - count * len(config.language_model_policies())
        if first < 1:  # Not a placement group of this algorithm's own request.
            placement_group, first = None, None
    groups: dict[str, EngineGroup] = {}
    try:
        for position, policy in enumerate(config.language_model_policies()):
            options = config.language_model_of(policy)
            groups[policy] = EngineGroup.create(
                f"lmgame-{policy}-{uuid.uuid4().hex[:12]}",
                config.model_files[policy],
                config.inference_options,
                context_length=options.context_length,
                seed=config.seed or 0,
                trust_remote_code=options.trust_remote_code,
                placement_group=placement_group,
                bundle_indices=None if first is None else [first + position * count + i for i in range(count)],
                wait=False,
            )
        for group in groups.values():
            group.wait_until_ready()
    except BaseException:
        for group in groups.values():
            group.shutdown()
        raise
    return groups


def push_from_learners(
    learner_group: LearnerGroup, group: EngineGroup, module_id: str, version: int, use: WeightUse
) -> None:
    """Send one policy's weights to its engines as ``version``.

    Through the object store the first learner gathers and packs them; on devices (NCCL, IPC) it sends its own tensors.
    All learners take part, since gathering sharded weights is collective.
    """
    push = group.learner_push()
    if push.options.weight_transport == "object_store":
        group.make_room()
        group.push(share_weights(learner_group, module_id, version, use), version)
    else:
        foreach_learner(learner_group, lambda learner: learner.push_on_device(module_id, push, version, use))
        group.note_device_push(version)


def share_weights(learner_group: LearnerGroup, module_id: str, version: int, use: WeightUse) -> SharedBundle:
    """One policy's weights in the object store, where the first learner leaves them: they do not come into this
    process, but it owns them.

    So they outlive that learner, and an engine that starts again gets them in any case.

    Raises:
        Exception, LearnerError: as :func:`foreach_learner`.
    """

    def pack(learner: Any) -> tuple[tuple[str, int] | None, WeightBundle | None]:
        bundle = learner.pack_weights(module_id, version, use)
        return (None if bundle is None else (bundle.checksum, bundle.num_bytes)), bundle

    if learner_group.is_local:
        return SharedBundle.put(learner_group._learner.pack_weights(module_id, version, use))
    # Two results, so that one can be looked at while the other stays where it is.
    calls = [worker.apply.options(num_returns=2).remote(pack) for worker in learner_group._workers]
    labels = _of_learners(learner_group, [label for label, _ in calls])
    return next(
        SharedBundle(bundle, *label) for label, (_, bundle) in zip(labels, calls, strict=True) if label is not None
    )


class LearnerError(RuntimeError):
    """The learners cannot go on; Tune starts the trial again from its last checkpoint (``max_failures``)."""


def update_learners(
    learner_group: LearnerGroup, data: Any, timesteps: Mapping[str, Any], **kwargs: Any
) -> list[dict[str, Any]]:
    """One update on all learners; their metrics.

    Raises:
        LearnerError: if a learner died or failed, with its cause.
    """
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
    """Says which learner died, or that one failed."""
    workers = list(learner_group._workers or [])
    lost = [number for number, worker in enumerate(workers) if not _is_alive(worker)]
    cause = memory_line(str(error)) or (str(error).strip().splitlines() or [type(error).__name__])[-1]
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

    RLlib's method of that name never again asks a learner that raised an error; here an error is an answer like any
    other, after which training can go on.

    Raises:
        Exception: what it raised on a learner.
        LearnerError: if a learner died, now or before.
    """
    if learner_group.is_local:
        return [function(learner_group._learner)]
    return _of_learners(learner_group, [worker.apply.remote(function) for worker in learner_group._workers])


def _of_learners(learner_group: LearnerGroup, calls: list[Any]) -> list[Any]:
    """Results of one call to every learner; errors as :func:`foreach_learner` says."""
    try:
        return _answers(calls)
    except ray.exceptions.RayError as error:
        raise (
            error.cause if isinstance(error, ray.exceptions.RayTaskError) else _learner_error(learner_group, error)
        ) from error


def _answers(calls: list[Any]) -> list[Any]:
    """Results of one call to every learner.

    Raises:
        RayError: if a learner failed: the error that is the cause of the others', as far as can be told. Those that may
            be waiting for it are waited for a short time only.
    """
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
    if not isinstance(error, ray.exceptions.RayTaskError):
        return 0
    return 2 if isinstance(error.cause, OtherLearnerError) else 1


def save_learners(learner_group: LearnerGroup, directory: Path, config: LMGameConfig) -> None:
    """Every learner's shard below ``learners/``, and each policy's Hugging Face files below ``hf/``."""
    trained = config.trained_policies()
    with written_by_learners(learner_group, directory):
        foreach_learner(learner_group, lambda learner: learner.save_shard(directory / LEARNER_SHARDS))
        for policy in trained:
            target = hf_directory(directory, policy, trained)
            foreach_learner(
                learner_group, lambda learner, policy=policy, target=target: learner.export_hf(target, policy)
            )


def load_learners(learner_group: LearnerGroup, directory: Path) -> None:
    """Undo :func:`save_learners`."""
    shards = directory / LEARNER_SHARDS
    with read_by_learners(learner_group, shards):
        foreach_learner(learner_group, lambda learner: learner.load_shard(shards))


def engine_stats(groups: Mapping[str, EngineGroup]) -> dict[str, float]:
    """Counters over all engines."""
    total = {
        "generated_tokens": 0.0,
        "prompt_tokens": 0.0,
        "prompt_tokens_computed": 0.0,
        "busy_s": 0.0,
        "engines": 0.0,
    }
    for group in groups.values():
        for stats in group.stats():
            for key in ("generated_tokens", "prompt_tokens", "prompt_tokens_computed", "busy_s"):
                total[key] += getattr(stats, key)
            total["engines"] += 1
    return total


def engine_metrics(before: Mapping[str, float], after: Mapping[str, float], wall_s: float) -> dict[str, float]:
    """What the engines did between two calls of :func:`engine_stats`, as metrics."""
    delta = {key: max(0.0, after[key] - before[key]) for key in after}
    prompt = max(1.0, delta["prompt_tokens"])
    return {
        "engine_busy_fraction": delta["busy_s"] / max(1e-9, wall_s * max(1.0, after["engines"])),
        "prompt_tokens_computed_fraction": delta["prompt_tokens_computed"] / prompt,
    }
