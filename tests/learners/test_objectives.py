"""Objectives without a learner: what they make of a batch, against the definition; and how a learner finds one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.learners.advantages import AdvantageInputs, advantage_inputs
from rllib_lmgame.learners.critic.critic import Critic, is_held_out
from rllib_lmgame.learners.data.batching import NO_ROWS, PackedBatch, TokenBatch
from rllib_lmgame.learners.data.rows import WholeEpisodes, build_rows
from rllib_lmgame.learners.engines.torch_engine import PARTS, POLICY
from rllib_lmgame.learners.metrics import UpdateMeter
from rllib_lmgame.learners.objectives import (
    ModuleUpdate,
    PPOObjective,
    SupervisedObjective,
    resolve_objective,
)
from rllib_lmgame.learners.ranks import Ranks
from rllib_lmgame.learners.settings import LearnerSettings
from rllib_lmgame.rollouts.records import trajectory_of
from rllib_lmgame.settings.plugins import OBJECTIVES
from rllib_lmgame.settings.schema import build
from rllib_lmgame.settings.sections.token_ppo import TokenPPOOptions


def settings_of(**ppo: Any) -> LearnerSettings:
    return LearnerSettings(build(TokenPPOOptions, ppo), gamma=0.99, lam=0.9, vf_loss_coeff=0.3)


def batch_of(episodes: Iterable[Any]) -> TokenBatch:
    return TokenBatch.from_rows(
        build_rows([trajectory_of(episode.agent_episodes["player"]) for episode in episodes], max_row_tokens=128)
    )


def update_of(batch: TokenBatch | None, settings: LearnerSettings, **values: Any) -> ModuleUpdate:
    """An update in which the reference model gives every token its id times -0.01."""
    defaults = {
        "meter": UpdateMeter(),
        "ranks": Ranks(),
        "reference_logprobs": lambda inputs: -0.01 * inputs["target_ids"].float(),
    }
    return ModuleUpdate(module_id="player", batch=batch, settings=settings, **{**defaults, **values})


def old_policy(pack: PackedBatch) -> dict[str, torch.Tensor]:
    """What a made-up policy gives, by ids alone."""
    ids, ends = (torch.from_numpy(array).float() for array in (pack.target_ids, pack.input_ids[pack.bootstrap_index]))
    return {"logprobs": -3.0 - 0.02 * ids, "values": torch.sin(ids), "bootstrap_values": torch.cos(ends)}


def recorded(objective: PPOObjective, update: ModuleUpdate) -> ModuleUpdate:
    for pack in update.batch.microbatches(64) if update.batch else []:
        objective.record(update, pack, old_policy(pack), pack.to_torch("cpu"))
    objective.prepare(update)
    return update


@pytest.mark.parametrize("only_critic", [False, True])
def test_the_loss_of_ppo_is_the_one_written_out(only_critic: bool, make_episodes: Callable[..., list[Any]]) -> None:
    """Clip, value loss, entropy and penalty of a batch, token by token."""
    chosen = {
        "critic": {"warmup": {"iterations": 2}, "target": "gae"},
        "importance": {"cap": 1.5},
        "kl": {"estimator": "k1"},
    }
    settings = settings_of(**chosen)
    objective, batch = PPOObjective(), batch_of(make_episodes(7))
    values = {"entropy_coefficient": 0.05, "kl_coefficient": 0.7, "num_updates": 1 if only_critic else 2}
    update = recorded(objective, update_of(batch, settings, **values))
    (pack,) = batch.microbatches(10_000)
    noise = torch.from_numpy(np.random.default_rng(0).normal(0.0, 0.3, (3, pack.num_actions))).float()
    before = old_policy(pack)
    out = {
        "logprobs": (before["logprobs"] + noise[0]).requires_grad_(),
        "values": before["values"] + noise[1],
        "entropy": noise[2].abs(),
    }
    total, sums = objective.loss(update, pack, out)

    old, value = before["logprobs"].tolist(), np.zeros(batch.num_actions)
    value[pack.token_slot] = before["values"].numpy()
    after = np.zeros(len(batch.trajectory_ids))
    after[pack.bootstrap_slot] = before["bootstrap_values"].numpy()
    gae = np.zeros(batch.num_actions)
    for n, (a, b) in enumerate(pairwise(batch.trajectory_offsets)):
        running, following = 0.0, after[n]
        for t in reversed(range(a, b)):
            running = batch.rewards[t] + 0.99 * following - value[t] + 0.99 * 0.9 * running
            gae[t], following = running, value[t]
    normal = (gae - gae.mean()) / gae.std()
    expected = 0.0
    for a, slot in enumerate(pack.token_slot):
        new, ref = out["logprobs"][a].item(), -0.01 * float(pack.target_ids[a])
        ratio, weight = np.exp(new - old[a]), min(np.exp(old[a] - batch.rollout_logprobs[slot]), 1.5)
        expected += 0.3 * (float(out["values"][a]) - gae[slot] - value[slot]) ** 2
        if not only_critic:
            expected -= weight * min(normal[slot] * ratio, normal[slot] * np.clip(ratio, 0.8, 1.28))
            expected += -0.05 * float(out["entropy"][a]) + 0.7 * (new - ref) ** 2 / 2
    assert sums["total_loss"].item() == total.item() == pytest.approx(expected, rel=1e-4)
    assert sums["mean_kl_loss"] == pytest.approx(
        float((out["logprobs"].detach() + 0.01 * torch.from_numpy(pack.target_ids)).sum()), rel=1e-4
    )
    assert total.requires_grad != only_critic
    assert set(objective.trained_parts(update)) == set(PARTS) - ({POLICY} if only_critic else set())
    assert objective.forward_flags(update) == {
        "temperature": 1.0,
        "entropy_gradient": True,
        "detach_backbone": only_critic,
        "with_values": True,
    }


class Meeting:
    """Lets the threads that stand for learners exchange what they have."""

    def __init__(self, members: int) -> None:
        self.parts: list[Any] = [None] * members
        self.barrier = threading.Barrier(members, timeout=120)

    def exchange(self, rank: int, part: Any) -> list[Any]:
        self.parts[rank] = part
        self.barrier.wait()
        found = list(self.parts)
        self.barrier.wait()
        return found


class ThreadRanks(Ranks):
    """Learners that are threads of this process."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        super().__init__(len(meeting.parts), rank)
        self.meeting = meeting

    def sum(self, values: Any) -> np.ndarray:
        return np.sum([np.asarray(part, np.float64) for part in self.meeting.exchange(self.rank, values)], axis=0)

    def max(self, values: Any) -> np.ndarray:
        return np.max([np.asarray(part, np.float64) for part in self.meeting.exchange(self.rank, values)], axis=0)

    def union(self, names: Iterable[str]) -> list[str]:
        return sorted({name for part in self.meeting.exchange(self.rank, list(names)) for name in part})


