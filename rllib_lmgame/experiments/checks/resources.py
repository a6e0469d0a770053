"""What a trial asks the cluster for, what it takes of memory and GPUs, and runs that fit nowhere."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rllib_lmgame.algorithms.cluster import memory
from rllib_lmgame.algorithms.cluster.footprint import (
    USABLE,
    Footprint,
    Processes,
    engine_numerics,
    engines_beside,
    footprint,
    free_mib,
    learner_rooms,
    machine_mib,
)
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.experiments.checks.check import CheckedExperiment
from rllib_lmgame.inference.registry import VLLM
from rllib_lmgame.inference.serving.oom import ENGINE_KEYS, LEARNER_KEYS
from rllib_lmgame.policies.model.files import local_config, model_directory
from rllib_lmgame.policies.options import TINY_MODEL


@dataclass(frozen=True)
class ResourceRequest:
    """Resources of one trial. Each of the ``bundles`` (``{"CPU": 1.0}``) is one process group, placed on one node."""

    bundles: tuple[dict[str, float], ...]
    strategy: str

    @property
    def total(self) -> dict[str, float]:
        """Sum over the bundles."""
        total: Counter[str] = Counter()
        for bundle in self.bundles:
            total.update(bundle)
        return dict(total)

    def lines(self) -> list[str]:
        """The request as text, equal bundles counted together."""
        counted = Counter(tuple(sorted(b.items())) for b in self.bundles)
        lines = [f"{count} x {_text(dict(bundle))}" for bundle, count in counted.items()]
        return [*lines, f"in all {_text(self.total)}, placed with {self.strategy}"]


GPU_KEYS = {
    "num_gpus_per_learner": "config.num_gpus_per_learner",
    "num_gpus_per_env_runner": "config.num_gpus_per_env_runner",
}
"""Attributes of a configuration that ask for GPUs, and their keys; an engine's stand in a section of their own."""


def shortfall(request: ResourceRequest, nodes: Sequence[Mapping[str, float]]) -> str | None:
    """Why a request can never be placed on nodes of these total resources; ``None`` if it may fit.

    Checks only what is certain: totals, and bundles larger than every node. Ray judges the rest.
    """
    there: Counter[str] = Counter()
    for node in nodes:
        there.update(node)
    for kind, amount in request.total.items():
        if amount > there[kind] + _ROUNDING:
            return f"asks for {amount:g} {kind}, there {_is_or_are(there[kind])} {there[kind]:g}"
    for bundle in request.bundles:
        if not any(_holds(node, bundle) for node in nodes):
            return f"asks for {_text(bundle)} on one node, and no node has as much"
    return None


def asked_by(experiment: CheckedExperiment) -> str:
    """The keys that ask for GPUs, as text; nothing if none does."""
    found: dict[str, float] = {}
    for config in experiment.configs:
        found |= {key: value for attribute, key in GPU_KEYS.items() if (value := getattr(config, attribute, 0))}
        if (engines := config.run.inference.num_gpus_per_engine if hasattr(config, "run") else 0) > 0:
            found["config.inference.num_gpus_per_engine"] = engines
    return ", ".join(f"{key}: {value:g}" for key, value in found.items())


def check_placeable(checked: Sequence[CheckedExperiment], nodes: Sequence[Mapping[str, float]]) -> None:
    """Check that every trial has room on a cluster that gets no more nodes. Raises: ConfigError: if one has not."""
    for experiment in checked:
        missing = shortfall(request_of(experiment), nodes)
        if missing is not None:
            keys = f" ({asked_by(experiment)})" if asked_by(experiment) else ""
            raise ConfigError(
                "",
                f"{experiment.spec.name}: a trial {missing}{keys}; see --dry-run, or join a cluster with --ray-address",
            )


def trials_at_once(experiment: CheckedExperiment, node: Mapping[str, float]) -> int:
    """Trials that run at the same time on one node with these resources and nothing else to do."""
    asked = {kind: amount for kind, amount in request_of(experiment).total.items() if amount > 0}
    fitting = [int(node.get(kind, 0) / amount + _ROUNDING) for kind, amount in asked.items()]
    most = experiment.spec.search.max_concurrent_trials or experiment.num_trials
    return max(1, min(experiment.num_trials, most, *fitting))


def own_node(experiment: CheckedExperiment) -> dict[str, float]:
    """Resources of the node that is started here for an experiment, unless it is told otherwise."""
    return node_here(cpus_to_declare([experiment]), None)


