"""Writes ``architectures.md``: how rows of every causal language model of the installed Transformers go through it.

    python docs/architecture_page.py

Minutes, since every architecture is tried; a slow test says when the page is stale.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tables import table

PAGE = Path(__file__).resolve().parent / "architectures.md"
LFM2 = {"layer_types": ["conv", "conv", "full_attention", *["conv"] * 29]}
MIXTURE = {"n_routed_experts": 16, "num_experts_per_tok": 2}
EXAMPLES: dict[str, dict[str, Any]] = {
    "deepseek_v2": MIXTURE
    | {"n_group": 1, "topk_group": 1, "topk_method": "greedy", "moe_intermediate_size": 1408}
    | {"first_k_dense_replace": 1},
    "dots1": MIXTURE | {"n_shared_experts": 1},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128, "num_experts": 8, "moe_topk": 2},
    "lfm2": LFM2,
    "lfm2_moe": LFM2,
    "ministral": {"head_dim": 128},
    "nemotron": {"head_dim": 128, "num_key_value_heads": 8},
}
"""What real models set beside their configuration class's defaults, which alone are no model, or one of one kind."""


def model_types() -> list[str]:
    """All causal language models of the installed Transformers."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def verdict(model_type: str) -> str:
    """How rows go through models of a type."""
    from transformers import AutoConfig

    from rllib_lmgame.policies.model.isolation import Apart, UnfitModelError, packing_of

    try:
        packing = packing_of(AutoConfig.for_model(model_type, **EXAMPLES.get(model_type, {})))
    except UnfitModelError as error:
        return f"refused: {error}"
    except Exception:  # The class has no defaults.
        return "not tried: its configuration has no defaults"
    if packing.apart is Apart.NOT_TRIED:
        return "one row a pass; not tried: no small copy of its default configuration runs"
    return packing.apart.value if packing.fits else f"{packing.layout.value}: {packing.apart.value}"


def page() -> str:
    """The whole page."""
    import transformers
    import vllm
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES
    from vllm.model_executor.models.registry import ModelRegistry

    served = set(ModelRegistry.get_supported_archs())
    rows = [(f"`{name}`", verdict(name), "yes" if CLASSES[name] in served else "") for name in model_types()]
    head = ("`model_type`", "rows in the learner", f"vLLM {vllm.__version__.split('+')[0]} has it")
    return f"""# Architectures

`language_model.model` may be any causal language model of Transformers. What differs is how its rows (one conversation
each) go through the learner:

* **packed**: many rows in one pass, without padding, each as if it were alone.
* **rows side by side**: packed, rows would reach each other (convolutions, recurrences), or the model has an attention
  of its own. Rows of about one length share a pass, each filled up at its end, where no token looks. At most one filler
  comes to eight tokens (`padding_waste` counts them), so rows of many lengths take more passes.
* **one row a pass**: not even that is right, or it could not be tried; slower, since
  `token_ppo.max_tokens_per_microbatch` cannot fill a pass.
* **refused**: `--dry-run` says so by name.

The dry run also says what it costs that a model's rows are not packed.

Before a model is trained this is tried on a small random copy of *its* configuration, so a model whose configuration
differs from the defaults below may fare otherwise. Where no copy can be made, rows go one by one, and the first
iteration's `logprob_gap_mean` (`token_ppo.max_logprob_gap`) tells whether engine and learner agree.

On CPUs vLLM 0.32 has no prefix cache for models with a state (LFM2, Falcon-H1). It computes Qwen3-Next in bfloat16
alone, and asks for `torchvision` before it opens Qwen3.5.

Engines get weights by the names of the model's checkpoint, also where Transformers holds them otherwise in memory (the
experts of a mixture as one tensor a layer).

Causal models of Transformers {transformers.__version__}, by their default configuration:

{table(head, rows)}
"""


if __name__ == "__main__":
    PAGE.write_text(page())
