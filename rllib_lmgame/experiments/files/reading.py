"""Experiment files: YAML, or Python that defines ``config`` and ``stop``; with what ``--set`` changes."""

from __future__ import annotations

import copy
import runpy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.experiments.files.fetched import refuse_code
from rllib_lmgame.experiments.files.loader import load_file, parse_value
from rllib_lmgame.experiments.spec import STOPS, ExperimentSpec, Source, make_spec, make_specs
from rllib_lmgame.storage import is_remote


def apply_overrides(experiments: Mapping[str, Any], source: Source, overrides: Iterable[str]) -> dict[str, Any]:
    """Set values in every experiment of a file.

    Args:
        experiments: Experiments by name, as read; left as they are.
        source: Places of their keys; the overridden ones are recorded as coming from the command line.
        overrides: Texts ``path.to.key=value``; the value is YAML. In front of the path may stand the name of an
            experiment and a colon, to set it in that one only. ``key=`` followed by nothing sets null.

    Raises:
        ConfigError: for a text without ``=``, a value that is not YAML, or a path through something
            that is not a mapping.
    """
    result = copy.deepcopy(dict(experiments))
    for text in overrides:
        path, value, only = _parse(text, result)
        for name in [only] if only else list(result):
            if not isinstance(result[name], dict):
                continue
            _set(result[name], path, copy.deepcopy(value), text)
            _record(source, name, path, text)
    return result


def override_values(overrides: Iterable[str]) -> list[dict[str, Any]]:
    """Each override's value below the last part of its key, e.g. ``{"env": "mine:Game"}`` of
    ``config.env=mine:Game``.
    """
    found = []
    for text in overrides:
        path, _, value = text.partition("=")
        found.append({path.strip().rpartition(".")[2].rpartition(":")[2]: parse_value(value, f"--set {text}")})
    return found


def _parse(text: str, experiments: Mapping[str, Any]) -> tuple[list[str], Any, str | None]:
    path, equals, value = text.partition("=")
    place = f"--set {text}"
    if not equals or not path.strip():
        raise ConfigError("", "write --set key.of.the.setting=value, e.g. --set config.lr=1e-6", place)
    only, colon, rest = path.strip().partition(":")
    if colon:
        if only not in experiments:
            raise ConfigError("", f"there is no experiment {only!r}; the file has {', '.join(experiments)}", place)
        path = rest
    parts = [p.strip() for p in path.split(".")]
    if not all(parts):
        raise ConfigError("", "the key has an empty part", place)
    return parts, parse_value(value, place), only if colon else None


def _set(settings: dict[str, Any], path: list[str], value: Any, text: str) -> None:
    section: Any = settings
    left = path
    while len(left) > (taken := _length_of_key(section, left)):
        key, left = ".".join(left[:taken]), left[taken:]
        inner = section.get(key)
        if inner is None:
            inner = section[key] = {}
        if not isinstance(inner, dict):
            above = ".".join(path[: len(path) - len(left)])
            raise ConfigError(".".join(path), f"{above} is not a mapping", f"--set {text}")
        section = inner
    section[".".join(left)] = value


def _length_of_key(section: Mapping[str, Any], path: list[str]) -> int:
    """Parts of the path that are one key of the section, which may have dots itself: as many as there are of one that
    stands there, else one.
    """
    return next((n for n in range(len(path), 1, -1) if ".".join(path[:n]) in section), 1)


def _record(source: Source, name: str, path: list[str], text: str) -> None:
    for end in range(1, len(path)):
        source.places.setdefault(".".join([name, *path[:end]]), f"--set {text}")
    source.replace(".".join([name, *path]), f"--set {text}")


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
        overrides: ``--set`` texts, see :func:`~rllib_lmgame.experiments.files.reading.apply_overrides`.

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
