"""The KL penalty in the reward against its definition, token by token."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_aggregation import column
from test_batching import row_lists

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.learners.data.batching import TokenBatch
from rllib_lmgame.learners.data.rows import Row
from rllib_lmgame.learners.metrics import UpdateMeter
from rllib_lmgame.learners.objectives import ModuleUpdate, PPOObjective
from rllib_lmgame.learners.ranks import Ranks
from rllib_lmgame.learners.settings import LearnerSettings
from rllib_lmgame.settings.schema import build
from rllib_lmgame.settings.sections.token_ppo import TokenPPOOptions

GAMMA, LAMBDA, COEFFICIENT = 0.95, 0.8, 0.3

ESTIMATES = {
    "k1": lambda gap: gap,
    "k2": lambda gap: gap * gap / 2,
    "k3": lambda gap: min(math.exp(-gap) - 1 + gap, 10.0),
}


def update_of(rows: list[Row], **ppo: Any) -> ModuleUpdate:
    """An update whose batch has all that is known before the first step."""
    batch = TokenBatch.from_rows(rows)
    ids = batch.action_ids
    names = {"old_logprobs": "old", "rollout_logprobs": "rollout", "ref_logprobs": "ref", "values": "value"}
    for attribute, name in names.items():
        setattr(batch, attribute, column(ids, name).astype(np.float32))
    options = build(TokenPPOOptions, {"normalize_advantages": "none", "critic": {"target": "gae"}, **ppo})
    return ModuleUpdate(
        module_id="player",
        settings=LearnerSettings(options, gamma=GAMMA, lam=LAMBDA, vf_loss_coeff=0.5),
        batch=batch,
        meter=UpdateMeter(),
        ranks=Ranks(),
        reference_logprobs=lambda inputs: None,
        kl_coefficient=COEFFICIENT,
    )


@pytest.mark.parametrize("estimator", [None, *ESTIMATES])
@settings(max_examples=10, deadline=None)
@given(row_lists())
def test_advantages_and_returns_are_those_of_penalised_rewards(estimator: str | None, rows: list[Row]) -> None:
    update = update_of(rows, kl={"in": "reward", "estimator": estimator})
    PPOObjective().prepare(update)
    batch = update.batch
    assert batch is not None
    for a, b in pairwise(batch.trajectory_offsets.tolist()):
        running = following = 0.0
        for t in reversed(range(a, b)):
            gap = float(batch.old_logprobs[t]) - float(batch.ref_logprobs[t])
            reward = float(batch.rewards[t]) - COEFFICIENT * ESTIMATES[estimator or "k1"](gap)
            value = float(batch.values[t])
            running = reward + GAMMA * following - value + GAMMA * LAMBDA * running
            following = value
            assert batch.advantages[t] == pytest.approx(running, rel=1e-4, abs=1e-4)
            assert batch.returns[t] == pytest.approx(running + value, rel=1e-4, abs=1e-4)


@settings(max_examples=10, deadline=None)
@given(row_lists(), st.booleans())
def test_the_penalty_is_in_one_place_and_reported_in_both(rows: list[Row], in_reward: bool) -> None:
    update = update_of(rows, kl="reward" if in_reward else {"gradient": "k2"})
    objective = PPOObjective()
    objective.prepare(update)
    (pack,) = update.batch.microbatches(10_000)
    if not pack.num_actions:
        return
    new = torch.tensor(column(pack.target_ids, "new"), requires_grad=True)
    out = {name: torch.tensor(column(pack.target_ids, name)) for name in ("value", "entropy")}
    found = []
    for coefficient in (COEFFICIENT, 0.0):
        at = ModuleUpdate(**{**vars(update), "kl_coefficient": coefficient})
        total, sums = objective.loss(at, pack, {"logprobs": new, "values": out["value"], "entropy": out["entropy"]})
        found.append(torch.autograd.grad(total, new)[0].numpy())
        gaps = (new.detach().numpy() - column(pack.target_ids, "ref")).tolist()
        estimate = ESTIMATES["k1" if in_reward else "k3"]
        assert sums["mean_kl_loss"].item() == pytest.approx(sum(map(estimate, gaps)), rel=1e-4, abs=1e-4)
    expected = np.zeros(len(gaps)) if in_reward else COEFFICIENT * np.array(gaps)
    np.testing.assert_allclose(found[0] - found[1], expected, rtol=1e-4, atol=1e-5)


def test_a_penalty_in_the_reward_has_no_gradient() -> None:
    with pytest.raises(ConfigError, match="has no effect with in: reward; it belongs to in: loss") as caught:
        build(TokenPPOOptions, {"kl": {"in": "reward", "gradient": "k3"}}, "token_ppo")
    assert caught.value.path == "token_ppo.kl.gradient"
