"""What a game may say in ``info["measures"]``."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Mapping
from typing import Any

MAX_MEASURES = 64
"""Numbers of its own that a game may report at the end: each becomes a metric."""

_NAME = re.compile(r"[A-Za-z0-9_]{1,64}", re.ASCII)


def checked_measures(measures: Any) -> dict[str, float]:
    """The numbers as floats. Raises: ValueError unless at most :data:`MAX_MEASURES` names map to finite numbers."""
    if not isinstance(measures, Mapping) or len(measures) > MAX_MEASURES:
        raise ValueError(f"`measures` must be a mapping of at most {MAX_MEASURES} names to numbers")
    for name, number in measures.items():
        if not _NAME.fullmatch(str(name)):
            raise ValueError(f"`measures` names {str(name)[:60]!r}; a name has letters, digits and _ (at most 64)")
        if not isinstance(number, numbers.Real) or not is_finite(number):
            raise ValueError(f"`measures` gives {name} no finite number")
    return {str(name): float(number) for name, number in measures.items()}


def is_finite(number: Any) -> bool:
    """Whether a number is finite as a float."""
    try:
        return math.isfinite(number)
    except OverflowError:  # An integer beyond every float.
        return False
