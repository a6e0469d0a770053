"""Importance weights and a KL penalty in the reward, against loops over tokens."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_batching import Row, batch_of, make_row, row_lists
from test_policy_losses import column, number, tokens_of

from rllib_lmgame.base.group import build
from rllib_lmgame.base.registry import POLICY_LOSSES
from rllib_lmgame.learners.data.batching import TokenBatch
from rllib_lmgame.learners.losses.policy import PolicyTerms
from rllib_lmgame.learners.metrics import UpdateMeter
from rllib_lmgame.learners.objectives import ModuleUpdate, PPOObjective
from rllib_lmgame.learners.objectives.base import LearnerSettings
from rllib_lmgame.learners.objectives.ppo import importance_weights
from rllib_lmgame.learners.options import IMPORTANCE_LEVELS, ImportanceSamplingOptions, TrainingOptions
from rllib_lmgame.learners.process import ProcessGroup


def known_batch(rows: list[Row]) -> TokenBatch:
    batch = batch_of(rows)
    ids = batch._ids[batch._action_position]
    batch.old_logprobs, batch.rollout_logprobs = column(ids, "old"), column(ids, "rollout")
    return batch


def ratio_by_hand(rows: list[Row], token: int, level: str) -> float:
    """Over the tokens of the turn or trajectory in all its rows."""
    tokens = tokens_of(rows)
    (own,) = (each for each in tokens if each[3] == token)
    members = {
        "token": [own],
        "turn": [each for each in tokens if each[1:3] == own[1:3]],
        "trajectory": [each for each in tokens if each[1] == own[1]],
    }[level.split("_")[0]]
    gaps = [number(each[3], "old") - number(each[3], "rollout") for each in members]
    return math.exp(sum(gaps) / (len(gaps) if level.endswith("geometric") else 1))


@settings(max_examples=30, deadline=None)
@given(
    row_lists(),
    st.sampled_from(IMPORTANCE_LEVELS),
    st.sampled_from(IMPORTANCE_LEVELS),
    st.sampled_from([None, 1.2]),
    st.booleans(),
)
def test_weights_are_truncated_ratios_and_zero_outside_the_band(
    rows: list[Row], level: str, band_level: str, cap: float | None, to_sampler: bool
) -> None:
    ppo = build(
        ImportanceSamplingOptions, {"cap": cap, "level": level, "mask": {"low": 0.8, "high": 1.3, "level": band_level}}
    )
    weights, capped, left_out = importance_weights(known_batch(rows), ppo, to_sampler=to_sampler)
    for slot, (*_, token) in enumerate(tokens_of(rows)):
        ratio = ratio_by_hand(rows, token, level)
        weight = 1.0 if cap is None or to_sampler else min(ratio, cap)
        masked = not 0.8 <= ratio_by_hand(rows, token, band_level) <= 1.3
        assert weights[slot] == pytest.approx(0.0 if masked else weight)
        assert bool(left_out[slot]) == masked
        assert bool(capped[slot]) == (weight != 1.0 and ratio > (cap or math.inf))


def test_metrics_say_what_was_truncated_and_masked() -> None:
    rows = [make_row(9, list(range(1, 9)), 0)]
    update = update_of(rows, importance_sampling={"cap": 1.05, "mask": {"low": 0.9, "high": 1.2}})
    assert update.batch is not None
    PPOObjective().prepare(update)
    learned = range(1, 9)
    ratios = np.exp(column(learned, "old") - column(learned, "rollout"))
    masked = (ratios < 0.9) | (ratios > 1.2)
    assert update.meter.before["importance_masked_fraction"] == pytest.approx(masked.mean())
    assert update.meter.before["importance_capped_fraction"] == pytest.approx((ratios > 1.05).mean())
    assert update.meter.before["importance_weight"] == pytest.approx(
        np.where(masked, 0, np.minimum(ratios, 1.05)).mean(), rel=1e-4
    )


def likelihood(terms: PolicyTerms) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """A policy loss of one's own."""
    return -terms.advantages * terms.logprobs, {}


