"""Which key a user most likely means, without importing Ray or torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rllib_lmgame.base.errors import ConfigError, nearest
from rllib_lmgame.base.group import declared, walk
from rllib_lmgame.base.schedule import ScheduleOptions
from rllib_lmgame.settings.algorithms import OWN, AlgorithmEntry, Section
from rllib_lmgame.settings.sections.language_model import PlayerOptions
from rllib_lmgame.settings.sections.rllib import (
    FLAT_KEYS,
    OTHER_NAMES,
    WITHOUT_EFFECT,
    EvaluationOptions,
    rllib_words,
    without_effect,
)

RUNTIME_FIELDS = (
    *("engine_names", "model_files", "other_games", "episode_log_dir", "learner_rooms", "learner_threads"),
    "watched_as",
)
"""Set by the algorithm when it starts; not options."""


_SUPERVISED = {"warm_start": "supervised", "supervised": "warm_start"}
"""What the section of supervised learning is called in algorithms that have the other one."""


def own_attributes(sections: Mapping[str, Section]) -> dict[str, Any]:
    """Attributes of ours in a configuration object's dictionary -> their types; a YAML file has sections instead."""
    return {
        **{each.attribute: each.group | None if each.optional else each.group for each in sections.values()},
        "deepspeed_config": dict[str, Any] | None,
        "evaluation_options": EvaluationOptions,
        "given_keys": tuple[str, ...],
        "player_options": dict[str, PlayerOptions],
        "schedule_options": dict[str, ScheduleOptions],
        "seat_mapping_spec": Any,
    }


def set_at_start(key: str) -> ConfigError:
    """The error for one of :data:`RUNTIME_FIELDS` in a configuration."""
    return ConfigError(f"config.{key}", "is set by the algorithm when it starts; leave it out")


def find_key(key: str, groups: Mapping[str, type], flat: Iterable[str] = FLAT_KEYS) -> str | None:
    """The dotted key below ``config`` that is meant: same name in a section, another trainer's name, or the nearest.

    Args:
        key: An unknown key, without its path.
        groups: Section -> option group.
        flat: RLlib's keys.
    """
    if key not in groups and _SUPERVISED.get(key) in groups:
        return _SUPERVISED[key]
    likely = (*FLAT_KEYS, *groups)
    flat = {*flat, *likely}
    within: dict[str, str] = {}
    for section, group in groups.items():
        for option in walk(group):
            within.setdefault(option.key.rpartition(".")[2], f"{section}.{option.key}")
    for place in ({name: name for name in flat}, within, OTHER_NAMES):
        if key in place:
            return place[key]
    # Of RLlib's keys that nobody is likely to mean, many do nothing here: only what is plainly misspelt.
    misspelt = nearest(
        key, (name for name in flat if not name.startswith("_") and name.rstrip("_") not in WITHOUT_EFFECT), 0.85
    )
    match = misspelt or nearest(key, [*likely, *within])
    return None if match is None else match if match in flat else within[match]


def not_in_evaluation(key: str) -> ConfigError:
    """The error for a key that ``evaluation_config`` has not, naming its own that is meant, or one of ``config``."""
    path = "config.evaluation_config"
    if key in ("env", "env_config"):
        listed = f"evaluation plays the games of {path}.games, a list of {{env: ..., env_config: {{...}}}}"
        return ConfigError(f"{path}.{key}", f"has no effect: {listed}")
    above = {name: f"config.evaluation_{name}" for name in ("interval", "duration", "num_env_runners")}
    if key in FLAT_KEYS:
        return ConfigError(f"{path}.{key}", f"has no effect here; set {above.get(key, f'config.{key}')}")
    other = {"episodes": above["duration"], "num_episodes": above["duration"], "num_workers": above["num_env_runners"]}
    own = {name: f"{path}.{name}" for name in declared(EvaluationOptions)}
    known = {**{f"evaluation_{name}": place for name, place in own.items()}, **above, **other, **own}
    match = key if key in known else nearest(key, known)
    return _unknown(f"evaluation_config.{key}", known[match] if match else None)


def unknown_at_top(key: str, groups: Mapping[str, type], flat: Iterable[str]) -> ConfigError:
    """The error for an unknown key of a configuration; arguments as of :func:`find_key`."""
    match = find_key(key, groups, flat)
    return _unknown(key, match and f"config.{match}")


def _unknown(key: str, match: str | None) -> ConfigError:
    others = ", ".join(name for name, entry in OWN.items() if key in entry.sections)
    told = others and key not in _SUPERVISED
    hint = f"it is one of {others}" if told else match and f"did you mean {match!r}?"
    return ConfigError(f"config.{key}", f"unknown key; {hint}" if hint else "unknown key")


def check_keys(values: Any, section: str, groups: Mapping[str, type], path: str) -> None:
    """Raise ConfigError for a key that belongs to another place, naming that place.

    Keys that are nowhere are left to :func:`~rllib_lmgame.base.group.build`, which names the nearest one.
    """
    own = declared(groups[section])
    for key in values if isinstance(values, Mapping) else ():
        found = None if key in own else find_key(str(key), groups)
        if found is not None and found.rpartition(".")[2] == OTHER_NAMES.get(str(key), str(key)).rpartition(".")[2]:
            raise ConfigError(f"{path}.{key}", f"unknown key; did you mean 'config.{found}'?")


def check_top_level(config: Mapping[str, Any], entry: AlgorithmEntry) -> None:
    """Raise ConfigError for a key that nothing here reads, or of neither this package nor RLlib (the likely one named).

    Unclear keys are left to the configuration, which imports RLlib and knows its whole list.
    """
    groups = entry.groups
    known, of_objects = {*groups, *FLAT_KEYS}, {"in_evaluation", *own_attributes(entry.sections)}
    for key in map(str, config):
        if key in RUNTIME_FIELDS:
            raise set_at_start(key)
        if key.rstrip("_") in WITHOUT_EFFECT:  # Also with RLlib's default: whoever writes it expects something of it.
            raise without_effect(key.rstrip("_"))
        words = rllib_words() if key not in known else frozenset()
        if key.startswith("_") or key in of_objects:
            raise unknown_at_top(key, groups, FLAT_KEYS)
        if key in known or key in words:
            continue
        found = find_key(key, groups)
        if found is not None and found == find_key(key, groups, words):
            raise _unknown(key, f"config.{found}")
