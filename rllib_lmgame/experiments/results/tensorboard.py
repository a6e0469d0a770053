"""TensorBoard's file of a trial: numbers in groups for people, games as text.

TensorBoard groups by the first part of a tag: with Tune's tags all numbers would be one group, ``ray``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray.tune.logger import TBXLoggerCallback

from rllib_lmgame.algorithms.checkpoints.cards import game_text
from rllib_lmgame.experiments.results.files import ITERATION
from rllib_lmgame.settings.algorithms import OWN
from rllib_lmgame.telemetry.metrics import (
    EPISODE_NAMES,
    RLLIB_EVALUATION,
    VINE_NAMES,
)

logger = logging.getLogger(__name__)

FIRST = "1_first"
"""Groups are sorted: this one, of numbers that stand in their own group too, is on top."""
_LOOKED_AT = (
    (r"env_runners/(success_rate|format_error_rate)", r"\1"),
    (r"evaluation/env_runners/success_rate", "evaluation_success_rate"),
    (r"env_runners/seat_returns_mean/(.+)", r"return/\1"),
    (r"evaluation/env_runners/seat_returns_mean/(.+)", r"evaluation_return/\1"),
    (r"learners/(?!__all_modules__/)([^/]+)/(entropy|logprob_diff)", r"\2/\1"),
)
"""Success, returns, replies that cannot be read, entropy, the gap between sampler and learner; and names there."""


def _any(*names: str) -> str:
    return f"(?=(?:{'|'.join(names)})(?:/|$))"


_POLICY = "learners/(?!__all_modules__/)"
_REPORTED = sorted({name for entry in OWN.values() for name in entry.metrics})
_GROUPS = [
    (re.compile(pattern), group)
    for pattern, group in (
        ("env_runners/games/", "each_game"),
        (
            "env_runners/"
            + _any("success_rate", ".*returns?_(?:mean|min|max)", "win_rate", "draw_rate", "loss_rate", "measures"),
            "2_success_and_return",
        ),
        (
            "env_runners/" + _any(".*_per_s", "engine_busy_fraction", "(?:prompt|response)_tokens.*"),
            "7_speed_and_size",
        ),
        ("env_runners/" + _any(*EPISODE_NAMES, *VINE_NAMES), "3_play"),
        ("evaluation/" + _any(*RLLIB_EVALUATION), "rllib/evaluation"),
        ("evaluation/(?:env_runners/)?", "4_evaluation"),
        (
            _POLICY
            + "(?=[^/]+/(?:logprob_diff.*|first_minibatch_ratio_error|ratio"
            + "|staleness.*|stale_fraction|importance_.*)$)",
            "6_sampler_and_learner",
        ),
        (
            _POLICY + "(?=[^/]+/(?:num_.*|padding_waste|trained_tokens.*|update_s|truncated_sequences)$)",
            "7_speed_and_size",
        ),
        (_POLICY, "5_update"),
        ("timers/(?=[^/]+_s$)", "7_speed_and_size"),
        ("(?=async_rollouts/)", "7_speed_and_size"),
        ("(?=validation_loss|conversations_left_out)", "5_update"),
        (_any(*_REPORTED, "num_env_steps_sampled_lifetime", "time_total_s"), "8_progress"),
        (_any("done", "time_.*", "num_.*", "iterations_since_restore", "timers", "perf", "fault_tolerance"), "rllib"),
        (_any("env_runners", "learners", "env_runner_group", "counters", "info", "custom_metrics", "config"), "rllib"),
    )
]
"""Beginning of a number's name -> group; the first that fits counts, and what stands behind it is the name there."""
_TUNES = "ray/tune/"


def tags_of(name: str) -> list[str]:
    """Tags of a number (``ray/tune/env_runners/success_rate``): in its group, and in the one to look at first."""
    path = name.removeprefix(_TUNES)
    tags = [path if "/" in path else f"others/{path}"]
    for pattern, group in _GROUPS:
        if found := pattern.match(path):
            tags = [f"{group}/{path[found.end() :]}"]
            break
    tags += [f"{FIRST}/{found.expand(short)}" for full, short in _LOOKED_AT if (found := re.fullmatch(full, path))]
    return tags


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
        self._next: dict[str, float] = {}

    def log_trial_result(self, iteration: int, trial: Any, result: dict[str, Any]) -> None:
        super().log_trial_result(iteration, trial, result)
        writer, step = self._trial_writer[trial], int(result[ITERATION])
        if self._is_due(trial, step) and (text := game_text(Path(str(trial.path)) / "episodes")):
            writer.add_text("sample_game", text, step)
        writer.flush()

    def _is_due(self, trial: Any, step: int) -> bool:
        if step < self._next.get(trial.trial_id, 0):
            return False
        self._next[trial.trial_id] = step * 1.1
        return True

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
