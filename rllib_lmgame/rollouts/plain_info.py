"""What a game reports beside text and rewards, as plain data: it is logged as JSON and travels between processes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_SIMPLE = (bool, int, float, str, type(None))


def plain_info(info: Mapping[Any, Any]) -> dict[str, Any]:
    """``info`` with text for keys and JSON's types for values: arrays as lists, anything JSON has no form for as text.

    Raises:
        ValueError: if ``success`` is neither true nor false, or ``result`` is a number that is not finite, as a 64-bit
            float.
    """
    plain = {str(key): _plain(value) for key, value in info.items()}
    success = plain.get("success")
    if success is not None and success not in (0, 1):
        raise ValueError(f"`success` is {success!r}, neither true nor false")
    result = plain.get("result")
    if isinstance(result, int | float) and not _is_finite(result):
        raise ValueError("`result` is not a finite number")
    return plain


def _plain(value: Any) -> Any:
    if type(value) in _SIMPLE:
        return value
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value)


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # An integer beyond every float.
        return False
