"""The learner's update: what it optimises, what it skips, what it remembers."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from episode_parts import rows_of
from learner_weights import hf_state, set_adam_eps
from learning import TIMES, difference, moved, restored, same, step_gradients, update, weights, zero
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from rllib_lmgame.algorithms.ppo import LMGamePPOConfig
from rllib_lmgame.base.errors import CheckpointError, ConfigError
from rllib_lmgame.base.group import build
from rllib_lmgame.datasets.preferences import alone
from rllib_lmgame.learners.data.sharding import WholeEpisodes
from rllib_lmgame.learners.engines.torch_engine import PARTS, learning_rates, optimizer_class, warmup_factor
from rllib_lmgame.learners.objectives import SupervisedObjective, base
from rllib_lmgame.learners.objectives.base import LearnerSettings
from rllib_lmgame.learners.options import LEAST_VALUE_LR, WARMUP_STEPS_AFTER_SUPERVISION, TrainingOptions, WeightUse
from rllib_lmgame.policies.model.attention import PackedRows
from rllib_lmgame.policies.model.rl_module import ScriptedRLModule
from rllib_lmgame.rollouts.records import trajectory_of, turns_of
from rllib_lmgame.telemetry.metrics import LEARNER_NAMES, OBSERVATION_NAMES

SMALL = {"max_tokens_per_microbatch": 64, "head_chunk_tokens": 8}


def test_one_update_equals_ppo_written_out(make_learner: Any, make_episodes: Any) -> None:
    """Against a loop over single rows with GAE by its definition and torch's own AdamW."""
    learner = make_learner(
        training={"normalize_advantages": "batch", "importance_sampling": None, "critic": {"target": "gae"}},
        gamma=0.99,
        lambda_=0.9,
        lr=1e-2,
    )
    torch.nn.init.normal_(learner.module["player"].value_head.outer.weight, std=0.1)
    episodes = make_episodes(8)
    module = learner.module["player"]
    before = weights(learner)
    rows = rows_of([trajectory_of(e.agent_episodes["player"]) for e in episodes], max_row_tokens=128)
    model, losses, advantages = module.language_model, [], []
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.0, eps=1e-3)
    set_adam_eps(learner, 1e-3)
    outputs = []
    for row in rows:
        ids = torch.as_tensor(row.input_ids).long()[None]
        with PackedRows(torch.tensor([0, ids.shape[1]])):
            out = model.model(ids, use_cache=False, position_ids=torch.arange(ids.shape[1])[None])
        hidden = out.last_hidden_state[0]
        at = torch.as_tensor(row.loss_mask).nonzero().squeeze(-1)
        logprobs = model.lm_head(hidden[at - 1]).log_softmax(-1)
        values = module.value_head(hidden)
        outputs.append((logprobs, logprobs.gather(-1, ids[0, at][:, None]).squeeze(-1), values[at - 1]))
        after = values[-1].item() if row.needs_bootstrap else 0.0
        running, found = 0.0, []
        v = values[at - 1].tolist()
        for t in reversed(range(len(at))):
            delta = float(row.rewards[at[t]]) + 0.99 * (v[t + 1] if t + 1 < len(at) else after) - v[t]
            running = delta + 0.99 * 0.9 * running
            found.append(running)
        advantages.append(torch.tensor(found[::-1]))
    flat = torch.cat(advantages)
    normal = ((flat - flat.mean()) / flat.std(unbiased=False)).split([len(a) for a in advantages])
    for (logprobs, chosen, values), raw, advantage in zip(outputs, advantages, normal, strict=True):
        ratio = torch.exp(chosen - chosen.detach())
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        returns = raw + values.detach()
        losses.append((-advantage * ratio + 0.5 * (values - returns) ** 2 - 0.01 * entropy).sum())
    (torch.stack(losses).sum() / len(flat)).backward()
    norm = torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    optimizer.step()
    expected = weights(learner)
    module.zero_grad()
    module.load_state_dict(
        before | {"language_model.lm_head.weight": before["language_model.model.embed_tokens.weight"]}
    )
    learner.config.run = learner.config.run.with_values({"vf_loss_coeff": 0.5})
    learner._settings.clear()
    metrics = update(learner, episodes)
    assert metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-4)
    assert metrics["advantage_mean"] == pytest.approx(float(flat.mean()), abs=1e-5)
    assert difference(weights(learner), before) > 5e-3
    assert difference(weights(learner), expected) < 1e-5


