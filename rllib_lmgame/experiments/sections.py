"""The option groups of this package's algorithms, checked without importing Ray or torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.imports import import_path
from rllib_lmgame.policies.model_files import check_model
from rllib_lmgame.policies.options import TINY_MODEL
from rllib_lmgame.schema import build

_COMMON = {
    "language_model": "rllib_lmgame.policies.options:LanguageModelOptions",
    "inference": "rllib_lmgame.inference.options:InferenceOptions",
    "text_rollouts": "rllib_lmgame.rollouts.options:TextRolloutOptions",
    "token_ppo": "rllib_lmgame.learners.options:TokenPPOOptions",
}
_SUPERVISED = "rllib_lmgame.algorithms.options:SupervisedOptions"
OPTION_SECTIONS = {
    "LMGamePPO": {**_COMMON, "warm_start": _SUPERVISED},
    "LMGameSFT": {**_COMMON, "supervised": _SUPERVISED},
}
"""Algorithm -> section -> option group."""


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
            if isinstance(options.get("model"), str) and options["model"] != TINY_MODEL:
                check_model(options["model"], f"{key}.model")
            tokenizer = options.get("tokenizer")
            if isinstance(tokenizer, str) and tokenizer.startswith((".", "/", "~")) and not Path(tokenizer).expanduser().is_dir():
                raise ConfigError(f"{key}.tokenizer", f"no such tokenizer directory: {tokenizer}")