def cpus_to_declare(checked: Sequence[CheckedExperiment]) -> int:
    """CPUs to declare on one's own machine; more than there are cores is fine: a trial's processes take turns."""
    wanted = max((int(request_of(c).total.get("CPU", 1) + 0.999) for c in checked), default=1)
    return max(os.cpu_count() or 1, wanted)


def footprints_here(experiment: CheckedExperiment, machine: float) -> Iterator[Footprint]:
    """What trials take on this machine of ``machine`` MiB, with the micro-batches that ``auto`` comes to.

    One for each configuration.
    """
    trials, free = trials_at_once(experiment, own_node(experiment)), free_mib()
    for config in experiment.configs:
        own = config.copy(copy_frozen=False)
        own.learner_rooms = learner_rooms(config, machine, free, trials)
        yield footprint(own)


def check_memory(checked: Sequence[CheckedExperiment], machine: float) -> None:
    """Check that a machine of ``machine`` MiB has room for the largest trial of each experiment.

    Raises: ConfigError: with the estimate and what to lower.
    """
    for experiment in checked:
        if not experiment.algorithm.own:
            continue
        needed = max(taken.on_host for taken in footprints_here(experiment, machine))
        if needed > USABLE * machine:
            raise ConfigError(
                "",
                f"{experiment.spec.name}: a trial would take about {needed / 1024:.1f} GiB of memory, and this "
                f"machine has {machine / 1024:.1f} GiB, of which Ray gives out {USABLE:.0%}; see --dry-run, lower "
                f"{LEARNER_KEYS}, lower {ENGINE_KEYS}, take fewer learners (config.num_learners) or a smaller "
                "config.language_model.model, or join a cluster with --ray-address (--no-memory-check starts anyway)",
            )


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


def request_of(experiment: CheckedExperiment) -> ResourceRequest:
    """What one trial of an experiment asks for; the largest request if the search space changes it."""
    requests = [_request(experiment, config) for config in experiment.configs]
    return max(requests, key=lambda r: (r.total.get("GPU", 0), r.total.get("CPU", 0)))


def _request(experiment: CheckedExperiment, config: Any) -> ResourceRequest:
    try:
        factory = experiment.algorithm.cls.default_resource_request(config)  # type: ignore[attr-defined]
    except ConfigError as error:
        raise experiment.spec.source.attach(error, "config") from None
    except (TypeError, ValueError) as error:
        raise experiment.spec.source.error("config", f"what a trial asks for cannot be counted: {error}") from error
    return ResourceRequest(tuple(dict(b) for b in factory.bundles), str(factory.strategy))


_ROUNDING = 1e-6


def _holds(node: Mapping[str, float], bundle: Mapping[str, float]) -> bool:
    return all(amount <= node.get(kind, 0) + _ROUNDING for kind, amount in bundle.items())


def _is_or_are(amount: float) -> str:
    return "is" if amount == 1 else "are"


def _text(bundle: dict[str, float]) -> str:
    return ", ".join(f"{amount:g} {kind}" for kind, amount in bundle.items()) or "nothing"


@dataclass(frozen=True)
class Card:
    """What shares a GPU, in words, and the GB of the smallest card with room for it; ``None``: there is no such."""

    text: str
    size: int | None


def gpu_lines(config: Any, taken: Footprint) -> list[str]:
    """The sum on each kind of GPU, and the smallest card it fits, in words."""
    return [f"#   each GPU with {card.text}" for card in cards_of(config, taken)]


def cards_of(config: Any, taken: Footprint) -> list[Card]:
    """Each kind of GPU; none where no GPU is asked for, or a model's size is not known."""
    learners = [p for p in taken.processes if p.gpus and p.name.startswith("learner")]
    engines = [p for p in taken.processes if p.gpus and p.name.startswith("engine")]
    if not all(shape is not None and shape.layers for shape in taken.policies.values()):
        return []
    beside = engines_beside(taken, 1 - learners[0].gpus) if learners else 0
    if beside:
        return [_card(config, learners, engines, beside)]
    alone = [_card(config, learners, [], 0)] if learners else []
    return alone + ([_card(config, [], engines, max(1, engines_beside(taken, 1.0)))] if engines else [])


