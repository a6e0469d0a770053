"""What trials are called wherever they are shown: by the settings in which they differ (``grpo seed 1``)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rllib_lmgame.base.text import one_line, shown

_LONGEST_VALUE = 24
_TUNE_ID = re.compile(r"_[0-9a-f]{4,8}_\d{5}$")


def settings_name(settings: Mapping[str, Any]) -> str:
    """``{"training/advantage_estimator": "grpo", "lr": 1e-4, "seed": 1}`` -> ``grpo lr=0.0001 seed 1``.

    The keys may be joined by ``/`` or ``.``. A text stands for itself: an import path by what it names, a file by its
    name; a group by its type and options. The seed comes last.
    """
    ordered = sorted(settings.items(), key=lambda each: each[0] == "seed")
    return " ".join(_setting(re.split(r"[/.]", key)[-1], value) for key, value in ordered)


def _setting(key: str, value: Any) -> str:
    if key == "seed":
        return f"seed {value}"
    if isinstance(value, Mapping) and isinstance(value.get("type"), str):
        return settings_name(dict(sorted(value.items(), key=lambda each: each[0] != "type")))
    if isinstance(value, str):
        return one_line(re.split(r"[:/\\]", value)[-1])[:_LONGEST_VALUE] or f"{key}=''"
    number = isinstance(value, float) and not value.is_integer()
    return f"{key}={value:.4g}" if number else f"{key}={one_line(shown(value, _LONGEST_VALUE))}"


def trial_settings(trial: Any) -> dict[str, Any]:
    """What a trial of Tune's drew from its search space, as it is now: population-based training changes it."""
    drawn = dict(getattr(trial, "evaluated_params", None) or {})
    return {key: _now(trial.config, key.split("/"), value) for key, value in drawn.items()}


def _now(config: Any, path: Sequence[str], first: Any) -> Any:
    for key in path:
        if not isinstance(config, Mapping) or key not in config:
            return first
        config = config[key]
    return config


def trial_names(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Trial id -> name, of trials by the settings they drew; ids where these do not tell them apart."""
    names = {trial: settings_name(drawn) for trial, drawn in settings.items()}
    often = Counter(names.values())
    return {
        trial: trial if not name else f"{name} ({trial})" if often[name] > 1 else name for trial, name in names.items()
    }


def directory_names(directories: Iterable[str]) -> dict[str, str]:
    """Name of a trial's directory -> what it is called: without Tune's id where that tells all apart."""
    names = list(dict.fromkeys(directories))
    short = [_TUNE_ID.sub("", name).replace("_", " ") if _TUNE_ID.search(name) else name for name in names]
    return dict(zip(names, short if len(set(short)) == len(names) and all(short) else names, strict=True))


def names_of(trials: Sequence[Any]) -> dict[str, str]:
    """Names of Tune's trials, as by :func:`trial_names`."""
    return trial_names({trial.trial_id: trial_settings(trial) for trial in trials})
