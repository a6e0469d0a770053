"""Objectives without a learner: what they make of a batch and its numbers, on several learners as on one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learning import moved, together, update, weights

from rllib_lmgame.algorithms.ppo import LMGamePPOConfig
from rllib_lmgame.base.group import build
from rllib_lmgame.learners.advantages import AdvantageInputs, Estimator, advantage_inputs
from rllib_lmgame.learners.critic import Critic, is_held_out
from rllib_lmgame.learners.data.batching import TokenBatch
from rllib_lmgame.learners.data.sharding import WholeEpisodes
from rllib_lmgame.learners.engines.torch_engine import PARTS, POLICY
from rllib_lmgame.learners.metrics import UpdateMeter, explained_variance, moments
from rllib_lmgame.learners.objectives import ModuleUpdate, PPOObjective
from rllib_lmgame.learners.objectives.base import LearnerSettings
from rllib_lmgame.learners.options import TrainingOptions
from rllib_lmgame.learners.process import ProcessGroup
from rllib_lmgame.rollouts.records import trajectory_of


def settings_of(**ppo: Any) -> LearnerSettings:
    return LearnerSettings(build(TrainingOptions, ppo), gamma=0.99, lam=0.9, vf_loss_coeff=0.3)


def batch_of(episodes: Iterable[Any]) -> TokenBatch:
    played = [trajectory_of(episode.agent_episodes["player"]) for episode in episodes]
    return TokenBatch.from_trajectories(played, max_row_tokens=128)


def update_of(batch: TokenBatch, settings: LearnerSettings, **values: Any) -> ModuleUpdate:
    """An update in which the reference model gives every token its id times -0.01."""
    defaults = {
        "meter": UpdateMeter(),
        "ranks": ProcessGroup(),
        "reference_logprobs": lambda inputs: -0.01 * inputs["target_ids"].float(),
    }
    return ModuleUpdate(module_id="player", batch=batch, settings=settings, **{**defaults, **values})


def recorded(objective: PPOObjective, update: ModuleUpdate) -> ModuleUpdate:
    for pack in update.batch.microbatches(64) if update.batch else []:
        arrays = pack.target_ids, pack.input_ids[pack.bootstrap_index]
        ids, ends = (torch.from_numpy(array).float() for array in arrays)  # A made-up policy goes by ids alone.
        out = {"logprobs": -3.0 - 0.02 * ids, "values": torch.sin(ids), "bootstrap_values": torch.cos(ends)}
        objective.record(update, pack, out, pack.to_torch("cpu"))
    objective.prepare(update)
    return update


class ByGroupAndRole(Estimator):
    """Return minus the mean of the group, and minus the mean over the role on all learners."""

    needs_groups = True

    def __call__(self, inputs: AdvantageInputs) -> np.ndarray:
        means = np.bincount(inputs.groups, weights=inputs.returns) / np.maximum(1, np.bincount(inputs.groups))
        count = len(inputs.role_names)
        totals = inputs.all_reduce(
            [np.bincount(inputs.roles, minlength=count), np.bincount(inputs.roles, inputs.returns, minlength=count)]
        )
        return inputs.per_token(inputs.returns - means[inputs.groups] - (totals[1] / totals[0])[inputs.roles])


@pytest.mark.parametrize(
    ("estimator", "mode"),
    [
        (f"{__name__}:ByGroupAndRole", "batch"),
        (f"{__name__}:ByGroupAndRole", "role"),
        ("gae", "group"),
        ("gae", "game"),
        ("rae", "none"),
        ("gigpo", None),
        ("reinforce_pp", None),
    ],
)
@pytest.mark.parametrize("learners", [2, 3])
def test_several_learners_prepare_what_one_would(
    estimator: str, mode: str | None, learners: int, make_episodes: Any
) -> None:
    """The last of three has no rows at all; one learner lacks a role. What they remember is the same."""
    episodes = make_episodes(8)
    for i, episode in enumerate(episodes):
        about = episode.agent_episodes["player"].custom_data["lmgame"]
        about.group, about.role, about.game = f"g{i % 3}", ("white", "black")[i % 3 == 0], f"game{i % 3 % 2}"
    settings = settings_of(advantage_estimator=estimator, normalize_advantages=mode)
    objectives = [PPOObjective() for _ in range(learners + 1)]
    alone = recorded(objectives[-1], update_of(batch_of(episodes), settings))
    shards = [shard.episodes for shard, _ in WholeEpisodes(episodes=episodes, needs_groups=True).shard(2)]
    batches = [batch_of(shard) for shard in shards] + [TokenBatch.empty()] * (learners - 2)
    updates = together(
        learners, lambda ranks: recorded(objectives[ranks.rank], update_of(batches[ranks.rank], settings, ranks=ranks))
    )

    def by_rewards(update: ModuleUpdate) -> dict[Any, Any]:
        batch = update.batch
        assert batch is not None
        return {
            tuple(batch.rewards[a:b]): (batch.advantages[a:b], batch.returns[a:b])
            for a, b in pairwise(batch.trajectory_offsets)
        }

    found = by_rewards(updates[0]) | by_rewards(updates[1])
    expected = by_rewards(alone)
    assert found.keys() == expected.keys()
    for key, arrays in expected.items():
        np.testing.assert_allclose(found[key], arrays, rtol=1e-4, atol=1e-5)
    for each in updates:
        assert each.meter.before == pytest.approx(alone.meter.before, abs=1e-4)
    remembered = [objective.get_state() for objective in objectives]
    assert all(state == remembered[0] for state in remembered[:-1])
    if estimator == "rae":
        found, exact = (state["estimators"]["rae"]["baselines"] for state in remembered[-2:])
        assert [names for *names, _ in found] == [["game0", "black"], ["game0", "white"], ["game1", "white"]]
        assert [value for *_, value in found] == pytest.approx([value for *_, value in exact])


def test_baselines_begin_anew_when_a_run_is_resumed_with_other_rewards(make_episodes: Any) -> None:
    runs = [LMGamePPOConfig().text_rollouts(**own).run for own in ({}, {"format_penalty": -1.0}, {"reward_scale": 0.5})]
    batches, states = [batch_of(make_episodes(8)[half : half + 4]) for half in (0, 4)], []
    for first, second in ((runs[0], runs[0]), (runs[0], runs[1]), (runs[0], runs[2]), (None, runs[2])):
        objective = PPOObjective()
        for batch, run in zip(batches, (first, second), strict=True):
            if run is not None:
                own = replace(settings_of(advantage_estimator="rae"), rewards=LearnerSettings.of_run(run).rewards)
                recorded(objective, update_of(batch, own))
            objective.set_state(objective.get_state())
        states.append(objective.get_state()["estimators"]["rae"]["baselines"])
    assert states[0] != states[1] == states[2] == states[3]


class LastLayer:
    """Of a value head with three features, where an engine would be."""

    def __init__(self) -> None:
        self.output = (torch.zeros(1, 3), torch.zeros(1))

    def value_output(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.output

    def set_value_output(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        self.output = (weight, bias)


def fit_critic(update: ModuleUpdate) -> None:
    """What a learner does in a critic's warm-up; the features tell the return."""
    objective, batch = PPOObjective(), update.batch
    recorded(objective, update)
    assert update.critic is not None
    inputs = advantage_inputs(batch, gamma=0.99, lam=0.9, ranks=update.ranks)
    returns = objective.critic_targets(update)
    update.critic.begin_fit(inputs, returns, torch.device("cpu"))
    for pack in update.batch.microbatches(64) if update.batch else []:
        ids = torch.from_numpy(pack.target_ids).double() / 64.0
        told = torch.from_numpy(returns[pack.token_slot]).double() + ids
        update.critic.add(pack, torch.stack([ids, ids**2, told], dim=1))
    update.meter.before |= update.critic.finish_fit(last=False)


