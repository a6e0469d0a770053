"""A model with all its weights, as Transformers reads them."""

from __future__ import annotations

from typing import Any

from rllib_lmgame.telemetry.quiet import no_bars_for


class IncompleteModelError(ValueError):
    """Weights of a model are missing, or of other shapes; what is said has the model as its subject."""


def whole_model(directory: str, **arguments: Any) -> Any:
    """``AutoModelForCausalLM.from_pretrained`` of a directory or hub id; safetensors, unless they say otherwise.

    Raises:
        IncompleteModelError: Transformers would have filled weights with noise.
        Exception: whatever it raises itself: a damaged file fails in many ways.
    """
    from transformers import AutoModelForCausalLM

    arguments = {"use_safetensors": True, **arguments}
    with no_bars_for(directory):
        model, info = AutoModelForCausalLM.from_pretrained(
            directory, ignore_mismatched_sizes=True, output_loading_info=True, **arguments
        )
    others, missing = sorted(info["mismatched_keys"]), sorted(info["missing_keys"])
    if others:
        name, there, here = others[0]
        raise IncompleteModelError(f"has {name!r} of {list(there)}, and its config.json asks for {list(here)}")
    if missing:
        raise IncompleteModelError(f"lacks {len(missing)} weights, among them {missing[0]!r}")
    return model
