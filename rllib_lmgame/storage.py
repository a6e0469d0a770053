"""Where results are kept: in a directory, or at the URI of remote storage (``s3://bucket/runs``), which Ray reads and
writes itself.
"""

from __future__ import annotations

from pathlib import Path


def is_uri(path: str | Path) -> bool:
    """Whether ``path`` is the URI of remote storage, which is no path of this machine."""
    return "://" in str(path)


def absolute(path: str) -> str:
    """A directory's absolute path, ``~`` replaced; a URI without slashes at its end."""
    return path.rstrip("/") if is_uri(path) else str(Path(path).expanduser().absolute())
