"""What a game reports beside text and rewards, as plain data: it is logged as JSON and travels between processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SIMPLE = (bool, int, float, str, type(None))


def plain_info(info: Mapping[Any, Any]) -> dict[str, Any]:
    """``info`` with text for keys and JSON's types for values: arrays as lists, anything JSON has no form for as text.

    Raises:
        ValueError: if ``success`` is neither true nor false.
    """
    plain = {str(key): _plain(value) for key, value in info.items()}
    success = plain.get("success")
    if success is not None and success not in (0, 1):
        raise ValueError(f"`success` is {success!r}, neither true nor false")
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
