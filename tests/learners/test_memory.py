"""What an update takes: as estimated, and given back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rllib_lmgame.experiments.memory import learner_mib, model_shape
from rllib_lmgame.policies.lean_softmax import chosen_and_entropy

MEASURE = Path(__file__).with_name("measure_memory.py")
VOCABULARY_OF_QWEN = 151_936
KEPT_MIB = 300.0
"""What a process may keep of freed memory, and what its allocations leave over."""
RUNS = 4
"""Most take the same; now and then one takes two more blocks of logits for a moment, which no estimate can know."""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_update_takes_what_is_estimated_and_gives_it_back(make_model):
    from transformers import AutoConfig

    directory = make_model(vocab_size=VOCABULARY_OF_QWEN, hidden_size=128, intermediate_size=512, initializer_range=0.02)
    parts = learner_mib(model_shape(AutoConfig.from_pretrained(directory)), num_learners=0, microbatch_tokens=512, head_chunk_tokens=128)
    for _ in range(RUNS):
        done = subprocess.run([sys.executable, str(MEASURE), directory], capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr[-3000:]
        measured = json.loads(done.stdout.splitlines()[-1])
        peak, after = measured["peak"] - measured["before"], measured["after"] - measured["before"]
        if peak == pytest.approx(sum(parts.values()), rel=0.15) and after < parts["weights"] + parts["optimizer"] + KEPT_MIB:
            return
    pytest.fail(f"{peak:.0f} MiB at the peak and {after:.0f} MiB afterwards; estimated: {parts}")


@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_the_lean_softmax_is_the_softmax(monkeypatch, entropy_gradient):
    """Values and gradients against PyTorch's own operations, over several blocks."""
    monkeypatch.setattr("rllib_lmgame.policies.lean_softmax.BLOCK_BYTES", 4 * 11 * 3)
    logits = (torch.randn(8, 11, dtype=torch.float64) * 5).requires_grad_()
    targets = torch.randint(11, (8,))
    weights = torch.randn(2, 8, dtype=torch.float64)

    logprobs = logits.log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    expected = logprobs.gather(-1, targets[:, None]).squeeze(-1)
    (gradient,) = torch.autograd.grad((weights[0] * expected).sum() + (weights[1] * entropy).sum() * entropy_gradient, logits)

    chosen, found = chosen_and_entropy(logits * 1.0, targets, True, entropy_gradient)
    assert found is not None and found.requires_grad == entropy_gradient
    torch.testing.assert_close(chosen, expected)
    torch.testing.assert_close(found, entropy)
    (leaner,) = torch.autograd.grad((weights[0] * chosen).sum() + (weights[1] * found).sum() * entropy_gradient, logits)
    torch.testing.assert_close(leaner, gradient)
