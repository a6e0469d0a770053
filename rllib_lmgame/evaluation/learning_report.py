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
from rllib_lmgame.evaluation.evaluate import engines_for, saved_policies
from rllib_lmgame.inference.protocol import StopReason
from rllib_lmgame.measures.statistics import paired_by_level, rate_over_levels
from rllib_lmgame.rollouts.env_runner import TextGameEnvRunner
from rllib_lmgame.rollouts.episode_log import episode_text, read_log
from rllib_lmgame.rollouts.episodes import seed_and_level, success_by_seed
from rllib_lmgame.rollouts.item_order import evaluated_levels
from rllib_lmgame.rollouts.records import GameConfig, PlayResult, PlaySettings
from rllib_lmgame.rollouts.seats import EpisodeFailed
from rllib_lmgame.rollouts.sources import AgentMapper


def learning_report(
    summaries: Sequence[Any],
    *,
    episodes: Annotated[int, limits(ge=1)] = 512,
    split: Annotated[str, limits(choices=SPLITS)] = TEST,
) -> None:
    """Print the learning report of every finished trial.

    ``episodes`` held-out episodes are played with the final weights, on the milestones' levels, as evaluation samples.
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
    config = saved_policies(checkpoint, trust=True)
    games = config.games_for_evaluation(split)
    with engines_for(config, str(directory / "episodes")) as runner:
        sampled, own = config.run.evaluation_config.sampling, tuple(game.evaluated(None) for game in games)
        greedy = tuple(game.evaluated(0.0) for game in games)
        milestones["after training"] = success_by_seed(play(runner, own, episodes, sampled).summaries)
        milestones["after training, greedy"] = success_by_seed(play(runner, greedy, episodes, 0.0).summaries)
        play(runner, own, 1, sampled, log="report")
    made_up = made_up_levels(games)
    content = {"episodes": episodes, "split": split, "made_up_levels": made_up, "successes": milestones}
    (directory / REPORT_FILE).write_text(json.dumps(content), encoding="utf-8")
    print()
    for line in made_up:
        print(f"note: {line}")
    print(success_table(milestones, split))
    print()
    print("One held-out episode, replayed:")
    print(episode_text(read_log(directory / "episodes" / "report-0.jsonl")[-1]))


def play(
    runner: TextGameEnvRunner,
    games: tuple[GameConfig, ...],
    num_episodes: int,
    temperature: float | None = None,
    log: str | None = None,
) -> PlayResult:
    """Play ``num_episodes`` of every game on the levels of the evaluation during training.

    Raises: EpisodeFailed: if no episode could be played to its end.
    """
    seated, failures = AgentMapper(runner.config).assigned(evaluated_levels(games, num_episodes), games)
    seeded = runner.config.run.deterministic
    result = runner.play(seated, PlaySettings(games, temperature=temperature, seeded=seeded, log=log, keep="nothing"))
    if result.error is not None:
        raise result.error
    result.failures += failures
    if result.failures and not result.summaries:
        first = result.failures[0]
        message = f"none of {len(result.failures)} episodes could be played; the first: {first.message}"
        raise EpisodeFailed(StopReason(first.reason), message)
    return result


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
        if len(results.keys() & before.keys()) > 1 and "greedy" not in name:
            count, mean, low, high = paired_by_level(results, before, level_of.__getitem__)
            line += f"    {mean:+.3f}" + f" ({low:+.3f} to {high:+.3f})" * (rate.levels > 1)
            line += f" on {count} episodes" * (count < len(results))
        lines.append(line.rstrip())
        before = results
    return "\n".join(lines) if len(lines) > 1 else ""
