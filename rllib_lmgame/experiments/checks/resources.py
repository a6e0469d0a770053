"""What a trial asks the cluster for, what it takes of memory and GPUs, and runs that fit nowhere."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rllib_lmgame.algorithms.cluster import footprint, memory
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.experiments.checks.check import CheckedExperiment
from rllib_lmgame.inference.options import VLLM
from rllib_lmgame.inference.serving.oom import ENGINE_KEYS, LEARNER_KEYS
from rllib_lmgame.learners.options import LEAST_TOKENS
from rllib_lmgame.policies.model.files import local_config, model_directory
from rllib_lmgame.policies.options import TINY_MODEL


def request_lines(request: Any) -> list[str]:
    """A trial's request as text, equal bundles counted together."""
    counted = Counter(tuple(sorted(bundle.items())) for bundle in request.bundles)
    lines = [f"{count} x {_text(dict(bundle))}" for bundle, count in counted.items()]
    return [*lines, f"in all {_text(request.required_resources)}, placed with {request.strategy}"]


def asked_by(experiment: CheckedExperiment) -> str:
    """The keys that ask for GPUs, as text; nothing if none does."""
    found: dict[str, float] = {}
    for config in experiment.configs:
        asks = {key: getattr(config, key, 0) for key in ("num_gpus_per_learner", "num_gpus_per_env_runner")}
        engines = config.run.inference.num_gpus_per_engine if experiment.algorithm.own else 0
        found |= {key: value for key, value in {**asks, "inference.num_gpus_per_engine": engines}.items() if value}
    return ", ".join(f"config.{key}: {value:g}" for key, value in found.items())


def check_placeable(checked: Sequence[CheckedExperiment], node: Mapping[str, float]) -> None:
    """Check that every trial has room on a cluster of one node. Raises: ConfigError: if one has not."""
    for experiment in checked:
        for kind, amount in request_of(experiment).required_resources.items():
            if amount > node.get(kind, 0) + _ROUNDING:
                missing = f"{experiment.spec.name}: a trial asks for {amount:g} {kind}, there are {node.get(kind, 0):g}"
                keys = f" ({asked_by(experiment)})" if asked_by(experiment) else ""
                raise ConfigError("", f"{missing}{keys}; see --dry-run, or join a cluster with --ray-address")


def trials_at_once(experiment: CheckedExperiment, node: Mapping[str, float]) -> int:
    """Trials that run at the same time on one node with these resources and nothing else to do."""
    asked = {kind: amount for kind, amount in request_of(experiment).required_resources.items() if amount > 0}
    fitting = [int(node.get(kind, 0) / amount + _ROUNDING) for kind, amount in asked.items()]
    most = experiment.spec.options.search.max_concurrent_trials or experiment.num_trials
    return max(1, min(experiment.num_trials, most, *fitting))


def cpus_to_declare(checked: Sequence[CheckedExperiment]) -> int:
    """CPUs to declare on one's own machine; more than there are cores is fine: a trial's processes take turns."""
    wanted = max((int(request_of(c).required_resources.get("CPU", 1) + 0.999) for c in checked), default=1)
    return max(os.cpu_count() or 1, wanted)


def footprints_here(experiment: CheckedExperiment) -> Iterator[footprint.Footprint]:
    """What trials take, with the micro-batches that ``auto`` comes to; one for each configuration."""
    for config in experiment.configs:
        own = config.copy(copy_frozen=False)
        own.learner_rooms = footprint.learner_rooms(config)
        yield footprint.footprint(own)


def check_memory(checked: Sequence[CheckedExperiment], machine: float) -> None:
    """Check that a machine of ``machine`` MiB has room for the largest trial of each experiment.

    Raises: ConfigError: with the estimate and what to lower.
    """
    for experiment in checked:
        if not experiment.algorithm.own:
            continue
        needed = max(taken.on_host for taken in footprints_here(experiment))
        if needed > footprint.USABLE * machine:
            given = f"Ray gives out {footprint.USABLE:.0%} of this machine's {machine / 1024:.1f} GiB"
            mend = f"lower {LEARNER_KEYS}, {ENGINE_KEYS}, config.num_learners or take a smaller"
            mend = f"{mend} config.language_model.model (--no-memory-check starts anyway)"
            wants = f"{experiment.spec.name}: a trial would take about {needed / 1024:.1f} GiB of memory"
            raise ConfigError("", f"{wants}, and {given}; {mend}")


