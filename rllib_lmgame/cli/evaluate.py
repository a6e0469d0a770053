"""``rllib evaluate``: measure a checkpoint, or a model as it is."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllib_lmgame.algorithms.checkpoints.ownership import check_unpickling
from rllib_lmgame.cli.evaluation_table import evaluation_table
from rllib_lmgame.cli.games import TRUST_HELP, add_env_config, add_verbosity, parse_env_config
from rllib_lmgame.cli.player_options import SECTIONS, add_time_limit, player_settings, seed
from rllib_lmgame.errors import CheckpointError, ConfigError
from rllib_lmgame.experiments.files.reading import parse_value
from rllib_lmgame.imports import find_in_current_directory
from rllib_lmgame.new_files import NewFile, out_path
from rllib_lmgame.policies.scripted import FORMS
from rllib_lmgame.storage import expanded

if TYPE_CHECKING:
    from rllib_lmgame.evaluation.players.settings import PlayerSettings

_SHOWN = ("episode_return_mean", "episode_return_min", "episode_return_max", "episode_len_mean", "num_episodes")
"""Of a stock algorithm, if it has them."""


def add_parser(subparsers: Any, summary: str) -> None:
    parser = subparsers.add_parser(
        "evaluate",
        help=summary,
        description=(
            "Play episodes with the policy of a checkpoint, or (with --env) with a Hugging Face model as it is, and "
            "print how it does: one row per game. Checkpoints of stock RLlib algorithms hold pickled code, which runs "
            "when they are loaded: only load what you trust."
        ),
        allow_abbrev=False,
    )
    parser.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        help=(
            "checkpoint directory, or the directory of its trial or experiment; with --env also a Hugging Face "
            "directory or hub id, a .gguf file, or a name that `rllib models` lists"
        ),
    )
    _add_games(parser)
    _add_opponents(parser)
    _add_sampling(parser)
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="write every episode to this JSONL file, which must not exist yet (language models)",
    )
    parser.add_argument("--json", action="store_true", help="print all numbers as JSON")
    _add_loading(parser)
    _add_obsolete(parser)
    parser.set_defaults(run=run)


def _add_games(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--episodes",
        type=int,
        metavar="N",
        help="episodes to play of each game (default: 512 of a language model, 10 otherwise)",
    )
    parser.add_argument("--env", "-e", metavar="ID", help="another game or environment than the ones trained on")
    parser.add_argument(
        "--evaluation-games",
        action="store_true",
        help="play the games of its evaluation_config, not those it was trained on",
    )
    add_env_config(parser, "the game or environment")
    parser.add_argument(
        "--split", choices=("train", "validation", "test"), help="levels to play (language models; default: test)"
    )


def _add_opponents(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--against",
        metavar="PLAYER",
        nargs="+",
        action="extend",
        help="who plays all seats but one of games for several, each as often, whatever was so in training; the policy "
        f"takes every seat as often (language models): {FORMS}; NAME=PLAYER gives one a name",
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
        help="other settings of the algorithm's configuration (stock algorithms, models); with --against the sections "
        f"{', '.join(SECTIONS)} are also those of hf: and openai: opponents",
    )
    parser.add_argument(
        "--last-iterate",
        action="store_true",
        help="of a checkpoint with averaged weights (token_ppo.ema_decay) those in training (language models)",
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
    from rllib_lmgame.algorithms.checkpoints.paths import find_checkpoint, is_own_checkpoint
    from rllib_lmgame.evaluation.players.naming import without_names

    is_model = _is_model(args.checkpoint)
    if is_model and args.env is None:
        on_hub = "no directory, but perhaps a model of the Hugging Face hub"
        what = "a Hugging Face model" if expanded(args.checkpoint).is_dir() else on_hub
        raise CheckpointError(f"{args.checkpoint} is {what}; name the game it is to play with --env")
    checkpoint = args.checkpoint if is_model else find_checkpoint(args.checkpoint)
    env_config = None if args.env_config is None else parse_env_config(args.env_config)
    find_in_current_directory([args.env, without_names(args.against or ()), env_config])
    if args.time_limit is not None and not args.against:
        raise ConfigError("--time-limit", "is for opponents: endpoints and players of your own, see --against")
    if args.episodes is not None and args.episodes < 1:
        raise ConfigError("", f"--episodes must be at least 1, got {args.episodes}")
    evaluate = _evaluate if is_model or is_own_checkpoint(checkpoint) else _evaluate_stock
    from rllib_lmgame.experiments.run.cluster import quieten_ray

    quieten_ray(args.verbosity or 0)
    numbers = evaluate(checkpoint, env_config, args)
    written = numbers.pop("out", None)
    print_numbers(checkpoint, numbers, as_json=args.json)
    return 0 if args.out is None else NewFile(Path(), out_path(args.out), written and Path(written)).status()


def _evaluate(checkpoint: str, env_config: dict[str, Any] | None, args: argparse.Namespace) -> dict[str, Any]:
    from rllib_lmgame.evaluation.evaluate import evaluate_checkpoint, evaluate_model
    from rllib_lmgame.rollouts.seats import EpisodeFailed

    shared = {
        "env_config": env_config,
        "num_episodes": args.episodes or 512,
        "temperature": 0.0 if args.greedy else args.temperature,
        "split": args.split or "test",
        "against": args.against or (),
        "out": args.out,
        "connected": _ray(args),
    }
    try:
        if _is_model(checkpoint):
            why = "is not for a model without a run; use --temperature, --env-config, --split or --config"
            _refuse(args, why, "--explore", "--seed", "--evaluation-games", "--last-iterate")
            settings = _mapping(args.config, "--config") or {}
            sections = {name: settings[name] for name in SECTIONS if name in settings} if args.against else {}
            own = {name: value for name, value in settings.items() if name != "endpoint" or not args.against}
            opponents = _opponents(args, sections)
            return evaluate_model(checkpoint, args.env, settings=own, opponents=opponents, **shared)
        why = "is for stock algorithms; use --temperature, --env-config or --split"
        _refuse(args, why, *([] if args.against else ["--config"]), "--explore", "--seed")
        return evaluate_checkpoint(
            checkpoint,
            env=args.env,
            evaluation_games=args.evaluation_games,
            opponents=_opponents(args),
            last_iterate=args.last_iterate,
            trust=args.trust_checkpoint,
            **shared,
        )
    except EpisodeFailed as failure:
        raise CheckpointError(f"{checkpoint}: {failure}") from failure


def _refuse(args: argparse.Namespace, why: str, *flags: str) -> None:
    for flag in flags:
        value = getattr(args, flag.removeprefix("--").replace("-", "_"))
        if value is not None and value is not False:
            raise ConfigError("", f"{flag} {why}")


def _opponents(args: argparse.Namespace, sections: Mapping[str, Any] | None = None) -> PlayerSettings | None:
    if not args.against:
        return None
    from rllib_lmgame.rollouts.records import GameConfig

    named = (GameConfig(args.env, parse_env_config(args.env_config)),) if args.env else ()
    settings = player_settings(args, named, at_once=1, sections=sections)
    return replace(settings, temperature=0.0) if args.greedy else settings


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
    _refuse(args, why, "--temperature", "--out", "--split", "--evaluation-games", "--last-iterate", "--against")
    check_unpickling(checkpoint, args.trust_checkpoint)
    from rllib_lmgame.experiments.stock.evaluation import evaluate_stock_checkpoint

    overrides = _mapping(args.config, "--config")
    with _ray(args):
        return evaluate_stock_checkpoint(
            checkpoint,
            env=args.env,
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
    if "evaluated" in numbers:
        print(evaluation_table(numbers))
        return
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
