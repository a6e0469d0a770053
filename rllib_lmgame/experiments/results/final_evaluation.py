"""The evaluation of the policy a run ends with, where its last iteration made none."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rllib_lmgame.base.errors import CheckpointError, ConfigError
from rllib_lmgame.base.storage import is_uri
from rllib_lmgame.experiments.results.outcome import TrialSummary
from rllib_lmgame.telemetry.progress import evaluation_line, played


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
