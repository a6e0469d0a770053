"""``rllib evaluate``: measure checkpoints, models and players of any kind on the same levels."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rllib_lmgame.algorithms.checkpoints.unpickling import check_unpickling
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.plugin import find_in_current_directory
from rllib_lmgame.base.storage import expanded, is_uri
from rllib_lmgame.cli.evaluation_table import evaluation_markdown, evaluation_table
from rllib_lmgame.cli.game_list import FLAG, FORM, listed, named_games, suite, with_names
from rllib_lmgame.cli.games import TRUST_HELP, add_env_config, add_verbosity, parse_env_config
from rllib_lmgame.cli.player_options import MOST, SECTIONS, add_time_limit, player_settings, seed, whole
from rllib_lmgame.cli.recorded import held_directory, play_with_bar
from rllib_lmgame.experiments.files.reading import parse_value
from rllib_lmgame.policies.scripted import FORMS, HUGGING_FACE, MODEL_PREFIXES

if TYPE_CHECKING:
    from rllib_lmgame.algorithms.config import LMGameConfig
    from rllib_lmgame.evaluation.comparison.contenders import Connect, Contender, PoliciesOfRun
    from rllib_lmgame.evaluation.comparison.files import EvaluationDirectory
    from rllib_lmgame.evaluation.comparison.run import Evaluation, Results
    from rllib_lmgame.evaluation.players.settings import PlayerSettings
    from rllib_lmgame.rollouts.players import Player
    from rllib_lmgame.rollouts.records import GameConfig

PLAYER = "PLAYER"
DEFAULT_EPISODES = 512
DEFAULT_AT_ONCE = 16
"""Games in play at the same time, of players without a run."""
_SHOWN = ("episode_return_mean", "episode_return_min", "episode_return_max", "episode_len_mean", "num_episodes")
"""Of a stock algorithm, if it has them."""


def add_parser(subparsers: Any, summary: str) -> None:
    parser = subparsers.add_parser(
        "evaluate",
        help=summary,
        description=(
            "Play the same levels with every player and print how each does: one row per game and player. Of a "
            "checkpoint alone the games are those it was trained on. The same command with the same --out goes on "
            "where it was interrupted, and plays again what failed. Checkpoints of stock RLlib algorithms hold "
            "pickled code, which runs when they are loaded: only load what you trust."
        ),
        allow_abbrev=False,
    )
    parser.add_argument(
        "players",
        metavar=PLAYER,
        nargs="+",
        help=f"{FORMS}; also the directory of a trial or experiment, and without hf: a Hugging Face directory, an id "
        "with a slash, a .gguf file, or a name that `rllib models` lists; NAME=PLAYER gives one a name",
    )
    _add_games(parser)
    _add_opponents(parser)
    _add_sampling(parser)
    parser.add_argument(
        "--out", metavar="DIR", help="write every episode (results.jsonl) and the table there; go on from it"
    )
    parser.add_argument("--baseline", metavar="NAME", help="also say how far the others are from this player")
    parser.add_argument("--json", action="store_true", help="print all numbers as JSON")
    _add_loading(parser)
    _add_obsolete(parser)
    parser.set_defaults(run=run)


def _add_games(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--episodes",
        type=whole(),
        metavar="N",
        help=f"deals of each game; two may be of one level (default: {DEFAULT_EPISODES}; 10 of stock algorithms)",
    )
    parser.add_argument("--samples", type=whole(), default=1, metavar="K", help="episodes of each deal (default 1)")
    games = parser.add_mutually_exclusive_group()
    games.add_argument(
        *("--games", "--env", "-e"),
        nargs="+",
        action="extend",
        metavar="GAMES",
        help=f"games joined by commas, each {FORM}; other ones than the first checkpoint was trained on",
    )
    games.add_argument(
        "--evaluation-games",
        action="store_true",
        help="play the games of the first checkpoint's evaluation_config, not those it was trained on",
    )
    games.add_argument(
        "--suite",
        metavar="NAME",
        help="play the evaluation games of a tuned example (`grl` stands for all whose id begins so), or of a file; "
        "NAME:GAME,GAME are some of them",
    )
    add_env_config(parser, "all games")
    parser.add_argument(
        "--split",
        choices=("train", "validation", "test"),
        help="levels to play (language models; default: those that --games names, or test)",
    )
    parser.add_argument(
        "--parallel",
        type=whole(),
        metavar="N",
        help=f"games in play at the same time (default: as in training; {DEFAULT_AT_ONCE} of others); with 1 language "
        "models repeat bit for bit",
    )


def _add_opponents(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--against",
        metavar="PLAYER",
        nargs="+",
        action="extend",
        help="who plays all seats but one of games for several, each as often, whatever was so in training; who is "
        f"evaluated takes every seat as often: {FORMS}",
    )
    add_time_limit(parser)


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    sampling = parser.add_mutually_exclusive_group()
    sampling.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help="sampling temperature, also of opponents (default: that of its evaluation during training)",
    )
    sampling.add_argument("--greedy", action="store_true", help="always take the most likely token or action")
    sampling.add_argument("--explore", action="store_true", help="sample actions (stock algorithms; default: greedy)")


def _add_loading(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        "-c",
        metavar="YAML",
        help="other settings of the algorithm's configuration (stock algorithms, models); the sections "
        f"{', '.join(SECTIONS)} are also those of hf: and openai: players",
    )
    parser.add_argument(
        "--last-iterate",
        action="store_true",
        help="of checkpoints with averaged weights (token_ppo.ema_decay) those in training (language models)",
    )
    parser.add_argument("--trust-checkpoint", action="store_true", help=TRUST_HELP)
    parser.add_argument("--seed", type=seed, metavar="N", help="seed of the environments (stock algorithms)")
    parser.add_argument("--ray-address", "--address", metavar="ADDRESS", help="Ray cluster to join")
    add_verbosity(parser, "print what Ray and the workers print")


def _add_obsolete(parser: argparse.ArgumentParser) -> None:
    """Options of RLlib's own command that :func:`_explain_obsolete` answers."""
    parser.add_argument("--algo", "--run", "-a", "-r", dest="algo", help=argparse.SUPPRESS)
    parser.add_argument("--steps", "-s", type=int, help=argparse.SUPPRESS)
    for flag in ("--render", "--local-mode", "--use-shelve", "--track-progress", "--save-info"):
        parser.add_argument(flag, action="store_true", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    _explain_obsolete(args)
    from rllib_lmgame.evaluation.players.naming import split_name, without_names
    from rllib_lmgame.experiments.results.curves import best_of_sweep
    from rllib_lmgame.experiments.run.cluster import quieten_ray

    env_config = parse_env_config(args.env_config)
    named = map(split_name, args.players)
    args.players = [f"{name}={best_of_sweep(source)}" if name else best_of_sweep(source) for name, source in named]
    sources = without_names(args.players)
    find_in_current_directory([sources, without_names(args.against or ()), env_config])
    quieten_ray(args.verbosity or 0)
    stock = next((source for source in sources if _is_stock(source)), None)
    if stock is not None:
        return _run_stock(stock, env_config, args)
    with ExitStack() as stack:
        evaluation = _evaluation(env_config, args, _connecting(args, stack))
        directory = _directory(args.out, stack)
        results = _play(evaluation, directory, args)
        numbers = _numbers(evaluation, results, args)
        if directory is not None:
            _write(directory, numbers)
    if args.json:
        print(json.dumps(numbers | {"counts": results.counts}, indent=1))
    else:
        print(evaluation_table(numbers | {"counts": results.counts}))
    for player, game in sorted(results.left_out):
        print(f"note: {player} does not play {game}, which lists no legal actions", file=sys.stderr)
    if results.failures and directory is not None:
        print(f"{directory.path}: the same command plays what was dropped again", file=sys.stderr)
    return 1 if results.failures else 0


def _evaluation(env_config: dict[str, Any], args: argparse.Namespace, connect: Connect) -> Evaluation:
    """What is to be played, checked: nothing has been loaded."""
    from rllib_lmgame.algorithms.games import on_split
    from rllib_lmgame.evaluation.comparison.contenders import PoliciesOfRun
    from rllib_lmgame.evaluation.comparison.run import Evaluation
    from rllib_lmgame.evaluation.evaluate import AGAINST, check_games
    from rllib_lmgame.evaluation.players.naming import make_players, split_name

    why = "is for stock algorithms; use --temperature, --games, --split or --config"
    _refuse(args, why, "--explore", "--seed")
    asked = args.against or any(":" in split_name(text)[1] for text in args.players)
    if args.time_limit is not None and not asked:
        raise ConfigError("--time-limit", "is for endpoints and players of your own, also those of --against")
    named, episodes = _games(env_config, args)
    games = dict(zip(named, on_split([*named.values()], args.split or "test", override=bool(args.split)), strict=True))
    settings = _player_settings(args, tuple(games.values()))
    opponents = make_players(args.against or (), replace(settings, flag=AGAINST))
    making = _Contenders(args, opponents, connect)
    runs = making.checkpoints(settings)
    if not (games or runs):
        making.all(runs, settings)  # Who is nobody is told first.
        raise ConfigError(FLAG, f"{args.players[0]} was trained on no game; name the games it is to play with {FLAG}")
    games = games or _games_of_run(next(iter(runs.values())).config, env_config, args)
    if args.episodes is not None:
        games = {name: game.model_copy(update={"episodes": None}) for name, game in games.items()}
    if args.greedy or args.temperature is not None:  # It goes before what entries of games say.
        games = {name: game.model_copy(update={"temperature": None}) for name, game in games.items()}
    check_games([*games.values()], args.against or ())
    contenders = making.all(runs, replace(settings, games=tuple(games.values())))
    for contender in contenders:
        if isinstance(contender, PoliciesOfRun):
            contender.config.other_games = tuple(games.values())
    names = [contender.name for contender in contenders]
    if args.baseline is not None and args.baseline not in names:
        raise ConfigError("--baseline", f"{args.baseline!r} is nobody who plays; players: {', '.join(names)}")
    levels = args.episodes or episodes or DEFAULT_EPISODES
    if levels * args.samples > MOST:
        raise ConfigError("--samples", f"{levels:,} deals of {args.samples:,} episodes are more than {MOST:,}")
    return Evaluation(games, contenders, levels, args.samples, opponents, args.parallel)


def _games(env_config: dict[str, Any], args: argparse.Namespace) -> tuple[dict[str, GameConfig], int | None]:
    """The games that are named, and how many levels of each, if that is said; none: those of a checkpoint."""
    if args.games:
        return named_games(listed(args.games), env_config), None
    if args.suite:
        games, episodes = suite(args.suite)
        return with_names(
            [game.model_copy(update={"env_config": {**game.env_config, **env_config}}) for game in games]
        ), episodes
    return {}, None


def _games_of_run(config: LMGameConfig, env_config: dict[str, Any], args: argparse.Namespace) -> dict[str, GameConfig]:
    from rllib_lmgame.evaluation.evaluate import games_of_run

    return with_names(games_of_run(config, args.split or "test", env_config, evaluation_games=args.evaluation_games))


def _player_settings(args: argparse.Namespace, games: tuple[GameConfig, ...]) -> PlayerSettings:
    settings = _mapping(args.config, "--config") or {}
    sections = {name: settings[name] for name in SECTIONS if name in settings}
    at_once = args.parallel or DEFAULT_AT_ONCE
    made = player_settings(args, games, at_once=at_once, sections=sections)
    return replace(made, seed=0, flag=PLAYER, temperature=0.0 if args.greedy else made.temperature)


@dataclass(frozen=True)
class _Contenders:
    """Makes the players that are evaluated: first checkpoints, which may say what is played, then the others."""

    args: argparse.Namespace
    opponents: Mapping[str, Player]
    connect: Connect

    def _named(self) -> dict[str, str]:
        """Texts of the players by their names."""
        from rllib_lmgame.evaluation.players.naming import player_name, split_name

        found: dict[str, str] = {}
        for text in self.args.players:
            found[player_name(text, [*found, *self.opponents], PLAYER)] = split_name(text)[1]
        return found

    def checkpoints(self, settings: PlayerSettings) -> dict[str, PoliciesOfRun]:
        from rllib_lmgame.evaluation.comparison.contenders import policies_of_checkpoint

        return {
            name: policies_of_checkpoint(
                name, source, settings, self.opponents, self.connect, last=self.args.last_iterate
            )
            for name, source in self._named().items()
            if expanded(source).is_dir() and not _is_model(source)
        }

    def all(self, checkpoints: Mapping[str, PoliciesOfRun], settings: PlayerSettings) -> list[Contender]:
        return [checkpoints.get(name) or self._other(name, source, settings) for name, source in self._named().items()]

    def _other(self, name: str, source: str, settings: PlayerSettings) -> Contender:
        from rllib_lmgame.base.group import build
        from rllib_lmgame.evaluation.comparison.contenders import OnePlayer, policies_of_model
        from rllib_lmgame.evaluation.players.naming import make_player
        from rllib_lmgame.settings.sections.text_rollouts import TextRolloutOptions

        model = source.removeprefix(HUGGING_FACE)
        if model != source or _is_model(source):
            if not settings.games:
                raise ConfigError(FLAG, f"{name} was trained on no game; name the games it is to play with {FLAG}")
            given = (_mapping(self.args.config, "--config") or {}).items()
            own = {key: value for key, value in given if key != "endpoint"}
            return policies_of_model(name, model, own, settings, self.opponents, self.connect)
        options = build(TextRolloutOptions, settings.sections.get("text_rollouts", {}), "--config.text_rollouts")
        player = make_player(name, source, settings)
        return OnePlayer(player, self.opponents, options, settings.at_once)


def _connecting(args: argparse.Namespace, stack: ExitStack) -> Connect:
    """Connects to Ray when the first player needs it, until ``stack`` is left."""
    connected: list[None] = []

    @contextmanager
    def connect() -> Iterator[None]:
        if not connected:
            connected.append(stack.enter_context(_ray(args)))
        yield

    return connect


def _directory(out: str | None, stack: ExitStack) -> EvaluationDirectory | None:
    if out is None:
        return None
    from rllib_lmgame.evaluation.comparison.files import EvaluationDirectory

    return held_directory(EvaluationDirectory, out, stack)


def _play(evaluation: Evaluation, directory: EvaluationDirectory | None, args: argparse.Namespace) -> Results:
    from rllib_lmgame.evaluation.comparison.run import play_evaluation

    return play_with_bar(partial(play_evaluation, evaluation, directory), "episode", quiet=args.json)


def _numbers(evaluation: Evaluation, results: Results, args: argparse.Namespace) -> dict[str, Any]:
    from rllib_lmgame.envs.registry import made_up_levels
    from rllib_lmgame.evaluation.comparison.numbers import rows

    players = {contender.name: {"temperature": contender.temperature} for contender in evaluation.contenders}
    reasons = [f"{place.player} in {place.game}: {one.message}" for place, one in results.failures.items()]
    return {
        "players": players,
        "samples": evaluation.samples,
        "baseline": args.baseline,
        "evaluated": rows(evaluation, results, args.baseline),
        "dropped": reasons,
        "made_up_levels": made_up_levels(evaluation.games.values()),
    }


def _write(directory: EvaluationDirectory, numbers: Mapping[str, Any]) -> None:
    from rllib_lmgame.base.json_files import write_json
    from rllib_lmgame.evaluation.comparison.files import RESULTS

    try:
        write_json(directory.path / f"{RESULTS}.json", numbers, indent=1)
        (directory.path / f"{RESULTS}.md").write_text(evaluation_markdown(numbers), encoding="utf-8")
    except OSError as error:
        raise ConfigError("--out", f"the table could not be written: {error}") from None


def _is_stock(source: str) -> bool:
    """Whether this is a checkpoint that none of this package's algorithms wrote."""
    from rllib_lmgame.algorithms.checkpoints.paths import find_checkpoint, is_own_checkpoint

    if is_uri(source) and not source.startswith(MODEL_PREFIXES):
        return True
    if _is_model(source) or not expanded(source).is_dir():
        return False
    return not is_own_checkpoint(find_checkpoint(source))


def _run_stock(source: str, env_config: dict[str, Any], args: argparse.Namespace) -> int:
    from rllib_lmgame.algorithms.checkpoints.paths import find_checkpoint

    checkpoint = find_checkpoint(source)
    if len(args.players) > 1:
        raise ConfigError(PLAYER, f"{source} is the checkpoint of a stock algorithm, which is evaluated alone")
    numbers = _evaluate_stock(checkpoint, env_config or None, args)
    print_numbers(checkpoint, numbers, as_json=args.json)
    return 0


def _refuse(args: argparse.Namespace, why: str, *flags: str) -> None:
    for flag in flags:
        value = getattr(args, flag.removeprefix("--").replace("-", "_"))
        if value is not None and value is not False:
            raise ConfigError("", f"{flag} {why}")


def _is_model(source: str) -> bool:
    """Whether this is a Hugging Face directory, a GGUF file or a known model, or can be nothing but a hub id."""
    from rllib_lmgame.algorithms.checkpoints.paths import is_checkpoint
    from rllib_lmgame.policies.model.gguf_files import is_gguf

    place = expanded(source)
    if is_gguf(source) and not place.is_dir():
        return True
    if place.exists():
        return (place / "config.json").is_file() and not is_checkpoint(place)
    return re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", source) is not None


def _evaluate_stock(checkpoint: str, env_config: dict[str, Any] | None, args: argparse.Namespace) -> dict[str, Any]:
    why = "is for language models; this is the checkpoint of a stock algorithm"
    given = ("--temperature", "--out", "--split", "--evaluation-games", "--last-iterate", "--against")
    _refuse(args, why, *given, "--suite", "--baseline", "--parallel")
    if args.samples > 1 or len(args.games or ()) > 1:
        raise ConfigError("--samples" if args.samples > 1 else FLAG, why)
    check_unpickling(checkpoint, args.trust_checkpoint)
    from rllib_lmgame.experiments.stock.evaluation import evaluate_stock_checkpoint

    overrides = _mapping(args.config, "--config")
    with _ray(args):
        return evaluate_stock_checkpoint(
            checkpoint,
            env=args.games[0] if args.games else None,
            env_config=env_config,
            num_episodes=args.episodes or 10,
            explore=args.explore,
            overrides=overrides,
            seed=args.seed,
        )


def print_numbers(checkpoint: str, numbers: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"checkpoint": checkpoint, **numbers}, indent=1, default=float))
        return
    print(checkpoint)
    plain = {key: value for key, value in numbers.items() if isinstance(value, int | float)}
    shown = [key for key in _SHOWN if key in plain] or sorted(plain)
    for key in shown:
        print(f"  {key:24} {plain[key]:.4g}")