@pytest.mark.parametrize("learners", [2, 3])
def test_several_learners_fit_the_critic_of_one(learners: int, make_episodes: Any) -> None:
    """Two games, trajectories that are cut short, one learner of three without rows: the same layer."""
    episodes = make_episodes(24)
    for i, episode in enumerate(episodes):
        part = episode.agent_episodes["player"]
        part.custom_data["lmgame"].game = ("maze", "taxi")[i % 3 == 0]
        part.multi_agent_episode_id = f"e{i}"
    assert 0 < sum(is_held_out(f"e{i}") for i in range(24)) < 12
    settings = settings_of()
    batches = [batch_of(some) for some in (episodes, episodes[:9], episodes[9:], [])][: learners + 1]
    layers = [LastLayer() for _ in batches]

    def fitted(ranks: ProcessGroup, number: int) -> ModuleUpdate:
        critic = Critic(layers[number], ranks)  # type: ignore[arg-type]
        prepared = update_of(batches[number], settings, ranks=ranks, critic=critic)
        fit_critic(prepared)
        return prepared

    updates = [fitted(ProcessGroup(), 0), *together(learners, lambda ranks: fitted(ranks, ranks.rank + 1))]
    assert float(layers[0].output[0].abs().max()) > 0
    for each, layer in zip(updates[1:], layers[1:], strict=True):
        for found, exact in zip(layer.output, layers[0].output, strict=True):
            torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-5)
        assert torch.equal(layer.output[0], layers[1].output[0])
        assert each.meter.before == pytest.approx(updates[0].meter.before, abs=1e-4, nan_ok=True)


