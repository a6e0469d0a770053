"""What is printed at the end of a run: success on held-out levels at each milestone, an episode, and what to do next."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rllib_lmgame.algorithms.checkpoints import HF_DIRECTORY, MILESTONES_FILE
from rllib_lmgame.algorithms.evaluation import LoadedPolicies, loaded_policies
from rllib_lmgame.evaluation.statistics import paired_difference, wilson_interval
from rllib_lmgame.rollouts.episode_log import read_log
from rllib_lmgame.rollouts.seats import EpisodeFailed

REPORT_FILE = "report.json"


def learning_report(summaries: Sequence[Any], *, episodes: int = 512, split: str = "test") -> None:
    """Print the learning report of every finished trial.

    Args:
        summaries: Trials (``path``, ``checkpoint``), as the experiment runner gives them.
        episodes: Held-out levels played with the final weights, the same as at the milestones.
        split: Levels.
    """
    for summary in summaries:
        if not summary.checkpoint:
            continue
        try:
            _report_trial(Path(summary.path), Path(summary.checkpoint), episodes, split)
        except EpisodeFailed as failure:
            print(f"no report on {summary.checkpoint}: {failure}", file=sys.stderr)


def _report_trial(directory: Path, checkpoint: Path, episodes: int, split: str) -> None:
    milestones = _milestones(checkpoint)
    with loaded_policies(checkpoint, log_dir=str(directory / "episodes")) as policies:
        games = policies.config.games_for_evaluation(split)
        milestones["after PPO"] = _successes(policies, games, episodes, None)
        milestones["after PPO, greedy"] = _successes(policies, games, episodes, 0.0)
        policies.play(games, 1, log="report")
    (directory / REPORT_FILE).write_text(json.dumps({"episodes": episodes, "split": split, "successes": milestones}), encoding="utf-8")
    print()
    print(success_table(milestones, split))
    print()
    print("One held-out episode, replayed:")
    print(episode_text(read_log(directory / "episodes" / "report-0.jsonl")[-1]))
    print(next_steps(directory, checkpoint))


def _milestones(checkpoint: Path) -> dict[str, list[bool]]:
    path = checkpoint / MILESTONES_FILE
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def _successes(policies: LoadedPolicies, games: Any, episodes: int, temperature: float | None) -> list[bool]:
    return [bool(summary.success) for summary in policies.play(games, episodes, temperature=temperature).summaries]


def success_table(milestones: Mapping[str, Sequence[bool]], split: str) -> str:
    """Success with 95 % intervals, and the paired difference to the milestone before."""
    lines = [f"{'Success on ' + split + ' levels':<28}{'levels':>8}{'success':>10}   95 % interval    change, 95 % interval (paired)"]
    before: Sequence[bool] | None = None
    for name, successes in milestones.items():
        low, high = wilson_interval(sum(successes), len(successes))
        line = f"{name:<28}{len(successes):>8}{sum(successes) / len(successes):>10.3f}   {low:.3f} - {high:.3f}"
        if before is not None and len(before) == len(successes) and "greedy" not in name:
            mean, down, up = paired_difference(successes, before)
            line += f"    {mean:+.3f} ({down:+.3f} to {up:+.3f})"
        lines.append(line)
        before = successes
    return "\n".join(lines)


def episode_text(record: Mapping[str, Any]) -> str:
    """An episode of the log as a person would read it."""
    lines = []
    for step in record["steps"]:
        for agent, text in step["observations"].items():
            lines += [text, f"{agent}> {step['actions'][agent]!r}   reward {step['rewards'].get(agent, 0.0):+.1f}", ""]
    lines += list(dict.fromkeys(record["final_observations"].values()))
    lines.append(f"({record['stop_reason']}, {json.dumps(record['infos'])})")
    return "\n".join(lines)


def next_steps(directory: Path, checkpoint: Path) -> str:
    """Paths, and the commands to go on with, as they can be typed where this run was started."""
    program = Path(sys.argv[0])
    rllib = str(program) if program.name == "rllib" else "rllib"
    tensorboard = str(program.with_name("tensorboard")) if program.name == "rllib" and program.with_name("tensorboard").exists() else "tensorboard"
    return "\n".join(
        (
            "",
            f"Checkpoint:          {checkpoint}",
            f"Hugging Face export: {checkpoint / HF_DIRECTORY}",
            f"Evaluate it:         {rllib} evaluate {checkpoint} --episodes 512 --split test",
            f"Watch it play:       {rllib} play --checkpoint {checkpoint}",
            f"TensorBoard:         {tensorboard} --logdir {directory.parent}",
            f"Ray dashboard:       {rllib} train ... --ray-ui prints its address",
        )
    )
