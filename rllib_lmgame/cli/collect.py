"""``rllib collect``: let a player play and write what supervised learning reads."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.new_files import new_file, writing
from rllib_lmgame.base.plugin import find_in_current_directory
from rllib_lmgame.cli.games import TRUST_HELP, add_env_config, parse_env_config
from rllib_lmgame.cli.player_options import add_player_options, player_settings, seed, whole
from rllib_lmgame.policies.scripted import FORMS
from rllib_lmgame.settings.sections.supervised import WRITTEN

if TYPE_CHECKING:
    from rllib_lmgame.evaluation.players.settings import PlayerSettings
    from rllib_lmgame.rollouts.play import PlayedEpisode
    from rllib_lmgame.rollouts.players import Player
    from rllib_lmgame.rollouts.records import EpisodeSummary, GameConfig

EXPERT = "expert"
EPISODES_PER_WRITE = 64
LOG = "log"


def add_parser(subparsers: Any, summary: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "collect",
        help=summary,
        description="Let a player play, in every seat, and write its episodes as JSONL: `supervised.data` of LMGameSFT "
        "and `warm_start.data` of LMGamePPO read the file. No cluster is started.",
    )
    parser.add_argument("game", metavar="GAME", help="id, entry point name or package.module:Class")
    who = (
        "who plays: expert (the game's solver; default), random (legal moves, or texts of the action space), or "
        f"{FORMS}"
    )
    parser.add_argument("--player", default=EXPERT, metavar="NAME", help=who)
    parser.add_argument("--policy", help=argparse.SUPPRESS)
    parser.add_argument("--episodes", type=whole(), default=1000, metavar="N", help="episodes to play (default 1000)")
    parser.add_argument("--out", required=True, metavar="FILE", help="JSONL file to write; it must not exist yet")
    parser.add_argument(
        "--format",
        choices=(LOG, *WRITTEN),
        default=LOG,
        help="log: all of an episode, to be learnt in any chat format (default); the others: conversations as "
        "`--config '{language_model: ...}'` asks for replies, which other programs read too",
    )
    parser.add_argument("--seed", type=seed, default=0, help="seed of the levels and of chance (default 0)")
    parser.add_argument(
        "--split", choices=("train", "validation", "test"), help="levels, where there are splits (train)"
    )
    add_env_config(parser, "the game")
    parser.add_argument(
        "--successes-only", action="store_true", help="play as many episodes, write those that reached the goal"
    )
    parser.add_argument(
        "--min-return",
        type=float,
        metavar="R",
        help="play as many episodes, write those in which a seat earned at least R, on average",
    )
    parser.add_argument(
        "--parallel",
        type=whole(),
        default=16,
        metavar="N",
        help="games of a model or endpoint in play at the same time (default 16)",
    )
    add_player_options(parser)
    parser.add_argument("--trust-checkpoint", action="store_true", help=TRUST_HELP)
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    from rllib_lmgame.algorithms.games import found_beside, on_split
    from rllib_lmgame.envs import GameError
    from rllib_lmgame.envs.registry import game_spec
    from rllib_lmgame.evaluation.players.naming import make_player
    from rllib_lmgame.rollouts.players import Scripted
    from rllib_lmgame.rollouts.records import GameConfig
    from rllib_lmgame.rollouts.seats import EpisodeFailed

    if args.policy is not None:
        raise ConfigError(
            "--policy", f"names a policy of a checkpoint; who plays here is said by --player {args.policy}"
        )
    env_config = parse_env_config(args.env_config)
    find_in_current_directory([args.game, args.player, env_config])
    if args.min_return is not None and not math.isfinite(args.min_return):
        raise ConfigError("--min-return", f"must be a finite number, got {args.min_return}")
    game = GameConfig(env=game_spec(args.game).game_id, env_config=env_config)
    if args.split is not None:
        (game,) = on_split([game], args.split, override=False)
        if game.env_config.get("split") != args.split:
            named = game.env_config.get("split")
            why = f"env_config says {named}" if named else f"{game.env} has no splits"
            raise ConfigError("--split", f"is {args.split}, but {why}")
    found_beside(game)
    settings = replace(player_settings(args, (game,), at_once=args.parallel), flag="--player")
    source = "solver" if args.player == EXPERT else args.player
    player = make_player("player", source, settings)
    try:
        if isinstance(player, Scripted):
            return _write(args, settings, _by_script(args, game, source))
        return _write(args, settings, _by_model(args, game, player, settings))
    except (EpisodeFailed, GameError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _by_script(args: argparse.Namespace, game: GameConfig, player: str) -> Iterator[PlayedEpisode]:
    from rllib_lmgame.rollouts.collect import collect_episodes

    return collect_episodes(args.game, game.env_config, player=player, episodes=args.episodes, seed=args.seed)


def _by_model(
    args: argparse.Namespace, game: GameConfig, player: Player, settings: PlayerSettings
) -> Iterator[PlayedEpisode]:
    """Its episodes; those that fail are told, and left out."""
    from rllib_lmgame.base.group import build
    from rllib_lmgame.evaluation.collect import collect_games
    from rllib_lmgame.rollouts.seats import EpisodeFailed, StopReason
    from rllib_lmgame.settings.sections.text_rollouts import TextRolloutOptions

    options = build(TextRolloutOptions, settings.sections.get("text_rollouts", {}), "--config.text_rollouts")
    played = failed = 0
    for some in collect_games(
        game, player, episodes=args.episodes, seed=args.seed, at_once=args.parallel, options=options
    ):
        played, failed = played + len(some.episodes), failed + len(some.failures)
        if not played:
            raise EpisodeFailed(StopReason.ENGINE_ERROR, f"no episode could be played: {some.failures[0].message}")
        yield from some.episodes
    if failed:
        print(f"{failed} of {played + failed} episodes failed and are left out", file=sys.stderr)
    for name, count in player.counts().items():
        print(f"{name}: {count}")


def _write(args: argparse.Namespace, settings: PlayerSettings, episodes: Iterable[PlayedEpisode]) -> int:
    from tqdm import tqdm

    from rllib_lmgame.base.group import build
    from rllib_lmgame.rollouts.episodes import summarize
    from rllib_lmgame.rollouts.log.episode_log import EpisodeLog, episode_record
    from rllib_lmgame.rollouts.taught.writing import conversations
    from rllib_lmgame.settings.sections.language_model import LanguageModelOptions

    options = build(LanguageModelOptions, settings.sections.get("language_model", {}), "--config.language_model")
    summaries: list[EpisodeSummary] = []
    waiting: list[dict[str, Any]] = []
    written = 0
    began = time.perf_counter()
    with new_file(args.out) as file:
        log = EpisodeLog(file.scratch)

        def flush() -> None:
            with writing(file.wanted):
                log.write(waiting)
            waiting.clear()

        for played in tqdm(episodes, total=args.episodes, unit="episode", disable=not sys.stderr.isatty(), leave=False):
            summary = summarize(played)
            if summary.success is None and args.successes_only:
                why = f"{played.game_id} is played against others: one player's success is another's loss"
                raise ConfigError("--successes-only", why)
            summaries.append(summary)
            earned = sum(seat.episode_return for seat in summary.seats) / len(summary.seats)
            enough = args.min_return is None or earned >= args.min_return
            if enough and (summary.success or not args.successes_only):
                record = episode_record(played)
                waiting += [record] if args.format == LOG else conversations(record, args.format, options)
                written += 1
            if len(waiting) >= EPISODES_PER_WRITE:
                flush()
        flush()
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
