"""The end of a run: the evaluation of its final policy, and what to type next."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rllib_lmgame.algorithms.checkpoints.unpickling import TRUST_FLAG
from rllib_lmgame.base.errors import CheckpointError, ConfigError
from rllib_lmgame.base.storage import is_uri
from rllib_lmgame.experiments.results.outcome import TrialSummary
from rllib_lmgame.telemetry.progress import evaluation_line, played

_EVALUATED = "--episodes 512 --split test"


def next_commands(best: TrialSummary, *, own: bool, plays: bool = True, stopped: bool = True) -> list[str]:
    """Commands to go on with after a trial (the best of several): measure its policy, watch it, train on.

    Without ``plays`` it was trained on files alone, and the commands leave the game open. Unless it was ``stopped`` by
    ``stop``, it is through with what it had to do, and no command goes on.
    """
    lines = []
    if best.checkpoint:
        checkpoint = shlex.quote(best.checkpoint)
        how = (f" {_EVALUATED}" + " --env GAME" * (not plays)) * own
        trust = f" {TRUST_FLAG}" * (not own or _names_code(best.checkpoint))
        lines.append(f"Evaluate it:    {_program('rllib')} evaluate {checkpoint}{how}{trust}")
        game = "" if plays else "GAME "
        lines += [f"Watch it play:  {_program('rllib')} play {game}--checkpoint {checkpoint}{trust}"] if own else []
    return [
        *lines,
        *([f"Train on:       raise `stop`, then {resume_command()}"] if stopped else []),
        f"TensorBoard:    {_program('tensorboard')} --logdir {shlex.quote(str(Path(best.path).parent))}",
    ]


def _names_code(checkpoint: str) -> bool:
    """Whether a checkpoint of this run is refused without the flag, e.g. for a game by its import path."""
    from rllib_lmgame.evaluation.saved_config import read_config

    try:
        read_config(Path(checkpoint), trust=False)
    except ConfigError:
        return True
    except CheckpointError:  # The commands say what is wrong.
        pass
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
    if len(summaries) != 1 or not config.evaluation_interval:
        return False
    checkpoint, last_result = summaries[0].checkpoint, summaries[0].last_result
    return checkpoint is not None and not is_uri(checkpoint) and not evaluation_line(last_result)


def print_final_evaluation(summary: TrialSummary) -> None:
    """Play the evaluation of the configuration with the last checkpoint's policy, and print a line per game."""
    from rllib_lmgame.evaluation.evaluate import evaluate_as_in_training
    from rllib_lmgame.rollouts.seats import EpisodeFailed

    print("evaluating the final policy ...", flush=True)
    try:
        numbers = evaluate_as_in_training(summary.checkpoint or "")
    except (EpisodeFailed, CheckpointError, ConfigError) as error:
        print(f"the final policy could not be evaluated: {error}", file=sys.stderr)
        return
    policies = [name for name in summary.last_result.get("learners", {}) if name != "__all_modules__"]
    for game in numbers["evaluated"]:
        print(final_line(game, policies), flush=True)


def final_line(game: Mapping[str, Any], policies: Sequence[str]) -> str:
    interval = dict(zip(("success_low", "success_high"), game.get("success_interval", ()), strict=False))
    split = f", {game['split']}" if game.get("split") else ""
    head = f"final policy, {game['num_episodes']} episodes of {game['game']}{split}:"
    return "  ".join([head, *played({**game, **interval}, policies)])
