"""TensorBoard's file of a trial: numbers in groups for people, games as text, evaluations as tables and figures.

TensorBoard groups by the first part of a tag: with Tune's tags all numbers would be one group, ``ray``.
"""

from __future__ import annotations

import io
import logging
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ray.tune.logger import TBXLoggerCallback

from rllib_lmgame.algorithms.checkpoints.cards import game_text, heldout_text
from rllib_lmgame.base.errors import ConfigError, MissingDependencyError
from rllib_lmgame.base.results import number_at
from rllib_lmgame.experiments.results.curves import heldout_file, read_curves, saved_milestones
from rllib_lmgame.experiments.results.figures import draw, figure
from rllib_lmgame.experiments.results.files import ITERATION
from rllib_lmgame.settings.algorithms import OWN
from rllib_lmgame.telemetry.metrics import (
    EPISODE_NAMES,
    OVER_LEVELS,
    RLLIB_EVALUATION,
    VINE_NAMES,
    flatten,
    win_draw_loss,
)

logger = logging.getLogger(__name__)

FIRST = "1_first"
"""Groups are sorted: this one, of numbers that stand in their own group too, is on top."""
_LOOKED_AT = (
    (r"env_runners/(success_rate|format_error_rate)", r"\1"),
    (r"evaluation/env_runners/success_rate", "evaluation_success_rate"),
    (r"env_runners/seat_returns_mean/(.+)", r"return/\1"),
    (r"evaluation/env_runners/seat_returns_mean/(.+)", r"evaluation_return/\1"),
    (r"learners/(?!__all_modules__/)([^/]+)/(entropy|logprob_gap)", r"\2/\1"),
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
            + "(?=[^/]+/(?:logprob_gap.*|first_minibatch_ratio_error|ratio|staleness.*|stale_fraction|importance_.*)$)",
            "6_sampler_and_learner",
        ),
        (_POLICY + "(?=[^/]+/(?:num_.*|padding_waste|trained_tokens.*|update_s|context_cuts)$)", "7_speed_and_size"),
        (_POLICY, "5_update"),
        ("timers/(?=[^/]+_s$)", "7_speed_and_size"),
        ("(?=overlap/)", "7_speed_and_size"),
        ("(?=validation_loss|conversations_left_out)", "5_update"),
        (_any(*_REPORTED, "num_env_steps_sampled_lifetime", "time_total_s"), "8_progress"),
        (_any("done", "time_.*", "num_.*", "iterations_since_restore", "timers", "perf", "fault_tolerance"), "rllib"),
        (_any("env_runners", "learners", "env_runner_group", "counters", "info", "custom_metrics", "config"), "rllib"),
    )
]
"""Beginning of a number's name -> group; the first that fits counts, and what stands behind it is the name there."""
_TUNES = "ray/tune/"
_MOST_DRAWN = 10
"""Lines of the figure of evaluations."""


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
    """Tune's TensorBoard logger with tags in groups, a sample game, and evaluations as a table and a figure.

    The longer a run, the further apart games and figures are: with each the next is a tenth of the iterations away.

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
        self._next: dict[tuple[str, str], float] = {}
        self._evaluated: dict[str, dict[str, dict[int, float]]] = {}

    def log_trial_result(self, iteration: int, trial: Any, result: dict[str, Any]) -> None:
        super().log_trial_result(iteration, trial, result)
        writer, step = self._trial_writer[trial], int(result[ITERATION])
        if self._is_due("game", trial, step) and (text := game_text(Path(str(trial.path)) / "episodes")):
            writer.add_text("sample_game", text, step)
        if table := evaluation_text(result):
            writer.add_text("evaluation", table, step)
            evaluated = self._evaluated.setdefault(trial.trial_id, {})
            for name, runners in _of_games(result):
                if (success := number_at(runners, "success_rate")) is not None:
                    evaluated.setdefault(name, {})[step] = success
            if evaluated and self._is_due("figure", trial, step):
                with suppress(MissingDependencyError):
                    writer.add_image("evaluation", _drawn(evaluated), step, dataformats="HWC")
        writer.flush()

    def _is_due(self, what: str, trial: Any, step: int) -> bool:
        key = trial.trial_id, what
        if step < self._next.get(key, 0):
            return False
        self._next[key] = step * 1.1
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


def evaluation_text(result: Mapping[str, Any]) -> str:
    """An iteration's evaluation as Markdown, a row for each game and for each thing measured; empty without one."""
    games = [_row(name, runners) for name, runners in _of_games(result)]
    if not games:
        return ""
    lines = _table([column for column in games[0] if any(row[column] for row in games)], games)
    known = {
        name: value for name, value in result["evaluation"].items() if name not in ("env_runners", *RLLIB_EVALUATION)
    }
    values = {"/".join(path): number_at(known, "/".join(path)) for path, _ in flatten(known)}
    measured = [
        {"measure": _cell(name), "value": f"{value:.4f}"} for name, value in values.items() if value is not None
    ]
    return "\n".join([*lines, "", *_table(("measure", "value"), measured)] if measured else lines)


