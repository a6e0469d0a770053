"""What tests in a real browser need."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

from rllib_lmgame.base.errors import MissingDependencyError
from rllib_lmgame.envs.games.web.browser.host import find_chromium


def missing_for_browser(*others: Callable[[], object]) -> str:
    """Why tests in a browser are skipped, or nothing: there is no Chromium, or one of ``others`` raises.

    Raises: MissingDependencyError: in CI (``$CI``) as root with apt-get, where `make test` installs it.
    """
    try:
        for needed in (find_chromium, *others):
            needed()
    except MissingDependencyError as missing:
        if os.environ.get("CI") and os.geteuid() == 0 and shutil.which("apt-get"):
            raise
        return str(missing)
    return ""
