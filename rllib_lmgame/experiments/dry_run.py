"""``--dry-run``: the resolved configuration, the resources and the memory, without starting anything."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.experiments import memory
from rllib_lmgame.experiments.check import CheckedExperiment
from rllib_lmgame.experiments.resources import asked_by, gpus_here, request_of
from rllib_lmgame.experiments.results import experiment_directory
from rllib_lmgame.experiments.sandboxes import dry_run_sandbox
from rllib_lmgame.experiments.search import describe_space, find_search_spaces
from rllib_lmgame.policies.options import TINY_MODEL

_ON_HOST = "and the optimizer in host memory"
_INTERNAL = {"simple_optimizer", "policies_to_train", "policies"}


def print_dry_run(checked: Sequence[CheckedExperiment]) -> None:
    """Print what each experiment would do."""
    for experiment in checked:
        print("\n".join(dry_run_lines(experiment)))


def dry_run_lines(experiment: CheckedExperiment) -> list[str]:
    """The text for one experiment."""
    spec = experiment.spec
    spaces = describe_space(find_search_spaces(spec.config))
    return [
        f"# {spec.name}: {experiment.algorithm.name}, {experiment.num_trials} trial{'s' if experiment.num_trials > 1 else ''}",
        *_yaml({"stop": _whole(spec.options.stop), "checkpoint_config": dataclasses.asdict(spec.checkpoint), "results": experiment_directory(spec)}),
        *([*_yaml({"search_space": spaces})] if spaces else []),
        f"# configuration{' (first point of the search space)' if spaces else ''}",
        *_yaml({"config": resolved_config(experiment)}),
        "# resources of one trial",
        *[f"#   {line}" for line in request_of(experiment).lines()],
        *_gpu_warning(experiment),
        *dry_run_sandbox(experiment),
        *_memory_lines(experiment),
        "",
    ]


def _gpu_warning(experiment: CheckedExperiment) -> list[str]:
    """A line if this machine has fewer GPUs than a trial asks for."""
    asked = request_of(experiment).total.get("GPU", 0)
    if not asked or (here := gpus_here()) >= asked:
        return []
    return [f"#   warning: {asked_by(experiment)}, but this machine has {here} GPU; only a cluster that has them can run this (--ray-address)"]


def resolved_config(experiment: CheckedExperiment) -> dict[str, Any]:
    """Option groups with all their values, and of RLlib's flat keys those that were set or differ from its defaults."""
    config, given = experiment.configs[0], experiment.spec.config
    values = config.to_dict()
    defaults = _plain_defaults(config)
    sections = config.section_names() if experiment.algorithm.own else {}
    resolved: dict[str, Any] = {}
    for key, value in values.items():
        changed = key in defaults and _simple(value) and _simple(defaults[key]) and value != defaults[key]
        if not key.startswith("_") and key not in _INTERNAL and (key in given or changed) and _simple(value) and value is not None:
            resolved[key] = value
    for key in given:
        if key not in resolved and key not in sections and _simple(getattr(config, key, config)):
            resolved[key] = getattr(config, key)
    for name, (attribute, _) in sections.items():
        group = getattr(config, attribute)
        resolved[name] = None if group is None else dataclasses.asdict(group)
    if experiment.algorithm.own:
        resolved["deepspeed"] = config.deepspeed_config
        resolved["policies"] = {name: dataclasses.asdict(options) for name, options in config.player_options.items()}
        if config.games:
            resolved["games"] = [{"env": g.env, "env_config": dict(g.env_config), "weight": g.weight} for g in config.games]
    return resolved


def _whole(numbers: Mapping[str, float]) -> dict[str, float]:
    """Whole numbers without a decimal point."""
    return {key: int(value) if float(value).is_integer() else value for key, value in numbers.items()}


def _plain_defaults(config: Any) -> dict[str, Any]:
    from ray.rllib.algorithms.ppo import PPOConfig

    return PPOConfig().to_dict() if isinstance(config, PPOConfig) else {}


def _simple(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_simple(v) for v in value)
    if isinstance(value, dict):
        return all(isinstance(k, str) and _simple(v) for k, v in value.items())
    return value is None or isinstance(value, str | int | float | bool)


def _yaml(value: Any) -> list[str]:
    import yaml

    return yaml.safe_dump(_lists(value), sort_keys=False, default_flow_style=None, width=150, allow_unicode=True).splitlines()


def _lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _lists(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set):
        return [_lists(v) for v in value]
    return value if _simple(value) else str(value)


