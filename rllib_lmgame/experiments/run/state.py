"""An experiment's saved state, and what to do when it is damaged.

Tune overwrites its state in place: a full disk or a crash can leave half a file, and Tune would start over. Therefore:

1. Beside Tune's files stands a copy of the last whole ones, replaced in one step.
2. ``--resume`` takes the newest whole files with trials, Tune's or the copy; others are renamed, never deleted.
3. Each trial goes on from its newest whole checkpoint on disk, also one that the state does not know yet.
4. If nothing is whole, the run does not begin; the message names checkpoints and the command to start from one.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Mapping
from fnmatch import fnmatch
from itertools import starmap
from pathlib import Path
from typing import Any

from ray.tune import Callback

from rllib_lmgame.algorithms.checkpoints.manifest import MANIFEST, iteration_of, manifest_problem
from rllib_lmgame.algorithms.checkpoints.paths import is_checkpoint
from rllib_lmgame.base.errors import CheckpointError
from rllib_lmgame.base.json_files import write_json
from rllib_lmgame.experiments.results.files import ITERATION, RESULT_FILE, json_lines
from rllib_lmgame.experiments.run.state_files import MAIN, STATE, has_trials, state_is_whole

COPY_FILE = "experiment_state.whole"
"""Begins like Tune's own, for whoever asks whether a directory holds a state that will be unpickled."""


class StateCopy(Callback):
    """Keeps the copy of guarantee 1. For results in a local directory."""

    def __init__(self) -> None:
        self._copied: tuple[str, int] | None = None

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        if trials and trials[0].storage.storage_filesystem.type_name == "local":
            storage = trials[0].storage
            self._copy(Path(storage.experiment_driver_staging_path), Path(storage.experiment_fs_path))

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        self.on_step_end(0, trials)

    def _copy(self, source: Path, target: Path) -> None:
        newest = max(source.glob(MAIN), default=None)
        if newest is None or (version := (newest.name, newest.stat().st_mtime_ns)) == self._copied:
            return
        with contextlib.suppress(OSError):  # A full disk: the copy that is there stays.
            if keep_copy(source, target):
                self._copied = version


def keep_copy(source: Path, target: Path) -> bool:
    """Copy the state files in ``source`` into one file in ``target``, in one step; False if they are not whole."""
    content = {path.name: path.read_bytes() for path in source.iterdir() if STATE.fullmatch(path.name)}
    if not _is_good_copy(content):
        return False
    write_json(target / COPY_FILE, {name: base64.b64encode(data).decode() for name, data in content.items()})
    return True


def _is_good_copy(files: Mapping[str, bytes]) -> bool:
    """Whether there are trials in these files (contents by name) and all are whole."""
    mains = [data for name, data in files.items() if fnmatch(name, MAIN)]
    return all(starmap(state_is_whole, files.items())) and any(map(has_trials, mains))


def is_whole(path: Path) -> bool:
    try:
        return state_is_whole(path.name, path.read_bytes())
    except OSError:
        return False


def is_started(directory: Path) -> bool:
    """Whether there is a state to go on from, whole or not; a run killed before its first trial leaves none."""
    return (directory / COPY_FILE).is_file() or any(
        not is_whole(path) or has_trials(path.read_bytes()) for path in directory.glob(MAIN)
    )


def mend(directory: Path, command: str) -> list[str]:
    """Make the newest state in an experiment's directory a whole one with trials; returns notices of what was done.

    Raises: CheckpointError: no state is whole; names what is left, after ``command``, which trains from a checkpoint.
    """
    damaged = _damaged(directory)
    usable = [path for path in directory.glob(MAIN) if path not in damaged]
    if usable and not damaged:
        return []
    copy = _copied_files(directory)
    if not copy and not usable:
        lost = f"{damaged[0] if damaged else directory / MAIN} is damaged and there is no copy of it"
        raise CheckpointError(f"{lost}, so --resume cannot know the trials; {ways_on(directory, command)}")
    for path in damaged:
        path.replace(path.with_name(f"damaged-{path.name}"))
    for name, content in copy.items():
        (directory / name).write_bytes(content)
    used = "the last whole copy" if copy else f"{max(usable).name}, which an earlier run left"
    names = ", ".join(path.name for path in damaged) or MAIN
    return [f"{names} in {directory}: damaged, missing or without trials; going on from {used}"]


