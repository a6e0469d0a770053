"""Messages of other packages that a user cannot act on are left out."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NOISE = {
    # RLlib's own constructor uses what it warns of.
    "ray._common.deprecation": "DeprecationWarning: `RLModule(config=[RLModuleConfig object])`",
    # It advises reusing actors; loading a model takes its time.
    "ray.tune.trainable.trainable": "Trainable.setup took",
    "ray.tune.utils.util": "Install gputil",  # Ray's dashboard and the gauges show GPUs without it.
}
"""Logger -> how the message begins."""

NODE_ENDED = "Raylet is terminated. Termination is unexpected."
"""How Ray begins what it prints of a lost node; what follows its last sentence are lines of the node's own log."""


@functools.cache
def leave_out_noise() -> None:
    """Filter :data:`NOISE` out of this process's logs, and shorten :data:`NODE_ENDED`."""
    from ray._private import worker

    for name, beginning in NOISE.items():
        logging.getLogger(name).addFilter(lambda record, known=beginning: not record.getMessage().startswith(known))
    worker.print_worker_logs = functools.partial(_print_shorter, worker.print_worker_logs)


def _print_shorter(plain: Callable[..., None], data: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
    lines = [line.partition(" Last ")[0] if line.startswith(NODE_ENDED) else line for line in data["lines"]]
    plain({**data, "lines": lines}, *args, **kwargs)


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
