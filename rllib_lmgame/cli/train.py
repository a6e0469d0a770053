"""``rllib train``: from a file, or from flags."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rllib_lmgame.base.errors import ConfigError, nearest
from rllib_lmgame.base.group import values_of
from rllib_lmgame.base.plugin import find_in_current_directory
from rllib_lmgame.cli.example import examples
from rllib_lmgame.cli.games import add_verbosity
from rllib_lmgame.cli.player_options import whole
from rllib_lmgame.experiments.files.reading import apply_overrides, parse_value, read_experiments
from rllib_lmgame.experiments.spec import ExperimentSpec, Source, check_name, make_specs

_EPILOG = """examples:
  rllib train file tuned_examples/quickstart-sokoban.yaml
  rllib train file my.yaml --set config.lr=1e-6 --dry-run
  rllib train file my.yaml --resume
  rllib train --algo PPO --env CartPole-v1 --stop '{"training_iteration": 1}'
"""


def add_parser(subparsers: Any, summary: str) -> None:
    parser = subparsers.add_parser(
        "train",
        allow_abbrev=False,
        help=summary,
        description="Train an algorithm: `rllib train file FILE`, or with the flags below.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="file FILE",
        help="the word `file` and a .yaml or .py file of experiments, or the http(s) address of a .yaml file",
    )
    parser.add_argument("-f", "--config-file", dest="file", metavar="FILE", help="the same as `file FILE`")
    _add_experiment_flags(parser)
    _add_run_flags(parser)
    _add_obsolete_flags(parser)
    parser.set_defaults(run=run)


def _add_experiment_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("experiment")
    group.add_argument(
        "--algo",
        "--run",
        "-a",
        "-r",
        dest="algo",
        metavar="NAME",
        help="algorithm, e.g. PPO, LMGamePPO, package.module:Class",
    )
    group.add_argument("--env", "-e", metavar="ID", help="environment or game")
    group.add_argument("--config", "-c", metavar="YAML", help="configuration as YAML or JSON text")
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="set one value: config.lr=1e-6",
    )
    group.add_argument(
        "--stop", "-s", metavar="YAML", help="when to stop, as YAML or JSON text: '{training_iteration: 10}'"
    )
    group.add_argument("--experiment-name", "-n", metavar="NAME", help="name of the experiment and of its directory")
    group.add_argument("--num-samples", type=int, metavar="N", help="times to draw from the search space")
    group.add_argument(
        "--scheduler", metavar="NAME", help="trial scheduler: asha, pbt, hyperband, median_stopping_rule, fifo"
    )
    group.add_argument("--scheduler-config", metavar="YAML", help="its arguments as YAML or JSON text")
    group.add_argument("--max-failures", type=int, metavar="N", help="restarts of a failed trial")
    group.add_argument("--checkpoint-freq", type=int, metavar="N", help="iterations between checkpoints")
    group.add_argument(
        "--checkpoint-at-end", action=argparse.BooleanOptionalAction, help="save a checkpoint at the end (default)"
    )
    group.add_argument("--keep-checkpoints-num", type=int, metavar="N", help="checkpoints to keep")
    group.add_argument("--checkpoint-score-attr", metavar="METRIC", help="metric the kept checkpoints are chosen by")
    group.add_argument(
        "--storage-path", metavar="PATH", help="directory or URI of the results (default: ~/ray_results)"
    )
    group.add_argument("--restore", metavar="PATH", help="checkpoint to start from")
    group.add_argument("--wandb-project", metavar="NAME", help="log to Weights & Biases")
    group.add_argument("--wandb-run-name", metavar="NAME", help="group of the run there")
    group.add_argument("--wandb-key", metavar="KEY", help="use the environment variable WANDB_API_KEY instead")


def _add_run_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("run")
    group.add_argument(
        "--dry-run", action="store_true", help="check everything, print configuration, resources and memory"
    )
    group.add_argument(
        "--measure",
        action="store_true",
        help="with --dry-run: run three iterations here, and tell how long the whole run takes",
    )
    group.add_argument("--resume", action="store_true", help="go on with an interrupted experiment")
    group.add_argument(
        "--trust-checkpoint",
        action="store_true",
        help="go on from a checkpoint or an experiment of somebody whom you trust: code in it is run",
    )
    add_verbosity(group, "Tune's own output and what workers print")
    group.add_argument("-vv", "--log-debug", dest="verbosity", action="store_const", const=2, help="debug output")
    group.add_argument(
        "--ray-address",
        "--address",
        metavar="ADDRESS",
        help="Ray cluster to join (default: RAY_ADDRESS, else a local one)",
    )
    group.add_argument("--ray-num-cpus", type=whole(), metavar="N", help="CPUs of a local cluster")
    group.add_argument("--ray-num-gpus", type=whole(0), metavar="N", help="GPUs of a local cluster")
    group.add_argument("--ray-num-nodes", type=whole(), metavar="N", help="nodes of a local test cluster")
    group.add_argument(
        "--ray-object-store-memory", type=whole(1, 10**15), metavar="BYTES", help="object store of a local cluster"
    )
    group.add_argument(
        "--no-memory-check",
        dest="memory_check",
        action="store_false",
        help="start also what would not fit into this machine's memory",
    )
    group.add_argument(
        "--ray-ui",
        action=argparse.BooleanOptionalAction,
        help="start Ray's dashboard with a local cluster (default: on a terminal)",
    )


def _add_obsolete_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of older versions: accepted, so that what to do instead can be said."""
    for flag in ("--local-mode", "--trace", "--eager"):
        parser.add_argument(flag, action="store_true", help=argparse.SUPPRESS)
    for flag in ("--framework", "--local-dir", "--upload-dir", "--resources-per-trial", "--type"):
        parser.add_argument(flag, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    _explain_obsolete(args)
    if args.measure and not args.dry_run:
        raise ConfigError("", "--measure goes with --dry-run: it trains nothing that is kept")
    if sys.stderr.isatty():  # Importing Ray and torch takes a while.
        print(f"checking {_file_of(args) or 'the flags'} ...", file=sys.stderr, flush=True)
    from rllib_lmgame.experiments.checks.check import check_experiments, check_quickly, with_other_wrong_keys

    said: set[str] = set()
    check: Callable[[Iterable[ExperimentSpec]], object] = check_quickly
    try:
        specs = [_with_flags(spec, args) for spec in _read(args)]
        _print_notices(specs, said)
        for spec in specs:
            find_in_current_directory(values_of(spec.options))
        # What is wrong with names and types is said before Ray is imported.
        check_quickly(specs, trust=args.trust_checkpoint)
        from rllib_lmgame.experiments.run.cluster import quieten_ray
        from rllib_lmgame.experiments.runner import check_resumed, run_experiments

        quieten_ray(args.verbosity or 0)
        if args.dry_run:
            from rllib_lmgame.experiments.checks.outside import stand_in_for_missing

            stand_in_for_missing(specs)
        check = check_experiments
        checked = check_experiments(specs)
    except ConfigError as error:
        path = _file_of(args)
        if path is None or not path.endswith((".yaml", ".yml")):
            raise
        raise with_other_wrong_keys(error, path, args.overrides, check) from error.__cause__
    from rllib_lmgame.experiments.checks.outside import check_servers
    from rllib_lmgame.experiments.checks.prompts import check_prompts

    check_servers(checked, needed=not args.dry_run)
    check_prompts(checked)
    if args.memory_check:
        from rllib_lmgame.experiments.checks.cards import check_fits

        check_fits(checked)
    from rllib_lmgame.experiments.run.reruns import place_runs

    place_runs(specs, resume=args.resume)
    _print_notices(specs, said)
    if args.dry_run:
        check_resumed(checked, run_options(args))
        from rllib_lmgame.experiments.checks.dry_run import print_dry_run

        print_dry_run(checked)
        if args.measure:
            from rllib_lmgame.experiments.run.measure import print_measured

            print_measured(checked, run_options(args))
        return 0
    return run_experiments(checked, run_options(args))


def run_options(args: argparse.Namespace) -> Any:
    from rllib_lmgame.experiments.run.options import RunOptions

    return RunOptions(
        resume=args.resume,
        trust_checkpoint=args.trust_checkpoint,
        verbosity=args.verbosity or 0,
        address=args.ray_address,
        num_cpus=args.ray_num_cpus,
        num_gpus=args.ray_num_gpus,
        num_nodes=args.ray_num_nodes,
        object_store_memory=args.ray_object_store_memory,
        dashboard=args.ray_ui,
        memory_check=args.memory_check,
        started=args.started,
    )


def _read(args: argparse.Namespace) -> list[ExperimentSpec]:
    path = _file_of(args)
    if path is None:
        return _from_flags(args)
    if args.algo or args.env:
        flag = "--algo" if args.algo else "--env"
        raise ConfigError("", f"{flag} does not go with a file; use --set {'run' if args.algo else 'env'}=... instead")
    if path in examples() and not Path(path).exists():
        raise ConfigError("", f"there is no file {path}, but an example of that name: `rllib example run {path}`")
    specs = read_experiments(path, args.overrides)
    if args.experiment_name:
        chosen = [s for s in specs if s.name == args.experiment_name]
        if len(specs) == 1 and not chosen:
            check_name(args.experiment_name, "--experiment-name")
            specs[0].name = args.experiment_name
        elif not chosen:
            names = ", ".join(s.name for s in specs)
            raise ConfigError("", f"--experiment-name {args.experiment_name}: the file has {names}")
        else:
            specs = chosen
    return specs


def _file_of(args: argparse.Namespace) -> str | None:
    words = list(args.words)
    if words and words[0] == "file":
        words = words[1:]
        if not words and not args.file:
            raise ConfigError("", "write `rllib train file FILE`")
    if len(words) > 1:
        meant = nearest(words[0], ["file"])
        hint = f"; did you mean {meant!r} in place of {words[0]!r}?" if meant and not Path(words[0]).exists() else ""
        raise ConfigError("", f"one file at a time; got {', '.join(words)}{hint}")
    if words and args.file:
        raise ConfigError("", f"two files are named: {words[0]} and {args.file}")
    return words[0] if words else args.file


def _from_flags(args: argparse.Namespace) -> list[ExperimentSpec]:
    if args.config and args.config.endswith((".yaml", ".yml")):
        raise ConfigError(
            "",
            f"--config takes settings, not a file: write `rllib train file {args.config}`; docs/coming-from.md says "
            "what the keys of GRL, verl, MRLM and others are here",
        )
    if not args.algo:
        raise ConfigError(
            "", "name a file (`rllib train file FILE`) or an algorithm (`rllib train --algo PPO --env CartPole-v1`)"
        )
    name = args.experiment_name or "default"
    settings: dict[str, Any] = {"run": args.algo, "config": _mapping(args.config, "--config")}
    if args.env:
        settings["env"] = args.env
    source = Source("the command line")
    return make_specs(apply_overrides({name: settings}, source, args.overrides), source)


def _with_flags(spec: ExperimentSpec, args: argparse.Namespace) -> ExperimentSpec:
    changes: dict[str, Any] = {}
    if _file_of(args) is not None and args.config:
        changes["config"] = {**spec.config, **_mapping(args.config, "--config")}
    if args.stop:
        changes["stop"] = _mapping(args.stop, "--stop")
    for flag in ("num_samples", "storage_path", "restore", "max_failures"):
        if getattr(args, flag) is not None:
            changes[flag] = getattr(args, flag)
    checkpoint = {
        "checkpoint_frequency": args.checkpoint_freq,
        "checkpoint_at_end": args.checkpoint_at_end,
        "num_to_keep": args.keep_checkpoints_num,
        "checkpoint_score_attribute": args.checkpoint_score_attr,
    }
    given = {key: value for key, value in checkpoint.items() if value is not None}
    if given:
        changes["checkpoint_config"] = {**spec.options.checkpoint_config, **given}
    if args.scheduler or args.scheduler_config:
        arguments = _mapping(args.scheduler_config, "--scheduler-config")
        changes["scheduler"] = {"type": args.scheduler or _scheduler_type(spec), **arguments}
    if args.wandb_project:
        group = {"group": args.wandb_run_name} if args.wandb_run_name else {}
        wandb = {"type": "wandb", "project": args.wandb_project, **group}
        changes["callbacks"] = [*(spec.options.callbacks or []), wandb]
    return _checked_changes(spec, changes) if changes else spec


def _checked_changes(spec: ExperimentSpec, changes: dict[str, Any]) -> ExperimentSpec:
    from rllib_lmgame.experiments.spec import make_spec

    settings = {**values_of(spec.options), **changes}
    for key, value in changes.items():
        before = getattr(spec.options, key)
        merged = isinstance(value, dict) and isinstance(before, dict)
        for path in [f"{key}.{k}" for k in value if k not in before or before[k] != value[k]] if merged else [key]:
            spec.source.replace(path, "the command line")
    changed = make_spec(spec.name, settings, spec.source, spec.algorithm_class)
    changed.notices[:0] = spec.notices
    return changed


def _scheduler_type(spec: ExperimentSpec) -> str:
    scheduler = spec.options.scheduler
    if isinstance(scheduler, dict):
        return str(scheduler.get("type"))
    if scheduler is None:
        raise ConfigError("", "--scheduler-config needs --scheduler")
    return scheduler


def _mapping(text: str | None, flag: str) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except ValueError:
        value = parse_value(text, flag)
    if not isinstance(value, dict):
        raise ConfigError("", f"{flag}: expected a mapping like '{{\"key\": 1}}', got {text!r}")
    return value


def _explain_obsolete(args: argparse.Namespace) -> None:
    if args.local_mode:
        raise ConfigError(
            "",
            "--local-mode: Ray no longer has it; leave it out, and keep env runners and learners in the trial's "
            "process by --set config.num_env_runners=0 --set config.num_learners=0",
        )
    if args.trace or args.eager:
        _notice("--trace and --eager belonged to TensorFlow and are ignored")
    if args.framework and args.framework != "torch":
        raise ConfigError("", f"--framework {args.framework}: RLlib's new API stack runs on torch only")
    if args.framework:
        _notice("--framework torch is not needed: RLlib's new API stack has no other")
    if args.local_dir:
        _notice("--local-dir is now --storage-path")
        args.storage_path = args.storage_path or args.local_dir
    if args.upload_dir:
        _notice("--upload-dir is now --storage-path (which may be a URI)")
        args.storage_path = args.storage_path or args.upload_dir
    if args.resources_per_trial:
        instead = "an algorithm asks for what its configuration needs; set num_env_runners, ... instead"
        raise ConfigError("", f"--resources-per-trial: {instead}")
    if args.type:
        _notice("--type is not needed: the ending of the file says what it is")
    if args.wandb_run_name and not args.wandb_project:
        raise ConfigError("", "--wandb-run-name needs --wandb-project")
    joins = args.ray_address not in (None, "local")
    for flag in ("ray_num_cpus", "ray_num_gpus", "ray_num_nodes", "ray_object_store_memory", "ray_ui") if joins else ():
        if getattr(args, flag):
            why = f"is for a cluster that this command starts, but --ray-address {args.ray_address} joins one"
            raise ConfigError("", f"--{flag.replace('_', '-')} {why}")
    if args.wandb_key:
        why = "keys on a command line are visible to others; set the environment variable WANDB_API_KEY"
        raise ConfigError("", f"--wandb-key: {why}")


def _print_notices(specs: Sequence[ExperimentSpec], said: set[str]) -> None:
    """Print each notice that has not been ``said``, once."""
    for notice in [notice for spec in specs for notice in spec.notices]:
        if notice not in said:
            said.add(notice)
            _notice(notice)


def _notice(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)
