"""What ``--resume`` goes on from: Tune's saved trials, each from its newest whole checkpoint on disk.

1. A trial goes on from its newest whole checkpoint, also one that Tune's state does not know yet.
2. If Tune cannot read its state, the run does not begin; the message names checkpoints and the command to start from.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rllib_lmgame.algorithms.checkpoints.manifest import iteration_of, manifest_problem
from rllib_lmgame.algorithms.checkpoints.paths import is_checkpoint
from rllib_lmgame.base.errors import CheckpointError
from rllib_lmgame.experiments.results.files import ITERATION, RESULT_FILE, json_lines


def is_started(directory: Path) -> bool:
    """Whether there is a state to go on from, whole or not; a run killed before its first trial leaves none."""
    return any(map(_has_trials, directory.glob("experiment_state-*.json")))


def _has_trials(state: Path) -> bool:
    """Whether a file of Tune's holds trials, or is damaged."""
    try:
        return bool(json.loads(state.read_bytes())["trial_data"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return True


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
    if newest not in known:
        known[newest] = _result_of(trial, newest)
        manager.register_checkpoint(known[newest])
    manager._latest_checkpoint_result = known[newest]
    trial.storage.current_checkpoint_index = int(newest.name.rpartition("_")[2])
    trial.run_metadata.invalidate_cache()
    trial.invalidate_json_state()


def _result_of(trial: Any, checkpoint: Path) -> Any:
    from ray.train._internal.session import _TrainingResult
    from ray.tune import Checkpoint

    iteration = iteration_of(checkpoint)
    lines = json_lines(checkpoint.parent / RESULT_FILE)
    metrics = next((result for result in lines if result.get(ITERATION) == iteration), {ITERATION: iteration or 0})
    return _TrainingResult(
        checkpoint=Checkpoint(str(checkpoint), filesystem=trial.storage.storage_filesystem), metrics=metrics
    )
