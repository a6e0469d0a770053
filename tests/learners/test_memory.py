"""What an update takes: as estimated, and given back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rllib_lmgame.experiments.checks.memory import WORKSPACE_MIB, learner_mib, model_shape
from rllib_lmgame.learners.engines.deepspeed_engine import with_bucket_sizes
from rllib_lmgame.policies.model.lean_softmax import chosen_and_entropy

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
    tokens, chunk = case["token_ppo"]["max_tokens_per_microbatch"], case["token_ppo"]["head_chunk_tokens"]
    return learner_mib(
        shape, zero=zero, microbatch_tokens=tokens, head_chunk_tokens=chunk, legal_moves_only=case.get("legal", False)
    )


def limits(microbatch: int, chunk: int) -> dict[str, int]:
    return {"max_tokens_per_microbatch": microbatch, "head_chunk_tokens": chunk}


@pytest.fixture(scope="module")
def cases(make_model: Callable[..., str]) -> list[dict[str, Any]]:
    """Activations take the most of the first, the head of the second; both have updates of more than one
    micro-batch.
    """
    small = make_model(
        vocab_size=512, hidden_size=128, num_hidden_layers=4, intermediate_size=512, initializer_range=0.02
    )
    large = make_model(vocab_size=VOCABULARY_OF_QWEN, hidden_size=128, intermediate_size=512, initializer_range=0.02)
    return [
        {"model": small, "vocabulary": 512, "episodes": 32, "tokens": (192, 64), "token_ppo": limits(4096, 512)},
        {
            "model": large,
            "vocabulary": VOCABULARY_OF_QWEN,
            "episodes": 8,
            "tokens": (64, 64),
            "token_ppo": limits(512, 128),
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


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_update_takes_what_is_estimated_and_gives_it_back(cases):
    parts = estimated(cases[0])
    assert check(cases) < parts["weights"] + parts["optimizer"] + KEPT_MIB


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [{"legal": True}, *({"deepspeed": {"zero_optimization": {"stage": stage}}} for stage in (1, 2, 3))],
    ids=str,
)
def test_so_with_legal_moves_and_zero(cases, change):
    pytest.importorskip("deepspeed")
    check([cases[0], cases[1] | change])


@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_the_lean_softmax_is_the_softmax(monkeypatch, entropy_gradient):
    """Values and gradients against PyTorch's own operations, over several blocks."""
    monkeypatch.setattr("rllib_lmgame.policies.model.lean_softmax.BLOCK_BYTES", 4 * 11 * 3)
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
