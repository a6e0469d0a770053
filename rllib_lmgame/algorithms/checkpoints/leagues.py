"""Whether the league of a checkpoint suits a run that restores it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rllib_lmgame.algorithms.checkpoints.manifest import MAX_MANIFEST_BYTES, read_json
from rllib_lmgame.errors import CheckpointError
from rllib_lmgame.league.files import DIRECTORY, LIST_FILE
from rllib_lmgame.league.league import policies_gone

if TYPE_CHECKING:
    from rllib_lmgame.algorithms.config import LMGameConfig


def check_league(checkpoint: Path, config: LMGameConfig) -> None:
    """Refuse a league with members or results of a policy that does not learn in this run.

    Nothing is checked if the checkpoint or the run has no league. Raises: CheckpointError: names the policies.
    """
    file = checkpoint / DIRECTORY / LIST_FILE
    if config.settings.league is None or not file.is_file():
        return
    try:
        gone = policies_gone(read_json(file, MAX_MANIFEST_BYTES), config.trained_policies())
    except (KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{file} is damaged: it holds no league") from None
    if gone:
        named = ", ".join(repr(policy) for policy in gone)
        raise CheckpointError(
            f"{checkpoint} does not suit this run: its league has members or results of {named}, and no policy of that "
            "name learns here. Keep it in config.policies; to begin another league with weights of this one, set "
            "language_model.model to a policy's files in the checkpoint and restore nothing"
        )
