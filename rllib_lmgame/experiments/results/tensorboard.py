"""TensorBoard's file of a trial, with numbers in groups: with Tune's tags all of them would be one group, ``ray``."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ray.tune.logger import TBXLoggerCallback

logger = logging.getLogger(__name__)


def tag_of(name: str) -> str:
    """The tag of a number (``ray/tune/env_runners/success_rate``) without Tune's prefix."""
    path = name.removeprefix("ray/tune/")
    return path if "/" in path else f"trial/{path}"


class TensorBoardFile(TBXLoggerCallback):
    """Tune's TensorBoard logger with tags in groups. A disk that takes no more costs the rest of the file, and no run.

    Raises: ImportError: without tensorboardX.
    """

    def __init__(self) -> None:
        super().__init__()
        plain: Any = self._summary_writer_cls  # type: ignore[has-type]

        class Grouped(plain):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                events = self.file_writer.event_writer
                events._ev_writer = events._worker._record_writer = _UntilRefused(events._ev_writer)

            def add_scalar(self, tag: str, *args: Any, **kwargs: Any) -> None:
                super().add_scalar(tag_of(tag), *args, **kwargs)

        self._summary_writer_cls = Grouped

    def _try_log_hparams(self, trial: Any, result: dict[str, Any]) -> None:
        super()._try_log_hparams(trial, {tag_of(name): value for name, value in result.items()})


class _UntilRefused:
    """An event file that is written until the disk takes no more. tensorboardX's own thread would end, and whoever
    hands it more events would wait for it for ever.
    """

    def __init__(self, file: Any) -> None:
        self._file, self._refused = file, False
        self.write_event = self._until_refused(file.write_event)
        self.flush, self.close = self._until_refused(file.flush), self._until_refused(file.close)

    def _until_refused(self, call: Callable[..., Any]) -> Callable[..., None]:
        def called(*given: Any) -> None:
            try:
                if not self._refused:
                    call(*given)
            except OSError as error:
                self._refused = True
                logger.error("TensorBoard's file ends here, it cannot be written: %s", error)

        return called
