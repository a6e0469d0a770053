"""Tune callbacks by name: loggers of other systems, and users' own."""

from __future__ import annotations

import importlib.util
from typing import Any

from rllib_lmgame.base.errors import ConfigError, MissingDependencyError
from rllib_lmgame.base.group import describe
from rllib_lmgame.settings.plugins import CALLBACKS, check_arguments

_PACKAGES = {"wandb": "wandb", "mlflow": "mlflow", "comet": "comet_ml"}
"""What the loggers of Ray's need."""


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
    """The same callback; an error while Tune sets it up (no account, no answer) names the callback."""
    setup = callback.setup

    def named(*args: Any, **kwargs: Any) -> None:
        try:
            setup(*args, **kwargs)
        except Exception as error:
            raise ConfigError(key, f"{type(callback).__name__} cannot be set up: {error}") from error

    callback.setup = named
    return callback


def _resolve(entry: Any, key: str) -> tuple[Any, dict[str, Any]]:
    name, arguments = CALLBACKS.split(entry, key)
    package = _PACKAGES.get(name)
    if package is not None and importlib.util.find_spec(package) is None:
        raise MissingDependencyError(
            f"{key}: {name} needs the package {package}, which is not installed (pip install {package})"
        )
    return CALLBACKS.find(name, key), arguments