class Remembers(Estimator):
    """Counts its calls, and needs the reference model."""

    needs_reference = True

    def __call__(self, inputs: AdvantageInputs) -> np.ndarray:
        calls = inputs.memory["calls"] = inputs.memory.get("calls", 0) + 1
        assert inputs.ref_logprobs is not None
        return inputs.ref_logprobs * calls


def test_an_estimator_remembers_and_gets_the_reference_it_asks_for(make_episodes: Any) -> None:
    """Without a penalty too; each objective has a memory of its own."""
    settings, batch = (
        settings_of(advantage_estimator=f"{__name__}:Remembers", normalize_advantages="none"),
        batch_of(make_episodes(4)),
    )
    objective = PPOObjective()
    first, second, other = (
        recorded(each, update_of(batch, settings)).batch.advantages.copy()
        for each in (objective, objective, PPOObjective())
    )
    assert first.min() < 0
    np.testing.assert_allclose(second, 2 * first)
    np.testing.assert_allclose(other, first)


class ValueOnly(PPOObjective):
    """An objective of somebody else's: the policy is left alone."""

    def trained_parts(self, update: ModuleUpdate) -> list[str]:
        return [part for part in PARTS if part != POLICY]


def test_a_learner_minimises_a_given_objective_once(make_learner: Any, make_episodes: Any) -> None:
    learner = make_learner(lr=1e-2)

    def parts(**how: Any) -> set[str]:
        before = weights(learner)
        update(learner, make_episodes(6), **how)
        return {name.partition(".")[0] for name in moved(learner, before)}

    assert parts(objective=ValueOnly()) == {"value_head"}
    assert parts() == {"language_model", "value_head"}


def centred_in_place(inputs: AdvantageInputs) -> np.ndarray:
    rewards = inputs.rewards
    rewards -= rewards.mean()
    return rewards


def shapeless(inputs: AdvantageInputs) -> np.ndarray:
    return inputs.returns


def not_finite(inputs: AdvantageInputs) -> np.ndarray:
    return np.where(np.arange(len(inputs.rewards)) == 0, np.nan, inputs.rewards)


@pytest.mark.parametrize(
    ("estimator", "said"),
    [
        (centred_in_place, "read-only"),
        (shapeless, r"shapeless` gave an array of shape \(3,\) for \d+ action tokens"),
        (not_finite, "test_objectives:not_finite` gave numbers that are not finite"),
    ],
)
def test_an_estimator_changes_nothing_but_its_result_and_gives_numbers(
    estimator: Callable[..., Any], said: str, make_episodes: Any
) -> None:
    settings = settings_of(advantage_estimator=f"{__name__}:{estimator.__name__}")
    with pytest.raises(ValueError, match=said):
        recorded(PPOObjective(), update_of(batch_of(make_episodes(3)), settings))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.sampled_from([0.0, 1.0, -1e4, 1e7]))
def test_moments_are_those_of_everybodys_numbers(seed: int, learners: int, centre: float) -> None:
    """Also where one learner has none."""
    rng = np.random.default_rng(seed)
    values = centre + rng.normal(0.0, 0.01, 40)
    parts = np.split(values, np.sort(rng.integers(0, 41, learners - 1)))
    expected = {"mean": values.mean(), "std": values.std(), "min": values.min(), "max": values.max()}
    for each in together(learners, lambda ranks: moments(parts[ranks.rank], ranks)):
        assert each == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("count", [7, 12001])
@pytest.mark.parametrize("value", [0.0, 1e-3, 84.7, 5000.3, 1e7])
def test_of_returns_that_do_not_vary_nothing_is_explained(value: float, count: int) -> None:
    returns = np.full(count, value, np.float32)
    values = (returns + np.random.default_rng(0).normal(0.0, 0.5, count)).astype(np.float32)
    assert np.isnan(explained_variance(values, returns, ProcessGroup()))
    rounded = returns.copy()
    rounded[::3] = np.nextafter(np.float32(value), np.float32(np.inf))
    assert np.isnan(explained_variance(values, rounded, ProcessGroup()))


@pytest.mark.parametrize(("centre", "scale"), [(0.0, 1e-7), (0.0, 1.0), (1e4, 0.01), (-30.0, 1e-4), (1e7, 10.0)])
def test_explained_variance_of_returns_of_any_size(centre: float, scale: float) -> None:
    rng = np.random.default_rng(0)
    returns = centre + rng.normal(0.0, scale, 5000)
    values = returns + rng.normal(0.0, scale / 2, 5000)
    expected = 1.0 - np.var(returns - values) / np.var(returns)
    assert explained_variance(values, returns, ProcessGroup()) == pytest.approx(expected, rel=1e-6)
