"""What shares a GPU, the smallest card that has room for it, and runs that fit nowhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rllib_lmgame.algorithms.cluster import memory
from rllib_lmgame.algorithms.cluster.footprint import (
    USABLE,
    Footprint,
    Processes,
    engine_numerics,
    engines_beside,
    machine_mib,
)
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.experiments.checks.check import CheckedExperiment
from rllib_lmgame.experiments.checks.machine import cards_here
from rllib_lmgame.experiments.checks.outside import sandboxed_games
from rllib_lmgame.experiments.checks.resources import asked_by, footprints_here, request_of
from rllib_lmgame.inference.registry import VLLM
from rllib_lmgame.policies.model.files import local_config, model_directory
from rllib_lmgame.settings.sections.language_model import TINY_MODEL


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
    options = config.inference_options
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
    inference = config.inference_options
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
    split = config.inference_options.tensor_parallel_size
    shapes = {policy: memory.shape_of(config, policy) for policy in config.language_model_policies()}
    return max(
        memory.kv_token_mib(shape, dtype=dtype, tensor_parallel_size=split)
        * config.language_model_of(policy).context_length
        for policy, shape in shapes.items()
        if shape is not None
    )


# -- for `rllib info` ----------------------------------------------------------------------------------------------

ROUNDING = 1e-6
"""Of sums of shares of a GPU."""
COUNTED = {1: "one card", 2: "two cards", 4: "four cards", 8: "eight cards"}


def needs_of(experiment: CheckedExperiment) -> dict[str, str]:
    """Name of a need -> what is needed of it and what is here."""
    asked = request_of(experiment).total
    gpus = asked.get("GPU", 0)
    found = {"processes": f"{asked.get('CPU', 0):g} CPU, {gpus:g} GPU, reserved for one trial"}
    if not experiment.algorithm.own:
        return found | ({"gpu": f"{_cards(gpus)}; here: {cards_here()}"} if gpus else {})
    config = experiment.configs[0]
    here = machine_mib()
    taken = next(footprints_here(experiment, here))
    games = [game.called(game.env) for game in config.training_games()]
    known = all(shape is not None and shape.layers for shape in taken.policies.values())
    host = f"{'' if known else 'at least '}{taken.on_host / 1024:.1f} GiB; here: {here / 1024:.1f}"
    found = {
        "games": ", ".join(games),
        "model": ", ".join(dict.fromkeys(str(config.language_model_of(name).model) for name in taken.policies)),
        **found,
        "memory": host + ("" if taken.on_host <= USABLE * here else ", too little"),
    }
    if gpus:
        sizes = [card.size for card in cards_of(config, taken)]
        largest = max((size for size in sizes if size is not None), default=0)
        size = "" if not sizes else f" of {largest} GB" if None not in sizes else ", and none is large enough"
        found["gpu"] = f"{_cards(gpus)}{size}; here: {cards_here()}"
    if programs := sandboxed_games(experiment):
        found["sandbox"] = f"for what players of {', '.join(programs)} write (`rllib doctor`)"
    return found


def _cards(gpus: float) -> str:
    whole = math.ceil(gpus - ROUNDING)
    return COUNTED.get(whole, f"{whole} cards")
