"""``--resume``: going on with an experiment's saved trials.

Tune gives saved trials the settings they started with, whatever the file says now. Therefore:
1. ``stop`` and ``max_failures`` of the file hold for saved trials too; those that the old ``stop`` ended go on.
2. ``callbacks`` and ``report`` are made anew by every run.
3. Any other change is refused before Ray starts, if the old settings can be read.
4. If the saved trials cannot be loaded, the run ends and says why; Tune would start over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ray.tune import Callback

from rllib_lmgame.base.errors import CheckpointError
from rllib_lmgame.base.group import values_of
from rllib_lmgame.base.json_files import write_json_to
from rllib_lmgame.experiments.results.outcome import experiment_directory
from rllib_lmgame.experiments.search.stopping import stopping_criteria
from rllib_lmgame.experiments.spec import STOPS, ExperimentOptions, ExperimentSpec, dotted

SETTINGS_FILE = "settings.json"
_MAY_CHANGE = {*STOPS, "max_failures", "callbacks", "report", "storage_path"}


def save_settings(spec: ExperimentSpec) -> None:
    """Write what :func:`check_unchanged` compares with into the experiment's directory, in one step."""
    from pyarrow.fs import FileSystem

    files, directory = FileSystem.from_uri(experiment_directory(spec))
    write_json_to(files, f"{directory}/{SETTINGS_FILE}", _settings(spec.options), indent=1)


def check_unchanged(spec: ExperimentSpec) -> list[str]:
    """Compare an experiment with the one started under its name; a notice if the old settings cannot be read.

    Raises: ConfigError: naming a setting that differs and cannot be changed on the way.
    """
    try:
        started = _started_with(spec)
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as error:
        place = f"{experiment_directory(spec)}/{SETTINGS_FILE}"
        what = "saved trials go on with the settings they were started with, whatever the file says now"
        return [f"{place} cannot be read ({error}); {what}"]
    difference = _difference(started, _settings(spec.options))
    if difference is not None:
        key, before, now = difference
        is_now = "is not set" if now is None else f"is {json.dumps(now)}"
        was = "without it" if before is None else f"with {json.dumps(before)}"
        hint = "--resume cannot change it; start an experiment of another name with `restore: CHECKPOINT`"
        raise spec.source.error(key, f"{is_now}, but the experiment was started {was}; {hint}")
    return []


def _started_with(spec: ExperimentSpec) -> dict[str, Any]:
    """What :func:`save_settings` wrote. Raises: OSError: unreadable; ValueError, RecursionError: damaged."""
    from pyarrow.fs import FileSystem

    files, directory = FileSystem.from_uri(experiment_directory(spec))
    with files.open_input_stream(f"{directory}/{SETTINGS_FILE}") as file:
        content = json.loads(file.readall())
    if not (isinstance(content, dict) and isinstance(content.get("config"), dict)):
        raise ValueError("it holds no settings")
    return content


class Resumption(Callback):
    """Watches over Tune while it takes over saved trials; ``options`` give their ``stop`` and ``max_failures``.

    ``adopt`` is called with every saved trial before it starts; ``ways_on`` says what to do if none can be loaded.
    """

    def __init__(
        self,
        options: ExperimentOptions,
        adopt: Callable[[Any], None] = lambda trial: None,
        ways_on: Callable[[], str] = lambda: "",
    ) -> None:
        self._options = options
        self._adopt = adopt
        self._ways_on = ways_on
        self._trials = 0
        self._error: Exception | None = None

    def take(self, trial: Any) -> None:
        self._trials += 1
        _update(trial, self._options)
        if trial.status == "TERMINATED":
            return
        try:
            self._adopt(trial)
        except Exception as error:  # Tune would not say it.
            self._error = self._error or error

    def setup(self, *args: Any, **kwargs: Any) -> None:
        if self._error is not None:
            raise self._error
        if not self._trials:
            refusal = "the saved trials could not be taken over; -v shows Ray's own message"
            raise CheckpointError("; ".join(filter(None, (refusal, self._ways_on()))))


def with_settings_of(resumption: Resumption, scheduler: type) -> type:
    """A trial scheduler like ``scheduler`` that shows every trial Tune adds to ``resumption``."""

    class Resuming(scheduler):  # type: ignore[misc]
        def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
            resumption.take(trial)
            super().on_trial_add(tune_controller, trial)

    return Resuming


def _update(trial: Any, options: ExperimentOptions) -> None:
    criteria, last = stopping_criteria(options), trial.last_result
    ended = trial.status == "TERMINATED" and reached(trial.stopping_criterion, last)
    if ended and not reached(criteria, last):
        trial.set_status("PENDING")
    trial.stopping_criterion = criteria
    trial.max_failures = options.max_failures
    trial.invalidate_json_state()


def reached(stop: Mapping[str, Any], result: Mapping[str, Any]) -> bool:
    """Whether a result meets one of the criteria; a trial that ended otherwise does not go on with others."""
    from ray.tune.utils import flatten_dict

    flat = flatten_dict(dict(result))
    return any(metric in flat and flat[metric] >= value for metric, value in stop.items())


def _settings(options: ExperimentOptions) -> dict[str, Any]:
    kept = {key: value for key, value in values_of(options).items() if key not in _MAY_CHANGE}
    return json.loads(json.dumps(kept, default=_name, skipkeys=True))


def _name(value: Any) -> str:
    """Stands for an object of a Python file, in every process the same."""
    return getattr(value, "__qualname__", type(value).__qualname__)


def _difference(before: Any, now: Any, path: tuple[str, ...] = ()) -> tuple[str, Any, Any] | None:
    if not (isinstance(before, dict) and isinstance(now, dict)):
        return None if before == now else (dotted(path), before, now)
    return next(
        (d for key in {**before, **now} if (d := _difference(before.get(key), now.get(key), (*path, key)))), None
    )