class ByGroupAndRole:
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
        ("role_baseline", "none"),
        ("gigpo", None),
        ("reinforce_pp", None),
    ],
)
@pytest.mark.parametrize("learners", [2, 3])
def test_several_learners_prepare_what_one_would(
    estimator: str, mode: str | None, learners: int, make_episodes: Callable[..., list[Any]]
) -> None:
    """The last of three has no rows at all; one learner lacks a role. What they remember is the same."""
    episodes = make_episodes(8)
    for i, episode in enumerate(episodes):
        part = episode.agent_episodes["player"]
        part.custom_data["lmgame"] |= {
            "group": f"g{i % 3}",
            "role": ("white", "black")[i % 3 == 0],
            "game": f"game{i % 3 % 2}",
        }
    settings = settings_of(advantage_estimator=estimator, normalize_advantages=mode)
    objectives = [PPOObjective() for _ in range(learners + 1)]
    alone = recorded(objectives[-1], update_of(batch_of(episodes), settings))
    shards = [shard.episodes for shard, _ in WholeEpisodes(episodes=episodes, needs_groups=True).shard(2)]
    batches = [batch_of(shard) for shard in shards] + [None] * (learners - 2)
    meeting = Meeting(learners)
    updates = [update_of(batch, settings, ranks=ThreadRanks(meeting, rank)) for rank, batch in enumerate(batches)]
    threads = [threading.Thread(target=recorded, args=each) for each in zip(objectives, updates, strict=False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

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
    for update in updates:
        assert update.meter.before == pytest.approx(alone.meter.before, abs=1e-4)
    remembered = [objective.get_state() for objective in objectives]
    assert all(state == remembered[0] for state in remembered[:-1])
    if estimator == "role_baseline":
        found, exact = (state["estimators"]["rae"]["baselines"] for state in remembered[-2:])
        assert [names for *names, _ in found] == [
            ["game0", "black"],
            ["game0", "white"],
            ["game1", "white"],
        ]
        assert [value for *_, value in found] == pytest.approx([value for *_, value in exact])


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
    objective, batch = PPOObjective(), update.batch or NO_ROWS
    recorded(objective, update)
    assert update.critic is not None
    inputs = advantage_inputs(batch, gamma=0.99, lam=0.9, ranks=update.ranks)
    returns = objective.critic_targets(update)
    sums = update.critic.begin_fit(inputs, returns, torch.device("cpu"))
    for pack in update.batch.microbatches(64) if update.batch else []:
        ids = torch.from_numpy(pack.target_ids).double() / 64.0
        told = torch.from_numpy(returns[pack.token_slot]).double() + ids
        sums.add(pack, torch.stack([ids, ids**2, told], dim=1))
    update.meter.before |= update.critic.finish_fit(sums, last=False)
    update.critic.rescale()


@pytest.mark.parametrize("learners", [2, 3])
def test_several_learners_fit_and_normalise_the_critic_of_one(
    learners: int, make_episodes: Callable[..., list[Any]]
) -> None:
    """Two games, trajectories that are cut short, one learner of three without rows: the same layer and units."""
    episodes = make_episodes(24)
    for i, episode in enumerate(episodes):
        part = episode.agent_episodes["player"]
        part.custom_data["lmgame"] |= {"game": ("maze", "taxi")[i % 3 == 0]}
        part.multi_agent_episode_id = f"e{i}"
    assert 0 < sum(is_held_out(f"e{i}") for i in range(24)) < 12
    settings = settings_of(critic={"normalization": "popart"})
    batches = [batch_of(episodes), batch_of(episodes[:9]), batch_of(episodes[9:])] + [None] * (learners - 2)
    meeting = Meeting(learners)
    everyones = [Ranks()] + [ThreadRanks(meeting, rank) for rank in range(learners)]
    layers = [LastLayer() for _ in everyones]
    updates = [
        update_of(batch, settings, ranks=ranks, critic=Critic(layer, ranks))
        for batch, ranks, layer in zip(batches, everyones, layers, strict=True)
    ]
    fit_critic(updates[0])
    threads = [threading.Thread(target=fit_critic, args=[update]) for update in updates[1:]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert float(layers[0].output[0].abs().max()) > 0
    for update, layer in zip(updates[1:], layers[1:], strict=True):
        for found, exact in zip(layer.output, layers[0].output, strict=True):
            torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-5)
        assert torch.equal(layer.output[0], layers[1].output[0])
        assert update.meter.before == pytest.approx(updates[0].meter.before, abs=1e-4, nan_ok=True)
        for game, units in updates[0].critic.get_state().items():
            assert update.critic.get_state()[game] == pytest.approx(units, rel=1e-6, abs=1e-6)


class Remembers:
    """Counts its calls, and needs the reference model."""

    needs_reference = True

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, inputs: AdvantageInputs) -> np.ndarray:
        self.calls += 1
        assert inputs.ref_logprobs is not None
        return inputs.ref_logprobs * self.calls


def test_an_estimator_remembers_and_gets_the_reference_it_asks_for(make_episodes: Callable[..., list[Any]]) -> None:
    """Without a penalty too; one estimator per objective."""
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


def test_one_objective_serves_policies_with_different_estimators() -> None:
    objective = PPOObjective()
    names = ["gae", f"{__name__}:ByGroupAndRole", "gae"]
    assert [objective.needs_groups(settings_of(advantage_estimator=name)) for name in names] == [False, True, False]


@pytest.mark.parametrize(
    ("choice", "mode", "deviation"),
    [
        ("reinforce", None, None),
        ({"type": "reinforce"}, "batch", 1.0),
        ("turn_gae", None, 1.0),
        ("turn_gae", "none", None),
    ],
)
def test_advantages_with_a_scale_of_their_own_keep_it(
    choice: Any, mode: str | None, deviation: float | None, make_episodes: Callable[..., list[Any]]
) -> None:
    settings = settings_of(advantage_estimator=choice, normalize_advantages=mode)
    update = recorded(PPOObjective(), update_of(batch_of(make_episodes(6)), settings))
    expected = deviation or update.meter.before["advantage_std"]
    assert update.batch.advantages.std() == pytest.approx(expected, rel=1e-4)
    assert update.meter.before["advantage_std"] != pytest.approx(1.0, rel=1e-2)


def shapeless(inputs: AdvantageInputs) -> np.ndarray:
    return inputs.returns


def test_an_estimator_with_another_number_of_advantages_is_named(make_episodes: Callable[..., list[Any]]) -> None:
    settings = settings_of(advantage_estimator=f"{__name__}:shapeless")
    with pytest.raises(ValueError, match=r"shapeless` gave an array of shape \(4,\) for \d+ action tokens"):
        recorded(PPOObjective(), update_of(batch_of(make_episodes(4)), settings))


def test_the_target_of_the_value_function_does_not_depend_on_the_estimator(
    make_episodes: Callable[..., list[Any]],
) -> None:
    batch = batch_of(make_episodes(6))
    targets = [
        recorded(PPOObjective(), update_of(batch, settings_of(advantage_estimator=name))).batch.returns.copy()
        for name in ("gae", f"{__name__}:ByGroupAndRole")
    ]
    np.testing.assert_array_equal(*targets)


def test_supervision_needs_no_batch(make_episodes: Callable[..., list[Any]]) -> None:
    update = update_of(None, settings_of())
    (pack,) = batch_of(make_episodes(2)).microbatches(10_000)
    logprobs = torch.linspace(-2.0, -0.1, pack.num_actions)
    total, sums = SupervisedObjective(1, lr=1e-3).loss(update, pack, {"logprobs": logprobs, "entropy": -logprobs})
    assert float(total) == pytest.approx(-float(logprobs.sum()))
    assert float(sums["confident_fraction"]) == sum(p > 0.5 for p in logprobs.exp().tolist())


class ValueOnly(PPOObjective):
    """An objective of somebody else's: the policy is left alone."""

    def trained_parts(self, update: ModuleUpdate) -> list[str]:
        return [part for part in PARTS if part != POLICY]


class Lacking:
    lr = None


class WithArguments(PPOObjective):
    def __init__(self, strength: float) -> None:
        super().__init__()


def test_objectives_are_found_by_name_and_by_path(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(resolve_objective("ppo")) is PPOObjective
    assert resolve_objective("ppo") is not resolve_objective("ppo")
    assert type(resolve_objective(f"{__name__}:ValueOnly")) is ValueOnly
    monkeypatch.setitem(OBJECTIVES.own, "value", ValueOnly)
    assert type(resolve_objective("value")) is ValueOnly


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pppo", "did you mean `ppo`"),
        ("no_such_package_here:f", "cannot import"),
        (f"{__name__}:Lacking", "is no objective; derive from Objective .*, or from PPOObjective"),
        (f"{__name__}:WithArguments", "cannot be made without arguments"),
        ("rllib_lmgame.learners.engines.torch_engine:PARTS", "is a tuple, not a class"),
    ],
)
def test_what_is_no_objective_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        resolve_objective(name)
    assert caught.value.path == "token_ppo.objective"


