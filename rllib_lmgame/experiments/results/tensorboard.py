"""TensorBoard's files: Tune's logger, with tags that TensorBoard puts into groups.

TensorBoard makes a group of all tags with the same first part. Tune's are all called ``ray/tune/...``.
"""

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
    """The tags of a number of a result: in its group, and in that of those to look at first where it is one of them.

    Args:
        name: As Tune's logger has it: ``ray/tune/env_runners/success_rate``.
    """
    path = name.removeprefix(_TUNES)
    first = [f"{FIRST}/{path}"] if LOOKED_AT.fullmatch(path) else []
    return [path if "/" in path else f"trial/{path}", *first]


class TensorBoardFile(TBXLoggerCallback):  # type: ignore[misc]
    """Tune's logger of TensorBoard's files with tags in groups.

    Raises:
        ImportError: if tensorboardX is not installed.
    """

    def __init__(self) -> None:
        super().__init__()
        plain: Any = self._summary_writer_cls  # type: ignore[has-type]

        class Grouped(plain):  # type: ignore[misc, valid-type]
            def add_scalar(self, tag: str, *args: Any, **kwargs: Any) -> None:
                for name in tags_of(tag):
                    super().add_scalar(name, *args, **kwargs)

        self._summary_writer_cls = Grouped

    def _try_log_hparams(self, trial: Any, result: dict[str, Any]) -> None:
        """The table of hyperparameters names its metrics by their tags."""
        super()._try_log_hparams(trial, {tags_of(name)[0]: value for name, value in result.items()})
