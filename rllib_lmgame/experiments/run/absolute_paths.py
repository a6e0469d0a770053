"""Files that a configuration names as they are found here, whichever directory the cluster's processes are in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rllib_lmgame.base.storage import with_absolute_paths
from rllib_lmgame.envs.registry import options_of
from rllib_lmgame.settings.algorithms import AlgorithmEntry
from rllib_lmgame.settings.sections.language_model import LanguageModelOptions


def with_paths_of_here(config: Mapping[str, Any], entry: AlgorithmEntry | None) -> dict[str, Any]:
    """The configuration with absolute paths of local models, tokenizers, logs and games' path options.

    Looks into search spaces too. ``entry`` is the algorithm's; ``None`` for other algorithms.
    """
    whole = dict(config)
    if entry is None:
        return whole
    for section in entry.groups.keys() & config.keys():
        whole[section] = with_absolute_paths(entry.groups[section], config[section])
    if isinstance(policies := config.get("policies"), Mapping):
        whole["policies"] = {name: _policy(options) for name, options in policies.items()}
    return _with_games(whole)


def _policy(options: Any) -> Any:
    if not isinstance(options, Mapping) or "language_model" not in options:
        return options
    return {**options, "language_model": with_absolute_paths(LanguageModelOptions, options["language_model"])}


def _with_games(settings: Any) -> Any:
    """A mapping with ``env_config`` beside ``env``, and perhaps lists of such mappings below ``games``."""
    if not isinstance(settings, Mapping):
        return settings
    whole = dict(settings)
    for name in _texts(settings.get("env")):
        group = options_of(name)
        if group is not None and "env_config" in whole:
            whole["env_config"] = with_absolute_paths(group, whole["env_config"])
    if isinstance(games := settings.get("games"), list | tuple):
        whole["games"] = [_with_games(game) for game in games]
    if "evaluation_config" in settings:
        whole["evaluation_config"] = _with_games(settings["evaluation_config"])
    return whole


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
        yield from _texts(item)
