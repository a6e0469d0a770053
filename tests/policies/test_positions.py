"""Rows are as long as their model allows, and their rotary embeddings do not hang on the rows beside them."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, Phi3Config

from rllib_lmgame.algorithms.ppo import LMGamePPOConfig
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.policies.model.loading import context_problem, fix_rope

ORIGINAL = 32
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0}


def phi3(**fields) -> Phi3Config:
    """A small Phi-3 whose long factors differ much from its short ones."""
    scaling = {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "short_factor": [1.0] * 8,
        "long_factor": [4.0 + n for n in range(8)],
        "original_max_position_embeddings": ORIGINAL,
    }
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    tokens = {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return Phi3Config(
        **{
            **sizes,
            **tokens,
            "num_key_value_heads": 2,
            "max_position_embeddings": 4 * ORIGINAL,
            "original_max_position_embeddings": ORIGINAL,
            "rope_parameters": scaling,
            **fields,
        }
    )


@pytest.mark.parametrize(("context", "factor"), [(ORIGINAL, "short_factor"), (ORIGINAL + 1, "long_factor")])
def test_long_rope_is_chosen_by_the_context_alone(context: int, factor: str) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(phi3()).eval()
    fix_rope(model, context)
    plain = 1.0 / (10_000.0 ** (torch.arange(0, 16, 2) / 16))
    expected = plain / torch.tensor(model.config.rope_parameters[factor])
    ids = torch.randint(1, 64, (1, 2 * ORIGINAL))
    with torch.no_grad():
        short = model(ids[:, :8]).logits
        model(ids)  # A long row elsewhere in the process changes nothing.
        assert torch.equal(model(ids[:, :8]).logits, short)
    found = next(module.inv_freq for module in model.modules() if hasattr(module, "inv_freq"))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("model_type", "fields", "most"),
    [
        ("llama", {"max_position_embeddings": 100}, 100),
        ("gpt2", {"n_positions": 100}, 100),
        ("llama", {"max_position_embeddings": 100, "rope_parameters": {"rope_type": "linear", "factor": 2.0}}, 200),
        ("llama", {"max_position_embeddings": 100, "rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, 100),
        ("llama", {"max_position_embeddings": 100, "rope_parameters": DYNAMIC}, 100),
    ],
    ids=["positions", "n_positions", "linear", "yarn", "dynamic"],
)
def test_longest_context_of_a_model(model_type: str, fields, most: int) -> None:
    config = AutoConfig.for_model(model_type, **fields)
    assert context_problem(config, most) is None
    assert str(most + 1) in str(context_problem(config, most + 1))


def test_a_model_without_a_bound_takes_any_context() -> None:
    assert context_problem(AutoConfig.for_model("mamba"), 10**6) is None


def test_contexts_longer_than_the_model_are_refused_by_key(tiny_model_dir: str) -> None:
    config = LMGamePPOConfig().environment("lmgame/TicTacToe-v0")
    positions = AutoConfig.from_pretrained(tiny_model_dir).max_position_embeddings
    with pytest.raises(ConfigError, match=rf"config\.language_model\.context_length: {positions + 1} is more than the"):
        config.language_model(model=tiny_model_dir, context_length=positions + 1).validate()
    tiny = LMGamePPOConfig().environment("lmgame/TicTacToe-v0")
    with pytest.raises(ConfigError, match=r"context_length: 2048 is more than max_position_embeddings=512"):
        tiny.language_model(tiny={"max_position_embeddings": 512}).validate()
