"""Runs of one experiment: ``--resume`` goes on with its saved trials, a second run has a directory of its own.

1. Tune gives saved trials the settings they started with, whatever the file says now. ``stop`` and ``max_failures`` of
   the file hold for saved trials too; those that the old ``stop`` ended go on. ``callbacks`` and ``report`` are made
   anew. Any other change is refused before Ray starts.
2. A trial goes on from its newest whole checkpoint, also one that Tune's state does not know yet.
3. If the saved trials cannot be loaded, the run ends and says how to go on; Tune would start over.
4. Without ``--resume`` a run goes to ``NAME-2``, ``NAME-3``, ...; with it the last of these goes on. The lock of a
   directory refuses a second run while the first still goes.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ray.tune import Callback

from rllib_lmgame.algorithms.checkpoints.manifest import iteration_of, manifest_problem
from rllib_lmgame.algorithms.checkpoints.paths import is_checkpoint
from rllib_lmgame.base.errors import CheckpointError
from rllib_lmgame.base.group import as_data, values_of
from rllib_lmgame.base.json_files import first_difference, write_json_to
from rllib_lmgame.base.lock import is_running
from rllib_lmgame.base.storage import is_uri
from rllib_lmgame.experiments.results.curves import EXPERIMENT_FILE
from rllib_lmgame.experiments.results.files import ITERATION, RESULT_FILE, json_lines
from rllib_lmgame.experiments.results.outcome import experiment_directory
from rllib_lmgame.experiments.spec import ExperimentOptions, ExperimentSpec, dotted

_MAY_CHANGE = {"stop", "max_failures", "callbacks", "report", "storage_path", "env_vars"}


def save_settings(spec: ExperimentSpec) -> None:
    """Write what :func:`check_unchanged` compares with into the experiment's directory, in one step."""
    from pyarrow.fs import FileSystem

    files, directory = FileSystem.from_uri(experiment_directory(spec))
    write_json_to(files, f"{directory}/{EXPERIMENT_FILE}", _settings(spec.options), indent=1)


def check_unchanged(spec: ExperimentSpec) -> None:
    """Compare an experiment with the one started under its name, if that has written its settings.

    Raises: ConfigError: naming a setting that differs and cannot be changed on the way.
    """
    from pyarrow.fs import FileSystem

    files, directory = FileSystem.from_uri(experiment_directory(spec))
    try:
        with files.open_input_stream(f"{directory}/{EXPERIMENT_FILE}") as file:
            started = json.loads(file.readall())
    except FileNotFoundError:
        return
    if (difference := first_difference(started, _settings(spec.options))) is not None:
        path, before, now = difference
        is_now = "is not set" if now is None else f"is {json.dumps(now)}"
        was = "without it" if before is None else f"with {json.dumps(before)}"
        hint = "--resume cannot change it; start an experiment of another name with `restore: CHECKPOINT`"
        raise spec.source.error(dotted(path), f"{is_now}, but the experiment was started {was}; {hint}")


class Resumption(Callback):
    """Watches over Tune while it takes over saved trials; ``options`` give their ``stop`` and ``max_failures``.

    ``adopt`` is called with every saved trial before it starts.
    """

    def __init__(self, options: ExperimentOptions, adopt: Callable[[Any], None] = lambda trial: None) -> None:
        self._options, self._adopt, self._trials = options, adopt, 0
        self._error: Exception | None = None

    def take(self, trial: Any) -> None:
        """A trial that was saved."""
        self._trials += 1
        criteria, last = self._options.stop, trial.last_result
        ended = trial.status == "TERMINATED" and reached(trial.stopping_criterion, last)
        if ended and not reached(criteria, last):
            trial.set_status("PENDING")
        trial.stopping_criterion, trial.max_failures = criteria, self._options.max_failures
        trial.invalidate_json_state()
        try:
            if trial.status != "TERMINATED":
                self._adopt(trial)
        except Exception as error:  # Tune would not say it.
            self._error = self._error or error

    def setup(self, *args: Any, **kwargs: Any) -> None:
        if self._error is not None:
            raise self._error
        if not self._trials:
            anew = "start anew from a checkpoint with --experiment-name NAME --restore CHECKPOINT"
            raise CheckpointError(f"the saved trials could not be taken over (-v shows Ray's message); {anew}")