@pytest.mark.parametrize("ppo", [SMALL | {"critic": {"target": "gae"}}, SMALL | {"critic": {"clip": 0.1}}])
def test_micro_batches_change_nothing(ppo: dict[str, Any], make_learner: Any, make_episodes: Any) -> None:
    """One pass over everything, and an evaluation followed by many small passes, are the same update."""
    small, whole = (
        make_learner(training=ppo, use_kl_loss=True),
        make_learner(training=ppo | {"max_tokens_per_microbatch": 9999}, use_kl_loss=True),
    )
    for seed in range(2):
        a, b = (update(learner, make_episodes(10, seed=seed)) for learner in (small, whole))
        for name in a.keys() - TIMES:
            assert a[name] == pytest.approx(b[name], abs=2e-4), name
    assert difference(weights(small), weights(whole)) < 1e-4


def test_metrics_say_what_happened(make_learner: Any, make_episodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, seed_of = list[tuple[int, ...]](), LearnerSettings.minibatch_seed
    monkeypatch.setattr(
        LearnerSettings, "minibatch_seed", lambda own, *counters: drawn.append(counters) or seed_of(own, *counters)
    )
    learner = make_learner(training=SMALL | {"num_minibatches": 3}, num_epochs=2)
    episodes = make_episodes(10, version=0)
    first = update(learner, episodes)
    second = update(learner, episodes)
    assert drawn == [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)], "version, epoch and learner"
    rows = rows_of([trajectory_of(e.agent_episodes["player"]) for e in episodes], max_row_tokens=128)
    assert first["num_steps"] == 6
    assert first["num_rows"] == len(rows)
    assert first["trained_tokens"] == sum(int(row.loss_mask.sum()) for row in rows)
    assert first["num_row_tokens"] == sum(len(row) for row in rows)
    assert (first["staleness"], second["staleness"]) == (0.0, 1.0)
    assert first["padding_waste"] == 0.0
    assert first["first_minibatch_ratio_error"] < 1e-4
    assert first["clip_fraction"] > 0
    assert first["nan_steps"] == 0
    assert learner.module["player"].version == 2
    assert learner.module["player"].get_state(inference_only=True) == {"version": 2}


def test_log_probabilities_of_the_sampler_are_compared_at_the_sampling_temperature(
    make_learner: Any, make_episodes: Any
) -> None:
    learner = make_learner()
    learner.config.run = learner.config.run.with_values({"inference": {"temperature": 0.5}})
    learner._settings.clear()
    episodes = make_episodes(6)
    module = learner.module["player"]
    for episode in episodes:
        part = episode.agent_episodes["player"]
        (row,) = rows_of([trajectory_of(part)], max_row_tokens=128)
        ids = torch.as_tensor(row.input_ids).long()
        with torch.no_grad():
            logits = module.language_model(ids[None], position_ids=torch.arange(len(ids))[None]).logits[0]
        exact = (logits[:-1] / 0.5).log_softmax(-1).gather(-1, ids[1:, None]).squeeze(-1).numpy()
        exact = exact[np.flatnonzero(row.loss_mask) - 1]
        done = 0
        for turn in part.extra_model_outputs["turn"].data:
            turn.rollout_logprobs[:] = exact[done : done + len(turn.rollout_logprobs)]
            done += len(turn.rollout_logprobs)
    metrics = update(learner, episodes)
    assert metrics["logprob_diff"] < 1e-5
    assert metrics["importance_weight"] == pytest.approx(1.0, abs=1e-5)


def poison(learner: Any, steps: set[int], value: float) -> None:
    """Make one gradient of the given optimizer steps not finite."""
    optimizer = learner.get_optimizer("player")
    plain, count = optimizer.step, iter(range(99))

    def step(closure: Any = None) -> Any:
        if next(count) in steps:
            optimizer.param_groups[0]["params"][1].grad.view(-1)[0] = value
        return plain(closure)

    optimizer.step = step


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_steps_with_gradients_that_are_not_finite_are_skipped_and_counted(
    value: float, make_learner: Any, make_episodes: Any
) -> None:
    learner, clean = make_learner(), make_learner()
    poison(learner, {0}, value)
    before = weights(learner)
    assert update(learner, make_episodes(6))["nan_steps"] == 1
    assert difference(weights(learner), before) == 0.0
    assert update(learner, make_episodes(6))["nan_steps"] == 0
    update(clean, make_episodes(6))
    assert difference(weights(learner), weights(clean)) == 0.0


