"""A learner's states in host memory while games are played: bit for bit the same afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from learning import same, update, weights, zero
from torch.testing._internal.two_tensor import TwoTensor

from rllib_lmgame.learners.engines.host_states import tensors_in
from rllib_lmgame.policies.model import network

TRAINING = {"max_tokens_per_microbatch": 96, "kl": {"reference": {"type": "ema", "decay": 0.5}}}


def held(learner: Any) -> list[torch.Tensor]:
    copies = [each.module for each in learner.references.values()]
    found = tensors_in([copies, [engine.states() for engine in learner.engines.values()]])
    return [tensor.detach() for tensor in found if not tensor.is_meta]


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("stage", [None, *(pytest.param(stage, marks=pytest.mark.slow) for stage in (0, 1)), 2, 3])
def test_updates_go_on_as_if_states_had_stayed(
    stage: int | None, lora: bool, make_learner: Any, make_episodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of them is on the device meanwhile; what is asked twice is done once. Takes 9 s: two learners a case."""
    load = network.load_language_model

    def loaded(*args: Any, **how: Any) -> Any:
        model, packing = load(*args, **how)
        for parameter in model.parameters():  # What is mapped from a file could not leave.
            parameter.data = parameter.data.clone()
        return model, packing

    def trained(moves: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        learner = make_learner(training=TRAINING, deepspeed=zero(stage), options={"lora": {"r": 4}} if lora else {})
        for seed in range(3):
            update(learner, make_episodes(6, seed=seed))
            before = [tensor.clone() for tensor in held(learner)]
            for _ in range(moves):
                learner.offload()
            left = sum(tensor.untyped_storage().nbytes() for tensor in held(learner))
            for _ in range(moves):
                learner.reload()
            assert (left > 0) is (moves == 0)
            assert all(torch.equal(a, b) for a, b in zip(held(learner), before, strict=True))
        return weights(learner)

    monkeypatch.setattr("rllib_lmgame.policies.model.adapters._FROZEN", {})  # Nor what another test has mapped.
    monkeypatch.setattr(network, "load_language_model", loaded)
    assert same(trained(moves=2), trained(moves=0))


def test_moments_of_several_tensors_leave_with_all_of_them() -> None:
    """As the 8-bit ones of torchao: the tensor around them has no memory of its own."""
    inner = [torch.zeros(4), torch.ones(4)]
    assert [*map(id, tensors_in({"exp_avg": TwoTensor(*inner)}))] == [*map(id, inner)]
