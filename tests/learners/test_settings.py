"""What a learner is set to: limits that are refused on the driver, what a module is built for, and every option of
``training`` that may follow a schedule.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
import torch
import yaml
from learning import TIMES, update, weights

from rllib_lmgame.algorithms.ppo import LMGamePPOConfig
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import build, walk
from rllib_lmgame.base.registry import ESTIMATORS
from rllib_lmgame.learners.objectives.base import LearnerSettings
from rllib_lmgame.learners.options import TrainingOptions
from rllib_lmgame.policies.model import attention


def ppo_config(language_model: dict[str, Any], **settings: Any) -> LMGamePPOConfig:
    return LMGamePPOConfig().update_from_dict(
        {"env": "lmgame/TicTacToe-v0", "language_model": {"model": "tiny"} | language_model, **settings}
    )


def test_the_example_of_an_estimators_options_is_one() -> None:
    (example,) = re.findall(r"`(\{.*?\})`", TrainingOptions.model_fields["advantage_estimator"].description or "")
    build(TrainingOptions, {"advantage_estimator": yaml.safe_load(example)})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("advantage_estimator.step_weight", {"type": "gigpo", "step_weight": value}) for value in (-1, "x")),
        ("advantage_estimator.std_epsilon", {"type": "grpo", "std_epsilon": 0}),
        ("advantage_estimator.step_weight", {"step_weight": 1}),
        *(("advantage_estimator.lam", {"type": name, "lam": 1}) for name in ("turn_gae", "rloo")),
        ("kl.loss_estimator", {"loss_estimator": "k1"}),
        ("kl.reference.every", {"reference": {"type": "ema", "every": 5}}),
        ("kl.reference.every", {"reference": {"type": "refresh", "every": 0}}),
        ("kl.reference.decay", {"reference": {"type": "ema", "decay": 1.0}}),
        ("critic.warmup.type", {"warmup": {"iterations": 1, "type": "ridge"}}),
    ],
)
def test_options_are_refused_where_they_are_not_or_cannot_be(key: str, value: Any) -> None:
    """Limits, and what belongs to another type, as they are declared beside each option."""
    with pytest.raises(ConfigError) as caught:
        ppo_config({}, training={key.partition(".")[0]: value}).validate()
    assert caught.value.path == f"config.training.{key}"


@pytest.mark.parametrize(
    "ppo",
    [
        {"normalize_advantages": "group"},
        *({"advantage_estimator": name} for name in ESTIMATORS if ESTIMATORS[name].needs_groups),
    ],
    ids=str,
)
def test_groups_of_one_are_refused_before_anything_starts(ppo: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"compares .* set at least 2") as caught:
        ppo_config({}, training=ppo, text_rollouts={"group_size": 1}).validate()
    assert caught.value.path == "config.text_rollouts.group_size"


@pytest.mark.parametrize(
    ("gpus", "installed", "chosen"),
    [(0, True, attention.PACKED), (0.5, True, attention.FLASH), (0.5, False, attention.PACKED_VARLEN)],
)
def test_a_gpu_in_sight_is_not_one_to_use(
    gpus: float, installed: bool, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A learner without GPUs may still see those of its machine."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(attention, "_flash_installed", lambda: installed)
    model_config = ppo_config({}, num_gpus_per_learner=gpus).module_spec("player").model_config
    assert attention.resolve_implementation("auto", torch.bfloat16, model_config["on_gpu"]) == chosen


@pytest.mark.parametrize(("sampled", "learned"), [(0.0, 1.0), (0, 1.0), (0.5, 0.5), (1.5, 1.5)])
def test_greedy_sampling_counts_as_temperature_1(sampled: float, learned: float) -> None:
    """Configured or scheduled, and whatever was configured before."""
    assert LearnerSettings.of_run(LMGamePPOConfig().inference(temperature=sampled).run).temperature == learned
    before = LMGamePPOConfig().inference(temperature=0.25).run
    assert LearnerSettings.of_run(before, {"inference.temperature": sampled}).temperature == learned


def test_minibatches_are_drawn_anew_by_run_version_epoch_and_learner() -> None:
    def seed(of_run: int, version: int, epoch: int, rank: int) -> tuple[int, ...]:
        found = LearnerSettings.of_run(LMGamePPOConfig().debugging(seed=of_run).run)
        return tuple(found.minibatch_seed(version, epoch, rank))

    drawn = [*itertools.product((3, 4), repeat=4)]
    assert len({seed(*counters) for counters in drawn}) == len(drawn)
    assert seed(3, 4, 5, 6) == seed(3, 4, 5, 6)


NEEDS: dict[str, tuple[dict[str, Any], float]] = {
    "advantage_estimator.baseline_decay": ({"advantage_estimator": "rae"}, 0.1),
    "critic.lr": ({}, 0.1),
    "critic.clip": ({}, 1e-4),
    "policy_loss.clip_low": ({}, 0.001),
    "policy_loss.clip_high": ({}, 0.001),
    "policy_loss.dual_clip": ({}, 1.0001),
    "aggregation.length": ({"aggregation": {"type": "constant_length", "length": 16}}, 64),
    "importance_sampling.cap": ({}, 0.1),
    "kl.coef": ({"kl": {"coef": 0.1}}, 0.5),
    "num_minibatches": ({}, 4),
}
"""Option -> what of the section it needs beside it, and another value than it has there."""


def test_the_table_names_all_of_them() -> None:
    assert NEEDS.keys() == {each.key for each in walk(TrainingOptions) if each.scheduled}


def outcome(make_learner: Any, make_episodes: Any, ppo: dict[str, Any], scheduled: Any) -> dict[str, Any]:
    """What an update leaves that is the second of a run: numbers of the result, coefficients and weights."""
    options = {"num_minibatches": 2, **ppo}
    learner = make_learner(lr=1e-2, num_epochs=2, use_kl_loss=True, kl_coeff=0.2, training=options)
    for number, values in enumerate(({}, scheduled)):
        metrics = update(learner, make_episodes(8, seed=number), scheduled=values)
    sums = {name: tensor.double().sum().item() for name, tensor in weights(learner).items()}
    numbers = {name: float(value) for name, value in metrics.items() if name not in TIMES}
    return numbers | sums | {"kl": float(learner.curr_kl_coeffs_per_module["player"])}


def test_an_update_without_a_change_is_repeated_bit_for_bit(make_learner: Any, make_episodes: Any) -> None:
    """Else it would say nothing that a changed value makes another."""
    torch.manual_seed(0)
    plain = outcome(make_learner, make_episodes, {}, {})
    same = outcome(
        make_learner, make_episodes, {}, {"training.num_minibatches": 2, "training.importance_sampling.cap": 2.0}
    )
    assert same == pytest.approx(plain, rel=0, abs=0, nan_ok=True)


@pytest.mark.parametrize("name", NEEDS)
def test_a_changed_value_changes_an_update(name: str, make_learner: Any, make_episodes: Any) -> None:
    beside, value = NEEDS[name]
    plain = outcome(make_learner, make_episodes, beside, {})
    changed = outcome(make_learner, make_episodes, beside, {f"training.{name}": value})
    assert changed != pytest.approx(plain, rel=0, abs=0, nan_ok=True)


@pytest.mark.parametrize(
    ("key", "section"),
    [
        ("optimizer", {"optimizer": {"type": "Adam"}}),
        ("gradient_clipping", {"gradient_clipping": 2.0}),
        ("zero_optimization.stage", {"zero_optimization": {"stage": 4}}),
        ("zero_optimization.overlap_comm", {"zero_optimization": {"stage": 1, "overlap_comm": True}}),
        ("data_types", {"bf16": {"enabled": True}, "data_types": "fp32"}),
        ("bf16.bf16_master_weights_and_grads", {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}),
        ("bf16.enabled", {"bf16": {"enabled": "no"}}),
    ],
)
def test_a_deepspeed_section_that_cannot_work_is_refused(key: str, section: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        ppo_config({}, deepspeed=section).validate()
    assert caught.value.path == f"config.deepspeed.{key}"
