"""The end of a run: the evaluation of its final policy, and what to type next."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rllib_lmgame.algorithms.checkpoints.paths import TRUST_FLAG
from rllib_lmgame.base.errors import CheckpointError, ConfigError
from rllib_lmgame.base.storage import is_uri
from rllib_lmgame.experiments.results.outcome import TrialSummary
from rllib_lmgame.rollouts.seats import EpisodeFailed
from rllib_lmgame.telemetry.progress import evaluation_line, played

_EVALUATED = "--episodes 512 --split test"


def next_commands(best: TrialSummary, *, own: bool, plays: bool = True, stopped: bool = True) -> list[str]:
    """Commands to go on with after a trial (the best of several): measure its policy, watch it, train on.

    Without ``plays`` it was trained on files alone, and the commands leave the game open. Unless it was ``stopped`` by
    ``stop``, no command trains on.
    """
    lines = []
    if best.checkpoint:
        checkpoint = shlex.quote(best.checkpoint)
        how = f" {_EVALUATED}{'' if plays else ' --env GAME'}" if own else ""
        trust = "" if own and not _names_code(best.checkpoint) else f" {TRUST_FLAG}"
        lines.append(f"Evaluate it:    {_program('rllib')} evaluate {checkpoint}{how}{trust}")
        if own:
            game = "" if plays else "GAME "
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


def wants_final_evaluation(config: Any, summaries: Sequence[TrialSummary]) -> bool:
    """Whether to evaluate at the end: it is configured, the last iteration did not, and one local checkpoint exists."""
    if len(summaries) != 1 or not config.evaluation_interval or evaluation_line(summaries[0].last_result):
        return False
    return summaries[0].checkpoint is not None and not is_uri(summaries[0].checkpoint)


def print_final_evaluation(summary: TrialSummary) -> None:
    """Play the evaluation of the configuration with the last checkpoint's policy, and print a line per game."""
    from rllib_lmgame.evaluation.evaluate import evaluate_as_in_training

    print("evaluating the final policy ...", flush=True)
    try:
        numbers = evaluate_as_in_training(summary.checkpoint or "")
    except (EpisodeFailed, CheckpointError, ConfigError) as error:
        print(f"the final policy could not be evaluated: {error}", file=sys.stderr)
        return
    policies = [name for name in summary.last_result.get("learners", {}) if name != "__all_modules__"]
    for game in numbers["evaluated"]:
        interval = dict(zip(("success_low", "success_high"), game.get("success_interval", ()), strict=False))
        split = f", {game['split']}" if game.get("split") else ""
        head = f"final policy, {game['num_episodes']} episodes of {game['game']}{split}:"
        print("  ".join([head, *played({**game, **interval}, policies)]), flush=True)
