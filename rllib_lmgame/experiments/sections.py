"""The option groups of this package's algorithms, checked without importing Ray or torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.imports import import_path
from rllib_lmgame.schema import build

OPTION_SECTIONS = {
    "language_model": "rllib_lmgame.policies.options:LanguageModelOptions",
    "inference": "rllib_lmgame.inference.options:InferenceOptions",
    "text_rollouts": "rllib_lmgame.rollouts.options:TextRolloutOptions",
    "token_ppo": "rllib_lmgame.learners.options:TokenPPOOptions",
    "warm_start": "rllib_lmgame.algorithms.options:WarmStartOptions",
}


def check_sections(config: Mapping[str, Any], sections: Mapping[str, str]) -> None:
    """Check the option groups that stand in a configuration, and that model directories exist.

    Raises:
        ConfigError: keys start with ``config.``.
    """
    for name, where in sections.items():
        if config.get(name) is not None:
            build(import_path(where, name), config[name], f"config.{name}")
    models = {"config.language_model": config.get("language_model")}
    policies = config.get("policies")
    if isinstance(policies, Mapping):
        for policy, player in policies.items():
            if isinstance(player, Mapping):
                models[f"config.policies.{policy}.language_model"] = player.get("language_model")
    for key, options in models.items():
        if isinstance(options, Mapping):
            for field in ("model", "tokenizer"):
                if isinstance(options.get(field), str):
                    check_model_directory(options[field], f"{key}.{field}")


def check_model_directory(model: str, key: str) -> None:
    """Raise :class:`ConfigError` if ``model`` is written like a directory and is none, or holds no model."""
    place = Path(model).expanduser()
    if place.is_dir():
        expected = "config.json" if key.endswith("model") else "tokenizer_config.json"
        if not (place / expected).exists():
            raise ConfigError(key, f"the directory {model} has no {expected}, so it is no Hugging Face model directory")
    elif model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise ConfigError(key, f"there is no directory {model}; give a directory, a Hugging Face hub id (`org/name`), or `tiny`")
