"""JSON files: reading what somebody else may have written, and writing in one step."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


def parse(text: str | bytes) -> Any:
    """What a text of JSON says. Raises: ValueError: it is none, or nested deeper than Python reads."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def read_mapping(path: Path, max_bytes: int) -> dict[str, Any]:
    """The mapping in a JSON file, which is UTF-8 without a byte-order mark, as JSON is.

    Raises: OSError: it cannot be read; ValueError: it is larger than ``max_bytes`` or holds no mapping.
    """
    if path.exists() and not path.is_file():  # One would wait for ever for what comes through a pipe.
        raise ValueError(f"{path} is damaged: it is no file")
    with path.open("rb") as file:
        text = file.read(max_bytes + 1)
    if len(text) > max_bytes:
        raise ValueError(f"{path} is damaged: it has more than {max_bytes:,} bytes")
    try:
        content = parse(text.decode())  # Bytes might be of any UTF.
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged: expected a mapping")
    return content


def first_difference(before: Any, now: Any, path: tuple[str, ...] = ()) -> tuple[tuple[str, ...], Any, Any] | None:
    """The first path at which two values of JSON differ, and what stands there in each: ``None`` for a missing key."""
    if not (isinstance(before, dict) and isinstance(now, dict)):
        return None if before == now else (path, before, now)
    below = (first_difference(before.get(key), now.get(key), (*path, key)) for key in {**before, **now})
    return next((found for found in below if found), None)


def write_json(path: Path, content: Any, indent: int | None = None) -> None:
    """Write a JSON file in one step: also after a crash or a full disk there is the old content or the new one.

    Raises: OSError: It cannot be written; what was there stays.
    """
    scratch = path.with_name(path.name + ".tmp")
    try:
        with scratch.open("w", encoding="utf-8") as file:
            json.dump(content, file, indent=indent)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def write_json_to(files: FileSystem, path: str, content: Any, indent: int | None = None) -> None:
    """As :func:`write_json`, into a file system of pyarrow's, with the directory that it needs."""
    files.create_dir(path.rpartition("/")[0])
    if files.type_name == "local":
        write_json(Path(path), content, indent)
        return
    with files.open_output_stream(path) as file:  # An object store keeps only what was written to its end.
        file.write(json.dumps(content, indent=indent).encode())


def number_of(content: Any, name: str, *, low: float = -math.inf) -> float:
    """A finite number, at least ``low``. Raises: ValueError: It is none or out of range; ``name`` says what it is."""
    number = isinstance(content, int | float) and not isinstance(content, bool) and abs(content) <= sys.float_info.max
    if number and content >= low:
        return float(content)
    raise ValueError(
        f"{name} is {content!r}; it must be a finite number" + f" of at least {low:g}" * math.isfinite(low)
    )


def mapping_of(content: Any, name: str) -> Mapping[str, Any]:
    """The value as a mapping; raises as :func:`number_of`."""
    if isinstance(content, Mapping):
        return content
    raise ValueError(f"{name} is {content!r}; it must be a mapping")
