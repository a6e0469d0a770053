"""Tune's TensorBoard logger with useful groups: TensorBoard groups by a tag's first part, in Tune always ``ray``."""

from __future__ import annotations

import re
from typing import Any

from ray.tune.logger import TBXLoggerCallback

FIRST = "0_first"
"""The group to look at first; it stands on top, since groups are sorted."""
LOOKED_AT = re.compile(
    r"(evaluation/)?env_runners/(success_rate|seat_returns_mean/.*)|env_runners/format_error_rate"
    r"|learners/(?!__all_modules__)[^/]+/(entropy|logprob_gap)"
)
"""Success, returns, replies that cannot be read, entropy, and the gap between sampler and learner."""
_TUNES = "ray/tune/"


def tags_of(name: str) -> list[str]:
    """Tags of a number (``ray/tune/env_runners/success_rate``): in its group, and in the one to look at first."""
    path = name.removeprefix(_TUNES)
    first = [f"{FIRST}/{path}"] if LOOKED_AT.fullmatch(path) else []
    return [path if "/" in path else f"trial/{path}", *first]


class TensorBoardFile(TBXLoggerCallback):  # type: ignore[misc]
    """Tune's TensorBoard logger with tags in groups. Raises: ImportError: without tensorboardX."""

    def __init__(self) -> None:
        super().__init__()
        plain: Any = self._summary_writer_cls  # type: ignore[has-type]

        class Grouped(plain):  # type: ignore[misc, valid-type]
            def add_scalar(self, tag: str, *args: Any, **kwargs: Any) -> None:
                for name in tags_of(tag):
                    super().add_scalar(name, *args, **kwargs)

        self._summary_writer_cls = Grouped

    def _try_log_hparams(self, trial: Any, result: dict[str, Any]) -> None:
        super()._try_log_hparams(trial, {tags_of(name)[0]: value for name, value in result.items()})
