"""A checkpoint's weights are taken over by the model and the tokenizer that they were trained with, or by none."""

from __future__ import annotations

import shutil

import pytest

from rllib_lmgame.algorithms.checkpoints.learner_files import check_models
from rllib_lmgame.algorithms.ppo import LMGamePPOConfig
from rllib_lmgame.base.errors import CheckpointError
from rllib_lmgame.policies.model.files import ModelFiles
from rllib_lmgame.policies.model.tiny import build_tiny_model
from rllib_lmgame.policies.options import LoraOptions

WORDS = ["red green blue red green blue", "one two three one two three"]


def config_of(directory) -> LMGamePPOConfig:
    config = LMGamePPOConfig().environment("lmgame/Sokoban-v0").language_model(model=str(directory))
    config.model_files = {policy: ModelFiles.ship(directory) for policy in config.trained_policies()}
    return config


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory):
    directory = tmp_path_factory.mktemp("checkpoint")
    build_tiny_model(directory / "hf", WORDS)
    return directory


def test_the_same_model_is_accepted(checkpoint, tmp_path) -> None:
    check_models(checkpoint, config_of(build_tiny_model(tmp_path, WORDS, {"seed": 1})))
    check_models(tmp_path / "without any model", config_of(tmp_path))


def test_a_tokenizer_of_other_texts_is_refused(checkpoint, tmp_path) -> None:
    config = config_of(build_tiny_model(tmp_path, [text.replace("green", "gold") for text in WORDS]))
    with pytest.raises(CheckpointError, match=r"'player' has another tokenizer: there token \d+ is .*/hf$") as error:
        check_models(checkpoint, config)
    assert str(checkpoint) in str(error.value) and "\n" not in str(error.value)


def test_a_tokenizer_that_cannot_be_read_is_the_checkpoints(checkpoint, tmp_path) -> None:
    damaged = shutil.copytree(checkpoint, tmp_path / "damaged")
    (damaged / "hf" / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=f"{damaged}/hf: the tokenizer of 'player' cannot be read") as error:
        check_models(damaged, config_of(build_tiny_model(tmp_path / "own", WORDS)))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ({"num_heads": 6}, "num_attention_heads 3 there and 6 here"),
        ({"num_layers": 2}, "num_hidden_layers 3 there and 2 here"),
        ({"hidden_size": 48}, "hidden_size 96 there and 48 here"),
    ],
)
def test_another_shape_is_refused(checkpoint, tmp_path, shape, said) -> None:
    """Also where its tensors would fit: of other heads they mean something else."""
    with pytest.raises(CheckpointError, match=f"'player' has {said}"):
        check_models(checkpoint, config_of(build_tiny_model(tmp_path, WORDS, shape)))


@pytest.mark.parametrize(
    ("there", "here", "said"),
    [
        ({"r": 8}, {"init": True}, "r 8 there and 4 here"),
        ({}, {"target_modules": [f"{each}_proj" for each in ("q", "k", "v", "o", "gate", "up", "down")]}, None),
        ({}, {"init": True}, None),
    ],
)
def test_adapters_of_other_numbers_are_refused_before_anything_starts(checkpoint, tmp_path, there, here, said) -> None:
    pytest.importorskip("peft")
    begin = tmp_path / "begin"
    write_adapter(checkpoint / "hf", begin, r=4, alpha=16)
    whole = shutil.copytree(checkpoint, tmp_path / "whole")
    write_adapter(checkpoint / "hf", whole / "adapter", **{"r": 4, "alpha": 16} | there)
    lora = {"init": str(begin)} if "init" in here else {"r": 4, "alpha": 16} | here
    config = config_of(checkpoint / "hf").language_model(lora=lora)
    if said is None:
        check_models(whole, config)
    else:
        with pytest.raises(CheckpointError, match=said) as error:
            check_models(whole, config)
        assert str(whole) in str(error.value)


def write_adapter(base, directory, **lora) -> None:
    from transformers import AutoModelForCausalLM

    from rllib_lmgame.policies.model.adapters import Adapters

    adapters = Adapters(AutoModelForCausalLM.from_pretrained(base), LoraOptions(**lora), model_dir=str(base))
    adapters.save(directory, adapters.state())
