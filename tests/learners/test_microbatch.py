"""Tokens of a micro-batch where none are set: what the dry run says is what a learner takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rllib_lmgame.algorithms.ppo import LMGamePPOConfig
from rllib_lmgame.experiments.checks.footprint import microbatch_tokens
from rllib_lmgame.experiments.checks.memory import ModelShape, learner_mib, model_shape
from rllib_lmgame.learners import microbatch
from rllib_lmgame.learners.data.batching import TokenBatch
from rllib_lmgame.learners.data.rows import WholeEpisodes
from rllib_lmgame.learners.microbatch import MOST_TOKENS, default_tokens, kept_per_token, layer_of, plain_layer
from rllib_lmgame.policies.model.attention import PACKED, PackedRows, register
from rllib_lmgame.policies.model.isolation import backbone_of

SMOLLM2 = ModelShape(134_515_008, 30, 576, 192, 49_152, plain_layer(576, 1536))


@pytest.mark.parametrize(
    ("shape", "on_gpu", "tokens"),
    [
        (SMOLLM2, False, 1024),
        (SMOLLM2, True, 8192),
        (ModelShape(370_000, 3, 96, 96, 320, plain_layer(96, 256)), False, 8192),  # The tiny model.
        (ModelShape(494_000_000, 24, 896, 128, 151_936, plain_layer(896, 4864)), False, 512),
        (ModelShape(10), False, 8192),  # Nothing is known but its size.
        (ModelShape(10**12, 10**4, 10**5, 1, 1, plain_layer(10**5, 10**6)), False, 16),
    ],
)
def test_activations_on_a_cpu_are_bounded(shape: ModelShape, on_gpu: bool, tokens: int) -> None:
    kept = kept_per_token(shape.layers, shape.layer, 4)
    assert default_tokens(kept, on_gpu) == tokens


def test_a_learner_of_135_m_parameters_takes_less_than_4_gib() -> None:
    assert sum(learner_mib(SMOLLM2, microbatch_tokens=1024).values()) < 4096
    assert sum(learner_mib(SMOLLM2, microbatch_tokens=MOST_TOKENS).values()) > 13 * 1024


@pytest.mark.parametrize(
    ("options", "ppo", "tokens"),
    [
        ({}, {}, 64),
        ({"gradient_checkpointing": True}, {}, 64),
        ({"value_model": "separate"}, {}, 32),
        ({}, {"max_tokens_per_microbatch": 100}, 100),
    ],
)
def test_the_learner_takes_what_the_dry_run_says(
    options: dict[str, Any],
    ppo: dict[str, Any],
    tokens: int,
    make_learner: Callable[..., Any],
    make_episodes: Callable[..., list[Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = make_learner(options=options, token_ppo=ppo)
    assert plain.settings("player").microbatch_tokens == ppo.get("max_tokens_per_microbatch", MOST_TOKENS)
    shape = model_shape(plain.module["player"].language_model.config)
    checkpointing = options.get("gradient_checkpointing", False)
    kept = kept_per_token(shape.layers, shape.layer, 4, gradient_checkpointing=checkpointing)
    monkeypatch.setattr(microbatch, "CPU_ACTIVATIONS", 100 * kept)
    taken: list[int] = []
    cut = TokenBatch.microbatches
    monkeypatch.setattr(TokenBatch, "microbatches", lambda batch, limit: taken.append(limit) or cut(batch, limit))
    learner = make_learner(options=options, token_ppo={**ppo, "num_minibatches": 2})
    learner.update(training_data=WholeEpisodes(episodes=make_episodes(4)))
    assert set(taken) == {learner.settings("player").microbatch_tokens} == {tokens}
    config = LMGamePPOConfig().environment("lmgame/Sokoban-v0").language_model(**options).token_ppo(**ppo)
    assert microbatch_tokens(config, "player", shape) == tokens


WIDE = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 384}
MODELS = {
    "qwen2": {},
    "llama": {},
    "qwen3": {"head_dim": 64},
    "gemma2": {"head_dim": 64},
    "gemma3_text": {"head_dim": 64},
    "olmo2": {},
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen3_moe": {"head_dim": 64, "num_experts": 8, "num_experts_per_tok": 4, "moe_intermediate_size": 96},
    "gpt_oss": {"head_dim": 32, "num_local_experts": 8, "num_experts_per_tok": 4, "intermediate_size": 128},
}
TOKENS = {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}


def saved_bytes(model: Any, rows: int, length: int) -> int:
    """What autograd keeps of a pack, weights left out; storages that several tensors share count once."""
    kept: dict[int, Any] = {}
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    ids, positions = torch.zeros(1, rows * length, dtype=torch.long), torch.arange(length).repeat(rows)[None]
    with PackedRows(length * torch.arange(rows + 1)), torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        out = backbone_of(model)(input_ids=ids, position_ids=positions, use_cache=False)
    assert out.last_hidden_state.requires_grad
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("length", [16, 128])
@pytest.mark.parametrize("model_type", MODELS)
def test_what_a_token_keeps_is_what_autograd_saves(model_type: str, length: int) -> None:
    """Within a quarter; the difference of two depths, so that what is not in a layer does not count."""
    register()
    saved, rows = [], 4
    for layers in (2, 4):
        config = AutoConfig.for_model(
            model_type, **(WIDE | TOKENS | MODELS[model_type] | {"num_hidden_layers": layers})
        )
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=PACKED).train()
        saved.append(saved_bytes(model, rows, length))
    measured = (saved[1] - saved[0]) / (2 * rows * length)
    assert kept_per_token(1, layer_of(model), 4, length) == pytest.approx(measured, rel=0.25)