@contextmanager
def _ray(args: argparse.Namespace) -> Iterator[None]:
    import ray

    from rllib_lmgame.experiments.run.cluster import join_or_start

    started = not ray.is_initialized()
    try:
        if started:
            join_or_start(args.ray_address, args.verbosity or 0)
        yield
    finally:
        if started:
            ray.shutdown()


def _mapping(text: str | None, flag: str) -> dict[str, Any] | None:
    if text is None:
        return None
    value = parse_value(text, flag)
    if not isinstance(value, dict):
        raise ConfigError("", f"{flag}: expected a mapping like '{{key: 1}}', got {text!r}")
    return value


def _explain_obsolete(args: argparse.Namespace) -> None:
    told = {
        "algo": "--algo is not needed: a checkpoint knows its algorithm",
        "render": "--render is not supported; use `rllib play` to watch a game of text",
        "use_shelve": "--use-shelve is gone; --out writes JSONL",
        "save_info": "--save-info is not needed: --out holds everything",
        "track_progress": "--track-progress is not needed",
    }
    for name, text in told.items():
        if getattr(args, name):
            print(f"note: {text}", file=sys.stderr)
    if args.local_mode:
        raise ConfigError("", "--local-mode: Ray no longer has it; leave it out")
    if args.steps is not None:
        raise ConfigError("", "--steps is gone: evaluation plays whole episodes; use --episodes")
