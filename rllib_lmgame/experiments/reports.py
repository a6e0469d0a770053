"""The ``report`` setting: a function that is called with the trials when a run has ended."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.experiments.results import TrialSummary
from rllib_lmgame.imports import import_path
from rllib_lmgame.schema import describe


def load_report(setting: str | Mapping[str, Any]) -> Callable[[Sequence[TrialSummary]], None]:
    """The function a setting names, with its arguments filled in.

    Raises:
        ConfigError: if there is no such function, or it does not take these arguments.
    """
    arguments = {"type": setting} if isinstance(setting, str) else dict(setting)
    path = arguments.pop("type", None)
    if not isinstance(path, str):
        raise ConfigError("report", f"expected package.module:function, or a mapping with that as `type`, got {describe(setting)}")
    function = import_path(path, "report")
    if not callable(function):
        raise ConfigError("report", f"{path} is not a function")
    try:
        inspect.signature(function).bind([], **arguments)
    except (TypeError, ValueError) as error:
        raise ConfigError("report", f"{path}: {error}") from None
    return functools.partial(function, **arguments)
