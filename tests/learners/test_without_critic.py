"""Estimators that need no value function have none: the policy learns the same, and checkpoints know the kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from learner_weights import hf_state
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rllib_lmgame.algorithms.ppo import LMGamePPOConfig
from rllib_lmgame.errors import CheckpointError, ConfigError
from rllib_lmgame.experiments.checks.memory import ModelShape, trained_parameters
from rllib_lmgame.learners.advantages.group_relative import GRPO
from rllib_lmgame.learners.data.rows import WholeEpisodes
from rllib_lmgame.learners.engines.torch_engine import PART, POLICY
from rllib_lmgame.learners.objectives import Objective, PPOObjective, SupervisedObjective
from rllib_lmgame.learners.settings import LearnerSettings
from rllib_lmgame.settings.plugins import ESTIMATORS

OF_A_CRITIC = {"vf_loss", "vf_explained_var", "value_clip_fraction"}
GROUPED = {"advantage_estimator": "grpo", "critic": {"warmup": {"iterations": 5}}}


class WithCritic(GRPO):
    """The same advantages, and a value function that nobody asks."""

    needs_critic = True


def grouped(make_episodes: Callable[..., list[Any]], seed: int) -> WholeEpisodes:
    episodes = make_episodes(8, seed=seed)
    for number, episode in enumerate(episodes):
        episode.agent_episodes["player"].custom_data["lmgame"] |= {"group": f"g{number % 3}", "game": "game"}
    return WholeEpisodes(episodes=episodes)


def trained(learner: Any, make_episodes: Callable[..., list[Any]], first: int = 0, count: int = 2) -> dict[str, Any]:
    for seed in range(first, first + count):
        results = learner.update(training_data=grouped(make_episodes, seed))
    return dict(MetricsLogger.peek_results(results)["player"])


@pytest.mark.parametrize("microbatch", [999, 32])
@pytest.mark.parametrize("epochs", [1, 2])
def test_the_policy_learns_what_it_learns_beside_a_critic_that_moves_nothing(
    microbatch: int, epochs: int, make_learner: Callable[..., Any], make_episodes: Callable[..., list[Any]]
) -> None:
    rest = {"num_epochs": epochs, "lr": 1e-2, "vf_loss_coeff": 0.0, "grad_clip": None, "use_kl_loss": True}
    ppo = {"max_tokens_per_microbatch": microbatch}
    without = make_learner(critic=False, token_ppo=GROUPED | ppo, **rest)
    beside = make_learner(token_ppo={"advantage_estimator": f"{__name__}:WithCritic", **ppo}, **rest)
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
    assert {name.partition(".")[0] for name, _ in without.reference("player").named_parameters()} == {"language_model"}
    with pytest.raises(ValueError, match="without a value function"):
        module.compute_values({})


def test_a_supervised_stage_needs_no_critic(
    make_learner: Callable[..., Any], make_episodes: Callable[..., list[Any]]
) -> None:
    learner, data = make_learner(critic=False, token_ppo=GROUPED), grouped(make_episodes, 0)
    objective = SupervisedObjective(2, lr=1e-2)
    losses = [
        MetricsLogger.peek_results(learner.update(training_data=data, objective=objective))["player"]["policy_loss"]
        for _ in range(3)
    ]
    assert losses[-1] < losses[0]
    learner.begin_ppo()
    assert trained(learner, make_episodes)["num_steps"] == 1


class Imitation(SupervisedObjective):
    """An objective of somebody's own, which changes no settings."""

    def __init__(self) -> None:
        super().__init__(num_minibatches=1, lr=1e-2)

    def adapted(self, settings: LearnerSettings) -> LearnerSettings:
        return settings

    def needs_critic(self, settings: LearnerSettings) -> bool:
        return False


def test_there_is_no_warm_up_of_a_critic_that_there_is_not(
    make_learner: Callable[..., Any], make_episodes: Callable[..., list[Any]]
) -> None:
    ppo = {"objective": f"{__name__}:Imitation", "critic": {"warmup": {"iterations": 2}}}
    learner = make_learner(critic=False, token_ppo=ppo, lr=1e-2)
    before = {name: array.copy() for name, array in hf_state(learner).items()}
    assert trained(learner, make_episodes, count=1)["num_steps"] == 1
    assert any(not np.array_equal(before[name], array) for name, array in hf_state(learner).items())


