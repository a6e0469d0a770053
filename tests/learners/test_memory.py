"""What an update takes: as estimated, and given back; and how many tokens a micro-batch has where none are set."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from rllib_lmgame.algorithms.cluster.footprint import microbatch_tokens
from rllib_lmgame.algorithms.cluster.memory import WORKSPACE_MIB, adapter_parameters, learner_mib, model_shape
from rllib_lmgame.algorithms.ppo import LMGamePPOConfig
from rllib_lmgame.learners import microbatch
from rllib_lmgame.learners.data.batching import TokenBatch
from rllib_lmgame.learners.data.sharding import WholeEpisodes
from rllib_lmgame.learners.engines.deepspeed_engine import with_bucket_sizes
from rllib_lmgame.learners.microbatch import LEAST_TOKENS, MOST_TOKENS, Room, default_tokens, kept_per_token, layer_of
from rllib_lmgame.policies.model.attention import PACKED, PackedRows, register
from rllib_lmgame.policies.model.heads import backbone_of, chosen_and_entropy
from rllib_lmgame.policies.options import LoraOptions

MEASURE = Path(__file__).with_name("measure_memory.py")
VOCABULARY_OF_QWEN = 151_936
KEPT_MIB = 300.0
"""What a process may keep of freed memory, and what its allocations leave over."""
LEFT_MIB = 32.0
"""The same where freed memory is given back at once."""


def measured(cases: list[dict[str, Any]]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(MEASURE), json.dumps(cases)], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def estimated(case: dict[str, Any]) -> dict[str, float]:
    from transformers import AutoConfig

    shape = model_shape(AutoConfig.from_pretrained(case["model"]))
    zero = case.get("deepspeed") and with_bucket_sizes(case["deepspeed"], shape.parameters)["zero_optimization"]
    lora = case.get("lora")
    adapters = None if lora is None else adapter_parameters(shape, LoraOptions(**lora))
    tokens, chunk = case["training"]["max_tokens_per_microbatch"], case["training"]["head_chunk_tokens"]
    return learner_mib(
        shape,
        zero=zero,
        microbatch_tokens=tokens,
        head_chunk_tokens=chunk,
        constrained_decoding=case.get("legal", False),
        adapters=adapters,
        copies=int(lora is not None),
    )


def limits(microbatch: int, chunk: int) -> dict[str, int]:
    return {"max_tokens_per_microbatch": microbatch, "head_chunk_tokens": chunk}


@pytest.fixture(scope="module")
def cases(make_model: Any) -> list[dict[str, Any]]:
    """Activations take the most of the first, the head of the second; both have updates of more than one
    micro-batch.
    """
    small = make_model(
        vocab_size=512, hidden_size=128, num_hidden_layers=4, intermediate_size=512, initializer_range=0.02
    )
    large = make_model(vocab_size=VOCABULARY_OF_QWEN, hidden_size=128, intermediate_size=512, initializer_range=0.02)
    return [
        {"model": small, "vocabulary": 512, "episodes": 32, "tokens": (192, 64), "training": limits(4096, 512)},
        {
            "model": large,
            "vocabulary": VOCABULARY_OF_QWEN,
            "episodes": 8,
            "tokens": (64, 64),
            "training": limits(512, 128),
        },
    ]


def check(cases: list[dict[str, Any]]) -> float:
    """What is in use is what is estimated without the allowance for blocks that the C library keeps. Returns what the
    first case leaves in a process that keeps freed blocks, in MiB.
    """
    result = measured(cases)
    for case, found in zip(cases, result["cases"], strict=True):
        parts = estimated(case)
        expected = sum(parts.values()) - WORKSPACE_MIB
        print(f"{case['vocabulary']} tokens: {expected:.0f} MiB estimated, {found['peak']:.0f} at the peak")
        assert found["peak"] == pytest.approx(expected, rel=0.15), parts
        left = KEPT_MIB if case.get("deepspeed") else LEFT_MIB  # ZeRO keeps its buffers.
        assert found["after"] < parts["weights"] + parts["optimizer"] + left
    return float(result["kept"])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_update_takes_what_is_estimated_and_gives_it_back(cases):
    parts = estimated(cases[0])
    assert check(cases) < parts["weights"] + parts["optimizer"] + KEPT_MIB


@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_the_lean_softmax_is_the_softmax(monkeypatch, entropy_gradient):
    """Values and gradients against PyTorch's own operations, over several blocks."""
    monkeypatch.setattr("rllib_lmgame.policies.model.heads.BLOCK_BYTES", 4 * 11 * 3)
    logits = (torch.randn(8, 11, dtype=torch.float64) * 5).requires_grad_()
    targets = torch.randint(11, (8,))
    weights = torch.randn(2, 8, dtype=torch.float64)

    logprobs = logits.log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    expected = logprobs.gather(-1, targets[:, None]).squeeze(-1)
    (gradient,) = torch.autograd.grad(
        (weights[0] * expected).sum() + (weights[1] * entropy).sum() * entropy_gradient, logits
    )

    chosen, found = chosen_and_entropy(logits * 1.0, targets, True, entropy_gradient)
    assert found is not None and found.requires_grad == entropy_gradient
    torch.testing.assert_close(chosen, expected)
    torch.testing.assert_close(found, entropy)
    (leaner,) = torch.autograd.grad((weights[0] * chosen).sum() + (weights[1] * found).sum() * entropy_gradient, logits)
    torch.testing.assert_close(leaner, gradient)