def test_too_many_skipped_steps_in_a_row_end_the_run(
    make_learner: Any, make_episodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "MAX_NAN_STEPS", 3)
    learner = make_learner(training={"num_minibatches": 4})
    poison(learner, {0, 1, 2, 4, 5, 6}, float("nan"))
    with pytest.raises(FloatingPointError, match="3 optimizer steps in a row"):
        update(learner, make_episodes(8))
    learner._settings["player"] = LearnerSettings.of_run(learner.config.run.with_values({"on_collapse": "stop"}))
    assert update(learner, make_episodes(8))["nan_steps"] == 3


def test_guarded_optimizer_equals_clipping_and_adamw() -> None:
    torch.manual_seed(0)
    ours, theirs = (torch.nn.Parameter(torch.ones(3, 2)) for _ in range(2))
    guarded = optimizer_class("adamw")([ours], lr=0.1, weight_decay=0.01, max_grad_norm=0.5)
    plain = torch.optim.AdamW([theirs], lr=0.1, weight_decay=0.01)
    for i in range(4):
        gradient = torch.randn(3, 2)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        if i == 2:
            ours.grad[0, 0] = float("inf")
        guarded.step()
        assert guarded.overflow == (i == 2)
        if i != 2:
            torch.nn.utils.clip_grad_norm_([theirs], 0.5)
            plain.step()
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("deepspeed", [None, {"zero_optimization": {"stage": 0}}])
def test_muon_has_the_matrices_of_layers_and_adamw_the_rest(
    deepspeed: Any, make_learner: Any, make_episodes: Any, tmp_path: Path
) -> None:
    """Against torch's own optimizers on the same gradients; moments go on from a checkpoint."""
    how = {"lr": 1e-2, "grad_clip": None, "training": {"optimizer": "muon", "weight_decay": 0.1}}
    how["deepspeed"] = deepspeed
    learner, second = make_learner(**how), make_learner(**how)
    ours = {name: torch.nn.Parameter(tensor) for name, tensor in weights(learner).items()}
    matrices = [p for name, p in ours.items() if ".layers." in name and p.ndim == 2]
    others = [p for name, p in ours.items() if ".layers." not in name and p.ndim == 2]
    vectors = [{"params": [p for p in ours.values() if p.ndim < 2], "weight_decay": 0.0}]
    assert len(matrices) == 14
    plain = (
        torch.optim.Muon(matrices, lr=1e-2, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW([{"params": others}, *vectors], lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1),
    )
    for seed in range(2):
        gradients = step_gradients(learner)
        update(learner, make_episodes(8, seed=seed))
        for name, parameter in ours.items():
            parameter.grad = gradients[name]
        for optimizer in plain:
            optimizer.step()
        torch.testing.assert_close(weights(learner), {name: p.detach() for name, p in ours.items()})
        if seed == 0:
            learner.engines["player"].save(tmp_path)
            second.engines["player"].load(tmp_path)
            update(second, make_episodes(8, seed=1))
    assert same(weights(learner), weights(second))


def test_muon_beside_deepspeed_may_have_all_that_is_trained(
    make_learner: Any, make_episodes: Any, tmp_path: Path
) -> None:
    """Adapters without a value function: nothing is left to AdamW, which alone counts steps."""
    training = {"optimizer": "muon", "advantage_estimator": "reinforce"}
    how = {"critic": False, "options": {"lora": {"r": 4}}, "deepspeed": {"zero_optimization": {"stage": 0}}}
    learner, second = (make_learner(lr=1e-2, training=training, **how) for _ in range(2))
    update(learner, make_episodes(5, seed=1))
    learner.save_shard(tmp_path)
    second.load_shard(tmp_path)
    for each in (learner, second):
        update(each, make_episodes(5, seed=2))
    assert same(weights(learner), weights(second))
    with pytest.raises(CheckpointError, match=r"of GuardedMuonAndAdamW, not config\.training\.optimizer"):
        make_learner(training={**training, "optimizer": "adamw"}, **how).load_shard(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"gradient_checkpointing": True}, {"lora": {"r": 4}}, {}], ids=str)
