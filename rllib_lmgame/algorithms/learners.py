"""Weights of learners: to the engines, into checkpoints and out of them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray.rllib.core.learner.learner_group import LearnerGroup

from rllib_lmgame.algorithms.checkpoints.learner_files import read_by_learners, written_by_learners
from rllib_lmgame.algorithms.checkpoints.manifest import LEARNER_SHARDS, hf_directory
from rllib_lmgame.algorithms.cluster.learner_calls import answers_of_learners, foreach_learner
from rllib_lmgame.inference.serving.group import EngineGroup
from rllib_lmgame.inference.weights import SharedBundle, WeightBundle
from rllib_lmgame.learners.weight_choice import WeightUse

if TYPE_CHECKING:
    from rllib_lmgame.algorithms.config import LMGameConfig


def push_from_learners(
    learner_group: LearnerGroup, group: EngineGroup, module_id: str, version: int, use: WeightUse
) -> None:
    """Send one policy's weights to its engines as ``version``.

    Through the object store the first learner gathers and packs them; on devices (NCCL, IPC) it sends its own tensors.
    All learners take part, since gathering sharded weights is collective.
    """
    push = group.learner_push()
    if push.options.over_devices:
        foreach_learner(learner_group, lambda learner: learner.push_on_device(module_id, push, version, use))
        group.note_device_push(version)
    else:
        group.make_room()
        group.push(share_weights(learner_group, module_id, version, use), version)


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
    labels = answers_of_learners(learner_group, [label for label, _ in calls])
    return next(
        SharedBundle(bundle, *label) for label, (_, bundle) in zip(labels, calls, strict=True) if label is not None
    )


def save_learners(learner_group: LearnerGroup, directory: Path, config: LMGameConfig) -> None:
    """Every learner's shard below ``learners/``, and each policy's Hugging Face files below ``hf/``; where these are of
    averaged weights, those of the last iterate below ``hf_last/``.
    """
    trained = config.trained_policies()
    exports = {WeightUse.EXPORT: False} | ({WeightUse.TRAINING: True} if config.averages_weights else {})
    with written_by_learners(learner_group, directory):
        foreach_learner(learner_group, lambda learner: learner.save_shard(directory / LEARNER_SHARDS))
        for policy in trained:
            for use, last in exports.items():
                target = hf_directory(directory, policy, trained, last=last)
                foreach_learner(learner_group, partial(_export, directory=target, policy=policy, use=use))


def _export(learner: Any, *, directory: Path, policy: str, use: WeightUse) -> None:
    learner.export_hf(directory, policy, use)


def load_learners(learner_group: LearnerGroup, directory: Path) -> None:
    """Undo :func:`save_learners`."""
    shards = directory / LEARNER_SHARDS
    with read_by_learners(learner_group, shards):
        foreach_learner(learner_group, lambda learner: learner.load_shard(shards))