def _damaged(directory: Path) -> list[Path]:
    """Newest state files of each kind that Tune would take and cannot read, down to the first whole one."""
    kinds: dict[str, list[Path]] = {}
    for path in directory.iterdir():
        if match := STATE.fullmatch(path.name):
            kinds.setdefault(match[1], []).append(path)
    found = []
    for paths in kinds.values():
        for path in sorted(paths, reverse=True):
            if is_whole(path) and (not path.match(MAIN) or has_trials(path.read_bytes())):
                break
            found.append(path)
    return found


def _copied_files(directory: Path) -> dict[str, bytes]:
    """Contents by name of the copy's files; none if it is not whole itself."""
    try:
        content = json.loads((directory / COPY_FILE).read_text(encoding="utf-8"))
        files = {name: base64.b64decode(data) for name, data in content.items() if STATE.fullmatch(name)}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}
    return files if _is_good_copy(files) else {}


def ways_on(directory: Path, command: str) -> str:
    """For a message: the newest whole checkpoints of an experiment without a state, each after ``command``."""
    newest = [newest_whole(trial) for trial in sorted(directory.iterdir()) if trial.is_dir()]
    commands = [f"{command} {checkpoint}" for checkpoint in newest if checkpoint is not None]
    if not commands:
        return "there is no whole checkpoint either"
    return "\n  ".join(["start a new experiment from a checkpoint:", *commands])


def newest_whole(trial: Path) -> Path | None:
    """The newest whole and unaltered checkpoint in a trial's directory, of this package's algorithms only."""
    found = sorted(trial.glob("checkpoint_*"), reverse=True)
    return next((path for path in found if is_checkpoint(path) and manifest_problem(path) is None), None)


def adopt_newest(trial: Any) -> None:
    """Let a restored trial go on from its newest whole checkpoint, even one its state does not know.

    A trial that took over another one's checkpoint (population-based training) stays with that.

    Raises: CheckpointError: if it had checkpoints and none of them is whole.
    """
    directory = Path(trial.storage.trial_fs_path)
    manager = trial.run_metadata.checkpoint_manager
    registered = manager.latest_checkpoint_result
    if registered is not None and Path(registered.checkpoint.path).parent != directory:
        return
    newest = newest_whole(directory)
    if newest is None and registered is not None:
        raise CheckpointError(
            f"trial {trial.trial_id} has no whole checkpoint to go on from: "
            f"{manifest_problem(Path(registered.checkpoint.path))}"
        )
    if newest is None or (registered is not None and Path(registered.checkpoint.path) == newest):
        return
    manager._checkpoint_results = [r for r in manager._checkpoint_results if Path(r.checkpoint.path).is_dir()]
    known = {Path(r.checkpoint.path): r for r in manager._checkpoint_results}
    for path in sorted(directory.glob("checkpoint_*")):
        if path not in known and path <= newest and (path == newest or _is_later(path, known)):
            known[path] = _result_of(trial, path)
            manager.register_checkpoint(known[path])
    manager._latest_checkpoint_result = known[newest]
    trial.storage.current_checkpoint_index = int(newest.name.rpartition("_")[2])
    trial.run_metadata.invalidate_cache()
    trial.invalidate_json_state()


def _is_later(path: Path, known: Mapping[Path, Any]) -> bool:
    """Whether a checkpoint is newer than all known ones and complete as far as its manifest tells."""
    return is_checkpoint(path) and (path / MANIFEST).is_file() and all(path > other for other in known)


def _result_of(trial: Any, checkpoint: Path) -> Any:
    from ray.train._internal.session import _TrainingResult
    from ray.tune import Checkpoint

    iteration = iteration_of(checkpoint)
    lines = json_lines(checkpoint.parent / RESULT_FILE)
    metrics = next((result for result in lines if result.get(ITERATION) == iteration), {ITERATION: iteration or 0})
    return _TrainingResult(
        checkpoint=Checkpoint(str(checkpoint), filesystem=trial.storage.storage_filesystem), metrics=metrics
    )
