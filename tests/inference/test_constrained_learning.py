"""Under constrained decoding the learner's log-probabilities are the sampler's, with each engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from inference_reference import CONTEXT, STOP, generate_all, learner_module, requests

from rllib_lmgame.inference.protocol import GenerationRequest, SamplingSpec, allowed_tokens
from rllib_lmgame.learners.data.batching import TokenBatch
from rllib_lmgame.rollouts.records import Trajectory, Turn

CHOICES = ((11, 12, 30, STOP), (11, 13, 14, 30, STOP), (20, 21, STOP), (11, 12, 15, 16, STOP), (22, 21, STOP))
NEWS = (40, 41, 42)
"""Ids between the first reply and the second."""


@pytest.fixture(scope="module")
def module(model_dir: str) -> Any:
    """The engines' first model as the learner holds it."""
    return learner_module(model_dir, CONTEXT)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_sampler_and_learner_agree_under_constraint(engine: Any, module: Any, temperature: float) -> None:
    """Of two turns of a row one is constrained and one free, in either order; the first tokens of a choice differ much
    in probability from those of the vocabulary.
    """
    spec = SamplingSpec(9, temperature=temperature, stop_token_ids=(STOP,))
    asked = [
        *requests(24, spec, prefix=f"legal{temperature}-", choices=CHOICES),
        *requests(8, spec, prefix=f"free{temperature}-", seed=5),
    ]
    trajectories = [Trajectory([], terminated=True) for _ in asked]
    for number in range(2):
        then = []
        for request, generation, played in zip(asked, generate_all(engine, asked), trajectories, strict=True):
            ids = generation.response_ids
            allowed = None if request.choices is None else allowed_tokens(request.choices, tuple(ids.tolist()))
            prompt = np.array(NEWS if number else request.prompt_ids, np.int32)
            played.turns.append(Turn(prompt, ids, generation.logprobs, new_row=not number, allowed=allowed))
            context = [*request.prompt_ids, *ids.tolist(), *NEWS]
            choices = CHOICES if request.choices is None else None
            then.append(GenerationRequest(f"{request.request_id}-then", context, spec, choices))
        asked = then
    batch = TokenBatch.from_trajectories(trajectories, max_row_tokens=CONTEXT)
    turns = [turn for played in trajectories for turn in played.turns]
    decided = sum(len(t.response_ids) if t.allowed is None else int((t.allowed.counts > 1).sum()) for t in turns)
    assert batch.num_rows == len(trajectories)
    assert batch.num_actions == decided < sum(len(turn.response_ids) for turn in turns)
    for pack in batch.microbatches(100):
        with torch.no_grad():
            out = module.forward_train(pack.to_torch() | {"temperature": temperature, "head_chunks": 3})
        batch.put(pack, old_logprobs=out["logprobs"].numpy())
    np.testing.assert_allclose(batch.old_logprobs, batch.rollout_logprobs, atol=2e-5)
