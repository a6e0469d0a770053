"""A checkpoint's weights are taken over by the model and the tokenizer that they were trained with, or by none."""

from __future__ import annotations

import json
import shutil

import pytest

from rllib_lmgame.algorithms.checkpoints.models import check_league, check_models
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


@pytest.mark.parametrize(
    ("shape", "difference"), [({"num_layers": 2}, "num_hidden_layers 3"), ({"hidden_size": 48}, "hidden_size 96")]
)
def test_another_shape_is_refused(checkpoint, tmp_path, shape, difference) -> None:
    with pytest.raises(CheckpointError, match=f"{difference} there, {next(iter(shape.values()))} here"):
        check_models(checkpoint, config_of(build_tiny_model(tmp_path, WORDS, shape)))


@pytest.mark.parametrize(
    ("file", "text"),
    [("config.json", "{}"), ("config.json", None), ("config.json", '{"model_type": "no"}'), ("tokenizer.json", "{")],
)
def test_files_that_cannot_be_read_are_the_checkpoints(checkpoint, tmp_path, file, text) -> None:
    damaged = shutil.copytree(checkpoint, tmp_path / "damaged")
    if text is None:
        (damaged / "hf" / file).unlink()
    else:
        (damaged / "hf" / file).write_text(text)
    with pytest.raises(CheckpointError, match=f"'player' cannot be read from {damaged}/hf: ") as error:
        check_models(damaged, config_of(build_tiny_model(tmp_path / "own", WORDS)))
    assert "\n" not in str(error.value)


def test_a_league_of_another_policy_is_refused(tmp_path) -> None:
    """By name, whether there are members of it or results alone; a run without a league takes over none."""
    won, file = {"player": [3, 0, 0]}, tmp_path / "league" / "league.json"
    file.parent.mkdir()

    def config(*policies: str, mapping: str = "league") -> LMGamePPOConfig:
        seats = {"policies": [*policies], "policy_mapping_fn": mapping}
        return LMGamePPOConfig().environment("lmgame/KuhnPoker-v0").update_from_dict(seats)

    def write(*members: str, **results: dict[str, list[int]]) -> None:
        listed = [{"name": f"{policy}-5", "policy": policy} for policy in ("player", *members)]
        payoffs = {"player": {"player-5": [1, 0, 2]}, **results}
        file.write_text(json.dumps({"members": listed, "payoffs": payoffs}))

    check_league(tmp_path / "without a league", config("player"))
    for members, results in (([], {}), (["hunter"], {"hunter": won})):
        write(*members, **results)
        check_league(tmp_path, config("player", "hunter"))
    for members, results in ((["hunter"], {}), ([], {"hunter": won}), ([], {"player": {"hunter": [0, 1, 0]}})):
        write(*members, **results)
        check_league(tmp_path, config("player", mapping="self_play"))
        with pytest.raises(CheckpointError, match=r"results of 'hunter', .*Keep it in config\.policies") as error:
            check_league(tmp_path, config("player"))
        assert str(error.value).startswith(f"{tmp_path} does not suit this run")
    file.write_text('{"members": 3}')
    with pytest.raises(CheckpointError, match=r"league\.json is damaged"):
        check_league(tmp_path, config("player"))


@pytest.mark.parametrize(
    ("there", "here", "said"),
    [
        ({"r": 8}, {"init": True}, "r 8 there and 4 here"),
        ({}, {"target_modules": [f"{each}_proj" for each in ("q", "k", "v", "o", "gate", "up", "down")]}, None),
        ({}, {"init": True}, None),
    ],
)
def test_adapters_of_other_numbers_are_refused_before_anything_starts(
    checkpoint, tmp_path, there, here, said
) -> None:
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


@pytest.mark.parametrize("estimator", ["gae", "grpo"])
@pytest.mark.parametrize("critics", [{"player": {}}, {}])
def test_value_functions_are_compared_before_anything_starts(checkpoint, tmp_path, estimator, critics) -> None:
    whole = shutil.copytree(checkpoint, tmp_path / "whole")
    (whole / "learners").mkdir()
    counters = {"modules": ["player"], "critics": critics}
    (whole / "learners" / "learner.json").write_text(json.dumps(counters))
    config = config_of(checkpoint / "hf").token_ppo(advantage_estimator=estimator).text_rollouts(group_size=2)
    if (critics != {}) == (estimator == "gae"):
        check_models(whole, config, local_files_only=True)
    else:
        with pytest.raises(CheckpointError, match=r"player has (a|no) value function there and (a|no) .* hf/ as"):
            check_models(whole, config, local_files_only=True)
