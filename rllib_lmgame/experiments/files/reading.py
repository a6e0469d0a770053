"""Experiment files: YAML, or Python that defines ``config`` and ``stop``."""

from __future__ import annotations

import runpy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.experiments.files.fetched import refuse_code
from rllib_lmgame.experiments.files.loader import load_file
from rllib_lmgame.experiments.files.overrides import apply_overrides
from rllib_lmgame.experiments.files.remote import is_remote
from rllib_lmgame.experiments.source import Source
from rllib_lmgame.experiments.spec import STOPS, ExperimentSpec, make_spec, make_specs

_OPTIONAL_NAMES = (
    "num_samples",
    "storage_path",
    "checkpoint_config",
    "max_failures",
    "time_budget_s",
    "scheduler",
    "callbacks",
    "report",
)


def read_experiments(path: str, overrides: Iterable[str] = ()) -> list[ExperimentSpec]:
    """Read the experiments of a file.

    Args:
        path: A ``.yaml``, ``.yml`` or ``.py`` file; ``file://`` in front is allowed. A Python file is run. Or the
            http(s) address of a YAML file, which may set what :mod:`.fetched` lets it; ``overrides`` may set anything.
        overrides: ``--set`` texts, see :func:`~rllib_lmgame.experiments.files.overrides.apply_overrides`.

    Raises:
        ConfigError: with file and line of what is wrong.
    """
    plain = path.removeprefix("file://")
    if is_remote(plain):
        experiments, source = load_file(plain)
        for spec in make_specs(experiments, source):
            refuse_code(spec)
        return make_specs(apply_overrides(experiments, source, overrides), source)
    if plain.endswith(".py"):
        return [_read_python(plain, overrides)]
    if not plain.endswith((".yaml", ".yml")) and Path(plain).expanduser().is_file():
        raise ConfigError("", f"{path} has no known ending; experiment files end in .yaml, .yml or .py")
    experiments, source = load_file(plain)
    return make_specs(apply_overrides(experiments, source, overrides), source)


def _read_python(path: str, overrides: Iterable[str]) -> ExperimentSpec:
    place = Path(path).expanduser()
    if not place.is_file():
        raise ConfigError("", f"no such file: {path}")
    names = runpy.run_path(str(place))
    if "config" not in names:
        raise ConfigError("config", "the file must define `config`, an AlgorithmConfig object", path)
    config, algorithm, values = names["config"], None, {}
    if hasattr(config, "algo_class"):
        algorithm, values = config.algo_class, _changed_values(config)
    elif isinstance(config, dict):
        values = dict(config)
    else:
        raise ConfigError("config", f"expected an AlgorithmConfig or a dict, got {type(config).__name__}", path)
    settings: dict[str, Any] = {"config": values, **{key: names.get(key) or {} for key in STOPS}}
    settings.update({key: names[key] for key in _OPTIONAL_NAMES if key in names})
    if algorithm is not None:
        settings["run"] = algorithm.__name__
    elif "run" in names:
        settings["run"] = names["run"]
    name = place.stem
    source = Source(path)
    settings = apply_overrides({name: settings}, source, overrides)[name]
    return make_spec(name, settings, source.scoped(name), algorithm)


def _changed_values(config: Any) -> dict[str, Any]:
    """The flat keys in which a configuration object differs from its algorithm's defaults."""
    defaults = config.algo_class.get_default_config().to_dict()
    values = config.to_dict()
    changed = {}
    for key, value in values.items():
        try:
            same = key in defaults and bool(defaults[key] == value)
        except (ValueError, TypeError):
            same = False
        if not same:
            changed[key] = value
    return changed