def _table(columns: Sequence[str], rows: Sequence[Mapping[str, str]]) -> list[str]:
    cells = [columns, ["---"] * len(columns), *([row[column] for column in columns] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in cells]


def _of_games(result: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Numbers of evaluated games, those of all together first; nothing where an iteration evaluated none."""
    evaluation = result.get("evaluation")
    runners = evaluation.get("env_runners") if isinstance(evaluation, Mapping) else None
    if not isinstance(runners, Mapping) or number_at(runners, "num_episodes") is None:
        return
    yield "all", runners
    games = runners.get("games")
    for name, numbers in games.items() if isinstance(games, Mapping) else ():
        if isinstance(numbers, Mapping):
            yield str(name), numbers


def _row(name: str, runners: Mapping[str, Any]) -> dict[str, str]:
    def cell(key: str, form: str) -> str:
        value = number_at(runners, key)
        return "" if value is None else form.format(value)

    levels, low, high = OVER_LEVELS
    ended = win_draw_loss(runners)
    outcomes = [f"{policy} {role} " + "-".join(f"{share:.2f}" for share in shares) for policy, role, shares in ended]
    return {
        "game": _cell(name),
        "episodes": cell("num_episodes", "{:.0f}"),
        "levels": cell(levels, "{:.0f}"),
        "success": cell("success_rate", "{:.3f}"),
        "95 % interval": " - ".join(filter(None, (cell(low, "{:.3f}"), cell(high, "{:.3f}")))),
        "win-draw-loss": _cell(", ".join(outcomes)),
        "return": cell("episode_return_mean", "{:+.2f}"),
        "unreadable": cell("format_error_rate", "{:.3f}"),
    }


def _cell(text: str) -> str:
    """Names of games, policies and measures are users': none is Markdown."""
    return re.sub(r"[^\w ./:,+-]", "?", text)


def _drawn(evaluated: Mapping[str, Mapping[int, float]]) -> Any:
    """The success of evaluations over iterations, as pixels: [height, width, 3 or 4]. Raises:
    MissingDependencyError: without matplotlib.
    """
    drawn = io.BytesIO()
    with figure(drawn) as axes:
        for name, points in list(evaluated.items())[:_MOST_DRAWN]:
            axes.plot(*zip(*sorted(points.items()), strict=True), marker="o", markersize=3, label=name)
        axes.set_xlabel("iteration")
        axes.set_ylabel("success in evaluations")
        axes.set_ylim(-0.02, 1.02)
    return _pixels(drawn)


def _pixels(png: Any) -> Any:
    import numpy as np
    from PIL import Image  # matplotlib has it.

    return np.asarray(Image.open(png))


def add_heldout(directory: Path) -> None:
    """Add to a finished trial's events what it reached on held-out levels: the table, and its learning curve."""
    try:
        from tensorboardX import SummaryWriter

        file = heldout_file(directory)
        table = "" if file is None else heldout_text(saved_milestones(file))
    except (ImportError, OSError, ConfigError, AttributeError, TypeError, ValueError, OverflowError):
        return  # Not there, or damaged: the run is over all the same.
    if not table:
        return
    # A full disk costs these alone: the run is over.
    with (
        suppress(OSError),
        SummaryWriter(str(directory), filename_suffix=".heldout") as writer,
        tempfile.TemporaryDirectory() as made,
    ):
        writer.add_text("held_out_levels", table)
        # Nothing to draw, or nothing to draw with.
        with suppress(ConfigError, MissingDependencyError, OSError, ValueError):
            curves, metric, _ = read_curves([directory])
            pixels = _pixels(draw(curves, Path(made, "curve"), metric, ""))
            writer.add_image("learning_curve", pixels, int(curves[0].last.get(ITERATION, 0)), dataformats="HWC")