def node_here(num_cpus: int, num_gpus: int | None) -> dict[str, float]:
    """Resources of a node that Ray would start here, found as Ray does; ``num_gpus=None``: all there are."""
    from ray._private.resource_and_label_spec import ResourceAndLabelSpec

    return dict(ResourceAndLabelSpec(num_cpus, num_gpus).resolve(is_head=True).to_resource_dict())


def gpus_here() -> int:
    """GPUs of this machine, counted as Ray counts them when it starts here."""
    from ray._private.accelerators import get_accelerator_manager_for_resource

    manager = get_accelerator_manager_for_resource("GPU")
    visible = manager.get_current_process_visible_accelerator_ids()
    count = manager.get_current_node_num_accelerators()
    return count if visible is None else min(count, len(visible))


def request_of(experiment: CheckedExperiment) -> Any:
    """Tune's ``PlacementGroupFactory`` of one trial; the largest if the search space changes it."""
    try:
        requests = [experiment.algorithm.cls.default_resource_request(config) for config in experiment.configs]
    except ConfigError as error:
        raise experiment.spec.source.attach(error, "config") from None
    except (TypeError, ValueError) as error:
        raise experiment.spec.source.error("config", f"what a trial asks for cannot be counted: {error}") from error
    if not all(bundle for request in requests for bundle in request.bundles):
        asks = "inference.num_cpus_per_engine, num_cpus_per_env_runner, num_cpus_per_learner: above 0 without GPUs"
        raise experiment.spec.source.error("config", f"Ray cannot place what asks for nothing; {asks}, e.g. 0.01")
    return max(requests, key=lambda r: [r.required_resources.get(kind, 0) for kind in ("GPU", "CPU")])


_ROUNDING = 1e-6
_LABEL_MARGIN = 1.1
"""A card's size as it is sold, over the GiB that its driver reports, is at most this: an L40 of 48 GB has 45."""


def _text(bundle: dict[str, float]) -> str:
    return ", ".join(f"{amount:g} {kind}" for kind, amount in bundle.items()) or "nothing"


def cards_of(config: Any, taken: footprint.Footprint) -> list[tuple[str, int | None, float]]:
    """What shares each kind of GPU, in words, the GB of the smallest card with room for it, ``None`` if there is no
    such, and the GiB it needs; nothing where no GPU is asked for, or a model's size is not known.
    """
    learners = [p for p in taken.processes if p.gpus and p.name.startswith("learner")]
    engines = [p for p in taken.processes if p.gpus and p.name.startswith("engine")]
    if not all(shape is not None and shape.layers for shape in taken.policies.values()):
        return []
    beside = footprint.engines_beside(taken, 1 - learners[0].gpus) if learners else 0
    if beside:
        return [_card(config, learners, engines, beside)]
    alone = [_card(config, learners, [], 0)] if learners else []
    return alone + ([_card(config, [], engines, max(1, footprint.engines_beside(taken, 1.0)))] if engines else [])


def check_fits(checked: Sequence[CheckedExperiment], here: float = math.inf) -> None:
    """Check that engines can start beside the learners and that their caches and cards are large enough.

    ``here``: GiB of the largest GPU of this machine, if trials run on it; what is ``auto`` adapts to it. Raises:
    ConfigError: with the key to change and, of memory, the estimate.
    """
    for experiment in checked:
        if not experiment.algorithm.own:
            continue
        least = [LEAST_TOKENS if footprint.learner_rooms(config) else None for config in experiment.configs]
        found = map(footprint.footprint, experiment.configs, least) if here < math.inf else footprints_here(experiment)
        for config, taken in zip(experiment.configs, found, strict=True):
            with experiment.spec.source.attached():
                _check_engines(config, taken)
            for text, size, needed in cards_of(config, taken):
                if size is None or (needed > here and size > _LABEL_MARGIN * here):
                    who = f"{experiment.spec.name} ({asked_by(experiment)}): each GPU with {text}"
                    who += f", and the largest here has {here:.0f}" * (size is not None)
                    less = "config.language_model.lora, a smaller model or config.inference.gpu_memory_utilization"
                    why = f"{who}; lower {LEARNER_KEYS}, or take {less}"
                    raise ConfigError("", f"{why} (--no-memory-check starts anyway)")


