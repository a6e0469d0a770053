"""Options that are taken and have nothing to do: told, so that one file can compare settings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from rllib_lmgame.algorithms.facts import PolicyFacts
from rllib_lmgame.learners.microbatch import number_of
from rllib_lmgame.policies.model.files import local_config, model_directory
from rllib_lmgame.settings.rules import TOLD
from rllib_lmgame.settings.sections.language_model import TINY_MODEL
from rllib_lmgame.settings.tree import Settings

_AS_WITHOUT = {"gamma": 1}
"""Values that ask for nothing, beside null, false, 0 and the empty list."""


def idle_notices(configs: Sequence[Any]) -> Iterator[str]:
    """Notices about given options that no trained policy reads at any point of the search space."""
    each = [config.settings for config in configs]
    policies = [
        (s.policy(name), PolicyFacts(config, name))
        for config, s in zip(configs, each, strict=True)
        for name in s.trained_policies()
    ]
    told: dict[str, str] = {}
    for row in TOLD:
        given = [key for key in row.keys if key not in told and any(_asks(key, s) for s in each)]
        if given and all(row.idle(s, f) for s, f in policies):
            told |= dict.fromkeys(
                given, row.effect + ", ".join(sorted({row.say.format(s=s, f=f) for s, f in policies}))
            )
    for message in dict.fromkeys(told.values()):
        keys = ", ".join(f"config.{key}" for key, said in told.items() if said == message)
        yield f"{keys}: {message}"


def mixture_notices(configs: Sequence[Any]) -> Iterator[str]:
    """A notice for each trained model that is a mixture of experts."""
    models = {config.language_model_of(policy).model for config in configs for policy in config.trained_policies()}
    for model in sorted(models - {TINY_MODEL}):
        if is_mixture(model):
            yield (
                f"config.language_model.model: {model} is a mixture of experts. Engine and learner may send a token to "
                "different experts, since the engine's choices are not replayed: watch learners/POLICY/logprob_gap "
                "(about 0.01 for a dense model in bfloat16)"
            )


def is_mixture(model: str) -> bool:
    """Whether a model has experts, by its configuration, or by its name where that is not on this machine."""
    config = local_config(model_directory(model))
    if config is None:
        return re.search(r"(?i)\d+x\d+(\.\d+)?b|-a\d+(\.\d+)?b|moe|gpt-oss", model) is not None
    text = config.get_text_config()
    return any(number_of(text, name) > 1 for name in ("num_experts", "num_local_experts", "n_routed_experts"))


def _asks(key: str, s: Settings) -> bool:
    """Whether an option was given, and not as what switches it off."""
    return s.follows(key) or (s.given(key) and s.value(key) not in (None, False, 0, [], _AS_WITHOUT.get(key)))
