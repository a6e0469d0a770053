"""``--dry-run``: the resolved configuration, the resources and the memory, without starting anything."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from rllib_lmgame.algorithms.cluster import footprint, memory
from rllib_lmgame.base.group import as_mapping
from rllib_lmgame.config.rllib import FIELDS
from rllib_lmgame.experiments.checks import resources
from rllib_lmgame.experiments.checks.check import CheckedExperiment
from rllib_lmgame.experiments.checks.outside import dry_run_outside
from rllib_lmgame.experiments.files.reading import dump_text
from rllib_lmgame.experiments.results.outcome import experiment_directory
from rllib_lmgame.experiments.search.spaces import find_search_spaces
from rllib_lmgame.experiments.spec import dotted
from rllib_lmgame.policies.model.loading import NO_REPLAY, packing_of

LONG_ROW = 32_768
"""Tokens of a row from which on others spread it over GPUs."""


def dry_run_lines(experiment: CheckedExperiment) -> list[str]:
    """The text for one experiment: what it needs and what is missing first, the whole configuration last."""
    spec, request, plural = experiment.spec, resources.request_of(experiment), "s" if experiment.num_trials > 1 else ""
    wanted = request.required_resources.get("GPU", 0)
    here = resources.gpus_here() if wanted else 0
    few = f", but this machine has {here} GPU (--ray-address joins others)"
    spaces = [f"{dotted(n.path)}: {n.kind} {n.argument}" for n in find_search_spaces(spec.config)]
    return [
        f"# {spec.name}: {experiment.algorithm.name}, {experiment.num_trials} trial{plural}",
        *dry_run_outside(experiment),
        "# resources of one trial",
        *[f"#   {line}" for line in resources.request_lines(request)],
        *([f"#   warning: {resources.asked_by(experiment)}{few}"] if here < wanted else []),
        *(_memory_lines(experiment) if experiment.algorithm.own else []),
        *_yaml(
            {
                "stop": {key: int(n) if float(n).is_integer() else n for key, n in spec.options.stop.items()},
                "checkpoint_config": as_mapping(spec.options.checkpoint_config),
                "results": experiment_directory(spec),
            }
        ),
        *([*_yaml({"search_space": spaces})] if spaces else []),
        f"# configuration{' (first point of the search space)' if spaces else ''}",
        *_yaml({"config": resolved_config(experiment)}),
        "",
    ]


def resolved_config(experiment: CheckedExperiment) -> dict[str, Any]:
    """Option groups and RLlib's declared keys with all values; of its others what was set."""
    config, given = experiment.configs[0], experiment.spec.config
    values = {**{key: getattr(config, key, config) for key in given}, **config.to_dict()}
    resolved = {key: values[key] for key in given if _simple(values[key])}
    if not experiment.algorithm.own:
        return resolved
    s = config.run
    resolved |= {key: s.value(key) for key in FIELDS} | dict.fromkeys(config.entry.sections) | s.as_yaml()
    resolved |= {"deepspeed": s.deepspeed, "evaluation_config": _evaluation(config)}
    return {key: value for key, value in resolved.items() if not (config.games and key in ("env", "env_config"))}


def _evaluation(config: Any) -> dict[str, Any]:
    temperature = config.run.evaluation_config.sampling
    sampling = config.run.inference.temperature if temperature is None else temperature
    return {
        **(config.evaluation_config or {}),
        "temperature": sampling,
        "games": [game.as_mapping() for game in config.games_for_evaluation()],
        **({"measures": config.run.evaluation_config.measures} if config.run.evaluation_config.measures else {}),
    }


def _simple(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_simple(v) for v in value)
    if isinstance(value, dict):
        return all(isinstance(k, str) and _simple(v) for k, v in value.items())
    return value is None or isinstance(value, str | int | float | bool)


def _yaml(value: Any) -> list[str]:
    plain = json.dumps(value, default=lambda other: list(other) if isinstance(other, set) else str(other))
    return dump_text(json.loads(plain)).splitlines()


