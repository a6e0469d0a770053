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
from rllib_lmgame.settings.sections.inference import InferenceOptions
from rllib_lmgame.settings.tree import Settings

EXAMPLES = sorted((Path(__file__).parents[2] / "tuned_examples").glob("*.yaml"))
ROOM = {"env": "lmgame/Sokoban-v0"}


def _in_python(config: Any) -> Any:
    return config.environment(**ROOM).training(lr=1e-5).token_ppo(policy_loss={"clip_low": 0.2})


@pytest.mark.parametrize(
    "config",
    [
        _in_python(LMGameGRPOConfig()),
        LMGameGRPOConfig().update_from_dict({**ROOM, "lr": 1e-5, "token_ppo": {"policy_loss": {"clip_low": 0.2}}}),
        _in_python(LMGameGRPOConfig()).copy(),
        LMGameGRPOConfig.from_dict(_in_python(LMGameGRPOConfig()).to_dict()),
    ],
    ids=["methods", "mapping", "copy", "to_dict"],
)
def test_what_was_given_is_known_also_where_it_is_the_default(config: Any) -> None:
    keys = {key for key in config.settings.keys if config.settings.given(key)}
    assert keys == {"env", "lr", "token_ppo", "token_ppo.policy_loss", "token_ppo.policy_loss.clip_low"}
    config.validate()
    assert config.settings.keys == keys


def test_a_value_changed_in_a_dictionary_of_the_configuration_was_given() -> None:
    changed = {
        **LMGamePPOConfig().environment(**ROOM).to_dict(),
        "gamma": 0.9,
        "token_ppo": {"policy_loss": {"clip_low": 0.1}},
    }
    group = {"token_ppo", "token_ppo.policy_loss", "token_ppo.policy_loss.clip_low"}
    assert LMGamePPOConfig.from_dict(changed).settings.keys == {"env", "gamma", *group}


SCHEDULE = {"points": [[0, 4], [9, 2]]}


@pytest.mark.parametrize(
    ("had", "given", "lost"),
    [
        ({"lr": SCHEDULE}, {"lr": 1e-5}, "lr"),
        ({"lambda": {"points": [[0, 1], [9, 0]]}}, {"lambda": 0.5}, "lambda"),
        ({"env_config": {"max_turns": SCHEDULE}}, {"env_config": {"max_turns": 5}}, "env_config.max_turns"),
        ({"env_config": {"max_turns": SCHEDULE}}, {"env_config": {}}, "env_config.max_turns"),
        ({"inference": {"temperature": SCHEDULE}}, {"inference": {"temperature": 2}}, "inference.temperature"),
        ({"inference": {"temperature": SCHEDULE}}, {"inference": InferenceOptions()}, "inference.temperature"),
        ({"token_ppo": {"kl": {"coeff_range": SCHEDULE}}}, {"token_ppo": {"kl": None}}, "token_ppo.kl.coeff_range"),
        ({"warm_start": {"expert": "random"}}, {"warm_start": None}, ""),
        ({"league": {}}, {"league": None}, ""),
        ({"policies": ["a"]}, {"policies": {"b": {}, "c": {"player": "random"}}}, ""),
        ({"evaluation_config": {"temperature": 1}}, {"evaluation_config": {"temperature": 2}}, ""),
        ({"deepspeed": {"bf16": {"enabled": True}}}, {"deepspeed": None}, ""),
    ],
    ids=str,
)
def test_what_is_written_beside_a_dictionary_of_the_configuration_wins(
    had: dict[str, Any], given: dict[str, Any], lost: str
) -> None:
    """All else stays, schedules included."""
    games = [{"env": "lmgame/Sokoban-v0", "weight": SCHEDULE}, "lmgame/Maze-v0"]
    other = {"gamma": {"points": [[0, 1], [9, 0]]}, **({} if "env_config" in had else {"games": games})}
    config = LMGamePPOConfig().update_from_dict({**had, **other})
    again = LMGamePPOConfig().update_from_dict(config.to_dict()).settings
    assert again == config.settings
    (key, value), *_ = given.items()
    changed = LMGamePPOConfig().update_from_dict({**config.to_dict(), key: value}).settings
    alone = LMGamePPOConfig().update_from_dict(given).settings
    assert set(again.schedules) - set(changed.schedules) == ({lost} if lost else set())
    assert changed.games == again.games
    assert changed.rllib.env_config == alone.rllib.env_config
    for part in ("policies", "evaluation", "deepspeed"):
        assert getattr(changed, part) == getattr(alone if part in key else again, part)
    if lost and not key.startswith("env"):
        assert changed.value(lost) == alone.value(lost)
    assert changed.league is changed.supervised is None


def test_the_settings_of_a_policy_have_its_own_options_and_schedules() -> None:
    own = {"lr": 1e-4, "token_ppo": {"policy_loss": {"clip_low": 0.1}}}
    config = (
        LMGamePPOConfig()
        .environment(**ROOM)
        .players({"a": {"language_model": {"max_tokens_per_turn": 7}}, "b": {}})
        .multi_agent(algorithm_config_overrides_per_module={"a": own})
        .training(lr={"points": [[0, 1e-3]]}, gamma={"points": [[0, 0.5]]})
    )
    a, b = config.settings.policy("a"), config.settings.policy("b")
    assert (a.rllib.lr, a.ppo.policy_loss.clip_low, a.lm.max_tokens_per_turn) == (1e-4, 0.1, 7)
    assert (b.rllib.lr, b.ppo.policy_loss.clip_low, b.lm.max_tokens_per_turn) == (1e-6, 0.2, 128)
    assert (a.follows("lr"), a.follows("gamma"), b.follows("lr")) == (False, True, True)
    assert a.given("token_ppo.policy_loss.clip_low") and not b.given("token_ppo.policy_loss.clip_low")
    assert b.at({"gamma": 0.25, "token_ppo.policy_loss.clip_low": 0.3}).ppo.policy_loss.clip_low == 0.3


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
            if own[name] is None or own[name] == entry.sections[name].group():
                assert read.sections[name] == object_.sections[name], name
