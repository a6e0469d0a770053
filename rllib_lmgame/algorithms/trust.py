"""What is accepted of an algorithm's configuration in a checkpoint that the user did not say to trust.

:func:`check_config` decides on the mapping as written, before anything is built. Accepted are

* this package's games by id, with options that are plain data (no files, programs or addresses);
* sections, as far as their options declare it (:mod:`rllib_lmgame.base.trust`): registered plug-in names, hub ids
  of models;
* numbers and truth values of RLlib's keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import declared, describe
from rllib_lmgame.base.schedule import is_meant_as_schedule, is_schedule
from rllib_lmgame.base.trust import Gate, is_name, is_number
from rllib_lmgame.config.algorithms import OWN
from rllib_lmgame.config.rllib import FIELDS, EvaluationOptions, OtherOptions
from rllib_lmgame.rollouts.options import GameConfig

SECTIONS: Mapping[str, type] = {name: group for entry in OWN.values() for name, group in entry.groups.items()}
"""Sections of the configurations of this package's algorithms -> their option groups."""


def check_config(config: Any, gate: Gate, sections: Mapping[str, type] = SECTIONS) -> None:
    """Raise unless everything in a configuration may come from a stranger's file.

    Args:
        sections: Sections of its algorithm -> option groups, beside the common ones.

    Raises: ConfigError: names the first refused key and what to do.
    """
    sections = {**SECTIONS, **sections}
    if not isinstance(config, Mapping):
        raise ConfigError("config", f"expected a mapping, got {describe(config)}")
    for key, value in config.items():
        if key not in ("env", "env_config"):
            _check_key(str(key), value, gate, f"config.{key}", sections)
    env, env_config = config.get("env"), config.get("env_config")
    if env is not None or env_config:
        check_game(env, env_config, gate, "config")


def _check_key(key: str, value: Any, gate: Gate, path: str, sections: Mapping[str, type]) -> None:
    if key in sections:
        gate.options(sections[key], value, path)
    elif key in ("policies", "policy_mapping_fn"):
        gate.option(declared(OtherOptions)[key], value, path)
    elif key == "games":
        _check_games(value, gate, path)
    elif key in FIELDS and is_meant_as_schedule(value):
        gate.schedule(value, path)
    elif key == "evaluation_config":
        gate.options(EvaluationOptions, value, path, skip=("games", "measures"))
        if value and value.get("games") is not None:
            _check_games(value["games"], gate, f"{path}.games")
        if value and value.get("measures") is not None:
            _check_measures(value["measures"], gate, f"{path}.measures")
    elif not is_number(value):
        raise gate.refusal(path, describe(value))


def _check_measures(value: Any, gate: Gate, path: str) -> None:
    for number, entry in enumerate(value if isinstance(value, list | tuple) else [value]):
        parts = entry.values() if isinstance(entry, Mapping) else [entry]
        if not all(is_name(part) or is_number(part) for part in parts):
            raise gate.refusal(f"{path}[{number}]", describe(entry))


def _check_games(value: Any, gate: Gate, path: str) -> None:
    if not isinstance(value, list | tuple):
        raise ConfigError(path, f"expected a list of games, got {describe(value)}")
    for position, entry in enumerate(value):
        game, where = entry if isinstance(entry, Mapping) else {"env": entry}, f"{path}[{position}]"
        gate.options(GameConfig, game, where, skip=("env", "env_config"))
        check_game(game.get("env"), game.get("env_config"), gate, where)


def check_game(env: Any, env_config: Any, gate: Gate, path: str) -> None:
    """Raise unless a game and its options may come from a stranger's file; ``path`` is the key of both.

    Raises: ConfigError.
    """
    from rllib_lmgame.envs.registry import options_of

    if not isinstance(env, str) or not (is_own_game(env) or is_gymnasium_env(env)):
        raise gate.refusal(f"{path}.env", describe(env))
    if not isinstance(env_config or {}, Mapping):
        raise ConfigError(f"{path}.env_config", f"expected a mapping, got {describe(env_config)}")
    options, plain = options_of(env) if env_config and not is_gymnasium_env(env) else None, {}
    for key, value in (env_config or {}).items():
        where = f"{path}.env_config.{key}"
        if is_schedule(value):
            gate.schedule(value, where)
        elif options is None and not is_number(value):
            raise gate.refusal(where, describe(value))
        else:
            plain[key] = value
    if options is not None:
        gate.options(options, plain, f"{path}.env_config")


def is_own_game(env: str) -> bool:
    from rllib_lmgame.envs.registry import own_games

    return env in own_games()


def is_gymnasium_env(env: str) -> bool:
    import gymnasium

    spec = gymnasium.registry.get(env)
    return spec is not None and isinstance(spec.entry_point, str) and spec.entry_point.startswith("gymnasium.envs.")
