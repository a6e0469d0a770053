"""``rllib collect``: let a player play and write what supervised learning reads."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.new_files import new_file, out_path, writing
from rllib_lmgame.base.plugin import find_in_current_directory
from rllib_lmgame.cli import options
from rllib_lmgame.cli.options import GAME, OUT_FILE, SPLITS, Option, env_config, env_config_of, parallel, seed, whole
from rllib_lmgame.cli.playing import PLAYER_OPTIONS, player_settings
from rllib_lmgame.datasets.options import WRITTEN
from rllib_lmgame.envs import GameError
from rllib_lmgame.envs.registry import game_spec
from rllib_lmgame.policies.scripted import FORMS

if TYPE_CHECKING:
    from rllib_lmgame.evaluation.players.settings import PlayerSettings
    from rllib_lmgame.rollouts.play import PlayedEpisode
    from rllib_lmgame.rollouts.players import Player
    from rllib_lmgame.rollouts.records import EpisodeSummary, GameConfig

EXPERT = "expert"
EPISODES_PER_WRITE = 64
LOG = "log"


@options.command(
    "Let a player play, in every seat, and write its episodes as JSONL: `supervised.data` of LMGameSFT and "
    "`warm_start.data` of LMGamePPO read the file. No cluster is started.",
    GAME,
    Option("--player NAME", f"who plays: expert (the game's solver), or {FORMS}", default=EXPERT),
    Option("--episodes N", "episodes to play", whole(), 1000),
    Option("--out FILE", OUT_FILE.settings["help"], required=True),
    Option(
        f"--format {{{','.join((LOG, *WRITTEN))}}}",
        "log: all of an episode, to be learnt in any chat format; the others: conversations as "
        "`--config '{language_model: ...}'` asks for replies, which other programs read too",
        default=LOG,
    ),
    seed("the levels and of chance"),
    Option(f"--split {SPLITS}", "levels, where there are splits (train)"),
    env_config("the game"),
    Option("--successes-only", "play as many episodes, write those that reached the goal"),
    parallel("games of a model or endpoint in play at the same time"),
    *PLAYER_OPTIONS,
)
def command(args: argparse.Namespace) -> int:
    from rllib_lmgame.algorithms.games import found_beside, on_split
    from rllib_lmgame.evaluation.players.naming import make_player
    from rllib_lmgame.rollouts.records import GameConfig
    from rllib_lmgame.rollouts.seats import EpisodeFailed

    own_options = env_config_of(args)
    find_in_current_directory([args.game, args.player, own_options])
    game = GameConfig(env=game_spec(args.game).game_id, env_config=own_options)
    if args.split is not None:
        (game,) = on_split([game], args.split, override=True)
    found_beside(game)
    settings = player_settings(args, (game,), args.parallel, "--player")
    player = make_player("player", "solver" if args.player == EXPERT else args.player, settings)
    try:
        return _write(args, settings, _played(args, game, player, settings))
    except (EpisodeFailed, GameError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _played(
    args: argparse.Namespace, game: GameConfig, player: Player, settings: PlayerSettings
) -> Iterator[PlayedEpisode]:
    """Its episodes; those that fail are counted, and left out."""
    from rllib_lmgame.rollouts.collect import collect_games
    from rllib_lmgame.rollouts.players import Scripted
    from rllib_lmgame.rollouts.seats import EpisodeFailed, StopReason

    played = failed = 0
    at_once, limits = 1 if isinstance(player, Scripted) else args.parallel, settings.sections.text_rollouts
    for some in collect_games(game, player, episodes=args.episodes, seed=args.seed, at_once=at_once, options=limits):
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

    from rllib_lmgame.datasets.writing import conversations
    from rllib_lmgame.rollouts.episode_log import EpisodeLog, episode_record
    from rllib_lmgame.rollouts.episodes import summarize

    talk = settings.sections.language_model
    summaries: list[EpisodeSummary] = []
    waiting: list[dict[str, Any]] = []
    written = 0
    began = time.perf_counter()
    out = out_path(args.out)
    with new_file(out) as file:
        log = EpisodeLog(file)

        def flush() -> None:
            with writing(out):
                log.write(waiting)
            waiting.clear()

        for played in tqdm(episodes, total=args.episodes, unit="episode", disable=not sys.stderr.isatty(), leave=False):
            summary = summarize(played)
            if summary.success is None and args.successes_only:
                why = f"{played.game_id} is played against others: one player's success is another's loss"
                raise ConfigError("--successes-only", why)
            summaries.append(summary)
            if summary.success or not args.successes_only:
                record = episode_record(played)
                waiting += [record] if args.format == LOG else conversations(record, args.format, talk)
                written += 1
            if len(waiting) >= EPISODES_PER_WRITE:
                flush()
        flush()
    took = time.perf_counter() - began
    print(f"{out}: {written} episodes in {took:.1f} s; {_numbers(summaries)}")
    return 0


def _numbers(summaries: Sequence[EpisodeSummary]) -> str:
    from rllib_lmgame.rollouts.episodes import episode_metrics

    numbers, played = episode_metrics(summaries), len(summaries)
    success = f"success {numbers['success_rate']:.3f}, " if "success_rate" in numbers else ""
    total = sum(sum(seat.episode_return for seat in summary.seats) / len(summary.seats) for summary in summaries)
    turns = sum(summary.steps for summary in summaries)
    return f"played {played}, {success}return {total / played:.3f}, {turns / played:.2f} turns an episode"
