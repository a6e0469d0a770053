"""The process of one check: ``python -m rllib_lmgame.experiments.acceptance NAME SETTING``."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

from rllib_lmgame.base.json_files import write_json
from rllib_lmgame.base.text import in_words
from rllib_lmgame.experiments.acceptance.checks import Setting, named
from rllib_lmgame.experiments.acceptance.running import FOUND


def main(name: str, text: str) -> int:
    """Run a check and write what it measured; 1 if it could not be ended."""
    told = json.loads(text)
    setting = Setting(**told | {name: Path(told[name]) for name in ("directory", "shared")})
    error, measured = "", []
    try:
        (check,) = named([name])
        measured = [each.as_dict() for each in check(setting)]
    except Exception as raised:
        traceback.print_exc()
        error = in_words(raised)
    write_json(setting.directory / FOUND, {"measured": measured, "error": error})
    return 1 if error else 0


if __name__ == "__main__":
    status = main(*sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # Nothing that a check left behind is waited for.
