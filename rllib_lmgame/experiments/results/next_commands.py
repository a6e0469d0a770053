"""What to type next at the end of a run."""

from __future__ import annotations

import shlex
import sys
from contextlib import suppress
from pathlib import Path

from rllib_lmgame.algorithms.checkpoints.paths import TRUST_FLAG
from rllib_lmgame.base.errors import CheckpointError, ConfigError
from rllib_lmgame.experiments.results.outcome import TrialSummary

_EVALUATED = "--episodes 512 --split test"


def next_commands(best: TrialSummary, *, own: bool, plays: bool = True, stopped: bool = True) -> list[str]:
    """Commands to go on with after a trial (the best of several): measure its policy, watch it, train on.

    Policies of RLlib's algorithms are not ``own``. Without ``plays`` it was trained on files alone, and the commands
    leave the game open. Unless it was ``stopped`` by ``stop``, no command trains on.
    """
    lines = []
    if best.checkpoint and own:
        checkpoint, game = shlex.quote(best.checkpoint), "" if plays else "GAME "
        trust = f" {TRUST_FLAG}" * _names_code(best.checkpoint)
        env = "" if plays else " --env GAME"
        lines.append(f"Evaluate it:    {_program('rllib')} evaluate {checkpoint} {_EVALUATED}{env}{trust}")
        lines.append(f"Watch it play:  {_program('rllib')} play {game}--checkpoint {checkpoint}{trust}")
    if stopped:
        lines.append(f"Train on:       raise `stop`, then {resume_command()}")
    return [*lines, f"TensorBoard:    {_program('tensorboard')} --logdir {shlex.quote(str(Path(best.path).parent))}"]


def _names_code(checkpoint: str) -> bool:
    """Whether a checkpoint of this run is refused without the flag, e.g. for a game by its import path."""
    from rllib_lmgame.evaluation.saved_config import read_config

    with suppress(CheckpointError):  # The commands say what is wrong.
        try:
            read_config(Path(checkpoint), trust=False)
        except ConfigError:
            return True
    return False


def resume_command() -> str:
    """This program's command with ``--resume``."""
    given = sys.argv[1:]
    if Path(sys.argv[0]).name != "rllib":
        return "the same command with --resume"
    return shlex.join([_program("rllib"), *given, *([] if "--resume" in given else ["--resume"])])


def _program(name: str) -> str:
    own = Path(sys.argv[0])
    beside = own.with_name(name)
    return str(beside) if own.name == "rllib" and len(own.parts) > 1 and beside.exists() else name
