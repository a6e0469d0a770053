"""Who writes a key by its old name is told the new one, and its line."""

from __future__ import annotations

from typing import Any

import pytest

from rllib_lmgame.algorithms.ppo import LMGamePPOConfig
from rllib_lmgame.algorithms.sft import LMGameSFTConfig
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import walk
from rllib_lmgame.experiments.checks.check import check_quickly
from rllib_lmgame.experiments.files.reading import load_text
from rllib_lmgame.experiments.spec import make_specs
from rllib_lmgame.settings.algorithms import PPO, SFT
from rllib_lmgame.settings.old_names import OLD_NAMES
from rllib_lmgame.settings.sections.rllib import FLAT_KEYS


def written(key: str, value: Any = 1) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


@pytest.mark.parametrize("old", OLD_NAMES)
def test_an_old_key_is_told_the_new_one(old: str) -> None:
    new, how = OLD_NAMES[old]
    with pytest.raises(ConfigError) as caught:
        (LMGameSFTConfig if old.startswith("supervised.") else LMGamePPOConfig)().update_from_dict(written(old))
    assert caught.value.path == f"config.{old}"
    assert caught.value.message == f"is now config.{new}" + (f" ({how})" if how else "")
    section, _, name = new.partition(".")
    known = [each.key for each in walk({**PPO.groups, **SFT.groups}[section])] if name else FLAT_KEYS
    assert (name or section) in known, "there is such a key"


def test_all_old_keys_of_a_file_are_told_at_once() -> None:
    text = "a:\n  run: LMGamePPO\n  env: lmgame/Sokoban-v0\n  config:\n    token_ppo: {CLIP: 0.3, kl_in: loss}\n"
    specs = make_specs(*load_text(text.replace("CLIP", "clip_" + "high") + "    schedules: {lr: 1}\n", "x.yaml"))
    with pytest.raises(ConfigError, match=r"is now config.token_ppo.policy_loss.high; config.token_ppo.kl_in is now "):
        check_quickly(specs)
    with pytest.raises(ConfigError, match=r"config.schedules is now config.lr \(or another option, as its value: "):
        check_quickly(specs)


def test_a_file_is_told_its_line() -> None:
    text = "a:\n  run: LMGamePPO\n  env: lmgame/Sokoban-v0\n  config:\n    token_ppo:\n      {}: 0.3\n"
    specs = make_specs(*load_text(text.format("clip_" + "high"), "x.yaml"))
    with pytest.raises(ConfigError, match=r"^x.yaml:6: config.token_ppo.clip_high: is now config.token_ppo."):
        check_quickly(specs)
