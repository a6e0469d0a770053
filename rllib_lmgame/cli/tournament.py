"""``rllib tournament``: players of any kind play each other, and are rated."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.json_files import write_json
from rllib_lmgame.base.plugin import find_in_current_directory
from rllib_lmgame.base.text import columns, printable
from rllib_lmgame.cli import options, tables
from rllib_lmgame.cli.options import GAME, JSON, SPLITS, Option, env_config, env_config_of, parallel, seed, whole
from rllib_lmgame.cli.playing import PLAYER_OPTIONS, held_directory, play_with_bar, player_settings
from rllib_lmgame.cli.tables import SHOWN_FAILURES, interval, number, spent_lines
from rllib_lmgame.envs.registry import game_spec, make_game
from rllib_lmgame.policies.scripted import FORMS

if TYPE_CHECKING:
    from rllib_lmgame.evaluation.tournament.results import TournamentDirectory
    from rllib_lmgame.evaluation.tournament.run import Outcome, Tournament
    from rllib_lmgame.evaluation.tournament.standings import Standing, Standings
    from rllib_lmgame.rollouts.records import GameConfig


@options.command(
    "Let players play each other, all against all and each in every seat equally often. Zero-sum games without stakes "
    "are ranked by wins and Bradley-Terry ratings, others by what each player gets. The same "
    "command with the same --out continues where it was interrupted, and plays again what failed.",
    Option("GAME...", GAME.settings["help"], dest="games"),
    Option("--players PLAYER...", f"{FORMS}; NAME=PLAYER gives one a name", required=True),
    Option("--games N", "games of each match-up, rounded up until seats are even", whole(), 20, dest="games_each"),
    Option("--by {wins,return}", "what ranks players of zero-sum games (default: return if not all wins pay the same)"),
    Option("--out DIR", "write all games (JSONL), standings and pay-off matrices there, and continue from it"),
    seed("levels, seats and players"),
    parallel("games in play at the same time; with 1 language models repeat bit for bit"),
    Option(f"--split {SPLITS}", "levels, where there are splits", default="test"),
    env_config("the games"),
    *PLAYER_OPTIONS,
    JSON,
)
def command(args: argparse.Namespace) -> int:
    from rllib_lmgame.evaluation.tournament.results import TournamentDirectory
    from rllib_lmgame.evaluation.tournament.run import play_tournament

    tournament = _tournament(args)
    with ExitStack() as stack:
        directory = held_directory(TournamentDirectory, args.out, stack)
        outcome = play_with_bar(partial(play_tournament, tournament, directory), "game", quiet=args.json)
        found = _standings(tournament, outcome, args.by)
        counts = {name: player.counts() for name, player in tournament.players.items()}
        if directory is not None:
            _write(directory, found, counts)
    if args.json:
        said = {
            "standings": [table.as_json() for table in found],
            "counts": counts,
            "played": sum(map(len, outcome.results)),
            "planned": outcome.planned,
            "failed": len(outcome.failures),
        }
        options.print_json(said)
    else:
        for table in found:
            print(standings_text(table), end="\n\n")
        print(failures_text(outcome, counts))
    if outcome.failures and directory is not None:
        print(f"{directory.path}: the same command plays the failed games again", file=sys.stderr)
    return 1 if outcome.failures else 0


def _tournament(args: argparse.Namespace) -> Tournament:
    from rllib_lmgame.algorithms.games import on_split
    from rllib_lmgame.evaluation.players.naming import make_players, without_names
    from rllib_lmgame.evaluation.tournament.run import Tournament
    from rllib_lmgame.rollouts.records import GameConfig

    own_options = env_config_of(args)
    find_in_current_directory([args.games, without_names(args.players), own_options])
    named = [GameConfig(env=game_spec(game).game_id, env_config=dict(own_options)) for game in args.games]
    games = on_split(named, args.split, override=False)
    for place, game in enumerate(games):
        if game in games[:place]:
            raise ConfigError("GAME", f"{game.env} is named twice")
    settings = player_settings(args, games, args.parallel)
    players = make_players(args.players, settings)
    if len(players) < 2:
        raise ConfigError("--players", "a tournament has at least two players")
    return Tournament(games, players, args.games_each, args.seed, args.parallel, settings.sections.text_rollouts)


def _standings(tournament: Tournament, outcome: Outcome, asked: str | None) -> list[Standings]:
    """The standings of every game, ranked as ``asked``."""
    from rllib_lmgame.evaluation.tournament.standings import RETURN, WINS, has_stakes, is_zero_sum, standings

    found = []
    for game, results in zip(tournament.games, outcome.results, strict=True):
        zero_sum = is_zero_sum(results, _says_zero_sum(game)) and any(result.comparisons for result in results)
        by = asked or (RETURN if has_stakes(results) else WINS)
        names, seed = list(tournament.players), tournament.seed
        found.append(standings(game.env, results, names, zero_sum=zero_sum, by=by, seed=seed))
    return found


def _says_zero_sum(game: GameConfig) -> bool:
    """Whether a game says of itself that it is zero-sum, at its options: with some it may be and with others not."""
    env = make_game(game.env, game.env_config)
    env.close()
    return getattr(getattr(env, "unwrapped", env), "zero_sum", None) is True


def _write(directory: TournamentDirectory, found: Sequence[Standings], counts: dict[str, dict[str, int]]) -> None:
    from rllib_lmgame.evaluation.tournament.standings import STANDINGS_FILE, write_csv

    said = {"standings": [table.as_json() for table in found], "counts": counts}
    write_json(directory.path / STANDINGS_FILE, said, indent=1)
    for table in found:
        if table.games:
            name = re.sub(r"[^\w.-]+", "-", table.game.rpartition("/")[2])
            write_csv(table, directory.path / f"payoffs-{name}.csv")


def standings_text(table: Standings) -> str:
    rows = [_cells(table, standing) for standing in table.players]
    lines = [f"{table.game}: {table.games} games", *tables.lines_of(rows, left=1)]
    matrix = table.matrix.tolist()
    if len(rows) > 1 and not all(math.isnan(cell) for row in matrix for cell in row):
        what = "points of the row against the column" if table.by == "wins" else "return of the row with the column"
        numbers = [str(place) for place in range(1, len(rows) + 1)]
        named = [f"{place} {player.player}" for place, player in zip(numbers, table.players, strict=True)]
        shown = [[name, *(number(cell, ".3f") for cell in row)] for name, row in zip(named, matrix, strict=True)]
        lines += ["", *columns([[what, *numbers], *shown], left=1)]
    return printable("\n".join(lines))


def _cells(table: Standings, one: Standing) -> tables.Row:
    """The columns of a player, each with its head."""
    got, reached = one.payoff or (math.nan,), one.rate or (math.nan,)
    rating = one.rating if one.rating is not None and math.isfinite(one.rating.low) else None
    end = [("return", number(got[0], "+.4g")), ("95 %", interval(got[1:], "+.4g"))]
    if table.zero_sum:
        end += [("win", str(one.wins)), ("draw", str(one.draws)), ("loss", str(one.losses))]
    end += [("win rate" if table.zero_sum else "success", number(reached[0], ".3f"))]
    end += [("95 %", interval(reached[1:], ".3f"))]
    if table.by == "wins":
        end += [("rating", number(rating.rating if rating else None, "+.0f"))]
        end += [("95 %", interval((rating.low, rating.high) if rating else None, "+.0f"))]
    return [("player", one.player), ("seats", str(one.seats)), *end]


def failures_text(outcome: Outcome, counts: Mapping[str, Mapping[str, int]]) -> str:
    played, failed = sum(map(len, outcome.results)), len(outcome.failures)
    by = Counter(player for failure in outcome.failures for player in failure["failed"])
    lines = [*spent_lines(counts), f"{played} of {outcome.planned} games played" + f", {failed} failed" * bool(failed)]
    lines += [f"  {count} because {player} gave no reply" for player, count in sorted(by.items())]
    reasons = Counter(failure["message"] for failure in outcome.failures)
    lines += [f"  {count} times: {message}" for message, count in reasons.most_common(SHOWN_FAILURES)]
    return printable("\n".join(lines))
