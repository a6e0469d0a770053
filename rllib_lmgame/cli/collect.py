"""``rllib collect``: let an expert play and write the episode log that supervised learning reads."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rllib_lmgame.cli.games import add_env_config, parse_env_config
from rllib_lmgame.cli.player_options import seed
from rllib_lmgame.errors import ConfigError
from rllib_lmgame.imports import find_in_current_directory
from rllib_lmgame.new_files import new_file, writing

if TYPE_CHECKING:
    from rllib_lmgame.rollouts.episodes import EpisodeSummary
    from rllib_lmgame.rollouts.play import PlayedEpisode

EXPERT = "expert"
EPISODES_PER_WRITE = 64


def add_parser(subparsers: Any, summary: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "collect",
        help=summary,
        description="Let a scripted player play, and write its episodes as JSONL: `supervised.data` of LMGameSFT and "
        "`warm_start.data` of LMGamePPO read the file. No cluster is started.",
    )
    parser.add_argument("game", metavar="GAME", help="id, entry point name or package.module:Class")
    who = (
        "who plays: expert (the game's solver; default), random (legal moves, or texts of the action space), or "
        "package.module:Class"
    )
    parser.add_argument("--player", default=EXPERT, metavar="NAME", help=who)
    parser.add_argument("--policy", help=argparse.SUPPRESS)
    parser.add_argument("--episodes", type=int, default=1000, metavar="N", help="episodes to write (default 1000)")
    parser.add_argument("--out", required=True, metavar="FILE", help="JSONL file to write; it must not exist yet")
    parser.add_argument("--seed", type=seed, default=0, help="seed of the levels and of chance (default 0)")
    add_env_config(parser, "the game (split: train by default)")
    parser.add_argument(
        "--successes-only", action="store_true", help="play as many episodes, write those that reached the goal"
    )
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    from rllib_lmgame.envs import GameError
    from rllib_lmgame.rollouts.collect import collect_episodes
    from rllib_lmgame.rollouts.seats import EpisodeFailed

    if args.policy is not None:
        raise ConfigError(
            "--policy", f"names a policy of a checkpoint; who plays here is said by --player {args.policy}"
        )
    env_config = parse_env_config(args.env_config)
    find_in_current_directory([args.game, args.player, env_config])
    if args.episodes < 1:
        raise ConfigError("--episodes", f"must be at least 1, got {args.episodes}")
    player = "solver" if args.player == EXPERT else args.player
    try:
        return _write(
            args.out,
            collect_episodes(args.game, env_config, player=player, episodes=args.episodes, seed=args.seed),
            args.successes_only,
        )
    except (EpisodeFailed, GameError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _write(out: str, episodes: Iterable[PlayedEpisode], successes_only: bool) -> int:
    from rllib_lmgame.rollouts.episodes import summarize
    from rllib_lmgame.rollouts.log.episode_log import EpisodeLog, episode_record

    summaries: list[EpisodeSummary] = []
    waiting: list[dict[str, Any]] = []
    written = 0
    began = time.perf_counter()
    with new_file(out) as file:
        log = EpisodeLog(file.scratch)

        def flush() -> int:
            with writing(file.wanted):
                log.write(waiting)
            count = len(waiting)
            waiting.clear()
            return count

        for played in episodes:
            summary = summarize(played)
            if summary.success is None and successes_only:
                why = f"{played.game_id} is played against others: one player's success is another's loss"
                raise ConfigError("--successes-only", why)
            summaries.append(summary)
            if summary.success or not successes_only:
                waiting.append(episode_record(played))
            if len(waiting) >= EPISODES_PER_WRITE:
                written += flush()
        written += flush()
    if file.path is not None:
        took = time.perf_counter() - began
        print(f"{file.path}: {written} episodes in {took:.1f} s; {_told(summaries)}")
    return file.status()


def _told(summaries: Sequence[EpisodeSummary]) -> str:
    from rllib_lmgame.rollouts.metrics import episode_metrics
    from rllib_lmgame.telemetry.metrics import MEASURES, win_draw_loss

    numbers, played = episode_metrics(summaries), len(summaries)
    parts = [f"played {played}"]
    if "success_rate" in numbers:
        parts.append(f"success {numbers['success_rate']:.3f}")
    for _, role, shares in win_draw_loss(numbers):
        parts.append(f"{role} win-draw-loss " + "-".join(f"{share:.3f}" for share in shares))
    parts += [f"{name} {number:.3f}" for name, number in numbers.get(MEASURES, {}).items()]
    total = sum(sum(seat.episode_return for seat in summary.seats) / len(summary.seats) for summary in summaries)
    turns = sum(summary.steps for summary in summaries)
    return ", ".join([*parts, f"return {total / played:.3f}", f"{turns / played:.2f} turns an episode"])