def _memory_lines(experiment: CheckedExperiment) -> list[str]:
    if not experiment.algorithm.own:
        return []
    config = experiment.configs[0]
    lines = ["# memory of each process (estimate)"]
    for policy in config.language_model_policies():
        shape = shape_of(config, policy)
        if shape is None:
            lines.append(f"#   {policy}: the size of {config.language_model_of(policy).model} is not known without the model")
            continue
        lines.append(f"#   {policy}: {_count(shape.parameters)} parameters (from {shape.origin})")
        if config.is_trained(policy):
            lines.append(_line(f"learner x {max(1, config.num_learners)}", memory.LEARNER_PROCESS_MIB, _learner(config, policy, shape)))
        lines.append(_line(f"engine x {config.inference_options.num_engines}", *_engine(config, shape)))
        lines += _cache_line(config, policy, shape)
    if config.num_env_runners:
        lines.append(_line(f"env runner x {config.num_env_runners}", memory.RUNNER_PROCESS_MIB, {}))
    return lines


def shape_of(config: Any, policy: str) -> memory.ModelShape | None:
    """Shape of a policy's model without reading weights; ``None`` if it cannot be known here."""
    from transformers import AutoConfig, Qwen2Config

    options = config.language_model_of(policy)
    if options.model == TINY_MODEL:
        from rllib_lmgame.policies.tiny import TinyModelOptions
        from rllib_lmgame.schema import build

        tiny = build(TinyModelOptions, options.tiny, "config.language_model.tiny")
        return memory.model_shape(
            Qwen2Config(
                vocab_size=tiny.vocab_size,
                hidden_size=tiny.hidden_size,
                num_hidden_layers=tiny.num_layers,
                num_attention_heads=tiny.num_heads,
                num_key_value_heads=tiny.num_kv_heads or tiny.num_heads,
                intermediate_size=tiny.intermediate_size,
                tie_word_embeddings=tiny.tie_word_embeddings,
            ),
            "language_model.tiny",
        )
    try:
        found = AutoConfig.from_pretrained(options.model, local_files_only=True, trust_remote_code=False)
        return memory.model_shape(found, "its configuration")
    except (OSError, ValueError, ConfigError):
        return memory.shape_from_name(options.model)


def _learner(config: Any, policy: str, shape: memory.ModelShape) -> dict[str, float]:
    options, update, deepspeed = config.language_model_of(policy), config.token_ppo_options, config.deepspeed_config or {}
    copies = int(config.use_kl_loss) + int(update.ema_decay is not None) + (1 if options.value_model == "separate" else 0)
    parts = memory.learner_mib(
        shape,
        dtype="float32" if options.dtype == "auto" else options.dtype,
        mixed_precision=bool((deepspeed.get("bf16") or deepspeed.get("fp16") or {}).get("enabled")),
        zero_stage=(deepspeed.get("zero_optimization") or {}).get("stage", 0),
        num_learners=config.num_learners,
        microbatch_tokens=update.max_tokens_per_microbatch,
        head_chunk_tokens=update.head_chunk_tokens,
        gradient_checkpointing=options.gradient_checkpointing,
        copies=copies,
    )
    if (deepspeed.get("zero_optimization") or {}).get("offload_optimizer"):
        parts[_ON_HOST] = parts.pop("optimizer")
    return parts


def _engine_numerics(config: Any) -> tuple[str, float | None]:
    """Numerics of the engine, and MiB of its key-value cache if they are set."""
    options = config.inference_options
    on_gpu = options.num_gpus_per_engine > 0
    dtype = options.dtype if options.dtype != "auto" else "bfloat16" if on_gpu else "float32"
    cache = options.kv_cache_memory_mb or (None if on_gpu else memory.CPU_KV_CACHE_MIB)
    return dtype, cache


def _engine(config: Any, shape: memory.ModelShape) -> tuple[float, dict[str, float]]:
    options = config.inference_options
    dtype, cache = _engine_numerics(config)
    parts = memory.engine_mib(shape, dtype=dtype, tensor_parallel_size=options.tensor_parallel_size, kv_cache_mib=cache or 0.0)
    if cache is None:
        del parts["kv cache"]
    return memory.ENGINE_PROCESS_MIB.get(options.engine, 600.0), parts


def _cache_line(config: Any, policy: str, shape: memory.ModelShape) -> list[str]:
    dtype, cache = _engine_numerics(config)
    options = config.inference_options
    if cache is None:
        return [f"#     the rest of {options.gpu_memory_utilization:.0%} of each GPU is the engine's key-value cache"]
    tokens = memory.kv_tokens(shape, dtype=dtype, tensor_parallel_size=options.tensor_parallel_size, kv_cache_mib=cache)
    if tokens is None:
        return []
    context = config.language_model_of(policy).context_length
    return [f"#     the key-value cache holds {tokens:,} tokens, {tokens // context} sequences of {context}"]


def _line(name: str, process: float, parts: dict[str, float]) -> str:
    total = process + sum(value for part, value in parts.items() if part != _ON_HOST)
    detail = ", ".join(f"{part} {_size(value) if value else 'not known'}" for part, value in parts.items())
    return f"#     {name}: {_size(total)} each" + (f" ({detail}, process {_size(process)})" if parts else "")


def _size(mib: float) -> str:
    return f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{math.ceil(mib)} MiB"


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} B" if parameters >= 1e9 else f"{parameters / 1e6:.2f} M"
