"""A home that is not the user's, from the import on, and a watch over the user's directory of results.

There is what tests say no place for: results, the key of signatures. Ray's processes and commands inherit it. Caches
and settings of other programs stay the user's.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from typing import Any

USERS_RESULTS = os.path.expanduser("~/ray_results")
touched: list[str] = []
"""What this process has done to the user's results: an event of :func:`sys.audit` and a path each."""

for name, place in {"XDG_CACHE_HOME": ".cache", "XDG_CONFIG_HOME": ".config"}.items():
    os.environ.setdefault(name, os.path.expanduser(f"~/{place}"))
os.environ["HOME"] = tempfile.mkdtemp(prefix="lmgame-tests-home-")
os.environ["XDG_STATE_HOME"] = f"{os.environ['HOME']}/state"
atexit.register(shutil.rmtree, os.environ["HOME"], ignore_errors=True)


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("open", "shutil.rmtree") or event.startswith("os."):
        paths = (os.fsdecode(part) for part in arguments[:2] if isinstance(part, str | bytes | os.PathLike))
        touched.extend(f"{event} {path}" for path in paths if f"{path}/".startswith(f"{USERS_RESULTS}/"))


sys.addaudithook(_watch)
