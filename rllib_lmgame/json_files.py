"""JSON files that somebody else may have written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_mapping(path: Path, max_bytes: int) -> dict[str, Any]:
    """The mapping in a JSON file.

    Raises:
        OSError: if it cannot be read.
        ValueError: naming the file, if it is larger than ``max_bytes`` or holds no mapping.
    """
    with path.open("rb") as file:
        text = file.read(max_bytes + 1)
    if len(text) > max_bytes:
        raise ValueError(f"{path} is damaged: it has more than {max_bytes:,} bytes")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {'nested too deep' if isinstance(error, RecursionError) else error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged: expected a mapping")
    return content
