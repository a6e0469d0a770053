"""Messages of other packages that a user cannot act on are left out."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOISE = {
    # RLlib's own constructor uses what it warns of.
    "ray._common.deprecation": "DeprecationWarning: `RLModule(config=[RLModuleConfig object])`",
    # It advises reusing actors; loading a model takes its time.
    "ray.tune.trainable.trainable": "Trainable.setup took",
    "ray.tune.utils.util": "Install gputil",  # Ray's dashboard and the gauges show GPUs without it.
}
"""Logger -> how the message begins."""


class _LeaveOut(logging.Filter):
    def __init__(self, beginning: str) -> None:
        super().__init__()
        self.beginning = beginning

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(self.beginning)


def leave_out_noise() -> None:
    """Filter :data:`NOISE` out of this process's logs. Doing it again changes nothing."""
    for name, beginning in NOISE.items():
        noisy = logging.getLogger(name)
        if not any(isinstance(known, _LeaveOut) for known in noisy.filters):
            noisy.addFilter(_LeaveOut(beginning))


@contextmanager
def no_bars_for(source: str | Path) -> Iterator[None]:
    """No progress bars of Transformers while a directory is read or written; those of a download are shown."""
    from transformers.utils import logging as bars

    shown = bars.is_progress_bar_enabled() and Path(source).is_dir()
    if shown:
        bars.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()
