"""Import paths in configurations: ``package.module:Name``."""

from __future__ import annotations

import importlib
from typing import Any

from rllib_lmgame.errors import ConfigError, nearest


def import_path(path: str, key: str) -> Any:
    """The object at ``package.module:Name``.

    Args:
        path: Import path.
        key: Configuration key to name in errors.

    Raises:
        ConfigError: if the module cannot be imported, whatever it raises, or the name does not exist.
    """
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise ConfigError(key, f"{path!r} is not an import path; write package.module:Name")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(key, f"cannot import {module_name!r}: {error}") from error
    except Exception as error:
        raise ConfigError(key, f"importing {module_name!r} fails: {type(error).__name__}: {error}") from error
    try:
        return getattr(module, name)
    except AttributeError:
        match = nearest(name, dir(module))
        hint = f"; did you mean {match!r}?" if match else ""
        raise ConfigError(key, f"module {module_name!r} has no {name!r}{hint}") from None
