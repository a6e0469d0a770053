"""A home that is not the user's, from the import on.

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
import tempfile

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
