"""``benchmarks/estimators.py`` and ``async_rollouts.py``: settings are those of a run."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import async_rollouts
import estimators
import numpy as np
import pytest
from graph_credit import GraphCredit
from vrpo import VRPO

from rllib_lmgame.algorithms.ppo import LMGamePPOConfig
from rllib_lmgame.experiments.checks.check import check_quickly
from rllib_lmgame.experiments.files.reading import read_experiments
from rllib_lmgame.policies.model.tiny import build_tiny_model
from rllib_lmgame.rollouts.records import observation_key


@pytest.mark.parametrize("method", [*estimators.METHODS, "warm start"])
def test_settings_are_those_of_a_run(method: str, tmp_path: Path) -> None:
    if method == "warm start":
        file, settings = estimators.SUPERVISED, estimators.warm_start_settings(1)
    else:
        file = estimators.FILES.get(method, estimators.QUICKSTART)
        model = build_tiny_model(tmp_path, ["Up", "Down", "Left", "Right"])
        settings = estimators.settings(method, seed=1, turns=1000, model=str(model), teacher=str(model))
    specs = read_experiments(str(file), [f"{key}={json.dumps(value)}" for key, value in settings.items()])
    check_quickly(specs)


@pytest.mark.parametrize("tail", [0, 4])
def test_iterations_that_overlap_are_those_of_a_run(tail: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LMGamePPOConfig, "build_algo", lambda config: config.validate())
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'stop'"):
        async_rollouts.measured(SimpleNamespace(tail=tail, games=8, long=1, minibatches=1, wait_ms=0.0), 1, tail)


def test_a_turn_has_the_best_return_that_its_group_found_after_it() -> None:
    inputs: Any = SimpleNamespace(groups=np.array([0, 0, 1]), turn_ranges=np.array([0, 3, 5, 7]), gamma=0.5)
    inputs.turn_rewards = np.array([-1.0, -1.0, -1.0, -1.0, 10.0, 1.0, 1.0])
    found = GraphCredit().turn_returns(inputs, states=np.array([0, 1, 2, 1, 3, 4, 4]))
    assert found.tolist() == [1, -1.5, -1, 4, 10, 1.5, 1], "from state 1 the second game reached the goal"


def test_an_action_is_worth_what_it_leads_to_less_what_was_expected() -> None:
    """A jack bets with 1/4 and is called; it checks, and a king, which bets with 1/2 then, checks too."""
    views = (
        f"{card}. Actions so far: {before}."
        for card, before in (("J", "none"), ("K", "bet"), ("J", "none"), ("K", "check"))
    )
    inputs: Any = SimpleNamespace(
        returns=np.array([-1.0, 1.0, -0.5, 0.5]),
        episodes=("one", "one", "other", "other"),
        roles=np.array([0, 1, 0, 1]),
        role_names=("player_0", "player_1"),
        turn_ranges=np.arange(5),
        turn_offsets=np.arange(5),
        turn_observations=np.array([observation_key(f"Your card: {view}") for view in views]),
        old_logprobs=np.log([0.25, 1.0, 0.75, 0.5]),
        turn_per_token=lambda turns: turns,
    )
    # Not in the batch: what the jack does after check and bet, so 1/2 each, -1.5 chips. A check has -1.25, a bet -2.
    assert VRPO()(inputs) == pytest.approx([-0.28125, 0.0, 0.09375, -0.125])
