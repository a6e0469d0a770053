"""Numerics that cannot learn or run are refused on the driver, and what a module is built for comes from the
configuration.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from rllib_lmgame.algorithms.ppo import LMGamePPOConfig
from rllib_lmgame.errors import ConfigError
from rllib_lmgame.learners.settings import LearnerSettings
from rllib_lmgame.policies.model import attention

HALF = {"bf16": {"enabled": True}}
FLASH = {"attn_implementation": "flash_attention_2"}


def ppo_config(language_model: dict[str, Any], **settings: Any) -> LMGamePPOConfig:
    return LMGamePPOConfig().update_from_dict(
        {"env": "lmgame/TicTacToe-v0", "language_model": {"model": "tiny"} | language_model, **settings}
    )


@pytest.mark.parametrize(
    ("language_model", "settings", "message"),
    [
        ({"dtype": "bfloat16"}, {}, r"config\.language_model\.dtype: bfloat16 .* use `auto`"),
        ({"dtype": "float16"}, {"deepspeed": {"bf16": {"enabled": False}}}, r"config\.language_model\.dtype: float16"),
        (FLASH, {}, r"config\.language_model\.attn_implementation: .*num_gpus_per_learner"),
        (
            FLASH | {"dtype": "float32"},
            {"num_gpus_per_learner": 1},
            r"config\.language_model\.attn_implementation: .*half precision",
        ),
    ],
)
def test_numerics_that_cannot_work_are_refused(
    language_model: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        ppo_config(language_model, **settings).validate()


@pytest.mark.parametrize(
    ("language_model", "settings"),
    [
        ({"dtype": "bfloat16"}, {"deepspeed": HALF}),
        (FLASH, {"num_gpus_per_learner": 0.5}),
        (FLASH | {"dtype": "bfloat16"}, {"num_gpus_per_learner": 1, "deepspeed": HALF}),
    ],
)
def test_numerics_that_work_are_taken(language_model: dict[str, Any], settings: dict[str, Any]) -> None:
    ppo_config(language_model, **settings).validate()


@pytest.mark.parametrize(("gpus", "chosen"), [(0, attention.PACKED), (0.5, attention.FLASH)])
def test_a_gpu_in_sight_is_not_one_to_use(gpus: float, chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner without GPUs may still see those of its machine."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(attention, "_flash_installed", lambda: True)
    model_config = ppo_config({}, num_gpus_per_learner=gpus).module_spec("player").model_config
    assert attention.resolve_implementation("auto", torch.bfloat16, model_config["on_gpu"]) == chosen


def test_a_module_on_the_cpu_computes_there(make_module: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(attention, "_flash_installed", lambda: True)
    assert make_module(dtype="bfloat16").attention == attention.PACKED


@pytest.mark.parametrize(("sampled", "learned"), [(0.0, 1.0), (0, 1.0), (0.5, 0.5), (1.5, 1.5)])
def test_greedy_sampling_counts_as_temperature_1(sampled: float, learned: float) -> None:
    """Configured or scheduled, and whatever was configured before."""
    configured = LearnerSettings.from_config(LMGamePPOConfig().inference(temperature=sampled))
    assert configured.temperature == learned
    before = LearnerSettings.from_config(LMGamePPOConfig().inference(temperature=0.25))
    assert before.with_values({"inference.temperature": sampled}).temperature == learned


def test_minibatches_are_drawn_anew_by_run_version_epoch_and_learner() -> None:
    def seed(of_run: int, version: int, epoch: int, rank: int) -> tuple[int, ...]:
        found = LearnerSettings.from_config(LMGamePPOConfig().debugging(seed=of_run))
        return tuple(found.minibatch_seed(version, epoch, rank))

    drawn = [*itertools.product((3, 4), repeat=4)]
    assert len({seed(*counters) for counters in drawn}) == len(drawn)
    assert seed(3, 4, 5, 6) == seed(3, 4, 5, 6)
