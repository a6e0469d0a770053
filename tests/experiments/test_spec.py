"""Experiments as they stand in a file."""

from __future__ import annotations

import pytest

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.experiments.checks.check import check_quickly
from rllib_lmgame.experiments.files.reading import apply_overrides, load_text
from rllib_lmgame.experiments.spec import ExperimentSpec, make_specs


def specs_of(text: str, *overrides: str) -> list[ExperimentSpec]:
    experiments, source = load_text(text, "x.yaml")
    return make_specs(apply_overrides(experiments, source, overrides), source)


def error_of(text: str, *overrides: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        check_quickly(specs_of(text, *overrides))
    return caught.value


BASE = "a:\n  run: PPO\n  env: CartPole-v1\n"


def test_the_environment_moves_into_the_configuration():
    (spec,) = specs_of(BASE + "  config: {lr: 1e-4}\n")
    assert spec.config == {"lr": 1e-4, "env": "CartPole-v1"}
    assert spec.source.locate("config.env") == "x.yaml:3"


@pytest.mark.parametrize(
    ("line", "key", "words"),
    [
        ("stpo: {}", "stpo", "did you mean 'stop'"),
        ("name: x", "name", "--experiment-name"),
        ("num_samples: '3'", "num_samples", "got the text '3'"),
        ("stop: {training_iteration: yes}", "stop.training_iteration", "valid number"),
        ("env_vars: {A=B: x}", "env_vars", "no environment holds"),
        ("checkpoint_config: often", "checkpoint_config", "mapping of options"),
    ],
)
def test_wrong_settings_are_named_with_their_line(line, key, words):
    error = error_of(BASE + f"  {line}\n")
    assert (error.path, error.source) == (key, "x.yaml:4")
    assert words in error.message


def test_a_section_at_the_top_of_a_file_is_told_where_its_keys_belong():
    error = error_of("language_model:\n  lora: {r: 16}\n")
    assert str(error).startswith("x.yaml:2: lora: unknown key; did you mean 'config.language_model.lora'")
    assert "did you mean 'config.env_config'" in error_of(BASE + "  env_config: {max_turns: 3}\n").message
    error = str(error_of("a: {run: LMGamePPO, config: {num_workers: 2, report: {}}}"))
    assert "set num_env_runners" in error and "put it next to `config:`" in error


def test_nested_stop_criteria_are_joined():
    (spec,) = specs_of(BASE + "  stop: {env_runners: {episode_return_mean: 1}}")
    assert spec.options.stop == {"env_runners/episode_return_mean": 1.0}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("run: PPO\nenv: CartPole-v1\n", "below a name"),
        ("a: {env: CartPole-v1}", "is missing: `LMGamePPO`"),
        ("{}", "no experiment"),
        ("a:", "below its name"),
        (BASE + "  config: {env: Other}", "keep one"),
    ],
)
def test_what_is_missing_or_stands_twice_is_told(text, words):
    assert words in error_of(text).message


@pytest.mark.parametrize("run", ["", "run: Nope", "run: 3", "run: PPOO"])
def test_other_wrong_keys_are_named_beside_an_algorithm_that_there_is_not(run):
    error = error_of(f"a:\n  stpo: {{}}\n  {run}\n  config: {{lrr: 1, agentevol: {{}}}}\nb:\n  name: x\nc: 3")
    ours = ["config.lrr"] * ("PPOO" not in run)  # RLlib's have other keys.
    assert [each.path for each in error.each] == ["stpo", "run", *ours, "name", "run", "c"]
    assert "n_step" not in str(error_of(f"a:\n  env: CartPole-v1\n  stpo: 1\n  {run}\n  config: {{n_step: 3}}"))


@pytest.mark.parametrize("name", ["a/b", "''", "..", "n" * 201, "é" * 101, '"a\\0b"', '"a\\e[31mb"', '"a\\nb"'])
def test_a_name_must_be_a_directory_name(name):
    assert "directory" in error_of(f"{name}: {{run: PPO}}").message


# -- overrides --------------------------------------------------------------------------------------------------


def test_a_type_alone_becomes_its_group():
    text = BASE.replace("run: PPO", "run: LMGamePPO") + "  config: {training: {policy_loss: clip}}"
    (spec,) = specs_of(text, "config.training.policy_loss.clip_low=0.1")
    assert spec.config["training"]["policy_loss"] == {"type": "clip", "clip_low": 0.1}


def test_overrides_are_typed_and_reach_every_experiment():
    specs = specs_of(
        "a: {run: PPO}\nb: {run: PPO}\n", "config.lr=1e-6", "stop.training_iteration=2", "config.model.x=[a, 1]"
    )
    assert [s.config["lr"] for s in specs] == [1e-6, 1e-6]
    assert specs[0].options.stop == {"training_iteration": 2.0}
    assert specs[0].config["model"] == {"x": ["a", 1]}


def test_overrides_replace_whole_values_and_can_be_null():
    (spec,) = specs_of(BASE + "  config: {lr: {grid_search: [1, 2]}, seed: 3}", "config.lr=5", "config.seed=")
    assert spec.config["lr"] == 5
    assert spec.config["seed"] is None
    assert spec.source.locate("config.lr.grid_search") == "--set config.lr=5"


@pytest.mark.parametrize(
    ("text", "words"),
    [("config.lr", "key.of.the.setting=value"), ("config.env.x=3", "not a mapping"), ("config.lr=[1", "not readable")],
)
def test_wrong_overrides(text, words):
    error = error_of(BASE + "  config: {env: CartPole-v1}", text)
    assert words in error.message
    assert error.source and error.source.startswith("--set")