def _memory_lines(experiment: CheckedExperiment) -> list[str]:
    config = experiment.configs[0]
    taken = next(resources.footprints_here(experiment))
    lines = ["# memory at the peak of each process (estimate)"]
    for policy, shape in taken.policies.items():
        if shape is None:
            model = config.language_model_of(policy).model
            lines.append(f"#   {policy}: the size of {model} is not known without the model")
        else:
            adapters = footprint.adapters_of(config, policy, shape) if config.run.is_trained(policy) else None
            beside = "" if adapters is None else f", of which {_count(adapters)} in adapters are trained"
            count = _count(_parameters(config, policy, shape) + (adapters or 0))
            lines.append(f"#   {policy}: {count} parameters{beside} (from {shape.origin})")
            if config.run.is_trained(policy) and shape.layers:
                lines.append(f"#     micro-batches of {_microbatch(config, policy, taken)}")
            if any(processes.name.startswith(footprint.ENGINE) for processes in taken.processes):
                lines += _cache_lines(config, policy, shape)
    return [
        *lines,
        *map(_line, taken.processes),
        *_host_lines(taken),
        *(f"#   each GPU with {text}" for text, *_ in resources.cards_of(config, taken)),
    ]


def limits(config: Any) -> Iterator[str]:
    """What training of the policies' models does not do."""
    inference = config.run.inference.constrained(config.run.text_rollouts.constrained_decoding)
    for policy in config.trained_policies():
        row = footprint.longest_row(config, policy)
        if row > LONG_ROW:
            yield f"{policy}: one GPU computes rows of up to {row:,} tokens; config.training.max_row_tokens limits them"
        model = config.run.plays and getattr(memory.shape_of(config, policy), "config", None)
        mixture = model and getattr(model.get_text_config(), "num_experts_per_tok", None)
        routing = packing_of(model).replays if mixture else None
        if routing is False:
            yield f"{policy}: {NO_REPLAY}"
        if routing and not (inference.router_replay and inference.engine.returns_routes(inference)):
            yield f"{policy}: engines return no experts (config.inference.router_replay), so learners choose anew"


def _microbatch(config: Any, policy: str, taken: footprint.Footprint) -> str:
    tokens = f"{taken.microbatches[policy]:,} tokens"
    if config.get_config_for_module(policy).run.training.microbatch is not None:
        return tokens
    return f"up to {tokens}, as the card has room" if config.num_gpus_per_learner else f"{tokens} (auto)"


def _parameters(config: Any, policy: str, shape: memory.ModelShape) -> int:
    if not config.run.is_trained(policy):
        return shape.parameters
    options = config.language_model_of(policy)
    return memory.trained_parameters(shape, options.value_model == "separate", config.run.needs_critic(policy))


def _cache_lines(config: Any, policy: str, shape: memory.ModelShape) -> list[str]:
    dtype, cache = footprint.engine_numerics(config, policy)
    options, context = config.run.inference, config.language_model_of(policy).context_length
    per_token = memory.kv_token_mib(shape, dtype=dtype, split=options.split)
    if cache is None or not per_token:
        return []
    tokens = int(cache / per_token)
    return [f"#     the key-value cache holds {tokens:,} tokens, {tokens // context} sequences of {context}"]


def _host_lines(taken: footprint.Footprint) -> list[str]:
    here, least = footprint.machine_mib(), ""
    if not all(shape is not None and shape.layers for shape in taken.policies.values()):
        least = "at least "
    verdict = "fits" if taken.on_host <= footprint.USABLE * here else f"more than {footprint.USABLE:.0%} of"
    store = f" (with {_size(taken.object_store)} of weights in the object store)" * bool(taken.object_store)
    lines = [f"#   host memory in all {least}{_size(taken.on_host)}{store}: {verdict} this machine's {_size(here)}"]
    return lines + [f"#   /dev/shm in all up to {_size(taken.shared_memory)}"] * bool(taken.shared_memory)


def _line(processes: footprint.Processes) -> str:
    detail = ", ".join(f"{part} {_size(value) if value else 'not known'}" for part, value in processes.parts.items())
    least, where = "" if processes.parts.get("activations", 1.0) else "at least ", " of a GPU" * bool(processes.gpus)
    more = f" ({detail}, process {_size(processes.process)})" if detail else ""
    return f"#     {processes.name} x {processes.count}: {least}{_size(processes.each)} each{where}{more}"


def _size(mib: float) -> str:
    return f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{math.ceil(mib)} MiB"


def _count(parameters: int) -> str:
    if parameters < 1e5:
        return f"{parameters:,}"
    return f"{parameters / 1e9:.2f} B" if parameters >= 1e9 else f"{parameters / 1e6:.2f} M"