def test_compiled_layers_learn_what_plain_ones_do(options: Any, make_learner: Any, make_episodes: Any, tmp_path: Path):
    how = {"options": options, "deepspeed": None if options else {"zero_optimization": {"stage": 2}}}
    plain, compiled = (make_learner(training={"kl": {}, "torch_compile": on}, **how) for on in (False, True))
    for seed, learner in itertools.product(range(2), (plain, compiled)):
        update(learner, make_episodes(8 + seed, seed=seed))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"], "nothing was compiled"
    assert difference(weights(plain), weights(compiled)) < 1e-5
    assert same(weights(restored(plain, compiled, tmp_path)), weights(compiled))


def test_the_first_push_and_every_sixteenth_after_it_is_checked(make_learner: Any) -> None:
    learner = make_learner()
    assert [n for n in range(34) if learner.pack_weights("player", n).checksum] == [0, 16, 32]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_checkpoint_brings_moments_and_no_options(optimizer: str, make_learner: Any, tmp_path: Path) -> None:
    """So that what a file or PBT changes holds, as it does with DeepSpeed."""
    one, other = (
        make_learner(training={"optimizer": optimizer, "weight_decay": decay, "adam_betas": betas})
        for decay, betas in ((0.1, (0.9, 0.95)), (0.3, (0.5, 0.6)))
    )
    one.engines["player"].save(tmp_path)
    other.engines["player"].load(tmp_path)
    groups = other.get_optimizer("player").param_groups
    assert {group["weight_decay"] for group in groups} == {0.0, 0.3}
    assert {tuple(group["betas"]) for group in groups} == {(0.5, 0.6)}


def test_an_optimizer_may_be_a_class_of_others(make_learner: Any, make_episodes: Any) -> None:
    """That of bitsandbytes has this form."""
    learner = make_learner(lr=1e-2, training={"optimizer": "torch.optim:NAdam"})
    before, groups = weights(learner), learner.get_optimizer("player").param_groups
    groups[0]["lr"] = torch.tensor(0.0)  # As torchao's has it.
    assert update(learner, make_episodes(4))["nan_steps"] == 0
    assert torch.equal(groups[0]["lr"], torch.tensor(1e-2))
    assert type(learner.get_optimizer("player")).__mro__[2] is torch.optim.NAdam and not same(before, weights(learner))


