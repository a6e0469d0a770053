"""Who is trained, and how often: seats that are not, and policies that have few rows beside one that has many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from episode_parts import episode_of, part_of
from learning import TIMES, same, update, weights
from ray.rllib.algorithms.ppo.torch import ppo_torch_learner

from rllib_lmgame.rollouts.plans import AgentAssignment
from rllib_lmgame.rollouts.records import CUSTOM_DATA_KEY, Trajectory, Turn

PPO = {"max_tokens_per_microbatch": 64, "num_minibatches": 2, "normalize_advantages": "role"}


def match(seed: int, trained: set[str], *, foul: bool = False, bare: bool = False) -> Any:
    """A game of two seats that one policy plays.

    Args:
        seed: Of what is said in it.
        trained: Seats that are.
        foul: The others have other rewards and other texts, of which a loss could make nothing.
        bare: The others are left out altogether.
    """
    rng = np.random.default_rng(seed)
    parts, assignments = [], {}
    for seat in ("white", "black"):
        ids = [rng.integers(0, 64, size).astype(np.int32) for size in rng.integers(2, 9, 4)]
        rewards = rng.normal(size=2)
        if seat not in trained and bare:
            continue
        if seat not in trained and foul:
            ids, rewards = [np.full(9, 63, np.int32)] * 4, np.array([np.nan, 1e30])
        turns = [
            Turn(ids[2 * i], ids[2 * i + 1], np.full(len(ids[2 * i + 1]), -3.0, np.float32), reward=float(rewards[i]))
            for i in range(2)
        ]
        turns[0].new_row = True
        assignments[seat] = AgentAssignment("player", trained=seat in trained)
        parts.append(part_of(Trajectory(turns, terminated=True, module_id="player", agent_id=seat, role=seat)))
    episode = episode_of(*parts)
    episode.custom_data[CUSTOM_DATA_KEY] = assignments
    return episode


def test_a_seat_that_is_not_trained_has_no_gradient_and_no_part_in_any_mean(make_learner: Any) -> None:
    """Bit for bit what comes of episodes in which it is not, whatever it says or gets: even NaN."""
    outcomes = []
    trained = [{"white"}, {"black"}, {"white", "black"}, {"white"}, set()]
    for how in ({}, {"foul": True}, {"bare": True}):
        learner = make_learner(training=PPO, use_kl_loss=True, kl_target=1e-6, num_epochs=2, lr=1e-2)
        for round_ in range(2):
            metrics = update(learner, [match(10 * round_ + i, seats, **how) for i, seats in enumerate(trained)])
        outcomes.append((weights(learner), metrics))
    (plain, figures), *others = outcomes
    assert figures["num_rows"] == 5
    for moved, numbers in others:
        assert same(plain, moved)
        for name in figures.keys() - TIMES:
            assert numbers[name] == figures[name], name


def test_a_policy_with_few_rows_is_trained_as_if_alone(make_learner: Any, make_episodes: Any) -> None:
    """Bit for bit: weights, optimizer steps, penalty. Each row once per epoch, however many another policy has."""
    count = {"few": 2, "many": 12}
    ppo = {"num_minibatches": 3, "lr_warmup_steps": 9, "kl": {"reference": {"type": "ema", "decay": 0.5}}}
    kwargs = {"training": ppo, "use_kl_loss": True, "kl_target": 1e-6, "num_epochs": 2, "lr": 1e-2}
    begun = make_learner(**kwargs).module["player"].state_dict()
    for name, other in (("few", "many"), ("many", "few")):
        alone, both = make_learner(modules=(name,), **kwargs), make_learner(modules=("few", "many"), **kwargs)
        for learner, module in ((alone, name), (both, name), (both, other)):
            learner.module[module].load_state_dict(begun)
        for seed in range(2):
            own = make_episodes(count[name], seed=seed, module=name)
            expected = update(alone, own, name)
            found = update(both, make_episodes(count[other], seed=7 + seed, module=other) + own, name)
            assert found["num_steps"] == 2 * min(3, count[name])
            for key in expected.keys() - TIMES:
                assert found[key] == expected[key], key
        assert same(weights(both, name), weights(alone, name))


def test_a_policy_without_rows_keeps_what_it_has(
    make_learner: Any, make_episodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, penalty, reference. Its last KL says nothing about an update it had no part in, and RLlib does not warn
    of one that is not finite.
    """
    learner = make_learner(
        modules=("player", "other"),
        training={"num_minibatches": 2, "kl": {"reference": {"type": "ema", "decay": 0.5}}},
        use_kl_loss=True,
        kl_target=1e-6,
        lr=1e-2,
    )
    update(learner, make_episodes(6) + make_episodes(6, module="other"))

    def state() -> tuple[float, int, dict[str, torch.Tensor]]:
        tensors = weights(learner, "other") | {
            n: p.clone() for n, p in learner.reference("other").module.hf_state().items()
        }
        return float(learner.curr_kl_coeffs_per_module["other"]), learner.updates["other"], tensors

    before, warnings = state(), list[str]()
    monkeypatch.setattr(ppo_torch_learner.logger, "warning", warnings.append)
    for seed in range(2):
        update(learner, make_episodes(6, seed=seed))
    after = state()
    assert after[:2] == before[:2] == (pytest.approx(0.3), 1)
    assert not warnings
    assert same(after[2], before[2])
