"""Opens a checkpoint to play with it, without running code that it names.

Trusted checkpoints are taken as they are. Others may name games of this package, registered players and a known
algorithm; ``hf/`` may hold data alone (:mod:`rllib_lmgame.algorithms.trust`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rllib_lmgame.algorithms.checkpoints.manifest import hf_directory, read_json, verify_manifest
from rllib_lmgame.algorithms.checkpoints.paths import TRUST_FLAG, is_own_checkpoint
from rllib_lmgame.algorithms.config import CONFIG_FILE, MAX_CONFIG_BYTES, RUN, LMGameConfig
from rllib_lmgame.algorithms.trust import check_config
from rllib_lmgame.algorithms.validation import check_overrides
from rllib_lmgame.base.errors import CheckpointError, ConfigError
from rllib_lmgame.base.group import describe
from rllib_lmgame.base.plugin import find_in_current_directory
from rllib_lmgame.base.storage import expanded
from rllib_lmgame.base.trust import Gate, is_name
from rllib_lmgame.config.algorithms import PPO, AlgorithmEntry, find_entry
from rllib_lmgame.config.run import OVERRIDES
from rllib_lmgame.policies.model.files import ModelFiles, code_problem, model_problem
from rllib_lmgame.policies.options import LANGUAGE_MODEL, TINY_MODEL

GATE = Gate(
    "a checkpoint",
    f"pass {TRUST_FLAG} (in Python trust=True) if you trust whoever made it, or play with its model alone (hf:DIR/hf)",
)


def open_checkpoint(path: str | Path, *, trust: bool = False) -> tuple[Path, LMGameConfig]:
    """Check a checkpoint; returns its absolute directory and its configuration.

    ``trust`` takes what could run code.

    Raises: CheckpointError: not one of this package, damaged or not to be trusted; ConfigError: a wrong configuration.
    """
    directory = expanded(path).absolute()
    if not is_own_checkpoint(str(directory)):
        instead = "RLlib's own are evaluated by Algorithm.from_checkpoint, a model is written hf:DIR"
        raise CheckpointError(f"{directory} is no checkpoint of this package's algorithms; {instead}")
    verify_manifest(directory)
    config = read_config(directory, trust=trust)
    trained = config.trained_policies()
    if not trained:
        raise CheckpointError(f"{directory / CONFIG_FILE} names no policy that was trained")
    for policy in trained:
        files = hf_directory(directory, policy, trained)
        problem = model_problem(files)
        if problem is None and not trust and (code := code_problem(files)):
            problem = f"{code}; pass {TRUST_FLAG} if you trust whoever made it"
        if problem is not None:
            raise CheckpointError(problem)
    return directory, config


def model_of(checkpoint: Path, config: LMGameConfig, policy: str) -> ModelFiles:
    """Files of the model that plays as ``policy``: trained, or never trained."""
    if config.run.is_trained(policy):
        return ModelFiles(str(hf_directory(checkpoint, policy, config.trained_policies())))
    from rllib_lmgame.algorithms.models import initial_model

    return initial_model(config, policy)


def read_config(checkpoint: Path, *, trust: bool) -> LMGameConfig:
    """The configuration a checkpoint was written with; see :func:`open_checkpoint`."""
    path = checkpoint / CONFIG_FILE
    if not path.is_file():
        raise CheckpointError(f"{checkpoint} is damaged: {CONFIG_FILE} is missing")
    values = read_json(path, MAX_CONFIG_BYTES)
    if not values:
        raise CheckpointError(f"{path} is damaged: it holds no setting")
    if trust:
        find_in_current_directory(values)
    try:
        entry = algorithm_of(values, trust=trust)
        saved = {key: value for key, value in values.items() if key != RUN}
        config: LMGameConfig = entry.config_class()().update_from_dict(saved if trust else of_a_stranger(saved, entry))
        check_overrides(config)
        return config
    except ConfigError as error:
        raise ConfigError(error.path, error.message, str(path)) from None
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error


def algorithm_of(values: Mapping[str, Any], *, trust: bool) -> AlgorithmEntry:
    """The algorithm that ``lmgame_config.json`` names; PPO if none.

    Raises: ConfigError: not known here, or a stranger's checkpoint names it by something else than its name.
    """
    name = values.get(RUN, PPO.name)
    if not isinstance(name, str):
        raise ConfigError(RUN, f"expected the name of an algorithm, got {describe(name)}")
    if not (trust or is_name(name)):
        raise GATE.refusal(RUN, describe(name))
    return find_entry(name)


def of_a_stranger(values: Mapping[str, Any], entry: AlgorithmEntry = PPO) -> dict[str, Any]:
    """What playing takes from a configuration that is not trusted. Raises: ConfigError: for a value that is refused."""
    unplayed = (name for name, section in entry.sections.items() if not section.played)
    unread = {"deepspeed", OVERRIDES, *unplayed}
    taken = _with_saved_models({key: value for key, value in values.items() if key not in unread})
    check_config(taken, GATE, sections=entry.groups)
    return taken


def _with_saved_models(values: Mapping[str, Any]) -> dict[str, Any]:
    """Where the trained policies' models and tokenizers came from is left out: they stand in ``hf/``."""
    saved = {"model": TINY_MODEL, "tokenizer": None}
    result = copy.deepcopy(dict(values))
    entries: Any = result.get("policies")
    others: list[Any] = []
    for name, entry in [*entries.items()] if isinstance(entries, dict) else []:
        entry = entries[name] = {} if entry is None else entry
        if not isinstance(entry, dict) or entry.get("player", LANGUAGE_MODEL) != LANGUAGE_MODEL:
            continue
        own = entry.get("language_model") or {}
        if entry.get("trained") is False:
            others.append(own if isinstance(own, dict) else {})
        elif isinstance(own, dict):
            entry["language_model"] = {**own, **saved}
    section = result.get("language_model")
    if isinstance(section, dict):
        section |= {key: value for key, value in saved.items() if all(key in other for other in others)}
    return result
