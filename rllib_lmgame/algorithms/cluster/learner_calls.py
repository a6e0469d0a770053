"""Calls to learners: all of them at once or one, with errors that say which learner died; their weights to engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import ray
from ray.rllib.core.learner.learner_group import LearnerGroup

from rllib_lmgame.inference.serving.group import AdapterOf, EngineGroup
from rllib_lmgame.inference.serving.oom import oom_line
from rllib_lmgame.inference.weights import SharedBundle
from rllib_lmgame.learners.options import WeightUse
from rllib_lmgame.learners.process import OtherLearnerError

T = TypeVar("T")

STRAGGLER_S = 30.0
"""Once a learner has failed: how long it is waited for the next answer of the others, which may be
waiting for it for ever.
"""


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
    """Says which learner died, or that one failed."""
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
    if learner_group.is_local:
        losses: dict[str, float] = learner_group._learner.measured_losses(episodes, objective)
        return losses
    workers = learner_group._workers
    calls = [
        worker.apply.remote(
            lambda learner, shard: learner.measured_losses(shard, objective), shard=episodes[number :: len(workers)]
        )
        for number, worker in enumerate(workers)
    ]
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
    if not isinstance(error, ray.exceptions.RayTaskError):
        return 0
    return 2 if isinstance(error.cause, OtherLearnerError) else 1


def push_from_learners(
    learner_group: LearnerGroup, group: EngineGroup | AdapterOf, module_id: str, version: int, use: WeightUse
) -> None:
    """Send one policy's weights, or its adapter alone, to its engines as ``version``.

    By the object store, the first learner packs them; on devices (NCCL, IPC) it sends its tensors.
    All learners take part, since gathering sharded weights is collective.
    """
    if isinstance(group, AdapterOf):
        group.push(share_weights(learner_group, module_id, version, use, adapter=True), version)
        return
    push = group.learner_push()
    if push.options.over_devices:
        foreach_learner(learner_group, lambda learner: learner.push_on_device(module_id, push, version, use))
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

    def pack(learner: Any) -> tuple[tuple[str, int] | None, Any]:
        bundle = packed(learner)
        return (None if bundle is None else (bundle.checksum, bundle.num_bytes)), bundle

    if learner_group.is_local:
        return SharedBundle.put(packed(learner_group._learner))
    # Two results, so that one can be looked at while the other stays where it is.
    calls = [worker.apply.options(num_returns=2).remote(pack) for worker in learner_group._workers]
    labels = answers_of_learners(learner_group, [label for label, _ in calls])
    return next(
        SharedBundle(bundle, *label) for label, (_, bundle) in zip(labels, calls, strict=True) if label is not None
    )
