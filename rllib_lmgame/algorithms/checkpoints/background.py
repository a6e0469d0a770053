"""Checkpoints of which training waits for the files alone: a thread hashes them and copies them to the storage.

1. Tune learns of one when it is whole there: with a result, or with the next one that Tune asks for. Its marker and its
   manifest are copied last.
2. One is written at a time. The next one waits for it, as does the end of the trial.
3. An error is raised in the next iteration, or by whoever waits.
"""

from __future__ import annotations

import shutil
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rllib_lmgame.algorithms.checkpoints.manifest import MANIFEST, FileRecords, write_manifest
from rllib_lmgame.algorithms.checkpoints.paths import MARKER
from rllib_lmgame.base.errors import CheckpointError

EVERY = "__checkpoint_every__"
"""Key of a trial's settings: iterations between two such checkpoints. It is not the algorithm's."""
WRITTEN = "written_checkpoint"
"""Where a result, or a checkpoint, has one that is whole by now and that Tune does not know."""


class BackgroundCheckpoints:
    """Writes a trial's checkpoints; ``every`` is the number of iterations between two, 0 for none."""

    def __init__(self, every: int) -> None:
        self.every = every
        self._thread = ThreadPoolExecutor(1, "lmgame-checkpoint")
        self._pending: Future[Any] | None = None

    def begin(self, storage: Any, *args: Any) -> None:
        """Write the next checkpoint; arguments as of :func:`_write`."""
        storage._update_checkpoint_index({})
        self._pending = self._thread.submit(_write, storage, *args)

    def take(self, *, wait: bool = False) -> Any:
        """Tune's record of the last checkpoint, once, when it is whole; else ``None``. Raises: CheckpointError."""
        if self._pending is None or not (wait or self._pending.done()):
            return None
        pending, self._pending = self._pending, None
        return pending.result()


def _write(storage: Any, files: Path, known: FileRecords, metrics: dict[str, Any]) -> Any:
    """Write what lies in ``files``, which is removed; ``known`` as for :func:`write_manifest`."""
    from ray.train._internal.session import _TrainingResult
    from ray.tune import Checkpoint

    try:
        write_manifest(files, known)
        with tempfile.TemporaryDirectory() as last:
            for name in (MARKER, MANIFEST):
                shutil.move(files / name, last)
            for part in (str(files), last):
                checkpoint = storage.persist_current_checkpoint(Checkpoint.from_directory(part))
        return _TrainingResult(checkpoint, metrics)
    except Exception as error:
        raise CheckpointError(f"checkpoint {storage.checkpoint_fs_path} could not be written: {error}") from error
    finally:
        shutil.rmtree(files, ignore_errors=True)