@pytest.mark.parametrize(
    ("name", "says"),
    [("moun", "take adamw, muon or give"), ("torch.optim:SGD", "betas"), ("torch.nn:Linear", "is no torch.optim")],
)
def test_what_is_no_optimizer(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        optimizer_class(name)


def rates_of_steps(learner: Any) -> list[dict[str, float]]:
    """Filled with the rate of each part at every optimizer step to come."""
    optimizer, seen = learner.get_optimizer("player"), list[dict[str, float]]()
    plain = optimizer.step

    def step(closure: Any = None) -> Any:
        seen.append({group["part"]: group["lr"] for group in optimizer.param_groups})
        return plain(closure)

    optimizer.step = step
    return seen


def test_learning_rates(make_learner: Any, make_episodes: Any) -> None:
    assert [warmup_factor(step, 4) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert warmup_factor(0, 0) == 1.0
    learner = make_learner(lr=[[0, 1e-2], [100, 1e-3]], training={"lr_warmup_steps": 2, "critic": {"lr": 5e-3}})
    seen = rates_of_steps(learner)
    for timestep in (50, 100, 100):
        update(learner, make_episodes(4), timesteps={"num_env_steps_sampled_lifetime": timestep})
    expected = [[5e-3, 2.5e-3], [5.5e-3, 5e-3], [1e-3, 5e-3]]
    np.testing.assert_allclose([[*rates.values()] for rates in seen], expected, rtol=1e-5)


def test_each_part_of_the_value_function_has_its_own_rate() -> None:
    """A head made from nothing can take a hundred times the rate of a backbone."""
    options = build(TrainingOptions, {"critic": {"lr": 1e-3}})
    assert learning_rates(options, 1e-6, 0.5) == pytest.approx(dict(zip(PARTS, (5e-7, 5e-4, 5e-7), strict=True)))
    options = build(TrainingOptions, {"critic": {"backbone_lr": 1e-5}})
    assert learning_rates(options, 1e-6) == dict(zip(PARTS, (1e-6, LEAST_VALUE_LR, 1e-5), strict=True))
    for lr in (0.0, 1e-4):
        assert learning_rates(TrainingOptions(), lr) == dict.fromkeys(PARTS, lr)


def test_the_warm_up_waits_for_the_policys_first_step(make_learner: Any, make_episodes: Any) -> None:
    ppo = {"lr_warmup_steps": 4, "critic": {"lr": 1e-2, "warmup": {"iterations": 2, "type": "gradient"}}}
    learner = make_learner(lr=1e-3, training=ppo)
    seen = rates_of_steps(learner)
    for _ in range(4):
        update(learner, make_episodes(4))
    warmed_up = [pytest.approx({"policy": part * 1e-3, "value_head": part * 1e-2}) for part in (0.25, 0.5)]
    assert seen == [{"policy": 0.0, "value_head": 1e-2}] * 2 + warmed_up


@pytest.mark.parametrize("value_model", ["shared", "separate"])
def test_a_critics_warm_up_by_gradient_moves_and_clips_nothing_of_the_policy(
    value_model: str, make_learner: Any, make_episodes: Any
) -> None:
    """With every term of the policy's loss at work: no weight of it moves, and no gradient of it is in the norm."""
    ppo = {"critic": {"warmup": {"iterations": 2, "type": "gradient"}}, "num_minibatches": 2}
    learner = make_learner(
        lr=1e-2,
        entropy_coeff=0.1,
        kl_coeff=1.0,
        use_kl_loss=True,
        num_epochs=2,
        options={"value_model": value_model},
        training=ppo,
    )
    with torch.no_grad():
        for parameter in learner.reference("player").module.parameters():
            parameter.mul_(1.5)
    before, gradients = weights(learner), step_gradients(learner)
    for seed in range(2):
        update(learner, make_episodes(8, seed=seed))
        changed = moved(learner, before)
        assert changed and all(name.startswith("value_") for name in changed)
        assert not any(gradients[name].any() for name in gradients.keys() - changed)
        gradients.clear()
    update(learner, make_episodes(8, seed=2))
    assert "language_model.model.embed_tokens.weight" in moved(learner, before)


@pytest.mark.parametrize(
    ("training", "warm_start", "steps"),
    [({}, False, 0), ({}, True, WARMUP_STEPS_AFTER_SUPERVISION), ({"lr_warmup_steps": 3}, True, 3)],
)
def test_ppo_warms_up_behind_a_warm_start(training: dict[str, int], warm_start: bool, steps: int) -> None:
    config = LMGamePPOConfig().training(**training)
    if warm_start:
        config.warm_start(expert="solver")
    assert LearnerSettings.of_run(config.run).lr_warmup_steps == steps


def test_scripted_and_frozen_players_are_left_alone(make_config: Any, make_episodes: Any) -> None:
    import gymnasium as gym

    config = make_config(modules=("player", "frozen"))
    space = gym.spaces.Text(4)
    config.rl_module_spec.rl_module_specs["expert"] = RLModuleSpec(
        module_class=ScriptedRLModule, observation_space=space, action_space=space, model_config={}
    )
    config.multi_agent(policies={"player", "frozen", "expert"}, policies_to_train=["player"])
    learner = config.learner_class(config=config, module_spec=config.rl_module_spec)
    learner.build()
    before = weights(learner, "frozen")
    results = update(learner, make_episodes(4) + make_episodes(4, module="frozen") + make_episodes(4, module="expert"))
    assert results["num_rows"] == 4
    assert difference(weights(learner, "frozen"), before) == 0.0


def test_the_kl_coefficient_waits_for_the_critic(make_learner: Any, make_episodes: Any) -> None:
    """In its warm-up the policy rests: a divergence of zero is not the coefficient's doing."""
    learner = make_learner(
        use_kl_loss=True,
        kl_coeff=0.2,
        kl_target=1e-6,
        lr=1e-2,
        training={"critic": {"warmup": {"iterations": 2}}, "num_minibatches": 2},
    )
    coefficients = []
    for i in range(3):
        update(learner, make_episodes(8, seed=i))
        coefficients.append(float(learner.curr_kl_coeffs_per_module["player"]))
    assert coefficients == pytest.approx([0.2, 0.2, 0.3])


def test_values_of_schedules_hold_from_their_update_on(make_learner: Any, make_episodes: Any) -> None:
    learner = make_learner(use_kl_loss=True, kl_coeff=0.2, lr=1e-3, training={"critic": {"lr": 1e-2}})
    update(learner, make_episodes(4))
    scheduled = {
        "lr": 0.0025,
        "entropy_coeff": 0.125,
        "training.kl.coef": 0.75,
        "gamma": 0.5,
        "lambda": 0.25,
        "vf_loss_coeff": 0.1,
        "num_epochs": 3,
        "inference.temperature": 0.7,
        "text_rollouts.reward_scale": 0.5,
        "text_rollouts.format_penalty": -2.0,
        "training.policy_loss.clip_high": 0.4,
        "training.num_minibatches": 2,
        "training.critic.lr": 0.05,
    }
    metrics = update(learner, make_episodes(4), scheduled=scheduled)
    settings = learner.settings("player")
    assert (settings.gamma, settings.lam, settings.vf_loss_coeff, settings.reward_scale) == (0.5, 0.25, 0.1, 0.5)
    assert (settings.ppo.policy_loss.clip_high, settings.ppo.policy_loss.clip_low, settings.temperature) == (
        0.4,
        0.2,
        0.7,
    )
    assert metrics["num_steps"] == 6
    assert metrics["curr_entropy_coeff"] == 0.125
    assert metrics["curr_kl_coeff"] == pytest.approx(0.75)
    assert settings.ppo.critic.lr == 0.05
    assert metrics["default_optimizer_learning_rate"] == 0.0025 == learner.get_optimizer("player").param_groups[0]["lr"]
    objective = SupervisedObjective(1, 0.5, 0)
    update(learner, make_episodes(4), objective=objective)
    rates = {group["part"]: group["lr"] for group in learner.get_optimizer("player").param_groups}
    assert rates == {"policy": 0.5, "value_head": 0.05}
    update(learner, make_episodes(4), scheduled={"lr": 0.001})
    assert learner.settings("player").gamma == 0.99, "what is scheduled no more is as configured"
    assert learner.get_optimizer("player").param_groups[0]["lr"] == 0.001


@pytest.mark.parametrize("kl_in", ["loss", "reward"])
def test_the_names_of_an_updates_numbers_are_known(kl_in: str, make_learner: Any, make_episodes: Any) -> None:
    ppo = {"kl": {"as": kl_in}, "critic": {"warmup": {"iterations": 1}, "clip": 0.2}, "policy_loss": {"dual_clip": 3.0}}
    learner, found = make_learner(use_kl_loss=True, training=ppo), set()
    for _ in range(2):
        found |= update(learner, make_episodes(4)).keys()
    assert found == {*LEARNER_NAMES} - {"teacher_kl", *OBSERVATION_NAMES}, "a teacher's, and of what games say"


def test_what_a_module_has_of_its_own_comes_before_a_schedule(make_config: Any, make_episodes: Any) -> None:
    modules = ("player", "other")
    config = make_config(
        modules=modules, use_kl_loss=True, kl_coeff=0.2, lr=1e-3, training={"policy_loss": {"clip_high": 0.3}}
    )
    own = {
        "lr": 0.004,
        "lambda_": 0.7,
        "kl_coeff": 0.1,
        "entropy_coeff": 0.5,
        "run": config.run.with_values({"lambda": 0.7, "training": {"policy_loss": {"clip_high": 0.9}}}),
    }
    config.multi_agent(algorithm_config_overrides_per_module={"other": own})
    written = {"lr": 0.004, "lambda": 0.7, "entropy_coeff": 0.5}
    written["training"] = {"kl": {"coef": 0.1}, "policy_loss": {"clip_high": 0.9}}
    config.run = config.run.with_values({"algorithm_config_overrides_per_module": {"other": written}})
    learner = config.learner_class(config=config, module_spec=config.rl_module_spec)
    learner.build()
    scheduled = {"lr": 0.0025, "lambda": 0.25, "training.kl.coef": 0.75, "entropy_coeff": 0.125, "gamma": 0.5}
    scheduled |= {"training.policy_loss.clip_high": 0.4, "training.policy_loss.clip_low": 0.1}
    episodes = [episode for module in modules for episode in make_episodes(4, module=module)]
    metrics = update(learner, episodes, module=None, scheduled=scheduled)
    found = {}
    for module in modules:
        settings, numbers = learner.settings(module), metrics[module]
        rate = learner.get_optimizer(module).param_groups[0]["lr"]
        found[module] = (rate, settings.lam, settings.ppo.policy_loss.clip_high, numbers["curr_entropy_coeff"])
        assert (settings.gamma, settings.ppo.policy_loss.clip_low) == (0.5, 0.1)
    assert found == {"player": (0.0025, 0.25, 0.4, 0.125), "other": (0.004, 0.7, 0.9, 0.5)}
    assert metrics["player"]["curr_kl_coeff"] == pytest.approx(0.75)
    assert 0.05 <= metrics["other"]["curr_kl_coeff"] <= 0.15, "the adaptive one, which begins at 0.1"


def test_the_adaptive_kl_coefficient_comes_back_from_a_quiet_stretch(make_learner: Any) -> None:
    """Fifty quiet iterations would halve it to 9e-19, and 85 loud ones be needed to bring it back."""
    learner = make_learner(use_kl_loss=True, kl_coeff=1e-3, kl_target=0.01)
    learner.updates["player"] = 1
    config = learner.config.get_config_for_module("player")

    def after(count: int, kl: float) -> float:
        for _ in range(count):
            learner._update_module_kl_coeff(module_id="player", config=config, kl_loss=kl)
        return float(learner.curr_kl_coeffs_per_module["player"])

    assert after(50, 0.0) == pytest.approx(1e-5)
    assert after(12, 1.0) > 1e-3
    assert after(50, 1.0) == pytest.approx(0.1)


def test_a_restored_learner_goes_on_as_if_never_stopped(make_learner: Any, make_episodes: Any, tmp_path: Path) -> None:
    kwargs = {
        "training": SMALL
        | {"num_minibatches": 2, "ema_decay": 0.5, "lr_warmup_steps": 5, "critic": {"lr": 2e-3}, "weight_decay": 0.1},
        "use_kl_loss": True,
        "kl_target": 1e-6,
        "lr": [[0, 1e-2], [1000, 1e-4]],
        "entropy_coeff": [[0, 0.1], [1000, 0.0]],
        "num_epochs": 2,
    }
    learner = make_learner(**kwargs)
    for i in range(2):
        update(learner, make_episodes(6, seed=i), timesteps={"num_env_steps_sampled_lifetime": 200 * (i + 1)})
    fresh = restored(make_learner(**kwargs), learner, tmp_path / "shard")
    assert float(fresh.curr_kl_coeffs_per_module["player"]) == pytest.approx(0.2 * 1.5**2)
    assert fresh.module["player"].version == 2
    for i in range(2, 4):
        a, b = (
            update(x, make_episodes(6, seed=i), timesteps={"num_env_steps_sampled_lifetime": 200 * (i + 1)})
            for x in (learner, fresh)
        )
        for name in a.keys() - TIMES:
            assert a[name] == pytest.approx(b[name], abs=1e-6), name
    assert difference(weights(learner), weights(fresh)) < 1e-6
    averages = [hf_state(x, use=WeightUse.EVALUATION) for x in (learner, fresh)]
    assert max(np.abs(averages[0][name] - averages[1][name]).max() for name in averages[0]) < 1e-6
    assert any(not np.allclose(averages[0][name], hf_state(learner)[name], atol=1e-6) for name in averages[0])


def test_another_optimizer_does_not_go_on_with_its_states(make_learner: Any, tmp_path: Path) -> None:
    make_learner(training={"optimizer": "torch.optim:Adamax"}).save_shard(tmp_path)
    with pytest.raises(CheckpointError, match=r"optimizer\.pt.* of GuardedAdamax, not config\.training\.optimizer"):
        make_learner().load_shard(tmp_path)


@pytest.mark.parametrize("name", ["learner.json", "player/weights.safetensors", "player/optimizer.pt"])
@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_a_damaged_checkpoint_names_its_file(
    name: str, damage: str, make_learner: Any, make_episodes: Any, tmp_path: Path
) -> None:
    learner = make_learner()
    update(learner, make_episodes(4))
    learner.save_shard(tmp_path)
    path = tmp_path / name
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(CheckpointError, match=name):
        learner.load_shard(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("critics", None),
        ("objectives", {"player": {"estimators": {"{": 1}}}),
        ("optimizer_steps", {"player": "x"}),
        ("timesteps", math.inf),
        ("version", ...),
    ],
)
def test_a_number_that_cannot_be_is_named_and_not_learned_with(
    key: str, value: Any, make_learner: Any, tmp_path: Path
) -> None:
    """Nor one that lacks."""
    learner = make_learner()
    path = tmp_path / "learner.json"
    learner.save_shard(tmp_path)
    numbers = json.loads(path.read_text()) | {key: value}
    if value is ...:
        del numbers[key]
    path.write_text(json.dumps(numbers))
    with pytest.raises(CheckpointError, match=r"learner\.json is damaged: "):
        learner.load_shard(tmp_path)


def test_the_kl_coefficient_of_a_restored_run_is_the_configured_one_where_that_is_another(
    make_learner: Any, make_episodes: Any, tmp_path: Path
) -> None:
    learner = make_learner(use_kl_loss=True, kl_coeff=0.2, kl_target=1e-6)
    update(learner, make_episodes(4))
    adapted = float(learner.curr_kl_coeffs_per_module["player"])
    assert adapted != pytest.approx(0.2)
    for kwargs, expected in (
        ({"kl_coeff": 0.2}, adapted),
        ({"kl_coeff": 1.0}, 1.0),
        ({"kl_coeff": 0.2, "training": {"kl": {"coef": 3.0}}}, 3.0),
    ):
        fresh = restored(make_learner(use_kl_loss=True, **kwargs), learner, tmp_path)
        assert float(fresh.curr_kl_coeffs_per_module["player"]) == pytest.approx(expected), kwargs


def test_a_checkpoint_of_other_policies_is_refused(make_learner: Any, tmp_path: Path) -> None:
    make_learner().save_shard(tmp_path)
    with pytest.raises(CheckpointError, match="no weights of other"):
        make_learner(modules=("player", "other")).load_shard(tmp_path)
    assert json.loads((tmp_path / "learner.json").read_text())["modules"] == ["player"]


@pytest.mark.parametrize(("stage", "recomputed"), [(None, False), (None, True), (3, True)])
def test_activations_are_recomputed_where_asked(
    stage: int | None, recomputed: bool, make_learner: Any, make_episodes: Any
) -> None:
    """Every layer runs again in the backward pass, the last one too."""
    options, ppo, calls = {"gradient_checkpointing": recomputed}, {"max_tokens_per_microbatch": 9999}, []
    learner = make_learner(options=options, deepspeed=zero(stage), training=ppo)
    for layer in learner.module["player"].language_model.base_model.layers:
        layer.mlp.register_forward_pre_hook(lambda module, inputs: calls.append(module))
    update(learner, make_episodes(3), objective=SupervisedObjective(1, lr=1e-3))
    assert len(calls) == (4 if recomputed else 2)


def test_supervised_learning_is_cross_entropy_on_replies(make_learner: Any, make_episodes: Any) -> None:
    learner = make_learner(lr=1.0, training=SMALL)
    objective = SupervisedObjective(num_minibatches=1, lr=3e-3)
    episodes = make_episodes(8)
    rows = rows_of([trajectory_of(e.agent_episodes["player"]) for e in episodes], max_row_tokens=128)
    model, total, count = learner.module["player"].language_model, 0.0, 0
    for row in rows:
        ids = torch.as_tensor(row.input_ids).long()
        labels = torch.where(torch.as_tensor(row.loss_mask), ids, -100)
        with torch.no_grad():
            loss = model(ids[None], position_ids=torch.arange(len(ids))[None], labels=labels[None]).loss
        total, count = total + float(loss) * int(row.loss_mask.sum()), count + int(row.loss_mask.sum())
    value_head = {name: p.clone() for name, p in learner.module["player"].value_head.named_parameters()}
    losses = [update(learner, episodes, objective=objective)["policy_loss"] for _ in range(12)]
    assert losses[0] == pytest.approx(total / count, abs=1e-4)
    assert losses[-1] < losses[0] - 0.5
    assert difference(value_head, dict(learner.module["player"].value_head.named_parameters())) == 0.0


@pytest.mark.parametrize("weight", [0.25, 1.75])
def test_an_episode_that_fills_a_step_counts_what_it_weighs(weight: float, make_learner, make_episodes) -> None:
    """Weights are 1 in the mean of all that is imitated, not of a step: here each episode has one of its own."""
    part = make_episodes(1)[0].agent_episodes["player"]
    learner, found = make_learner(critic=False, grad_clip=None), []
    gradients = step_gradients(learner)
    before = {name: value.clone() for name, value in learner.module["player"].state_dict().items()}
    for each in (1.0, weight):
        learner.module["player"].load_state_dict(before)
        for turn in turns_of(part):
            turn.weight = each
        episodes = WholeEpisodes(episodes=[alone(part, "kept-0")])
        metrics = update(learner, episodes, objective=SupervisedObjective(1, 1e-3))
        found.append((metrics["policy_loss"], {name: value.clone() for name, value in gradients.items()}))
    (plain, gradient), (weighed, other) = found
    assert weighed == pytest.approx(weight * plain, rel=1e-5)
    assert difference({name: weight * value for name, value in gradient.items()}, other) < 1e-5
