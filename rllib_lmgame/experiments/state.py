"""An experiment's saved state, and what to do when it is damaged.

Tune overwrites its state in place: a full disk or a crash in that moment leaves half a file, with which Tune would begin from nothing without a
word. Therefore:

1. Beside Tune's files stands a copy of the last whole ones, replaced in one step.
2. ``--resume`` takes, of Tune's files and the copy, the newest that are whole; damaged ones are set aside under another name, never deleted.
3. Each trial goes on from its newest whole checkpoint on disk, also one that the state does not know yet.
4. Where nothing whole is left, the run does not begin; the message names the checkpoints that are left and the command that starts from one.
"""

from __future__ import annotations

import base64
import contextlib
import json
import pickletools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray.tune import Callback

from rllib_lmgame.algorithms.checkpoints import MANIFEST, iteration_of, manifest_problem
from rllib_lmgame.errors import CheckpointError
from rllib_lmgame.experiments.checkpoint_paths import is_checkpoint
from rllib_lmgame.experiments.result_files import ITERATION, RESULT_FILE, json_lines
from rllib_lmgame.json_files import write_json

COPY_FILE = "experiment_state.whole"
"""Begins like Tune's own: whoever asks whether a directory holds a state that will be unpickled sees it too."""
_STATE = re.compile(r"(experiment_state|basic-variant-state|search_gen_state|searcher-state|callback-states)-.*\.(json|pkl)")
_MAIN = "experiment_state-*.json"


