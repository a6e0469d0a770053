"""TensorBoard's file of a trial: its numbers, those to look at first in a group of their own, and games as text.

TensorBoard groups by the first part of a tag: with Tune's tags all numbers would be one group, ``ray``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

from ray.tune.logger import TBXLoggerCallback

logger = logging.getLogger(__name__)

FIRST = "1_first"
"""Groups are sorted: this one is on top. Its numbers are in their own groups too."""
_LOOKED_AT = (
    (r"env_runners/(success_rate|format_error_rate)", r"\1"),
    (r"evaluation/env_runners/success_rate", "evaluation_success_rate"),
    (r"env_runners/seat_returns_mean/(.+)", r"return/\1"),
    (r"evaluation/env_runners/seat_returns_mean/(.+)", r"evaluation_return/\1"),
    (r"learners/(?!__all_modules__/)([^/]+)/(entropy|logprob_diff)", r"\2/\1"),
)
"""Success, returns, replies that cannot be read, entropy, the gap between sampler and learner; and names there."""


def tags_of(name: str) -> list[str]:
    """Tags of a number (``ray/tune/env_runners/success_rate``): without Tune's prefix, and in the group to look at
    first.
    """
    path = name.removeprefix("ray/tune/")
    first = [f"{FIRST}/{found.expand(short)}" for full, short in _LOOKED_AT if (found := re.fullmatch(full, path))]
    return [path if "/" in path else f"trial/{path}", *first]


class TensorBoardFile(TBXLoggerCallback):  # type: ignore[misc]
    """Tune's TensorBoard logger with tags in groups and a sample game.

    The longer a run, the further apart games are: with each the next is a tenth of the iterations away.

    A disk that takes no more costs the rest of the file, and no run.

    Raises: ImportError: without tensorboardX.
    """

    def __init__(self) -> None:
        super().__init__()
        plain: Any = self._summary_writer_cls  # type: ignore[has-type]

        class Grouped(plain):  # type: ignore[misc, valid-type]
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                events = self.file_writer.event_writer
                events._ev_writer = events._worker._record_writer = _UntilRefused(events._ev_writer)

            def add_scalar(self, tag: str, *args: Any, **kwargs: Any) -> None:
                for name in tags_of(tag):
                    super().add_scalar(name, *args, **kwargs)

        self._summary_writer_cls = Grouped

    def log_trial_result(self, iteration: int, trial: Any, result: dict[str, Any]) -> None:
        super().log_trial_result(iteration, trial, result)
        self._trial_writer[trial].flush()

    def _try_log_hparams(self, trial: Any, result: dict[str, Any]) -> None:
        super()._try_log_hparams(trial, {tags_of(name)[0]: value for name, value in result.items()})


class _UntilRefused:
    """An event file that is written until the disk takes no more. tensorboardX's own thread would end, and whoever
    hands it more events would wait for it for ever.
    """

    def __init__(self, file: Any) -> None:
        self._file, self._refused = file, False

    def write_event(self, event: Any) -> None:
        self._do(self._file.write_event, event)

    def flush(self) -> None:
        self._do(self._file.flush)

    def close(self) -> None:
        self._do(self._file.close)

    def _do(self, what: Callable[..., Any], *given: Any) -> None:
        if self._refused:
            return
        try:
            what(*given)
        except OSError as error:
            self._refused = True
            logger.error("TensorBoard's file ends here, it cannot be written: %s", error)
