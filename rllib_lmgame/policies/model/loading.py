"""A model with all its weights, as Transformers reads them, and what can be said of that before it is read."""

from __future__ import annotations

import copy
from typing import Any

import torch

from rllib_lmgame.base.text import first_line
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


def quantization_problem(config: Any) -> str | None:
    """Why the weights of a model cannot be read as its ``quantization_config`` says, or ``None``.

    As in ``from_pretrained``, on a model without numbers. What another machine may have is not asked for: a package,
    an accelerator.
    """
    from transformers import AutoModelForCausalLM

    if getattr(config, "quantization_config", None) is None:
        return None
    from transformers.quantizers.auto import AutoHfQuantizer

    config = copy.deepcopy(config)
    try:
        if not AutoHfQuantizer.supports_quant_method(config.quantization_config):
            return None  # Read as if there were none.
        config.quantization_config = AutoHfQuantizer.merge_quantization_configs(config.quantization_config, None)
        quantizer = AutoHfQuantizer.from_config(config.quantization_config, pre_quantized=True)
        try:
            quantizer.validate_environment(device_map=None, weights_only=True)
        except (RuntimeError, ValueError):
            return None
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
            quantizer.preprocess_model(model=model, dtype=torch.float32, device_map=None, checkpoint_files=None)
    except ImportError:
        return None
    except Exception as error:  # What it lacks fails in many ways.
        return first_line(error)
    return None