class StateCopy(Callback):
    """Keeps the copy of guarantee 1. For results in a local directory."""

    def __init__(self) -> None:
        self._copied: tuple[str, int] | None = None

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Tune may have saved its state."""
        if trials and trials[0].storage.storage_filesystem.type_name == "local":
            storage = trials[0].storage
            self._copy(Path(storage.experiment_driver_staging_path), Path(storage.experiment_fs_path))

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        """The last state is the one that counts."""
        self.on_step_end(0, trials)

    def _copy(self, source: Path, target: Path) -> None:
        newest = max(source.glob(_MAIN), default=None)
        if newest is None or (version := (newest.name, newest.stat().st_mtime_ns)) == self._copied:
            return
        with contextlib.suppress(OSError):  # A full disk: the copy that is there stays.
            if keep_copy(source, target):
                self._copied = version


def keep_copy(source: Path, target: Path) -> bool:
    """Put the state files in ``source`` into one file in ``target``, in one step, if they are whole and hold trials; whether they do."""
    files = [path for path in source.iterdir() if _STATE.fullmatch(path.name)]
    if not all(is_whole(path) for path in files) or not any(_has_trials(path) for path in files if path.match(_MAIN)):
        return False
    content = {path.name: base64.b64encode(path.read_bytes()).decode() for path in files}
    write_json(target / COPY_FILE, content)
    return True


def is_whole(path: Path) -> bool:
    """Whether a state file can be read to its end; nothing is unpickled."""
    try:
        data = path.read_bytes()
        if path.match(_MAIN):
            content = json.loads(data)
            return bool(content["runner_data"]) and all(json.loads(part) for trial in content["trial_data"] for part in trial)
        return sum(1 for _ in pickletools.genops(data)) > 0
    except (OSError, ValueError, KeyError, TypeError):
        return False


def is_started(directory: Path) -> bool:
    """Whether there is a state to go on from, whole or not: a run that was killed before it made a trial has left nothing."""
    return (directory / COPY_FILE).is_file() or any(not is_whole(path) or _has_trials(path) for path in directory.glob(_MAIN))


def _has_trials(state: Path) -> bool:
    return bool(json.loads(state.read_bytes())["trial_data"])


def mend(directory: Path, command: str) -> list[str]:
    """Make the newest state in an experiment's directory a whole one.

    Args:
        directory: Of the experiment.
        command: Start of a command that trains from a checkpoint, for the message; the checkpoint is put behind it.

    Returns:
        What was done, as lines for the user; none if nothing had to be.

    Raises:
        CheckpointError: if no state is whole; the message names what is left.
    """
    damaged = _damaged(directory)
    whole = [path for path in directory.glob(_MAIN) if path not in damaged]
    if whole and not damaged:
        return []
    copy = _copied_files(directory)
    if not copy and not whole:
        raise CheckpointError(_nothing_left(directory, damaged, command))
    for path in damaged:
        path.replace(path.with_name(f"damaged-{path.name}"))
    for name, content in copy.items():
        (directory / name).write_bytes(content)
    used = "the last whole copy" if copy else f"{max(whole).name}, which an earlier run left"
    names = ", ".join(path.name for path in damaged) or _MAIN
    return [f"{names} in {directory}: damaged or missing; going on from {used}"]


def _damaged(directory: Path) -> list[Path]:
    """State files that Tune would take and cannot read: of each kind the newest ones, down to the first that is whole."""
    kinds: dict[str, list[Path]] = {}
    for path in directory.iterdir():
        if match := _STATE.fullmatch(path.name):
            kinds.setdefault(match[1], []).append(path)
    found = []
    for paths in kinds.values():
        for path in sorted(paths, reverse=True):
            if is_whole(path):
                break
            found.append(path)
    return found


def _copied_files(directory: Path) -> dict[str, bytes]:
    try:
        content = json.loads((directory / COPY_FILE).read_text(encoding="utf-8"))
        return {name: base64.b64decode(data) for name, data in content.items() if _STATE.fullmatch(name)}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _nothing_left(directory: Path, damaged: list[Path], command: str) -> str:
    text = f"{damaged[0] if damaged else directory / _MAIN} is damaged and there is no copy of it, so --resume cannot know the trials"
    checkpoints = [newest for trial in sorted(directory.iterdir()) if trial.is_dir() and (newest := newest_whole(trial)) is not None]
    if not checkpoints:
        return f"{text}; there is no whole checkpoint either"
    return "; start a new experiment from a checkpoint:\n  ".join([text, "\n  ".join(f"{command} {checkpoint}" for checkpoint in checkpoints)])


def newest_whole(trial: Path) -> Path | None:
    """The newest checkpoint of a trial's directory whose files are all there and unaltered; it has to be one of this package's algorithms."""
    found = sorted(trial.glob("checkpoint_*"), reverse=True)
    return next((path for path in found if is_checkpoint(path) and manifest_problem(path) is None), None)


def adopt_newest(trial: Any) -> None:
    """Let a restored trial of Tune's go on from its newest whole checkpoint, whatever its saved state knows.

    A trial that took over another one's checkpoint (population-based training) stays with it.

    Raises:
        CheckpointError: if it had checkpoints and none of them is whole.
    """
    directory = Path(trial.storage.trial_fs_path)
    manager = trial.run_metadata.checkpoint_manager
    registered = manager.latest_checkpoint_result
    if registered is not None and Path(registered.checkpoint.path).parent != directory:
        return
    newest = newest_whole(directory)
    if newest is None and registered is not None:
        raise CheckpointError(f"trial {trial.trial_id} has no whole checkpoint to go on from: {manifest_problem(Path(registered.checkpoint.path))}")
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
    """Whether a checkpoint was written after all that are known, and ended well as far as its manifest says without reading it all."""
    return is_checkpoint(path) and (path / MANIFEST).is_file() and all(path > other for other in known)


def _result_of(trial: Any, checkpoint: Path) -> Any:
    """A checkpoint as Tune keeps it, with the result of its iteration."""
    from ray.train._internal.session import _TrainingResult
    from ray.tune import Checkpoint

    iteration = iteration_of(checkpoint)
    lines = json_lines(checkpoint.parent / RESULT_FILE)
    metrics = next((result for result in lines if result.get(ITERATION) == iteration), {ITERATION: iteration or 0})
    return _TrainingResult(checkpoint=Checkpoint(str(checkpoint), filesystem=trial.storage.storage_filesystem), metrics=metrics)
