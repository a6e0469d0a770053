"""A home that is not the user's, from the import on, and a watch over the user's directory of results.

There is what tests say no place for: results, the key of signatures. Ray's processes and commands inherit it. Caches
and settings of other programs stay the user's.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import glob
import os
import shutil
import sys
import tempfile
from typing import Any

# The workers of pytest-xdist inherit the home that their parent made.
USERS_RESULTS = os.environ.setdefault("LMGAME_TESTS_USERS_RESULTS", os.path.expanduser("~/ray_results"))
touched: list[str] = []
"""What this process has done to the user's results: an event of :func:`sys.audit` and a path each."""

for name, place in {"XDG_CACHE_HOME": ".cache", "XDG_CONFIG_HOME": ".config"}.items():
    os.environ.setdefault(name, os.path.expanduser(f"~/{place}"))
for left in glob.glob(f"{tempfile.gettempdir()}/lmgame-tests-home-*"):  # By tests that were killed.
    with contextlib.suppress(OSError), open(f"{left}/lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(left, ignore_errors=True)
os.environ["HOME"] = tempfile.mkdtemp(prefix="lmgame-tests-home-")
os.environ["XDG_STATE_HOME"] = f"{os.environ['HOME']}/state"
LOCK = open(f"{os.environ['HOME']}/lock", "w")  # noqa: SIM115 -- for as long as this process lives
fcntl.flock(LOCK, fcntl.LOCK_EX)
atexit.register(shutil.rmtree, os.environ["HOME"], ignore_errors=True)


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("open", "shutil.rmtree") or event.startswith("os."):
        paths = (os.fsdecode(part) for part in arguments[:2] if isinstance(part, str | bytes | os.PathLike))
        touched.extend(f"{event} {path}" for path in paths if f"{path}/".startswith(f"{USERS_RESULTS}/"))


sys.addaudithook(_watch)
