"""Which files hold an experiment's state, and whether their bytes are whole; nothing is unpickled."""

from __future__ import annotations

import glob
import json
import os
import pickletools
import re
from binascii import unhexlify
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from types import SimpleNamespace
from typing import Any

from ray.tune import callback
from ray.tune.experiment import Trial
from ray.tune.search import searcher
from ray.tune.utils import util

STATE = re.compile(
    r"(experiment_state|basic-variant-state|search_gen_state|searcher-state|callback-states)-.*\.(json|pkl)"
)
"""Names of Tune's state files; the first group is the kind."""
MAIN = "experiment_state-*.json"
"""Those that hold the trials: JSON with pickles in hexadecimal. All others are pickles."""
_PICKLED = "CLOUDPICKLE_FALLBACK"


def _in_directory(pattern: str) -> list[str]:
    directory, name = os.path.split(pattern)
    return glob.glob(os.path.join(glob.escape(directory), name))


@contextmanager
def directories_are_no_patterns() -> Iterator[None]:
    """Inside, Tune finds its state files also in a directory like ``run[1]``; it takes the whole path for a pattern."""
    modules: tuple[Any, ...] = (callback, searcher, util)
    for module in modules:
        module.glob = SimpleNamespace(glob=_in_directory, iglob=_in_directory)
    try:
        yield
    finally:
        for module in modules:
            module.glob = glob


def state_is_whole(name: str, data: bytes) -> bool:
    """Whether a state file can be read to its end, with every pickle in it; changed letters within a pickle pass."""
    try:
        if not fnmatch(name, MAIN):
            return sum(1 for _ in pickletools.genops(data)) > 0
        content = _read(data)
        for fields, metadata in content["trial_data"]:
            trial = _read(fields)
            for field in Trial._nonjson_fields:  # Bare hexadecimal text.
                if field in trial:
                    _check_pickle(trial[field])
            _read(metadata)
        return bool(content["runner_data"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def has_trials(main: bytes) -> bool:
    """Of the content of a whole main file."""
    return bool(json.loads(main)["trial_data"])


def _read(text: str | bytes) -> Any:
    """What Tune wrote as JSON, its pickles checked and left as they are."""
    return json.loads(text, object_hook=_checked)


def _checked(value: dict[str, Any]) -> dict[str, Any]:
    if value.get("_type") == _PICKLED:
        _check_pickle(value["value"])
    return value


def _check_pickle(hexadecimal: str) -> None:
    """Raise ValueError or TypeError unless this is one pickle from the first byte to the last."""
    data = unhexlify(hexadecimal)
    last = max((position or 0 for _, _, position in pickletools.genops(data)), default=0)
    if last + 1 != len(data):
        raise ValueError("bytes behind the end of the pickle")
