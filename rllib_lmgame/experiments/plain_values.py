"""Values of an experiment's own options that can run nothing: what a file from the network may hold there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rllib_lmgame.settings.trust import is_name, is_number

_SCHEDULER_TEXTS = ("type", "metric", "mode", "time_attr")


def is_plain_scheduler(value: Any) -> bool:
    """Whether a ``scheduler`` setting holds names of metrics and numbers alone, and nothing that is written
    into a configuration.
    """
    if not isinstance(value, Mapping):
        return is_name(value)
    texts = all(isinstance(value[key], str) for key in _SCHEDULER_TEXTS if key in value)
    return (
        texts
        and is_name(value.get("type"))
        and all(_is_flat(item) for key, item in value.items() if key not in _SCHEDULER_TEXTS)
    )


def _is_flat(value: Any) -> bool:
    return is_number(value) and not any(
        isinstance(item, Mapping | list | tuple) for item in (value if isinstance(value, list) else [value])
    )
