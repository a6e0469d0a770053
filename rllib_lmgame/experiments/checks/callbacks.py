"""Tune callbacks by name: loggers of other systems, and users' own."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from rllib_lmgame.errors import ConfigError, MissingDependencyError, nearest
from rllib_lmgame.imports import import_path
from rllib_lmgame.settings.plugins import check_arguments
from rllib_lmgame.settings.schema import describe

CALLBACKS = {
    "wandb": ("wandb", "ray.air.integrations.wandb:WandbLoggerCallback"),
    "mlflow": ("mlflow", "ray.air.integrations.mlflow:MLflowLoggerCallback"),
    "comet": ("comet_ml", "ray.air.integrations.comet:CometLoggerCallback"),
}


def check_callbacks(setting: list[Any] | None) -> None:
    """Raise :class:`ConfigError` or :class:`MissingDependencyError` for a callback that cannot be made."""
    for i, entry in enumerate(setting or []):
        _check(*_resolve(entry, f"callbacks[{i}]"), f"callbacks[{i}]")


def make_callbacks(setting: list[Any] | None) -> list[Any]:
    """Tune callback objects for the ``callbacks`` setting."""
    made = []
    for i, entry in enumerate(setting or []):
        cls, arguments = _resolve(entry, f"callbacks[{i}]")
        try:
            made.append(_named(cls(**arguments), f"callbacks[{i}]"))
        except Exception as error:
            raise ConfigError(f"callbacks[{i}]", f"{cls.__name__} cannot be made: {error}") from error
    return made


def _check(cls: Any, arguments: dict[str, Any], key: str) -> None:
    from ray.tune import Callback

    if not (isinstance(cls, type) and issubclass(cls, Callback)):
        raise ConfigError(key, f"expected a class derived from ray.tune.Callback, got {describe(cls)}")
    check_arguments(cls, arguments, key)


def _named(callback: Any, key: str) -> Any:
    """The same callback; what fails when Tune sets it up (a missing account, a server that does not answer) says which
    one it was.
    """
    setup = callback.setup

    def named(*args: Any, **kwargs: Any) -> None:
        try:
            setup(*args, **kwargs)
        except Exception as error:
            raise ConfigError(key, f"{type(callback).__name__} cannot be set up: {error}") from error

    callback.setup = named
    return callback


def _resolve(entry: Any, key: str) -> tuple[Any, dict[str, Any]]:
    arguments: dict[str, Any] = {}
    if isinstance(entry, Mapping):
        arguments = dict(entry)
        entry = arguments.pop("type", None)
    if not isinstance(entry, str):
        raise ConfigError(key, f"expected a name, or a mapping with `type`, got {describe(entry)}")
    if ":" in entry:
        return import_path(entry, key), arguments
    if entry not in CALLBACKS:
        match = nearest(entry, CALLBACKS)
        hint = f"did you mean {match!r}?" if match else f"known: {', '.join(CALLBACKS)}, or package.module:Class"
        raise ConfigError(key, f"there is no callback {entry!r}; {hint}")
    package, path = CALLBACKS[entry]
    if importlib.util.find_spec(package) is None:
        raise MissingDependencyError(
            f"{key}: {entry} needs the package {package}, which is not installed (pip install {package})"
        )
    return import_path(path, key), arguments
