"""The ``report`` setting: a function that is called with the trials when a run has ended."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.experiments.results.outcome import TrialSummary
from rllib_lmgame.settings.plugins import REPORTS, check_arguments


def load_report(setting: str | Mapping[str, Any]) -> Callable[[Sequence[TrialSummary]], None]:
    """The function a setting names, with its arguments filled in.

    Raises:
        ConfigError: if there is no such function, or it does not take these arguments or these values.
    """
    name, arguments = REPORTS.split(setting)
    function = REPORTS.find(name)
    if not callable(function):
        raise ConfigError("report", f"{name} is not a function")
    return functools.partial(function, **check_arguments(function, arguments, "report", before=1))
