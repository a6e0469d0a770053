"""What a game says of a step beside its observation, as plain data."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Mapping
from typing import Any

MAX_MEASURES = 64
"""Numbers of its own that a game may report at the end: each becomes a metric."""

_NAME = re.compile(r"[A-Za-z0-9_]{1,64}", re.ASCII)
_SIMPLE = (bool, str, type(None))
_MAX_BITS = 14_284
"""Of an integer of at most 4,300 digits: Python reads and writes no longer ones as decimals."""


def plain_info(info: Mapping[Any, Any]) -> dict[str, Any]:
    """``info`` with text keys and JSON values: arrays become lists, what JSON cannot hold (``nan``, ``inf``) text.

    Raises: ValueError if ``success`` is no bool, ``result`` is not finite, or ``measures`` does not map at most
    :data:`MAX_MEASURES` names to finite numbers.
    """
    plain = _mapping(info)
    success = plain.get("success")
    if success is not None and success not in (0, 1):
        raise ValueError(f"`success` is {success!r}, neither true nor false")
    result: Any = info.get("result")
    if hasattr(result, "tolist"):
        result = _listed(result)
    if isinstance(result, int | float) and not _is_finite(result):
        raise ValueError("`result` is not a finite number")
    if plain.get("measures") is not None:
        plain["measures"] = _measures(plain["measures"])
    return plain


def _measures(measures: Any) -> dict[str, float]:
    if not isinstance(measures, Mapping) or len(measures) > MAX_MEASURES:
        raise ValueError(f"`measures` must be a mapping of at most {MAX_MEASURES} names to numbers")
    for name, number in measures.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"`measures` names {name[:60]!r}; a name has letters, digits and _ (at most 64)")
        if not isinstance(number, int | float) or not _is_finite(number):
            raise ValueError(f"`measures` gives {name} no finite number")
    return {name: float(number) for name, number in measures.items()}


def _plain(value: Any) -> Any:
    if type(value) in _SIMPLE:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else str(value)
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _MAX_BITS else hex(value)
    if hasattr(value, "tolist"):
        return _plain(_listed(value))
    if isinstance(value, Mapping):
        return _mapping(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value)


def _listed(value: Any) -> Any:
    """An array as lists, a number of NumPy's as Python's: ``tolist`` gives one that Python has none for as it is."""
    listed = value.tolist()
    if type(listed) is not type(value):
        return listed
    return float(value) if isinstance(value, numbers.Real) else str(value)


def _mapping(values: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(_plain(key) if isinstance(key, int) else key): _plain(item) for key, item in values.items()}


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # An integer beyond every float.
        return False
