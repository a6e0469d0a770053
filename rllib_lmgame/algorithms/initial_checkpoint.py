"""What policies begin again with: weights and optimizers in files that are written once."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllib_lmgame.algorithms.checkpoints.learner_files import read_by_learners, written_by_learners
from rllib_lmgame.algorithms.checkpoints.manifest import FileRecords, file_records
from rllib_lmgame.algorithms.cluster.learner_calls import foreach_learner
from rllib_lmgame.base.errors import CheckpointError
from rllib_lmgame.league.files import INITIAL, copy_initial_checkpoints, move_directory
from rllib_lmgame.league.members import Files, files_of

if TYPE_CHECKING:
    from rllib_lmgame.algorithms.base import LMGameAlgorithm


class InitialCheckpoints:
    """First weights of policies, below ``directory``; ``policies`` has what is known of the files of each."""

    def __init__(self, algorithm: LMGameAlgorithm, directory: Path) -> None:
        self._algorithm = algorithm
        self.directory = directory
        self.policies: dict[str, Files] = {}

    def keep(self, policies: Sequence[str]) -> None:
        """Write what those begin with that have none yet."""
        group = self._algorithm.learner_group
        for policy in [name for name in policies if name not in self.policies]:
            scratch = self.directory / f".keeping-{policy}"
            shutil.rmtree(scratch, ignore_errors=True)
            with written_by_learners(group, scratch):
                foreach_learner(group, lambda learner, policy=policy, path=scratch: learner.save_policy(path, policy))
            self.policies[policy] = files_below(scratch)
            move_directory(scratch, self.directory / INITIAL / policy)

    def begin_again(self, policies: Sequence[str]) -> None:
        """Restart policies in learners, not in engines. Raises CheckpointError if their first files have changed."""
        group = self._algorithm.learner_group
        for policy in policies:
            kept = self.directory / INITIAL / policy
            if files_below(kept) != self.policies[policy]:
                raise CheckpointError(f"{kept} does not hold what {policy} began with any more")
            with read_by_learners(group, kept):
                foreach_learner(group, lambda learner, policy=policy, path=kept: learner.begin_again(path, policy))

    def copy(self, source: Path, target: Path) -> None:
        """From one directory into another, of a checkpoint for one."""
        copy_initial_checkpoints(source, target, self.policies)

    def recorded_files(self, prefix: str = "") -> FileRecords:
        """Of the files below ``prefix`` in a checkpoint what is known of them since they were written."""
        return {
            f"{prefix}{INITIAL}/{policy}/{name}": {"bytes": size, "blake2b": digest}
            for policy, files in self.policies.items()
            for name, size, digest in files
        }

    def set_state(self, files: dict[str, Any], of: Collection[str]) -> None:
        """Take over what is known of the files of some policies."""
        self.policies = {policy: files_of(each) for policy, each in files.items() if policy in of}


def files_below(directory: Path) -> Files:
    """What a manifest is to say of the files below a directory."""
    return tuple((name, record["bytes"], record["blake2b"]) for name, record in file_records(directory).items())
