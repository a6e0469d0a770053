"""What shares a GPU, and the smallest card that has room for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rllib_lmgame.algorithms.cluster import memory
from rllib_lmgame.algorithms.cluster.footprint import Footprint, Processes, engine_numerics, engines_beside


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
