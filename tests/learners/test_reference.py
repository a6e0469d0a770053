"""The reference model of the KL penalty: how it follows the policy, on several learners, and over a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learning import difference, restored, update

from rllib_lmgame.learners.engines.reference import Reference, frozen_copy
from rllib_lmgame.learners.options import REFERENCES, EMAReference
from rllib_lmgame.learners.process import ProcessGroup

State = dict[str, torch.Tensor]


def copied(state: State) -> State:
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def policy(learner: Any) -> State:
    return copied(learner.module["player"].hf_state())


def reference(learner: Any) -> State:
    return copied(learner.reference("player").module.hf_state())


@pytest.mark.parametrize(
    "kind", ["initial", {"type": "ema", "decay": 0.75}, {"type": "refresh", "every": 2}], ids=lambda k: str(k)
)
def test_a_reference_follows_as_it_is_told(kind: Any, make_learner: Any, make_episodes: Any) -> None:
    """From the weights before the first update on, after every update, whatever the number of optimizer steps."""
    learner = make_learner(
        training={"kl": {"reference": kind}, "num_minibatches": 2}, use_kl_loss=True, lr=1e-2, num_epochs=2
    )
    rule = REFERENCES.read(kind)
    expected = policy(learner)
    for number in range(1, 5):
        update(learner, make_episodes(6, seed=number))
        if rule.type == "ema":
            expected = {name: 0.75 * expected[name] + 0.25 * tensor for name, tensor in policy(learner).items()}
        elif rule.type == "refresh" and number % 2 == 0:
            expected = policy(learner)
        assert difference(reference(learner), expected) < 1e-6, number
    assert difference(reference(learner), policy(learner)) > 1e-3 or rule.type == "refresh"


@pytest.mark.parametrize(
    ("kind", "deepspeed"),
    [
        ({"type": "refresh", "every": 3}, None),
        ({"type": "ema", "decay": 0.9}, None),
        ({"type": "ema", "decay": 0.9}, {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}),
    ],
    ids=["refresh", "ema", "ema, bfloat16"],
)
def test_a_reference_goes_on_bit_for_bit(
    kind: dict[str, Any], deepspeed: dict[str, Any] | None, make_learner: Any, make_episodes: Any, tmp_path: Path
) -> None:
    if deepspeed:
        pytest.importorskip("deepspeed")
    kwargs = {"training": {"kl": {"reference": kind}}, "use_kl_loss": True, "lr": 1e-2, "deepspeed": deepspeed}
    learner, fresh = make_learner(**kwargs), make_learner(**kwargs)
    for number in range(2):
        update(learner, make_episodes(5, seed=number))
    restored(fresh, learner, tmp_path)
    for number in range(2, 5):
        for each in (learner, fresh):
            update(each, make_episodes(5, seed=number))
        assert difference(reference(fresh), reference(learner)) == 0.0
        assert difference(policy(fresh), policy(learner)) == 0.0


def test_a_copy_in_half_precision_has_the_positions_of_the_policy(make_module: Any) -> None:
    """Rotary frequencies are float32 beside bfloat16 weights; rounded, the two would differ from the start."""
    module = make_module(dtype="bfloat16")
    copy = frozen_copy(module, module.hf_state(), "cpu")
    own = dict(module.named_buffers())
    assert {buffer.dtype for buffer in own.values()} == {torch.float32}
    assert all(torch.equal(buffer, own[name]) for name, buffer in copy.named_buffers())


class Together(ProcessGroup):
    """Two learners that take turns: the second is given what the first had."""

    given: list[torch.Tensor] = []

    def copy_from_first(self, tensors: Any) -> None:
        if self.rank == 0:
            Together.given = [tensor.clone() for tensor in tensors]
        else:
            for tensor, first in zip(tensors, Together.given, strict=True):
                tensor.copy_(first)


def test_an_average_in_half_precision_moves_by_less_than_that_can_hold(make_module: Any) -> None:
    """A thousandth at a time, on two learners, of which one keeps the exact numbers."""
    module = make_module(dtype="bfloat16").to(torch.bfloat16)
    begun = copied(module.hf_state())
    ahead = {name: tensor * 2 for name, tensor in begun.items()}
    options = EMAReference(decay=0.999)
    both = [Reference(frozen_copy(module, begun, "cpu"), options, Together(2, rank), begun) for rank in range(2)]
    for _ in range(60):
        for each in both:
            each.follow(ahead)
    share = 0.999**60
    with both[0].tensors() as exact:
        held = dict(exact)
    for name, tensor in held.items():
        exact = share * begun[name].double() + (1 - share) * ahead[name].double()
        np.testing.assert_allclose(tensor.double().numpy(), exact.numpy(), rtol=1e-4, atol=1e-9)
        assert tensor.dtype == torch.float32
        for each in both:
            assert torch.equal(each.module.hf_state()[name], tensor.bfloat16())
    with both[1].tensors() as tensors:
        assert tensors["model.norm.weight"].dtype == torch.bfloat16
        assert not torch.equal(tensors["model.norm.weight"], begun["model.norm.weight"])
