"""Memory estimates against sums done by hand and against real models."""

from __future__ import annotations

import pytest

from rllib_lmgame.experiments.memory import MIB, ModelShape, engine_mib, kv_tokens, learner_mib, model_shape, shape_from_name


def test_parameters_are_those_of_the_model():
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=300,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        tie_word_embeddings=True,
    )
    shape = model_shape(config)
    assert shape.parameters == sum(p.numel() for p in Qwen2ForCausalLM(config).parameters())
    assert (shape.layers, shape.hidden_size, shape.kv_size, shape.vocab_size) == (2, 32, 16, 300)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", 7e9),
        ("Qwen/Qwen2.5-0.5B", 0.5e9),
        ("EleutherAI/pythia-160m", 160e6),
        ("meta-llama/Llama-3.1-70B", 70e9),
        ("gpt2", None),
        ("./runs/my-model", None),
    ],
)
def test_sizes_in_names(name, parameters):
    shape = shape_from_name(name)
    assert (shape and shape.parameters) == parameters


SHAPE = ModelShape(parameters=1_000_000, layers=4, hidden_size=64, kv_size=32, vocab_size=1000)


@pytest.mark.parametrize(
    ("stage", "weights", "gradients", "optimizer"), [(0, 2, 2, 12), (1, 2, 2, 12 / 4), (2, 2, 2 / 4, 12 / 4), (3, 2 / 4, 2 / 4, 12 / 4)]
)
def test_zero_divides_what_it_says(stage, weights, gradients, optimizer):
    """16-bit mixed precision on 4 learners: the table of the ZeRO paper, bytes per parameter."""
    parts = learner_mib(SHAPE, mixed_precision=True, zero_stage=stage, num_learners=4)
    per_parameter = {name: value * MIB / SHAPE.parameters for name, value in parts.items()}
    assert per_parameter["weights"] == pytest.approx(weights)
    assert per_parameter["gradients"] == pytest.approx(gradients)
    assert per_parameter["optimizer"] == pytest.approx(optimizer)


def test_plain_float32_takes_16_bytes_a_parameter():
    parts = learner_mib(SHAPE, num_learners=0)
    assert (parts["weights"] + parts["gradients"] + parts["optimizer"]) * MIB == pytest.approx(16 * SHAPE.parameters)


def test_checkpointing_and_smaller_batches_save_activations():
    full = learner_mib(SHAPE, microbatch_tokens=8192)["activations"]
    assert learner_mib(SHAPE, microbatch_tokens=8192, gradient_checkpointing=True)["activations"] < full
    assert learner_mib(SHAPE, microbatch_tokens=4096, head_chunk_tokens=2048)["activations"] == pytest.approx(full / 2)


def test_engine_and_cache():
    assert engine_mib(SHAPE, dtype="bfloat16", tensor_parallel_size=2, kv_cache_mib=10) == {"weights": 1e6 / MIB, "kv cache": 10}
    assert kv_tokens(SHAPE, dtype="float32", tensor_parallel_size=1, kv_cache_mib=1) == MIB // (2 * 4 * 32 * 4)
    assert kv_tokens(ModelShape(10), dtype="float32", tensor_parallel_size=1, kv_cache_mib=1) is None
