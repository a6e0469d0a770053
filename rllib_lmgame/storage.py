"""Where results are kept: in a directory, or at the URI of remote storage (``s3://bucket/runs``), which Ray reads and
writes itself.
"""

from __future__ import annotations

import os
from pathlib import Path


def is_uri(path: str | Path) -> bool:
    """Whether ``path`` is the URI of remote storage, which is no path of this machine."""
    return "://" in str(path)


def absolute(path: str) -> str:
    """A directory's absolute path, ``~`` replaced; a URI without slashes at its end."""
    return path.rstrip("/") if is_uri(path) else str(expanded(path).absolute())


def expanded(path: str | Path) -> Path:
    """``path`` with the home directory for ``~``; as it is where it names a user whom nobody knows, as shells do."""
    return Path(os.path.expanduser(path))
