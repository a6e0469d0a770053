"""Engines as the algorithm handles them: resources, start, counters."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

import ray

from rllib_lmgame.inference.serving.group import EngineGroup

if TYPE_CHECKING:
    from rllib_lmgame.algorithms.config import LMGameConfig


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