@given(st.integers(1, 10**9), st.floats(0, 1e12))
def test_as_many_tokens_as_there_is_room_for(kept: int, room: float) -> None:
    tokens = default_tokens(kept, False, room)
    assert LEAST_TOKENS <= tokens <= MOST_TOKENS and tokens.bit_count() == 1
    assert tokens == LEAST_TOKENS or tokens * kept <= room
    assert tokens == MOST_TOKENS or 2 * tokens * kept > room


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
    make_learner: Any,
    make_episodes: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = make_learner(options=options, training=ppo)
    assert plain.settings("player").microbatch_tokens == ppo.get("max_tokens_per_microbatch", MOST_TOKENS)
    shape = model_shape(plain.module["player"].language_model.config)
    checkpointing = options.get("gradient_checkpointing", False)
    kept = kept_per_token(shape.layers, shape.layer, 4, gradient_checkpointing=checkpointing)
    monkeypatch.setattr(microbatch, "CPU_ACTIVATIONS", 100 * kept)
    taken: list[int] = []
    cut = TokenBatch.microbatches
    monkeypatch.setattr(
        TokenBatch, "microbatches", lambda batch, limit, **rest: taken.append(limit) or cut(batch, limit, **rest)
    )
    learner = make_learner(options=options, training={**ppo, "num_minibatches": 2})
    learner.update(training_data=WholeEpisodes(episodes=make_episodes(4)))
    assert set(taken) == {learner.settings("player").microbatch_tokens} == {tokens}
    config = LMGamePPOConfig().environment("lmgame/Sokoban-v0").language_model(**options).training(**ppo)
    assert microbatch_tokens(config, "player", shape) == tokens


@pytest.mark.parametrize("asked", ["auto", 128])
def test_a_checkpoint_keeps_what_was_found(
    asked: Any,
    make_config: Any,
    make_learner: Any,
    make_episodes: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sums in the order of other micro-batches round differently; a number that is set wins."""

    def learner(room: float, size: Any = "auto") -> Any:
        config = make_config(training={"max_tokens_per_microbatch": size})
        config.learner_rooms = {"player": Room(-room / 0.9)}  # Of a card without memory.
        built = config.learner_class(config=config, module_spec=config.rl_module_spec)
        built.build()
        return built

    before = learner(200 * kept_per_token(2, layer_of(make_learner().module["player"].language_model), 4))
    assert before.microbatches() == {"player": 128}
    before.update(training_data=WholeEpisodes(episodes=make_episodes(4)))
    before.save_shard(tmp_path)
    resumed = learner(1e12, asked)
    resumed.load_shard(tmp_path)
    assert resumed.microbatches() == {"player": 128}
    assert ("goes on with the checkpoint's micro-batches of 128 tokens" in caplog.text) == (asked == "auto")
    for each in (before, resumed):
        each.update(training_data=WholeEpisodes(episodes=make_episodes(4, seed=1)))
    expected, found = (each.module["player"].hf_state() for each in (before, resumed))
    assert all(torch.equal(expected[name], found[name]) for name in expected)


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
