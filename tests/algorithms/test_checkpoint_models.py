"""A checkpoint's weights are taken over by the model and the tokenizer that they were trained with, or by none."""

from __future__ import annotations

from pathlib import Path

import pytest

from rllib_lmgame.algorithms.checkpoints.models import check_models
from rllib_lmgame.algorithms.ppo import LMGamePPOConfig
from rllib_lmgame.errors import CheckpointError
from rllib_lmgame.policies.model.files import ModelFiles
from rllib_lmgame.policies.model.tiny import build_tiny_model

WORDS = ["red green blue red green blue", "one two three one two three"]


def config_of(directory: Path) -> LMGamePPOConfig:
    config = LMGamePPOConfig().environment("lmgame/Sokoban-v0").language_model(model=str(directory))
    config.model_files = {policy: ModelFiles.carry(directory) for policy in config.trained_policies()}
    return config


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("checkpoint")
    build_tiny_model(directory / "hf", WORDS)
    return directory


def test_the_same_model_is_accepted(checkpoint: Path, tmp_path: Path) -> None:
    check_models(checkpoint, config_of(build_tiny_model(tmp_path, WORDS, {"seed": 1})))
    check_models(tmp_path / "without any model", config_of(tmp_path))


def test_a_tokenizer_of_other_texts_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    config = config_of(build_tiny_model(tmp_path, [text.replace("green", "gold") for text in WORDS]))
    with pytest.raises(CheckpointError, match=r"'player' has another tokenizer: there token \d+ is .*/hf$") as error:
        check_models(checkpoint, config)
    assert str(checkpoint) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("shape", "difference"), [({"num_layers": 2}, "num_hidden_layers 3"), ({"hidden_size": 48}, "hidden_size 96")]
)
def test_another_shape_is_refused(checkpoint: Path, tmp_path: Path, shape: dict[str, int], difference: str) -> None:
    with pytest.raises(CheckpointError, match=f"{difference} there, {next(iter(shape.values()))} here"):
        check_models(checkpoint, config_of(build_tiny_model(tmp_path, WORDS, shape)))
