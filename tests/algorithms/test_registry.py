"""One entry per algorithm: what it must say, by what it is found, and whom a checkpoint may name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rllib_lmgame.algorithms.config import LMGameConfig
from rllib_lmgame.algorithms.ppo import LMGamePPO
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.config.algorithms import (
    COMMON_SECTIONS,
    OWN,
    PPO,
    SFT,
    AlgorithmEntry,
    Section,
    entry_of,
    find_entry,
    reference,
)
from rllib_lmgame.datasets.options import SupervisedOptions
from rllib_lmgame.evaluation.saved_config import algorithm_of, of_a_stranger
from rllib_lmgame.experiments.checks.algorithms import resolve_algorithm


class OtherLoop(LMGamePPO):
    """Changes the loop alone."""


def test_the_registry_is_light() -> None:
    code = (
        "import sys, rllib_lmgame.config.algorithms; print([name for name in ('ray', 'torch', 'transformers', "
        "'vllm') if name in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


@pytest.mark.parametrize("name", OWN)
def test_every_entry_is_that_of_its_classes(name: str) -> None:
    entry = OWN[name]
    cls = entry.algorithm_class()
    config = cls.get_default_config()
    assert type(config) is entry.config_class() and config.algo_class is cls
    assert entry_of(cls) is config.entry is entry is find_entry(entry.algorithm) is find_entry(name)
    assert reference(entry) == name == resolve_algorithm(name).name
    assert all(hasattr(config.run, key) and callable(getattr(config, key)) for key in entry.sections)


def test_a_class_that_changes_the_loop_alone_needs_no_entry() -> None:
    resolved = resolve_algorithm(f"{__name__}:OtherLoop")
    assert resolved.own and resolved.entry is not None and resolved.name == resolved.entry.name == "OtherLoop"
    assert resolved.entry.sections == PPO.sections
    assert reference(OtherLoop.get_default_config().entry) == "LMGamePPO", (
        "its checkpoints can be read where its file is not"
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sections": {"own": Section(LMGameConfig)}}, "lacks language_model, inference"),
        (
            {"sections": {**COMMON_SECTIONS, "policies": Section(LMGameConfig)}},
            "a section 'policies', which is another key",
        ),
    ],
)
def test_an_entry_that_cannot_be_right_is_refused(changes, words) -> None:
    with pytest.raises(ConfigError, match=words):
        AlgorithmEntry(**{"name": "Mine", "algorithm": "mine:Mine", "config": "mine:Config", **changes})


class Cloned(LMGameConfig):
    """Of an algorithm that learns by a section of its own, and reads nothing of ``training``."""

    entry = AlgorithmEntry(
        "Cloned",
        PPO.algorithm,
        f"{__name__}:Cloned",
        {name: section for name, section in COMMON_SECTIONS.items() if name != "training"}
        | {"cloning": Section(SupervisedOptions)},
        learned_by="cloning",
    )


def test_an_algorithm_need_not_have_the_options_of_ppo() -> None:
    config = Cloned().update_from_dict({"env": "lmgame/Sokoban-v0", "cloning": {"max_steps": 3}})
    config.validate()
    assert not config.run.compares and "training" not in config.run.as_yaml()
    with pytest.raises(ConfigError, match="unknown key") as caught:
        Cloned().update_from_dict({"training": {"policy_loss": "cispo"}})
    assert caught.value.path == "config.training"


def test_an_entry_and_classes_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"LMGamePPOConfig has not the sections of 'Mine'.*set its `entry`"):
        AlgorithmEntry("Mine", PPO.algorithm, PPO.config, SFT.sections).config_class()
    with pytest.raises(
        ConfigError, match=r"ppo:LMGamePPO is no algorithm whose get_default_config\(\) returns a LMGameSFTConfig"
    ):
        AlgorithmEntry("Mine", PPO.algorithm, SFT.config, SFT.sections).algorithm_class()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("os:system", "os:system is not an RLlib Algorithm class"),
        ("no_such_module:Mine", "cannot import 'no_such_module'"),
        ("LMGameppo", "there is no algorithm 'LMGameppo'; did you mean 'LMGamePPO'"),
        ("DPO", "there is no algorithm 'DPO'; did you mean 'LMGameDPO'"),
    ],
)
def test_what_a_file_names_is_checked(name, words) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve_algorithm(name)
    assert find_entry("LMGameSFT") is SFT and resolve_algorithm("APPO").entry is None, "other names work"
    assert resolve_algorithm(f"{__name__}:OtherLoop").cls is OtherLoop


def test_a_stranger_names_what_is_of_this_package_and_nothing_else() -> None:
    for trust in (False, True):
        assert algorithm_of({}, trust=trust) is PPO
        assert algorithm_of({"run": "LMGameSFT"}, trust=trust) is SFT
        with pytest.raises(ConfigError, match="there is no algorithm 'Nobodys'"):
            algorithm_of({"run": "Nobodys"}, trust=trust)
        with pytest.raises(ConfigError):
            algorithm_of({"run": ["LMGamePPO"]}, trust=trust)
    for path in (f"{__name__}:OtherLoop", "os:system", PPO.algorithm):
        with pytest.raises(
            ConfigError, match=f"run: the text '{path}' is not taken from a checkpoint.*--trust-checkpoint"
        ):
            algorithm_of({"run": path}, trust=False)
    assert algorithm_of({"run": f"{__name__}:OtherLoop"}, trust=True).algorithm_class() is OtherLoop
    with pytest.raises(ConfigError, match="os:system is neither an AlgorithmEntry"):
        algorithm_of({"run": "os:system"}, trust=True)


def test_of_a_strangers_sections_those_are_read_that_playing_needs() -> None:
    trained, played = (Section(SupervisedOptions), Section(SupervisedOptions, played=True))
    entry = AlgorithmEntry(
        "Mine", "mine:Mine", "mine:Config", {**COMMON_SECTIONS, "trained": trained, "played": played}
    )
    values = {"env": "lmgame/Sokoban-v0", "trained": {"data": "/etc/passwd"}, "played": {"max_steps": 3}}
    assert of_a_stranger(values, entry=entry) == {"env": "lmgame/Sokoban-v0", "played": {"max_steps": 3}}
    with pytest.raises(ConfigError, match=r"config\.played\.data: the text '/etc/passwd' is not taken"):
        of_a_stranger({**values, "played": {"data": "/etc/passwd"}}, entry=entry)
    with pytest.raises(ConfigError, match=r"config\.trained: .* is not taken"):
        of_a_stranger(values)
