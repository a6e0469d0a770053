"""The ``report`` setting: a function that is called with the trials when a run has ended."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rllib_lmgame.errors import ConfigError, nearest
from rllib_lmgame.experiments.own_reports import OWN_REPORTS, path_of_report
from rllib_lmgame.experiments.results.outcome import TrialSummary
from rllib_lmgame.imports import import_path
from rllib_lmgame.settings.schema import describe
from rllib_lmgame.signatures import check_arguments


def load_report(setting: str | Mapping[str, Any]) -> Callable[[Sequence[TrialSummary]], None]:
    """The function a setting names, with its arguments filled in.

    Raises:
        ConfigError: if there is no such function, or it does not take these arguments or these values.
    """
    arguments = {"type": setting} if isinstance(setting, str) else dict(setting)
    name = arguments.pop("type", None)
    if not isinstance(name, str):
        raise ConfigError(
            "report",
            f"expected a name or package.module:function, or a mapping with that as `type`, got {describe(setting)}",
        )
    if name not in OWN_REPORTS and ":" not in name:
        match = nearest(name, OWN_REPORTS)
        hint = f"did you mean {match!r}?" if match else f"there are {', '.join(OWN_REPORTS)}."
        raise ConfigError(
            "report", f"there is no report {name!r}; {hint} One of your own is named package.module:function"
        )
    function = import_path(path_of_report(name), "report")
    if not callable(function):
        raise ConfigError("report", f"{name} is not a function")
    return functools.partial(function, **check_arguments(function, arguments, "report", before=1))
