"""Every option of ``token_ppo`` that may follow a schedule acts where it changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rllib_lmgame.learners.data.rows import WholeEpisodes
from rllib_lmgame.settings.schedules import schedulable
from rllib_lmgame.settings.sections.token_ppo import TokenPPOOptions

NEEDS: dict[str, tuple[dict[str, Any], float]] = {
    "advantage_estimator.baseline_decay": ({"advantage_estimator": "rae"}, 0.1),
    "critic.warmup.lr": ({"critic": {"warmup": {"type": "gradient", "iterations": 5}}}, 0.1),
    "critic.lr": ({}, 0.1),
    "critic.clip": ({}, 1e-4),
    "critic.grad_clip": ({}, 1e-3),
    "advantage_std_floor": ({}, 100.0),
    "policy_loss.low": ({}, 0.001),
    "policy_loss.high": ({}, 0.001),
    "policy_loss.dual": ({}, 1.0001),
    "aggregation.length": ({"aggregation": {"type": "constant_length", "length": 16}}, 64),
    "importance.cap": ({}, 0.1),
    "entropy.target": ({"entropy": {"target": 1e-9}}, 9.0),
    "entropy.rate": ({"entropy": {"target": 9.0}}, 0.5),
    "kl.coeff_range": ({}, 1.0),
    "staleness_limit": ({}, 0),
    "num_minibatches": ({}, 4),
}
"""Option -> what of the section it needs beside it, and another value than it has there."""
TIMES = {"update_s", "trained_tokens_per_s"}


def test_the_table_names_all_of_them() -> None:
    assert NEEDS.keys() == {*schedulable(TokenPPOOptions)}


def outcome(
    make_learner: Callable[..., Any], make_episodes: Callable[..., list[Any]], ppo: dict[str, Any], scheduled: Any
) -> dict[str, Any]:
    """What an update leaves that is the second of a run: numbers of the result, coefficients and weights."""
    options = {"num_minibatches": 2, **ppo}
    learner = make_learner(lr=1e-2, num_epochs=2, use_kl_loss=True, kl_coeff=0.2, token_ppo=options)
    for number, values in enumerate(({}, scheduled)):
        data = WholeEpisodes(episodes=make_episodes(8, seed=number))
        metrics = MetricsLogger.peek_results(learner.update(training_data=data, scheduled=values))["player"]
    weights = {name: p.detach().double().sum().item() for name, p in learner.module["player"].named_parameters()}
    numbers = {name: float(value) for name, value in metrics.items() if name not in TIMES}
    return numbers | weights | {"kl": float(learner.curr_kl_coeffs_per_module["player"])}


def test_an_update_without_a_change_is_repeated_bit_for_bit(
    make_learner: Callable[..., Any], make_episodes: Callable[..., list[Any]]
) -> None:
    """Else it would say nothing that a changed value makes another."""
    torch.manual_seed(0)
    plain = outcome(make_learner, make_episodes, {}, {})
    same = outcome(make_learner, make_episodes, {}, {"token_ppo.num_minibatches": 2, "token_ppo.importance.cap": 2.0})
    assert same == pytest.approx(plain, rel=0, abs=0, nan_ok=True)


@pytest.mark.parametrize("name", NEEDS)
def test_a_changed_value_changes_an_update(
    name: str, make_learner: Callable[..., Any], make_episodes: Callable[..., list[Any]]
) -> None:
    beside, value = NEEDS[name]
    plain = outcome(make_learner, make_episodes, beside, {})
    changed = outcome(make_learner, make_episodes, beside, {f"token_ppo.{name}": value})
    assert changed != pytest.approx(plain, rel=0, abs=0, nan_ok=True)
