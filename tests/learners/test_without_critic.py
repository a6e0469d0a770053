"""Estimators that compare groups: they have no value function, and where nothing has a gradient no step is taken."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from learner_weights import hf_state, set_adam_eps
from learning import TIMES, difference, in_groups, same, update, weights, zero

from rllib_lmgame.algorithms.ppo import LMGamePPOConfig
from rllib_lmgame.base.errors import CheckpointError
from rllib_lmgame.base.group import build
from rllib_lmgame.base.registry import ESTIMATORS
from rllib_lmgame.learners.advantages.without_critic import GRPO
from rllib_lmgame.learners.engines.torch_engine import PART, POLICY
from rllib_lmgame.learners.losses.policy import Clip, PolicyTerms
from rllib_lmgame.learners.objectives import PPOObjective
from rllib_lmgame.learners.options import TrainingOptions
from rllib_lmgame.learners.process import ProcessGroup

OF_A_CRITIC = {"vf_loss", "vf_explained_var", "value_clip_fraction"}
GROUPED = {"advantage_estimator": "grpo", "critic": {"warmup": {"iterations": 5}}}


class WithCritic(GRPO):
    """The same advantages, and a value function that nobody asks."""

    needs_critic = True


def trained(learner: Any, make_episodes: Any, first: int = 0, count: int = 2) -> dict[str, Any]:
    for seed in range(first, first + count):
        numbers = update(learner, in_groups(make_episodes(8, seed=seed), 3))
    return numbers


@pytest.mark.parametrize("microbatch", [999, 32])
@pytest.mark.parametrize("epochs", [1, 2])
def test_the_policy_learns_what_it_learns_beside_a_critic_that_moves_nothing(
    microbatch: int, epochs: int, make_learner: Any, make_episodes: Any
) -> None:
    rest = {"num_epochs": epochs, "lr": 1e-2, "vf_loss_coeff": 0.0, "grad_clip": None, "use_kl_loss": True}
    ppo = {"max_tokens_per_microbatch": microbatch}
    without = make_learner(critic=False, training=GROUPED | ppo, **rest)
    beside = make_learner(training={"advantage_estimator": f"{__name__}:WithCritic", **ppo}, **rest)
    metrics, others = (trained(each, make_episodes) for each in (without, beside))
    found, expected = hf_state(without), hf_state(beside)
    for name, tensor in expected.items():
        np.testing.assert_allclose(found[name], tensor, atol=1e-6, err_msg=name)
    assert not OF_A_CRITIC & metrics.keys() and set(others) - set(metrics) == OF_A_CRITIC
    for name in ("policy_loss", "entropy", "mean_kl_loss", "advantage_std", "clip_fraction", "grad_norm", "num_steps"):
        assert metrics[name] == pytest.approx(others[name], abs=1e-5), name
    module = without.module["player"]
    assert {name.partition(".")[0] for name, _ in module.named_parameters()} == {"language_model"}
    assert {group[PART] for group in without.get_optimizer("player").param_groups} == {POLICY}
    assert {name.partition(".")[0] for name, _ in without.reference("player").module.named_parameters()} == {
        "language_model"
    }
    with pytest.raises(ValueError, match="without a value function"):
        module.compute_values({})


@pytest.mark.parametrize("stage", [None, pytest.param(2, marks=pytest.mark.slow), 3])
def test_a_checkpoint_goes_on_as_the_kind_it_is(
    stage: int | None, make_learner: Any, make_episodes: Any, tmp_path: Path
) -> None:
    section = {"deepspeed": zero(stage), "lr": 1e-2}
    learner, again = (make_learner(critic=False, training=GROUPED, **section) for _ in range(2))
    trained(learner, make_episodes)
    learner.save_shard(tmp_path)
    again.load_shard(tmp_path)
    for each in (learner, again):
        trained(each, make_episodes, 2, 1)
    assert same(hf_state(again), hf_state(learner))
    other = make_learner(**section)
    with pytest.raises(CheckpointError, match=r"learner\.json: player has no value function there and a value functi"):
        other.load_shard(tmp_path)


def test_a_checkpoint_with_a_critic_is_refused_where_there_is_none(make_learner: Any, tmp_path: Path) -> None:
    learner, without = make_learner(), make_learner(critic=False, training=GROUPED)
    learner.save_shard(tmp_path)
    said = r"player has a value function there and no value function here; .* hf/ as"
    with pytest.raises(CheckpointError, match=said):
        without.load_shard(tmp_path)


def config_of(estimator: Any, **language_model: Any) -> LMGamePPOConfig:
    return LMGamePPOConfig().update_from_dict(
        {
            "env": "lmgame/Sokoban-v0",
            "training": {"advantage_estimator": estimator},
            "text_rollouts": {"group_size": 4},
            "language_model": language_model,
        }
    )


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_configuration_builds_a_critic_where_one_is_asked(name: str) -> None:
    config = config_of({"type": name})
    config.validate()
    assert config.module_spec("player").model_config["critic"] == ESTIMATORS[name].needs_critic


@pytest.mark.parametrize(
    ("ppo", "rest", "streams"),
    [
        ({}, {}, True),
        ({"importance_sampling": {"cap": 1.1, "mask": {"low": 0.2, "high": 3.0}}}, {"use_kl_loss": True}, True),
        ({"policy_loss": "dppo", "max_row_tokens": 24}, {}, True),
        ({"importance_sampling": {"level": "turn"}}, {}, False),
        ({}, {"num_epochs": 2}, False),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ({"importance_sampling": None, "policy_loss": "gspo", "advantage_estimator": "reinforce"}, {}, True),
                ({"importance_sampling": {"mask": {"level": "trajectory", "low": 0.1, "high": 9.0}}}, {}, False),
                ({"kl": {"as": "reward"}}, {}, False),
                ({"num_minibatches": 2}, {}, False),
                ({"advantage_estimator": f"{__name__}:WithCritic"}, {"critic": True}, False),
            )
        ),
    ],
    ids=str,
)
def test_a_step_of_many_micro_batches_needs_no_pass_without_gradient(
    ppo: dict[str, Any],
    rest: dict[str, Any],
    streams: bool,
    make_learner: Any,
    make_episodes: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where nothing asks beforehand what the pass with gradient says too. What is learned is the same."""
    options = {"critic": False, "lr": 1e-2, **rest}
    options["training"] = {"advantage_estimator": "grpo", "max_tokens_per_microbatch": 32, **ppo}
    learner, other = (make_learner(**options) for _ in range(2))
    for each in (learner, other):
        set_adam_eps(each, 1e-3)
    forward, passes = learner.engines["player"].forward, []
    monkeypatch.setattr(
        learner.engines["player"], "forward", lambda given: passes.append(torch.is_grad_enabled()) or forward(given)
    )
    for seed in range(2):
        found = trained(learner, make_episodes, first=seed, count=1)
        with monkeypatch.context() as patched:
            patched.setattr(PPOObjective, "prepares_first", lambda self, settings: False)
            expected = trained(other, make_episodes, first=seed, count=1)
        for name in expected.keys() - TIMES - {"approx_kl"}:
            assert found[name] == pytest.approx(expected[name], abs=2e-6, nan_ok=True), name
    assert difference(weights(learner), weights(other)) < 1e-6 and found["num_steps"]
    assert passes.count(True) > 4 and (False in passes) != streams
    assert not streams or found["first_minibatch_ratio_error"] == 0.0


