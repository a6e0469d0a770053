"""One frozen value of all settings: what was given in each form, and what a policy has of its own."""

from __future__ import annotations

from typing import Any

import pytest

from rllib_lmgame.algorithms.grpo import LMGameGRPOConfig
from rllib_lmgame.algorithms.ppo import LMGamePPOConfig

ROOM = {"env": "lmgame/Sokoban-v0"}


def _in_python(config: Any) -> Any:
    return config.environment(**ROOM).training(lr=1e-5).token_ppo(entropy_rate=0.005)


@pytest.mark.parametrize(
    "config",
    [
        _in_python(LMGameGRPOConfig()),
        LMGameGRPOConfig().update_from_dict({**ROOM, "lr": 1e-5, "token_ppo": {"entropy_rate": 0.005}}),
        _in_python(LMGameGRPOConfig()).copy(),
        LMGameGRPOConfig.from_dict(_in_python(LMGameGRPOConfig()).to_dict()),
    ],
    ids=["methods", "mapping", "copy", "to_dict"],
)
def test_what_was_given_is_known_also_where_it_is_the_default(config: Any) -> None:
    keys = {key for key in config.settings.keys if config.settings.given(key)}
    assert keys == {"env", "lr", "token_ppo", "token_ppo.entropy_rate"}
    config.validate()
    assert config.settings.keys == keys


def test_a_value_changed_in_a_dictionary_of_the_configuration_was_given() -> None:
    changed = {**LMGamePPOConfig().environment(**ROOM).to_dict(), "gamma": 0.9, "token_ppo": {"clip_low": 0.1}}
    assert LMGamePPOConfig.from_dict(changed).settings.keys == {"env", "gamma", "token_ppo", "token_ppo.clip_low"}


def test_the_settings_of_a_policy_have_its_own_options_and_schedules() -> None:
    own = {"lr": 1e-4, "token_ppo": {"clip_low": 0.1}}
    config = (
        LMGamePPOConfig()
        .environment(**ROOM)
        .players({"a": {"language_model": {"max_tokens_per_turn": 7}}, "b": {}})
        .multi_agent(algorithm_config_overrides_per_module={"a": own})
        .training(lr={"points": [[0, 1e-3]]}, gamma={"points": [[0, 0.5]]})
    )
    a, b = config.settings.policy("a"), config.settings.policy("b")
    assert (a.rllib.lr, a.ppo.clip_low, a.lm.max_tokens_per_turn) == (1e-4, 0.1, 7)
    assert (b.rllib.lr, b.ppo.clip_low, b.lm.max_tokens_per_turn) == (1e-6, None, 128)
    assert (a.follows("lr"), a.follows("gamma"), b.follows("lr")) == (False, True, True)
    assert a.given("token_ppo.clip_low") and not b.given("token_ppo.clip_low")
    assert b.at({"gamma": 0.25, "token_ppo.clip_low": 0.3}).ppo.clip_low == 0.3
