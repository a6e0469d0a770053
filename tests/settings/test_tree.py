"""One frozen value of all settings: what was given in each form, and what a policy has of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rllib_lmgame.algorithms.grpo import LMGameGRPOConfig
from rllib_lmgame.algorithms.ppo import LMGamePPOConfig
from rllib_lmgame.experiments.files.reading import read_experiments
from rllib_lmgame.experiments.search.spaces import find_search_spaces
from rllib_lmgame.settings.algorithms import OWN
from rllib_lmgame.settings.tree import Settings

EXAMPLES = sorted((Path(__file__).parents[2] / "tuned_examples").glob("*.yaml"))
ROOM = {"env": "lmgame/Sokoban-v0"}


def _in_python(config: Any) -> Any:
    return config.environment(**ROOM).training(lr=1e-5).token_ppo(policy_loss={"low": None})


@pytest.mark.parametrize(
    "config",
    [
        _in_python(LMGameGRPOConfig()),
        LMGameGRPOConfig().update_from_dict({**ROOM, "lr": 1e-5, "token_ppo": {"policy_loss": {"low": None}}}),
        _in_python(LMGameGRPOConfig()).copy(),
        LMGameGRPOConfig.from_dict(_in_python(LMGameGRPOConfig()).to_dict()),
    ],
    ids=["methods", "mapping", "copy", "to_dict"],
)
def test_what_was_given_is_known_also_where_it_is_the_default(config: Any) -> None:
    keys = {key for key in config.settings.keys if config.settings.given(key)}
    assert keys == {"env", "lr", "token_ppo", "token_ppo.policy_loss", "token_ppo.policy_loss.low"}
    config.validate()
    assert config.settings.keys == keys


def test_a_value_changed_in_a_dictionary_of_the_configuration_was_given() -> None:
    changed = {
        **LMGamePPOConfig().environment(**ROOM).to_dict(),
        "gamma": 0.9,
        "token_ppo": {"policy_loss": {"low": 0.1}},
    }
    group = {"token_ppo", "token_ppo.policy_loss", "token_ppo.policy_loss.low"}
    assert LMGamePPOConfig.from_dict(changed).settings.keys == {"env", "gamma", *group}


def test_the_settings_of_a_policy_have_its_own_options_and_schedules() -> None:
    own = {"lr": 1e-4, "token_ppo": {"policy_loss": {"low": 0.1}}}
    config = (
        LMGamePPOConfig()
        .environment(**ROOM)
        .players({"a": {"language_model": {"max_tokens_per_turn": 7}}, "b": {}})
        .multi_agent(algorithm_config_overrides_per_module={"a": own})
        .training(lr={"points": [[0, 1e-3]]}, gamma={"points": [[0, 0.5]]})
    )
    a, b = config.settings.policy("a"), config.settings.policy("b")
    assert (a.rllib.lr, a.ppo.policy_loss.low, a.lm.max_tokens_per_turn) == (1e-4, 0.1, 7)
    assert (b.rllib.lr, b.ppo.policy_loss.low, b.lm.max_tokens_per_turn) == (1e-6, None, 128)
    assert (a.follows("lr"), a.follows("gamma"), b.follows("lr")) == (False, True, True)
    assert a.given("token_ppo.policy_loss.low") and not b.given("token_ppo.policy_loss.low")
    assert b.at({"gamma": 0.25, "token_ppo.policy_loss.low": 0.3}).ppo.policy_loss.low == 0.3


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_mapping_is_read_without_ray_as_the_configuration_reads_it(path: Path) -> None:
    """But for the defaults that GRPO has of its own."""
    for spec in read_experiments(str(path), []):
        entry = OWN.get(spec.options.run)
        if entry is None or find_search_spaces(spec.config):
            continue
        config = entry.config_class()()
        own = {name: getattr(config, section.attribute) for name, section in entry.sections.items()}
        read, object_ = Settings.read(spec.config, entry), config.update_from_dict(spec.config).settings
        assert (read.keys, read.schedules, read.games) == (object_.keys, object_.schedules, object_.games)
        assert (read.policies, read.evaluation, read.deepspeed) == (
            object_.policies,
            object_.evaluation,
            object_.deepspeed,
        )
        for name in entry.sections:
            if own[name] in (None, entry.sections[name].group()):
                assert read.sections[name] == object_.sections[name], name