def reached(stop: Mapping[str, Any], result: Mapping[str, Any]) -> bool:
    """Whether a result meets one of the criteria; a trial that ended otherwise does not go on with others."""
    from ray.tune.utils import flatten_dict

    flat = flatten_dict(dict(result))
    return any(metric in flat and flat[metric] >= value for metric, value in stop.items())


def _settings(options: ExperimentOptions) -> dict[str, Any]:
    kept = {key: as_data(value) for key, value in values_of(options).items() if key not in _MAY_CHANGE}
    return json.loads(json.dumps(kept))


def is_started(directory: Path) -> bool:
    """Whether there is a state to go on from, whole or not; a run killed before its first trial leaves none."""

    def has_trials(state: Path) -> bool:
        try:
            return bool(json.loads(state.read_bytes())["trial_data"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return True  # It is damaged.

    return any(map(has_trials, directory.glob("experiment_state-*.json")))


def newest_whole(trial: Path) -> Path | None:
    """The newest whole and unaltered checkpoint in a trial's directory, of this package's algorithms only."""
    found = sorted(trial.glob("checkpoint_*"), reverse=True)
    return next((path for path in found if is_checkpoint(path) and manifest_problem(path) is None), None)


def adopt_newest(trial: Any) -> None:
    """Let a restored trial go on from its newest whole checkpoint, even one its state does not know.

    A trial that took over another one's checkpoint (population-based training) stays with that.

    Raises: CheckpointError: if it had checkpoints and none of them is whole.
    """
    from ray.train._internal.session import _TrainingResult
    from ray.tune import Checkpoint

    directory, storage = Path(trial.storage.trial_fs_path), trial.storage
    manager = trial.run_metadata.checkpoint_manager
    registered = manager.latest_checkpoint_result
    last = None if registered is None else Path(registered.checkpoint.path)
    newest = newest_whole(directory)
    if last is not None and last.parent == directory and newest is None:
        raise CheckpointError(f"trial {trial.trial_id} has no whole checkpoint to go on from: {manifest_problem(last)}")
    if newest is None or newest == last or (last is not None and last.parent != directory):
        return
    manager._checkpoint_results = [r for r in manager._checkpoint_results if Path(r.checkpoint.path).is_dir()]
    known = {Path(r.checkpoint.path): r for r in manager._checkpoint_results}
    if newest not in known:
        iteration, lines = iteration_of(newest), json_lines(directory / RESULT_FILE)
        metrics = next((line for line in lines if line.get(ITERATION) == iteration), {ITERATION: iteration or 0})
        checkpoint = Checkpoint(str(newest), filesystem=storage.storage_filesystem)
        known[newest] = _TrainingResult(checkpoint=checkpoint, metrics=metrics)
        manager.register_checkpoint(known[newest])
    manager._latest_checkpoint_result = known[newest]
    storage.current_checkpoint_index = int(newest.name.rpartition("_")[2])
    trial.run_metadata.invalidate_cache()
    trial.invalidate_json_state()


def place_runs(specs: Iterable[ExperimentSpec], *, resume: bool) -> None:
    """Name this run of every experiment, with a notice if the name changes; for remote storage Tune does it itself."""
    for spec in specs:
        if is_uri(experiment_directory(spec)):
            continue
        root = Path(experiment_directory(spec)).parent
        has, runs = ((lambda name, of=of, root=root: of(root / name)) for of in (has_run, is_running))
        name = run_name(spec.name, has, runs, resume=resume)
        if name != spec.name:
            several = f"was run several times; going on with the last one, {root / name}"
            again = f"has been run before: its results stay where they are, this run's go to {root / name}"
            spec.notices.append(f"{spec.name} {several if resume else again}")
        spec.name = name


def run_name(name: str, has_run: Callable[[str], bool], is_running: Callable[[str], bool], *, resume: bool) -> str:
    """The name of this run among the runs of ``name``: the last one's with ``resume``, else a new one."""
    names = (name if number == 1 else f"{name}-{number}" for number in itertools.count(1))
    last = None
    while has_run(candidate := next(names)):
        last = candidate
    return candidate if last is None or not (resume or is_running(last)) else last


def has_run(directory: Path) -> bool:
    """Whether a directory holds the trials of a run, also of one whose state was lost."""
    patterns = ("*experiment_state*", "*/result.json")
    return any(next(directory.glob(pattern), None) for pattern in patterns) or is_running(directory)
