"""What is printed at the end of a run: success on held-out levels at each milestone, and an episode."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from rllib_lmgame.algorithms.checkpoints.manifest import MILESTONES_FILE, REPORT_FILE
from rllib_lmgame.base.group import limits
from rllib_lmgame.envs.contract.splits import SPLITS, TEST
from rllib_lmgame.envs.registry import made_up_levels
from rllib_lmgame.evaluation.evaluate import loaded_policies
from rllib_lmgame.measures.statistics import notes_on_levels, paired_by_level, rate_over_levels
from rllib_lmgame.rollouts.episode_log import episode_text, read_log
from rllib_lmgame.rollouts.episodes import episode_metrics, seed_and_level, success_by_seed
from rllib_lmgame.rollouts.seats import EpisodeFailed
from rllib_lmgame.telemetry.metrics import OUTCOME_RATES, win_draw_loss


def learning_report(
    summaries: Sequence[Any],
    *,
    episodes: Annotated[int, limits(ge=1)] = 512,
    split: Annotated[str, limits(choices=SPLITS)] = TEST,
) -> None:
    """Print the learning report of every finished trial.

    ``episodes`` held-out episodes are played with the final weights, on the levels of the milestones.
    """
    for summary in summaries:
        if not summary.checkpoint:
            continue
        try:
            _report_trial(Path(summary.path), Path(summary.checkpoint), episodes, split)
        except EpisodeFailed as failure:
            print(f"no report on {summary.checkpoint}: {failure}", file=sys.stderr)


def _report_trial(directory: Path, checkpoint: Path, episodes: int, split: str) -> None:
    path = checkpoint / MILESTONES_FILE
    milestones: dict[str, dict[str, float]] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    with loaded_policies(checkpoint, log_dir=str(directory / "episodes"), trust=True) as policies:
        games = policies.config.games_for_evaluation(split)
        temperatures = {"after training": None, "after training, greedy": 0.0}
        played = {
            name: policies.play(games, episodes, temperature=temperature).summaries
            for name, temperature in temperatures.items()
        }
        policies.play(games, 1, log="report")
    made_up = made_up_levels(games)
    milestones |= {name: success_by_seed(summaries) for name, summaries in played.items()}
    outcomes = {name: _outcomes(summaries) for name, summaries in played.items()}
    content = {
        "episodes": episodes,
        "split": split,
        "made_up_levels": made_up,
        "successes": milestones,
        "outcomes": outcomes,
    }
    (directory / REPORT_FILE).write_text(json.dumps(content), encoding="utf-8")
    print()
    for line in made_up:
        print(f"note: {line}")
    print("\n\n".join(table for table in (success_table(milestones, split), outcome_table(outcomes)) if table))
    print()
    print("One held-out episode, replayed:")
    print(episode_text(read_log(directory / "episodes" / "report-0.jsonl")[-1]))


def _outcomes(summaries: Sequence[Any]) -> dict[str, Any]:
    numbers = episode_metrics(summaries)
    return {name: numbers[name] for name in OUTCOME_RATES if name in numbers}


def success_table(milestones: Mapping[str, Mapping[str, float]], split: str) -> str:
    """Success with 95 % intervals over levels, and the difference to the milestone before on shared seeds.

    ``milestones``: name -> success by seed (:func:`~rllib_lmgame.rollouts.episodes.success_by_seed`).
    """
    lines = [
        f"{'Success on ' + split + ' levels':<28}{'episodes':>9}{'levels':>8}{'success':>9}   95 % interval    change, "
        "95 % interval (paired)"
    ]
    before: dict[str, float] = {}
    for name, successes in milestones.items():
        if not successes:
            continue
        level_of = dict(map(seed_and_level, successes))
        results = dict(zip(level_of, successes.values(), strict=True))
        rate = rate_over_levels(list(results.values()), list(level_of.values()))
        interval = "-" if rate.interval is None else "{:.3f} - {:.3f}".format(*rate.interval)
        line = f"{name:<28}{len(results):>9}{rate.levels:>8}{rate.mean:>9.3f}   {interval:<13}"
        greedy = "greedy" in name
        if len(results.keys() & before.keys()) > 1 and not greedy:
            count, mean, low, high = paired_by_level(results, before, level_of.__getitem__)
            line += f"    {mean:+.3f}" + f" ({low:+.3f} to {high:+.3f})" * (rate.levels > 1)
            line += f" on {count} episodes" * (count < len(results))
        lines.append(line.rstrip())
        lines += [f"  {note}" for note in notes_on_levels(rate.levels, rate.settled if greedy else None)]
        before = results
    return "\n".join(lines) if len(lines) > 1 else ""


def outcome_table(outcomes: Mapping[str, Mapping[str, Any]]) -> str:
    """Win, draw and loss by policy and role, in games against others; empty if there are none."""
    lines = [f"{'Against others':<28}{'policy':<14}{'role':<14}{'win':>7}{'draw':>7}{'loss':>7}"]
    for name, rates in outcomes.items():
        for policy, role, shares in win_draw_loss(rates):
            lines.append(f"{name:<28}{policy:<14}{role:<14}" + "".join(f"{share:>7.3f}" for share in shares))
    return "\n".join(lines) if len(lines) > 1 else ""
