"""``rllib tournament``: players of any kind play each other, and are rated."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.plugin import find_in_current_directory
from rllib_lmgame.cli.games import TRUST_HELP, add_env_config, parse_env_config
from rllib_lmgame.cli.player_options import add_player_options, player_settings, seed, whole
from rllib_lmgame.cli.recorded import held_directory, play_with_bar
from rllib_lmgame.policies.scripted import FORMS

if TYPE_CHECKING:
    from rllib_lmgame.evaluation.tournament.files import TournamentDirectory
    from rllib_lmgame.evaluation.tournament.run import Outcome, Tournament
    from rllib_lmgame.evaluation.tournament.standings import Standings
    from rllib_lmgame.rollouts.records import GameConfig

TOGETHER = "all zero-sum games"
PLOTS = "pip install 'rllib-lmgame[plots]'"


def add_parser(subparsers: Any, summary: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "tournament",
        help=summary,
        description=(
            "Let players play each other, all against all and each in every seat equally often. Zero-sum games "
            "without stakes are told by wins, Bradley-Terry ratings and the Nash average, others by what each "
            "player gets. The same "
            "command with the same --out goes on where it was interrupted, and plays again what failed."
        ),
    )
    parser.add_argument("games", metavar="GAME", nargs="+", help="id, entry point name or package.module:Class")
    parser.add_argument(
        "--players",
        metavar="PLAYER",
        nargs="+",
        action="extend",
        required=True,
        help=f"{FORMS}; NAME=PLAYER gives one a name",
    )
    parser.add_argument(
        "--games",
        dest="games_each",
        type=whole(),
        default=20,
        metavar="N",
        help="games of every match-up (default 20), filled up so that all take each seat equally often",
    )
    parser.add_argument(
        "--by",
        choices=("wins", "return"),
        help="rank players of zero-sum games by wins, or by mean return (default: return where a win does not always "
        "pay the same)",
    )
    parser.add_argument(
        "--out", metavar="DIR", help="write all games (JSONL), standings and pay-off matrices there; go on from it"
    )
    parser.add_argument("--seed", type=seed, default=0, help="seed of levels, seats and players (default 0)")
    parser.add_argument(
        "--parallel",
        type=whole(),
        default=16,
        metavar="N",
        help="games in play at the same time (default 16); with 1 language models repeat bit for bit",
    )
    parser.add_argument(
        "--split", choices=("train", "validation", "test"), default="test", help="levels, where there are splits (test)"
    )
    add_env_config(parser, "the games")
    add_player_options(parser)
    parser.add_argument("--trust-checkpoint", action="store_true", help=TRUST_HELP)
    parser.add_argument("--json", action="store_true", help="print all numbers as JSON")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    tournament = _tournament(args)
    with ExitStack() as stack:
        directory = _directory(args.out, stack)
        outcome = _play(tournament, directory, args)
        tables = _standings(tournament, outcome, args.by)
        counts = {name: player.counts() for name, player in tournament.players.items()}
        if directory is not None:
            _write(directory, tables, counts)
    _print(tables, outcome, counts, args.json)
    if outcome.failures and directory is not None:
        print(f"{directory.path}: the same command plays the failed games again", file=sys.stderr)
    return 1 if outcome.failures else 0


def _tournament(args: argparse.Namespace) -> Tournament:
    from rllib_lmgame.algorithms.games import on_split
    from rllib_lmgame.base.group import build
    from rllib_lmgame.envs.registry import game_spec
    from rllib_lmgame.evaluation.players.naming import make_players, without_names
    from rllib_lmgame.evaluation.tournament.run import Tournament
    from rllib_lmgame.rollouts.records import GameConfig
    from rllib_lmgame.settings.sections.text_rollouts import TextRolloutOptions

    env_config = parse_env_config(args.env_config)
    find_in_current_directory([args.games, without_names(args.players), env_config])
    named = [GameConfig(env=game_spec(game).game_id, env_config=dict(env_config)) for game in args.games]
    games = on_split(named, args.split, override=False)
    for number, game in enumerate(games):
        if game in games[:number]:
            raise ConfigError("GAME", f"{game.env} is named twice")
    settings = player_settings(args, games, at_once=args.parallel)
    players = make_players(args.players, settings)
    if len(players) < 2:
        raise ConfigError("--players", "a tournament has at least two players")
    options = build(TextRolloutOptions, settings.sections.get("text_rollouts", {}), "--config.text_rollouts")
    return Tournament(games, players, args.games_each, args.seed, args.parallel, options)


def _directory(out: str | None, stack: ExitStack) -> TournamentDirectory | None:
    if out is None:
        return None
    from rllib_lmgame.evaluation.tournament.files import TournamentDirectory

    return held_directory(TournamentDirectory, out, stack)


def _play(tournament: Tournament, directory: TournamentDirectory | None, args: argparse.Namespace) -> Outcome:
    from rllib_lmgame.evaluation.tournament.run import play_tournament

    return play_with_bar(partial(play_tournament, tournament, directory), "game", quiet=args.json)


def _standings(tournament: Tournament, outcome: Outcome, asked: str | None) -> list[Standings]:
    """The standings of every game; with several zero-sum games also of all of those together, whose stakes differ: they
    are told by wins, unless returns were ``asked`` for.
    """
    from rllib_lmgame.evaluation.tournament.standings import RETURN, WINS, has_stakes, is_zero_sum, standings

    names = list(tournament.players)
    tables, together = [], []
    for game, results in zip(tournament.games, outcome.results, strict=True):
        zero_sum = is_zero_sum(results, _says_zero_sum(game)) and any(result.comparisons for result in results)
        by = asked or (RETURN if has_stakes(results) else WINS)
        tables.append(standings(game.env, results, names, zero_sum=zero_sum, by=by, seed=tournament.seed))
        together += results if zero_sum else []
    if sum(table.zero_sum for table in tables) > 1 and asked != RETURN:
        tables.append(standings(TOGETHER, together, names, zero_sum=True, seed=tournament.seed))
    return tables


def _says_zero_sum(game: GameConfig) -> bool:
    """Whether a game says of itself that it is zero-sum, at its options: with some it may be and with others not."""
    from rllib_lmgame.envs.registry import make_game

    env = make_game(game.env, game.env_config)
    env.close()
    return getattr(getattr(env, "unwrapped", env), "zero_sum", None) is True


def _write(directory: TournamentDirectory, tables: Sequence[Standings], counts: dict[str, dict[str, int]]) -> None:
    from rllib_lmgame.evaluation.tournament.files import matrix_name, write_csv, write_png, write_standings

    write_standings(directory.path, [table.as_json() for table in tables], counts)
    drawn = True
    for table in tables:
        if len(table.players) > 1 and table.games and table.game != TOGETHER:
            name = matrix_name(table)
            write_csv(table, directory.path / f"{name}.csv")
            drawn = write_png(table, directory.path / f"{name}.png") and drawn
    if not drawn:
        print(f"note: pay-off matrices are drawn where matplotlib is installed: {PLOTS}", file=sys.stderr)


def _print(tables: Sequence[Standings], outcome: Outcome, counts: dict[str, dict[str, int]], as_json: bool) -> None:
    from rllib_lmgame.cli.tournament_table import failures_text, numbers_json, standings_text

    if as_json:
        print(numbers_json(tables, outcome, counts))
        return
    for table in tables:
        print(standings_text(table), end="\n\n")
    print(failures_text(outcome, counts))