def test_a_learner_minimises_the_configured_objective_and_a_given_one_once(
    make_learner: Callable[..., Any], make_episodes: Callable[..., list[Any]]
) -> None:
    learner = make_learner(token_ppo={"objective": f"{__name__}:ValueOnly"}, lr=1e-2)

    def moved(**kwargs: Any) -> set[str]:
        before = {name: parameter.detach().clone() for name, parameter in learner.module["player"].named_parameters()}
        MetricsLogger.peek_results(learner.update(training_data=WholeEpisodes(episodes=make_episodes(6)), **kwargs))
        return {
            name.partition(".")[0]
            for name, tensor in learner.module["player"].named_parameters()
            if not torch.equal(before[name], tensor)
        }

    assert moved() == {"value_head"}
    assert moved(objective=PPOObjective()) == {"language_model", "value_head"}
    assert moved() == {"value_head"}


def centred_in_place(inputs: AdvantageInputs) -> np.ndarray:
    rewards = inputs.rewards
    rewards -= rewards.mean()
    return rewards


def not_finite(inputs: AdvantageInputs) -> np.ndarray:
    return np.where(np.arange(len(inputs.rewards)) == 0, np.nan, inputs.rewards)


@pytest.mark.parametrize(
    ("estimator", "said"),
    [(centred_in_place, "read-only"), (not_finite, "test_objectives:not_finite` gave numbers that are not finite")],
)
def test_an_estimator_changes_nothing_but_its_result_and_gives_numbers(
    estimator: Callable[..., Any], said: str, make_episodes: Callable[..., list[Any]]
) -> None:
    settings = settings_of(advantage_estimator=f"{__name__}:{estimator.__name__}")
    with pytest.raises(ValueError, match=said):
        recorded(PPOObjective(), update_of(batch_of(make_episodes(3)), settings))
