"""Values of a saved state, which somebody else may have written: an error names the one that cannot be."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any


def number_of(content: Any, name: str, *, low: float | None = None, above: float | None = None) -> float:
    """A finite number.

    Args:
        content: The number.
        name: What it is, for errors.
        low, above: It is at least, or more than, this.

    Raises:
        ValueError: naming it, if it is none or out of range.
    """
    number = isinstance(content, int | float) and not isinstance(content, bool) and abs(content) <= sys.float_info.max
    if number and (low is None or content >= low) and (above is None or content > above):
        return float(content)
    limits = [f"at least {low:g}"] if low is not None else [] if above is None else [f"more than {above:g}"]
    raise ValueError(f"{name} is {content!r}; it must be {' of '.join(['a finite number', *limits])}")


def count_of(content: Any, name: str) -> int:
    """As :func:`number_of`: a whole number of at least 0."""
    if isinstance(content, int) and not isinstance(content, bool) and content >= 0:
        return content
    raise ValueError(f"{name} is {content!r}; it must be a whole number of at least 0")


def mapping_of(content: Any, name: str) -> Mapping[str, Any]:
    """As :func:`number_of`: a mapping."""
    if isinstance(content, Mapping):
        return content
    raise ValueError(f"{name} is {content!r}; it must be a mapping")