DECAYING = {"advantage_estimator": "grpo", "weight_decay": 0.1}
SKIPPED = "zero_grad_updates"


@pytest.mark.parametrize("stage", [None, 2, *(pytest.param(stage, marks=pytest.mark.slow) for stage in (0, 3))])
@pytest.mark.parametrize("microbatch", [9999, 48])
def test_an_update_without_a_gradient_changes_nothing_but_the_counters(
    microbatch: int, stage: int | None, make_learner: Any, make_episodes: Any, tmp_path: Path
) -> None:
    """No weight moves, though Adam has momentum and the weights decay; the next update is what it would be without."""
    section = {"deepspeed": zero(stage)}
    ppo = DECAYING | {"max_tokens_per_microbatch": microbatch}
    idle, other = (make_learner(critic=False, training=ppo, lr=1e-2, entropy_coeff=0.0, **section) for _ in range(2))
    for learner in (idle, other):
        assert update(learner, in_groups(make_episodes(8, seed=0), 2))[SKIPPED] == 0.0
    before, version = hf_state(idle), idle._weights_seq_no
    metrics = update(idle, in_groups(make_episodes(8, seed=1), 2, equal=True))
    assert [metrics[name] for name in (SKIPPED, "num_steps", "grad_norm", "policy_loss")] == [1.0, 0.0, 0.0, 0.0]
    assert metrics["advantage_std"] == 0.0 and metrics["logprob_diff"] > 0.0  # It is still measured.
    assert idle._weights_seq_no == version + 1
    for name, tensor in hf_state(idle).items():
        np.testing.assert_array_equal(tensor, before[name], err_msg=name)
    idle.save_shard(tmp_path)
    resumed = make_learner(critic=False, training=ppo, lr=1e-2, entropy_coeff=0.0, **section)
    resumed.load_shard(tmp_path)
    for learner in (idle, other, resumed):
        assert update(learner, in_groups(make_episodes(8, seed=2), 2))["num_steps"] == 1.0
    expected = hf_state(other)
    for learner in (idle, resumed):
        for name, tensor in hf_state(learner).items():
            np.testing.assert_allclose(tensor, expected[name], atol=1e-6, err_msg=name)


def own_loss(terms: PolicyTerms) -> Any:
    """A policy loss of somebody's own, which learns from more than advantages."""
    loss, sums = Clip()(terms)
    return loss + terms.logprobs, sums


@pytest.mark.parametrize(
    "more",
    [
        {"entropy_coeff": 0.01},
        {"use_kl_loss": True},
        {"critic": True},
        {"training": {"policy_loss": f"{__name__}:own_loss"}},
    ],
    ids=str,
)
def test_whatever_else_may_learn_takes_its_step(more: dict[str, Any], make_learner: Any, make_episodes: Any) -> None:
    plain = {"critic": False, "entropy_coeff": 0.0}
    if more.get("critic"):
        more = {"critic": True, "training": {"advantage_estimator": "gae"}}
    learner = make_learner(**plain | more | {"training": DECAYING | more.get("training", {})})
    metrics = update(learner, in_groups(make_episodes(8, seed=1), 2, equal=True))
    assert (metrics[SKIPPED], metrics["num_steps"]) == (0.0, 1.0)


def test_all_learners_agree_where_one_has_something_to_learn() -> None:
    class Other(ProcessGroup):
        """One of two; the other one's advantages reach .5."""

        def max(self, values: Any) -> np.ndarray:
            return np.maximum(values, 0.5)

    settings = SimpleNamespace(ppo=build(TrainingOptions, {"advantage_estimator": "grpo"}))
    for size in (0, 3):  # One of them has no rows.
        batch = SimpleNamespace(advantages=np.zeros(size, np.float32))
        here = {"settings": settings, "batch": batch, "entropy_coefficient": 0.0}
        assert PPOObjective().has_gradient(SimpleNamespace(**here, ranks=Other()))
        assert not PPOObjective().has_gradient(SimpleNamespace(**here, ranks=ProcessGroup()))
