"""What a trial is doing just now and how far that is, by way of Ray's key-value store; for who watches it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

WHY_DROPPED = "/dropped"
"""Behind a trial's id: where it says why episodes were dropped."""
CHOSEN = "/chosen"
"""Likewise, where it says what was left to it to choose."""
TELL_EVERY_S = 1.0
"""Between two words on how far a phase is."""
START = (
    "starting the trial's process",
    "preparing the models",
    "starting the engines",
    "starting env runners and learners",
)
"""Phases of a trial's start, one after the other."""
STARTING, MODELS, ENGINES, WORKERS = START
GAMES, STEPS, UP = "games", "steps", "engines"
"""Counts of a phase: episodes, optimizer steps and engines that are up."""

_SHARES = "/shares/"
_NAMESPACE = b"rllib_lmgame_phase"


@dataclass
class Share:
    """How far a phase is: ``done`` ``of`` so many; ``game`` gives the text of one that is being played."""

    of: int
    done: int = 0
    game: Callable[[], str] = str


def tell_phase(trial_id: str, phase: str) -> None:
    """Say what the trial begins to do, of which nothing is done; nothing happens where no cluster answers."""
    from ray.experimental import internal_kv

    _asked(internal_kv._internal_kv_put, trial_id, phase.encode(), overwrite=True)
    _asked(internal_kv._internal_kv_del, trial_id + _SHARES, del_by_prefix=True)


def phase_of(trial_id: str) -> str | None:
    """The trial's latest phase; ``None`` if it has reported none."""
    from ray.experimental import internal_kv

    told = _asked(internal_kv._internal_kv_get, trial_id)
    return None if told is None else told.decode()


@contextmanager
def telling(trial_id: str | None, what: str, who: str, of: int) -> Iterator[Share]:
    """Meanwhile ``who`` tells every :data:`TELL_EVERY_S` how many of ``what`` are done; what is short tells nothing."""
    from ray.experimental import internal_kv

    share, end = Share(of), threading.Event()
    if trial_id is None:
        yield share
        return

    def tell() -> None:
        while not end.wait(TELL_EVERY_S):
            told = json.dumps([share.done, share.of, share.game()])
            _asked(internal_kv._internal_kv_put, f"{trial_id}{_SHARES}{what}/{who}", told.encode(), overwrite=True)

    thread = threading.Thread(target=tell, daemon=True, name="tell-share")
    thread.start()
    try:
        yield share
    finally:
        end.set()
        thread.join(TELL_EVERY_S)  # A control service that does not answer keeps nobody.


def shares_of(trial_id: str) -> tuple[dict[str, Share], str]:
    """Of what the trial does now, how far it is by what is counted; and a game that is being played, or no text."""
    from ray.experimental import internal_kv

    shares: dict[str, Share] = {}
    game = ""
    for key in sorted(_asked(internal_kv._internal_kv_list, trial_id + _SHARES) or ()):
        told = _asked(internal_kv._internal_kv_get, key.decode())
        if told is None:
            continue
        done, of, shown = json.loads(told)
        share = shares.setdefault(key.decode().rsplit("/", 2)[1], Share(0))
        share.done, share.of, game = share.done + done, share.of + of, game or shown
    return shares, game


def _asked(ask: Callable[..., Any], key: str, *value: bytes, **options: Any) -> Any:
    """Ray's answer; ``None`` where no cluster is, or it gives none: nothing fails because it could not be watched."""
    from ray.exceptions import RayError
    from ray.experimental import internal_kv

    if not internal_kv._internal_kv_initialized():
        return None
    with suppress(RayError, OSError):
        return ask(key.encode(), *value, namespace=_NAMESPACE, **options)
    return None