def check_fits(checked: Sequence[CheckedExperiment]) -> None:
    """Check that engines can start beside the learners and that their caches and cards are large enough.

    Raises: ConfigError: with the key to change and, of memory, the estimate.
    """
    for experiment in checked:
        if not experiment.algorithm.own:
            continue
        for config, taken in zip(experiment.configs, footprints_here(experiment, machine_mib()), strict=True):
            with experiment.spec.source.attached():
                _check_engines(config, taken)
            for card in cards_of(config, taken):
                if card.size is None:
                    raise ConfigError(
                        "",
                        f"{experiment.spec.name} ({asked_by(experiment)}): each GPU with {card.text}; take a smaller "
                        "config.language_model.model, config.language_model.lora, or a smaller part of the card for "
                        "the engine (config.inference.gpu_memory_utilization; --no-memory-check starts anyway)",
                    )


def _check_engines(config: Any, taken: Footprint) -> None:
    """Refuse vLLM on CPUs beside learners on GPUs, and a cache that holds no whole context."""
    options = config.run.inference
    engines = [p for p in taken.processes if p.name.startswith("engine")]
    if engines and isinstance(options.engine, VLLM) and config.num_gpus_per_learner and not options.on_gpu:
        raise ConfigError(
            "config.inference.num_gpus_per_engine",
            "is 0, but config.num_gpus_per_learner is not: an installation has vLLM for CPUs or for GPUs; set it, "
            "0.4 to share a card with a learner of 0.6",
        )
    dtype, cache = engine_numerics(config)
    for policy, shape in taken.policies.items():
        if cache is None or shape is None or not engines or not _keeps_whole_context(config, policy):
            continue
        context = config.language_model_of(policy).context_length
        needed = context * memory.kv_token_mib(shape, dtype=dtype, tensor_parallel_size=options.tensor_parallel_size)
        if needed > cache:
            raise ConfigError(
                "config.inference.kv_cache_memory_mb",
                f"{cache:,.0f} MiB hold less than one context of {policy} ({context:,} tokens): set at least "
                f"{math.ceil(needed):,}, or lower config.language_model.context_length",
            )


def _keeps_whole_context(config: Any, policy: str) -> bool:
    """Whether all layers keep keys and values of the whole context: no windows, states or compressed keys."""
    model = config.language_model_of(policy).model
    found = None if model == TINY_MODEL else local_config(model_directory(model))
    if found is None:
        return True
    text = found.get_text_config()
    kinds = getattr(text, "layer_types", None) or ["full_attention" if _window(text) is None else "sliding_attention"]
    return set(kinds) == {"full_attention"} and not getattr(text, "kv_lora_rank", None)


def _window(text: Any) -> int | None:
    used = getattr(text, "use_sliding_window", True)
    return getattr(text, "sliding_window", None) if used else None


def one_learner_mib(learners: Sequence[Processes]) -> tuple[float, float]:
    """MiB of one learner that trains several policies, at its peak and between updates.

    Policies are updated one after the other, so the activations of only one exist at a time.
    """
    states = sum(policy.held for policy in learners)
    return states + max((policy.each - policy.held for policy in learners), default=0.0), states


def _card(config: Any, trains: Sequence[Processes], serves: Sequence[Processes], engines: int) -> Card:
    inference = config.run.inference
    learner, states = (mib / 1024 for mib in one_learner_mib(trains))
    engine = (max(p.each for p in serves) + _one_context(config)) / 1024 if serves else 0.0
    share = inference.gpu_memory_utilization if serves else 0.0
    needed = memory.smallest_card(learner, states, engine, share, inference.sleep_during_update, max(1, engines))
    card = next((size for size in memory.CARDS_GIB if size >= needed), None)
    each = "each " * (engines > 1)
    parts = [f"learner {learner:.1f} GiB"] * bool(trains) + [
        f"engine {each}{share:.0%} of the card, at least {engine:.1f} GiB"
    ] * bool(serves)
    fits = (
        f"the smallest card that fits has {card} GB" if card else f"no card of {memory.CARDS_GIB[-1]} GB or less fits"
    )
    names = ["a learner"] * bool(trains) + [f"{engines} engines" if engines > 1 else "an engine"] * bool(serves)
    least = learner + engines * engine
    return Card(f"{' and '.join(names)}: {', '.join(parts)}, in all at least {least:.1f} GiB; {fits}", card)


def _one_context(config: Any) -> float:
    """MiB of keys and values of the longest context of any policy: below that an engine does not start."""
    dtype, _ = engine_numerics(config)
    split = config.run.inference.tensor_parallel_size
    shapes = {policy: memory.shape_of(config, policy) for policy in config.language_model_policies()}
    return max(
        memory.kv_token_mib(shape, dtype=dtype, tensor_parallel_size=split)
        * config.language_model_of(policy).context_length
        for policy, shape in shapes.items()
        if shape is not None
    )
