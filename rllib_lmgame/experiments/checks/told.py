"""Notices about settings that are accepted and may not do what they are meant for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from rllib_lmgame.learners.microbatch import number_of
from rllib_lmgame.policies.model.files import local_config, model_directory
from rllib_lmgame.settings.sections.language_model import TINY_MODEL


def notices_of(configs: Sequence[Any]) -> Iterator[str]:
    """Notices about the configurations of a search space."""
    yield from dict.fromkeys(notice for config in configs for notice in _warmup_notices(config))
    yield from mixture_notices(configs)


def _warmup_notices(config: Any) -> Iterator[str]:
    stage = config.supervised_options
    if stage is not None and stage.lr_warmup_steps > stage.max_steps:
        section = f"config.{config.section_of('supervised_options')}"
        yield (
            f"{section}.lr_warmup_steps: {stage.lr_warmup_steps} steps of warm-up are more than max_steps: "
            f"{stage.max_steps}, so the learning rate never reaches {stage.lr:g}; set fewer"
        )


def mixture_notices(configs: Sequence[Any]) -> Iterator[str]:
    """A notice for each trained model that is a mixture of experts."""
    models = {config.language_model_of(policy).model for config in configs for policy in config.trained_policies()}
    for model in sorted(models - {TINY_MODEL}):
        if is_mixture(model):
            yield (
                f"config.language_model.model: {model} is a mixture of experts. Engine and learner may send a token to "
                "different experts, since the engine's choices are not replayed: watch learners/POLICY/logprob_diff "
                "(about 0.01 for a dense model in bfloat16)"
            )


def is_mixture(model: str) -> bool:
    """Whether a model has experts, by its configuration, or by its name where that is not on this machine."""
    config = local_config(model_directory(model))
    if config is None:
        return re.search(r"(?i)\d+x\d+(\.\d+)?b|-a\d+(\.\d+)?b|moe|gpt-oss", model) is not None
    text = config.get_text_config()
    return any(number_of(text, name) > 1 for name in ("num_experts", "num_local_experts", "n_routed_experts"))