@pytest.mark.parametrize("stage", [None, 2, 3])
def test_a_checkpoint_goes_on_as_the_kind_it_is(
    stage: int | None, make_learner: Callable[..., Any], make_episodes: Callable[..., list[Any]], tmp_path: Path
) -> None:
    if stage is not None:
        pytest.importorskip("deepspeed")
    section = {"deepspeed": None if stage is None else {"zero_optimization": {"stage": stage}}, "lr": 1e-2}
    learner, again = (make_learner(critic=False, token_ppo=GROUPED, **section) for _ in range(2))
    trained(learner, make_episodes)
    learner.save_shard(tmp_path)
    again.load_shard(tmp_path)
    for each in (learner, again):
        trained(each, make_episodes, 2, 1)
    expected, found = hf_state(learner), hf_state(again)
    assert all(np.array_equal(found[name], tensor) for name, tensor in expected.items())
    other = make_learner(**section)
    with pytest.raises(CheckpointError, match=r"learner\.json: player has no value function there and a value functi"):
        other.load_shard(tmp_path)


def test_a_policy_without_a_critic_begins_again(
    make_learner: Callable[..., Any], make_episodes: Callable[..., list[Any]], tmp_path: Path
) -> None:
    learner = make_learner(critic=False, token_ppo=GROUPED, lr=1e-2)
    before = {name: array.copy() for name, array in hf_state(learner).items()}
    learner.save_policy(tmp_path, "player")
    trained(learner, make_episodes)
    assert any(not np.array_equal(before[name], array) for name, array in hf_state(learner).items())
    learner.begin_again(tmp_path, "player")
    assert all(np.array_equal(before[name], array) for name, array in hf_state(learner).items())


def test_a_checkpoint_with_a_critic_is_refused_where_there_is_none(
    make_learner: Callable[..., Any], tmp_path: Path
) -> None:
    """Also by RLlib's way, and one from when all had a critic."""
    learner, without = make_learner(), make_learner(critic=False, token_ppo=GROUPED)
    learner.save_shard(tmp_path)
    said = "player has a value function there and no value function here, as token_ppo.advantage_estimator asks"
    with pytest.raises(CheckpointError, match=said):
        without.load_shard(tmp_path)
    with pytest.raises(CheckpointError, match=said):
        without.set_state(learner.get_state())
    state = learner.get_state()
    del state["lmgame"]["critics"]
    with pytest.raises(CheckpointError, match=said):
        without.set_state(state)
    make_learner().set_state(state)


def config_of(estimator: Any, **language_model: Any) -> LMGamePPOConfig:
    return LMGamePPOConfig().update_from_dict(
        {
            "env": "lmgame/Sokoban-v0",
            "token_ppo": {"advantage_estimator": estimator},
            "text_rollouts": {"group_size": 4},
            "language_model": language_model,
        }
    )


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_configuration_builds_a_critic_where_one_is_asked(name: str) -> None:
    config = config_of({"type": name})
    config.validate()
    assert config.module_spec("player").model_config["critic"] == ESTIMATORS[name].needs_critic


def test_a_backbone_for_a_critic_that_there_is_not_is_refused() -> None:
    config_of("turn_gae", value_model="separate").validate()
    with pytest.raises(ConfigError, match=r"separate has no effect .*`gigpo`, which asks no value function") as caught:
        config_of({"type": "gigpo"}, value_model="separate").validate()
    assert caught.value.path == "config.language_model.value_model"


def test_who_says_nothing_gets_a_critic() -> None:
    from test_objectives import settings_of

    assert Objective().needs_critic(settings_of(advantage_estimator="grpo"))
    assert not PPOObjective().needs_critic(settings_of(advantage_estimator="grpo"))


def test_the_memory_of_a_critic_is_not_counted() -> None:
    shape = ModelShape(parameters=1000, hidden_size=8, layers=1, vocab_size=10)
    assert trained_parameters(shape, critic=False) == 1000 < trained_parameters(shape)
