"""Numbers in results by their names: ``env_runners/success_rate``. Importing this loads neither Ray nor torch."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

_METRIC = re.compile(r"[\w.+-]+(/[\w.+-]+)*")


def is_metric(value: Any) -> bool:
    """Whether ``value`` can be the name of a number in the results."""
    return isinstance(value, str) and _METRIC.fullmatch(value) is not None


def number_at(result: Mapping[str, Any], path: str) -> float | None:
    """A number of a result, by its name, of Python's, numpy's or torch's kind; it may be infinite.

    ``None`` for nothing, NaN, a truth value, a text, several numbers, or a whole number that no float can hold.
    """
    found: Any = result
    for part in path.split("/"):
        if not isinstance(found, Mapping) or part not in found:
            return None
        found = found[part]
    if getattr(found, "shape", None) == ():
        found = found.item()
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    try:
        number = float(found)
    except OverflowError:
        return None
    return None if math.isnan(number) else number
