"""Where the browser is. Importing this loads no browser's packages."""

from __future__ import annotations

import os
import shutil

from rllib_lmgame.base.errors import MissingDependencyError

VARIABLE = "RLLIB_LMGAME_CHROMIUM"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

INSTALL_CHROMIUM = (
    "this game needs Chromium, and there is no program of that name: install it (apt-get install chromium), "
    f"or let {VARIABLE} name the program"
)


def find_chromium() -> str:
    """Path of the browser.

    Raises: MissingDependencyError: if there is none, or ``RLLIB_LMGAME_CHROMIUM`` names no program.
    """
    named = os.environ.get(VARIABLE)
    if named is not None:
        found = shutil.which(named)
        if found is None:
            raise MissingDependencyError(f"{VARIABLE} is {named!r}, which is no program that can be run")
        return found
    for name in NAMES:
        if path := shutil.which(name):
            return path
    raise MissingDependencyError(INSTALL_CHROMIUM)