@pytest.mark.parametrize("name", [*POLICY_LOSSES, f"{__name__}:likelihood"])
def test_every_policy_loss_is_multiplied_by_the_weights(name: str) -> None:
    slopes, weights = [], np.ones(0)
    for options in (
        {"importance_sampling": None},
        {"importance_sampling": {"cap": 1.05, "mask": {"low": 0.9, "high": 1.2}}},
    ):
        update, objective = update_of([make_row(9, list(range(1, 9)), 0)], policy_loss=name, **options), PPOObjective()
        objective.prepare(update)
        assert update.batch is not None
        (pack,), weights = update.batch.microbatches(30), update.batch.importance_weights
        new = torch.tensor(column(pack.target_ids, "old"), requires_grad=True)
        values, entropy = (torch.tensor(column(pack.target_ids, part)) for part in ("value", "entropy"))
        out = {"logprobs": new, "values": values, "entropy": entropy}
        loss, _ = objective.loss(replace(update, kl_coefficient=0.0), pack, out)
        slopes.append(torch.autograd.grad(loss, new)[0].numpy()[np.argsort(pack.token_slot)])
    assert slopes[1].any() and 0.0 in weights
    np.testing.assert_allclose(slopes[1], weights * slopes[0], rtol=1e-6)


def test_without_a_cap_no_ratio_is_needed() -> None:
    """Which would be of a whole turn, of which some tokens are known."""
    batch = known_batch([make_row(9, list(range(1, 9)), 0)])
    options = ImportanceSamplingOptions(cap=None, level="turn")
    weights, capped, masked = importance_weights(batch, options, tokens=np.array([1, 2]))
    assert weights.tolist() == [1.0, 1.0] and not capped.any() and not masked.any()


GAMMA, LAMBDA, COEFFICIENT = 0.95, 0.8, 0.3


def update_of(rows: list[Row], **ppo: Any) -> ModuleUpdate:
    """An update whose batch has all that is known before the first step."""
    batch = batch_of(rows)
    ids = batch._ids[batch._action_position]
    names = {"old_logprobs": "old", "rollout_logprobs": "rollout", "ref_logprobs": "ref", "values": "value"}
    for attribute, name in names.items():
        setattr(batch, attribute, column(ids, name).astype(np.float32))
    options = build(TrainingOptions, {"normalize_advantages": "none", "critic": {"target": "gae"}, **ppo})
    return ModuleUpdate(
        module_id="player",
        settings=LearnerSettings(options, gamma=GAMMA, lam=LAMBDA, vf_loss_coeff=0.5),
        batch=batch,
        meter=UpdateMeter(),
        ranks=ProcessGroup(),
        reference_logprobs=lambda inputs: None,
        kl_coefficient=COEFFICIENT,
    )


@settings(max_examples=20, deadline=None)
@given(row_lists())
def test_advantages_and_returns_are_those_of_penalised_rewards(rows: list[Row]) -> None:
    update = update_of(rows, kl={"as": "reward"})
    PPOObjective().prepare(update)
    batch = update.batch
    assert batch is not None
    for a, b in pairwise(batch.trajectory_offsets.tolist()):
        running = following = 0.0
        for t in reversed(range(a, b)):
            gap = float(batch.old_logprobs[t]) - float(batch.ref_logprobs[t])
            reward = float(batch.rewards[t]) - COEFFICIENT * gap
            value = float(batch.values[t])
            running = reward + GAMMA * following - value + GAMMA * LAMBDA * running
            following = value
            assert batch.advantages[t] == pytest.approx(running, rel=1e-4, abs=1e-4)
            assert batch.returns[t] == pytest.approx(running + value, rel=1e-4, abs=1e-4)


@settings(max_examples=10, deadline=None)
@given(row_lists(), st.booleans())
def test_the_penalty_is_in_one_place_and_reported_in_both(rows: list[Row], in_reward: bool) -> None:
    update = update_of(rows, kl="reward" if in_reward else {"loss_estimator": "k2"})
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
        estimates = [gap if in_reward else min(math.exp(-gap) - 1 + gap, 10.0) for gap in gaps]
        assert sums["mean_kl_loss"].item() == pytest.approx(sum(estimates), rel=1e-4, abs=1e-4)
    expected = np.zeros(len(gaps)) if in_reward else COEFFICIENT * np.array(gaps)
    np.testing.assert_allclose(found[0] - found[1], expected, rtol=1e-4, atol=1e-5)
