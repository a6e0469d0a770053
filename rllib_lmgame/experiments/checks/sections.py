"""The option groups of an algorithm on text games, checked without importing Ray or torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.policies.model.files import check_model
from rllib_lmgame.policies.model.tiny import check_shape
from rllib_lmgame.settings.algorithms import AlgorithmEntry
from rllib_lmgame.settings.names import check_keys, check_top_level
from rllib_lmgame.settings.schedules import of_old_form
from rllib_lmgame.settings.schema import build
from rllib_lmgame.settings.sections.language_model import TINY_MODEL, LanguageModelOptions
from rllib_lmgame.settings.tree import Settings


def check_sections(config: Mapping[str, Any], entry: AlgorithmEntry) -> None:
    """Check option groups, also those of single policies, and that model directories exist.

    Raises: ConfigError: keys start with ``config.``.
    """
    check_top_level(config, entry)
    if "schedules" in config:
        raise of_old_form(config["schedules"])
    Settings.read(config, entry)  # Types and ranges.
    shared = config.get("language_model") or {}
    _check_model(shared, shared, "config.language_model")
    policies = config.get("policies")
    for policy, player in policies.items() if isinstance(policies, Mapping) else ():
        key, options = f"config.policies.{policy}", player or {}
        own = (options.get("language_model") if isinstance(options, Mapping) else options.language_model) or {}
        check_keys(own, "language_model", entry.groups, f"{key}.language_model")
        build(LanguageModelOptions, own, f"{key}.language_model")
        _check_model({**shared, **own}, own, f"{key}.language_model")


def _check_model(options: Mapping[str, Any], written: Mapping[str, Any], key: str) -> None:
    """Check the model that ``options`` describe; only what stands in ``written`` is looked at."""
    model, tokenizer = options.get("model", TINY_MODEL), written.get("tokenizer")
    if model == TINY_MODEL and "tiny" in written:
        check_shape(written["tiny"], f"{key}.tiny")
    if model != TINY_MODEL and "model" in written:
        check_model(model, f"{key}.model")
    if tokenizer is not None and tokenizer.startswith((".", "/", "~")) and not Path(tokenizer).expanduser().is_dir():
        raise ConfigError(f"{key}.tokenizer", f"no such tokenizer directory: {tokenizer}")