def _check_engines(config: Any, taken: footprint.Footprint) -> None:
    options = config.run.inference
    engines = [p for p in taken.processes if p.name.startswith("engine")]
    if engines and isinstance(options.engine, VLLM) and config.num_gpus_per_learner and not options.on_gpu:
        why = "is 0, but config.num_gpus_per_learner is not: vLLM is installed for CPUs or for GPUs; set it"
        raise ConfigError("config.inference.num_gpus_per_engine", why)
    for policy, shape in taken.policies.items():
        dtype, cache = footprint.engine_numerics(config, policy)
        if cache is None or shape is None or not engines or not _keeps_whole_context(config, policy):
            continue
        context = config.language_model_of(policy).context_length
        needed = context * memory.kv_token_mib(shape, dtype=dtype, split=options.split)
        if needed > cache:
            mend = f"set at least {math.ceil(needed):,}, or lower config.language_model.context_length"
            why = f"{cache:,.0f} MiB hold less than one context of {policy} ({context:,} tokens): {mend}"
            raise ConfigError("config.inference.kv_cache_memory_mb", why)


def _keeps_whole_context(config: Any, policy: str) -> bool:
    """Whether all layers keep keys and values of the whole context: no windows, states or compressed keys."""
    model = config.language_model_of(policy).model
    found = None if model == TINY_MODEL else local_config(model_directory(model))
    if found is None:
        return True
    text = found.get_text_config()
    window = getattr(text, "sliding_window", None) if getattr(text, "use_sliding_window", True) else None
    kinds = getattr(text, "layer_types", None) or ["sliding_attention" if window else "full_attention"]
    return set(kinds) == {"full_attention"} and not getattr(text, "kv_lora_rank", None)


def _card(
    config: Any, trains: Sequence[footprint.Processes], serves: Sequence[footprint.Processes], engines: int
) -> tuple[str, int | None, float]:
    inference, states = config.run.inference, sum(policy.held for policy in trains) / 1024
    # Policies are updated one after the other, so the activations of only one exist at a time.
    learner = states + max((policy.each - policy.held for policy in trains), default=0.0) / 1024
    engine = (max(p.each for p in serves) + _one_context(config)) / 1024 if serves else 0.0
    share = inference.gpu_memory_utilization if serves else 0.0
    push, stays = 0.0, states
    if config.run.training.offload_during_rollout:  # Engines and states meet in a push alone.
        push, stays = states + engines * engine, memory.LEARNER_PROCESS_MIB / 1024
    sleeps = inference.sleep_during_update
    needed = max(push, memory.smallest_card(learner, stays, engine, share, sleeps, max(1, engines)))
    card = next((size for size in memory.CARDS_GIB if size >= needed), None)
    names, parts = [], []
    if trains:
        names.append("a learner")
        parts.append(f"learner {learner:.1f} GiB")
    if serves:
        names.append(f"{engines} engines" if engines > 1 else "an engine")
        each = "each " * (engines > 1)
        parts.append(f"engine {each}{share:.0%} of the card, at least {engine:.1f} GiB")
    least = max(learner, states + engines * engine) if sleeps else learner + engines * engine
    none = f"no card of {memory.CARDS_GIB[-1]} GB or less fits"
    fits = f"the smallest card that fits has {card} GB" if card else none
    return f"{' and '.join(names)}: {', '.join(parts)}, in all at least {least:.1f} GiB; {fits}", card, needed


def _one_context(config: Any) -> float:
    """MiB of keys and values of the longest context of any policy: below that an engine does not start."""
    split = config.run.inference.split
    shapes = {policy: memory.shape_of(config, policy) for policy in config.language_model_policies()}
    return max(
        memory.kv_token_mib(shape, dtype=footprint.engine_numerics(config, policy)[0], split=split)
        * config.language_model_of(policy).context_length
        for policy, shape in shapes.items()
        if shape is not None
    )
