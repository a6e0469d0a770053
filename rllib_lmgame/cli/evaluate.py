"""``rllib evaluate``: checkpoints, models and players of any kind on the same levels."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.plugin import find_in_current_directory
from rllib_lmgame.base.storage import expanded
from rllib_lmgame.cli import options
from rllib_lmgame.cli.game_list import FLAG, FORM, listed, named_games, suite, with_names
from rllib_lmgame.cli.options import OneOf, Option, env_config, env_config_of, parallel, verbosity, whole
from rllib_lmgame.cli.playing import PLAYER_OPTIONS, held_directory, play_with_bar, player_settings
from rllib_lmgame.cli.tables import evaluation_markdown, evaluation_table
from rllib_lmgame.envs.registry import made_up_levels
from rllib_lmgame.policies.scripted import FORMS, HUGGING_FACE

if TYPE_CHECKING:
    from rllib_lmgame.evaluation.comparison.models import Connect, EvaluatedModel
    from rllib_lmgame.evaluation.comparison.run import Evaluation, Results
    from rllib_lmgame.rollouts.records import GameConfig

PLAYER = "PLAYER"
DEFAULT_EPISODES = 512
DEFAULT_AT_ONCE = 16
"""Games in play at the same time, of endpoints and scripted players."""
MODELS_AT_ONCE = 64


@options.command(
    "Play the same levels with every player and print how each does: one row per game and player. For a checkpoint "
    "alone the games are those it was trained on. The same command with the same --out continues where it was "
    "interrupted, and plays again what failed.",
    Option(
        "PLAYER...",
        f"{FORMS}; also the directory of a trial or experiment, and without hf: a Hugging Face directory, an id with a "
        "slash, or smollm2-135m; NAME=PLAYER gives one a name",
        dest="players",
    ),
    Option("--episodes N", f"deals of each game; two may be of one level (default: {DEFAULT_EPISODES})", whole()),
    Option("--samples K", "episodes of each deal", whole(), 1),
    OneOf(
        Option(
            "--games|--env|-e GAMES...",
            f"games joined by commas, each {FORM}, instead of those that the first checkpoint was trained on",
        ),
        Option("--suite NAME", "play the evaluation games of a tuned example or of a file"),
    ),
    env_config("all games"),
    Option(f"--split {options.SPLITS}", "levels to play (default: those that --games names, or test)"),
    parallel(
        f"games in play at the same time (default: as in training; {MODELS_AT_ONCE} of models, {DEFAULT_AT_ONCE} of "
        "endpoints); with 1 language models repeat bit for bit",
        None,
    ),
    Option(
        "--against PLAYER...",
        "who plays all seats but one of games for several, each equally often; who is evaluated takes every seat "
        f"equally often: {FORMS}",
    ),
    Option("--out DIR", "write every episode (results.jsonl) and the table there, and continue from it"),
    Option("--baseline NAME", "also show the difference of the others to this player"),
    *PLAYER_OPTIONS,
    options.RAY_ADDRESS,
    verbosity("print what Ray and the workers print"),
    options.JSON,
)
def command(args: argparse.Namespace) -> int:
    from rllib_lmgame.evaluation.comparison.files import EvaluationDirectory
    from rllib_lmgame.evaluation.comparison.run import play_evaluation
    from rllib_lmgame.evaluation.players.naming import split_name, without_names
    from rllib_lmgame.experiments.results.curves import best_of_sweep
    from rllib_lmgame.experiments.run.cluster import quieten_ray

    own_options = env_config_of(args)
    named = map(split_name, args.players)
    args.players = [f"{name}={best_of_sweep(source)}" if name else best_of_sweep(source) for name, source in named]
    find_in_current_directory([without_names(args.players), without_names(args.against or ()), own_options])
    quieten_ray(args.verbosity)
    with ExitStack() as stack:
        evaluation = _evaluation(own_options, args, partial(_connect, args, stack))
        directory = held_directory(EvaluationDirectory, args.out, stack)
        results = play_with_bar(partial(play_evaluation, evaluation, directory), "episode", quiet=args.json)
        numbers = _numbers(evaluation, results, args)
        if directory is not None:
            directory.write_table(numbers, evaluation_markdown(numbers))
    numbers |= {"counts": results.counts}
    if args.json:
        options.print_json(numbers)
    else:
        print(evaluation_table(numbers))
    if results.failures and directory is not None:
        print(f"{directory.path}: the same command plays what was dropped again", file=sys.stderr)
    return 1 if results.failures else 0


def _evaluation(own_options: dict[str, Any], args: argparse.Namespace, connect: Connect) -> Evaluation:
    """The checked evaluation; no model is loaded yet."""
    from rllib_lmgame.algorithms.games import on_split
    from rllib_lmgame.evaluation.comparison.models import OnePlayer, PoliciesOfRun
    from rllib_lmgame.evaluation.comparison.run import Evaluation
    from rllib_lmgame.evaluation.evaluate import games_of_run
    from rllib_lmgame.evaluation.players.naming import make_player, make_players, player_name, split_name
    from rllib_lmgame.rollouts.game_calls import opened

    games: dict[str, GameConfig] = {}
    episodes: int | None = None
    split = args.split or "test"
    if args.games:
        games = named_games(listed(args.games), own_options)
    elif args.suite:
        of_suite, episodes = suite(args.suite)
        over = [{"env_config": {**game.env_config, **own_options}} for game in of_suite]
        games = with_names([game.model_copy(update=own) for game, own in zip(of_suite, over, strict=True)])
    games = dict(zip(games, on_split([*games.values()], split, override=bool(args.split)), strict=True))
    settings = player_settings(args, tuple(games.values()), args.parallel or DEFAULT_AT_ONCE, PLAYER)
    opponents = make_players(args.against or (), replace(settings, flag="--against"))
    named: dict[str, str] = {}
    for text in args.players:
        source = split_name(text)[1]
        named[player_name(text, [*named, *opponents], PLAYER)] = HUGGING_FACE * _is_model(source) + source
    runs = {
        name: PoliciesOfRun(name, source, settings, opponents, connect)
        for name, source in named.items()
        if expanded(source).is_dir()
    }
    if args.config and not opponents and runs.keys() == named.keys():
        raise ConfigError("--config", f"{', '.join(named)}: policies of runs play with the settings of their runs")
    if not games and runs:
        games = with_names(games_of_run(next(iter(runs.values())).config, split, own_options))
    elif not games:
        for source in named.values():  # Who is nobody is named first.
            if not source.startswith(HUGGING_FACE):
                make_player(source, source, settings)
        raise ConfigError(FLAG, f"{args.players[0]} was trained on no game; name the games it is to play with {FLAG}")
    if args.episodes is not None:
        games = {name: game.model_copy(update={"episodes": None}) for name, game in games.items()}
    if args.temperature is not None:  # It goes before what entries of games say.
        games = {name: game.model_copy(update={"temperature": None}) for name, game in games.items()}
    for game in games.values():  # Wrong options, or a data set that is not here.
        with opened(game.env, game.env_config):
            pass
    settings = replace(settings, games=tuple(games.values()))
    models: list[EvaluatedModel] = []
    for name, source in named.items():
        at_once = args.parallel or (MODELS_AT_ONCE if source.startswith(HUGGING_FACE) else DEFAULT_AT_ONCE)
        own = replace(settings, at_once=at_once)
        models.append(runs.get(name) or OnePlayer(make_player(name, source, own), opponents, own, connect))
    for model in runs.values():
        say_other_options(model.config.evaluated_games(), games.values())
        model.config.other_games = tuple(games.values())
    if args.baseline is not None and args.baseline not in named:
        raise ConfigError("--baseline", f"{args.baseline!r} is nobody who plays; players: {', '.join(named)}")
    levels = args.episodes or episodes or DEFAULT_EPISODES
    if levels * args.samples > options.MOST:
        raise ConfigError("--samples", f"{levels:,} deals of {args.samples:,} episodes are more than {options.MOST:,}")
    return Evaluation(games, models, levels, args.samples, opponents, args.parallel)


def say_other_options(trained: Iterable[GameConfig], games: Iterable[GameConfig]) -> None:
    """Name games that a policy was trained on with other options, but for the split of levels."""
    options_of = {game.env: {**game.env_config, "split": None} for game in trained}
    for game in games:
        if game.env in options_of and options_of[game.env] != {**game.env_config, "split": None}:
            own = ", ".join(f"{key}: {value}" for key, value in options_of[game.env].items() if key != "split")
            print(f"note: {game.env} was trained with other options: {{{own}}}", file=sys.stderr)


def _connect(args: argparse.Namespace, stack: ExitStack) -> None:
    """Start Ray or join it, when the first player needs it; ``stack`` leaves it again."""
    import ray

    from rllib_lmgame.experiments.run.cluster import join_or_start

    if not ray.is_initialized():
        stack.callback(ray.shutdown)
        join_or_start(args.ray_address, args.verbosity)


def _numbers(evaluation: Evaluation, results: Results, args: argparse.Namespace) -> dict[str, Any]:
    from rllib_lmgame.evaluation.comparison.numbers import rows

    return {
        "samples": evaluation.samples,
        "baseline": args.baseline,
        "evaluated": rows(evaluation, results, args.baseline),
        "dropped": [f"{place.player} in {place.game}: {one['message']}" for place, one in results.failures.items()],
        "made_up_levels": made_up_levels(evaluation.games.values()),
    }


def _is_model(source: str) -> bool:
    """Whether this is a Hugging Face directory or a known model, or can be nothing but a hub id."""
    from rllib_lmgame.algorithms.checkpoints.paths import is_checkpoint
    from rllib_lmgame.policies.model.gguf_files import PRETRAINED

    place = expanded(source)
    if source in PRETRAINED and not place.is_dir():
        return True
    if place.exists():
        return (place / "config.json").is_file() and not is_checkpoint(place)
    return re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", source) is not None
