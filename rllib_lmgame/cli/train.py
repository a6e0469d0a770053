"""``rllib train``: from a file, or from flags."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import values_of
from rllib_lmgame.base.plugin import find_in_current_directory
from rllib_lmgame.cli import options
from rllib_lmgame.cli.example import examples
from rllib_lmgame.cli.options import RAY_ADDRESS, TRUST, Option, Section, mapping, verbosity, whole
from rllib_lmgame.experiments.files.reading import apply_overrides, read_experiments
from rllib_lmgame.experiments.spec import COMING_FROM, ExperimentSpec, Source, check_name, make_specs

SETS = "set."
"""Begins the names of arguments that set a key of the experiment."""
CHECKPOINTS = f"{SETS}checkpoint_config."


@options.command(
    "Train an algorithm: `rllib train file FILE`, or with the flags below.",
    Option("[file FILE...]", "the word `file` and a .yaml file of experiments", dest="words", default=()),
    Section(
        "experiment",
        Option("--algo|--run|-a|-r NAME", "algorithm, e.g. PPO, LMGamePPO, package.module:Class", dest="algo"),
        Option("--env|-e ID", "environment or game"),
        Option("--config|-c YAML", "configuration as YAML or JSON text"),
        Option("--set KEY=VALUE", "set one value: config.lr=1e-6", default=[], dest="overrides", action="append"),
        Option("--stop|-s YAML", "when to stop, as YAML or JSON text: '{training_iteration: 10}'"),
        Option("--experiment-name|-n NAME", "name of the experiment and of its directory"),
        Option("--num-samples N", "times to draw from the search space", int, dest="set.num_samples"),
        Option("--checkpoint-freq N", "iterations between checkpoints", int, dest=f"{CHECKPOINTS}checkpoint_frequency"),
        Option(
            "--checkpoint-at-end",
            "save a checkpoint at the end (default)",
            action=argparse.BooleanOptionalAction,
            dest=f"{CHECKPOINTS}checkpoint_at_end",
        ),
        Option("--storage-path PATH", "place of the results (default: ~/ray_results)", dest="set.storage_path"),
        Option("--restore PATH", "checkpoint to start from", dest="set.restore"),
    ),
    Section(
        "run",
        Option("--dry-run", "check everything, print configuration, resources and memory"),
        Option("--resume", "continue an interrupted experiment"),
        TRUST,
        verbosity("Tune's own output and what workers print; -vv for debug output"),
        RAY_ADDRESS,
        Option("--ray-num-cpus N", "CPUs of a local cluster", whole(), dest="num_cpus"),
        Option("--ray-num-gpus N", "GPUs of a local cluster", whole(0), dest="num_gpus"),
        Option("--ray-object-store-memory BYTES", "of a local cluster", whole(1, 10**15), dest="object_store_memory"),
        Option(
            "--no-memory-check", "start even if memory is low", dest="memory_check", action="store_false", default=True
        ),
        Option(
            "--ray-ui",
            "start Ray's dashboard with a local cluster (default: on a terminal)",
            action=argparse.BooleanOptionalAction,
            dest="dashboard",
        ),
    ),
    Section("with --dry-run", Option("--measure", "run three iterations here, and estimate the time of the whole run")),
    epilog="""examples:
  rllib train file tuned_examples/quickstart-sokoban.yaml
  rllib train file my.yaml --set config.lr=1e-6 --dry-run
  rllib train file my.yaml --resume
  rllib train --algo PPO --env CartPole-v1 --stop '{"training_iteration": 1}'
""",
)
def command(args: argparse.Namespace) -> int:
    if sys.stderr.isatty():  # Importing Ray and torch takes a while.
        print(f"checking {_file_of(args) or 'the flags'} ...", file=sys.stderr, flush=True)
    from rllib_lmgame.experiments.checks.check import check_experiments, check_quickly

    args.overrides = [*_as_overrides(args), *args.overrides]
    specs = _read(args)
    for spec in specs:
        find_in_current_directory(values_of(spec.options))
        os.environ.update({name: str(value) for name, value in spec.options.env_vars.items()})  # A token of the hub.
    # What is wrong with names and types is said before Ray is imported.
    check_quickly(specs, trust=args.trust_checkpoint)
    from rllib_lmgame.experiments.run.cluster import quieten_ray
    from rllib_lmgame.experiments.runner import check_resumed, run_experiments

    quieten_ray(args.verbosity)
    if args.dry_run:
        from rllib_lmgame.experiments.checks.outside import stand_in_for_missing

        stand_in_for_missing(specs)
    checked = check_experiments(specs)
    from rllib_lmgame.experiments.checks.outside import check_servers
    from rllib_lmgame.experiments.checks.prompts import check_prompts

    check_servers(checked, needed=not args.dry_run)
    check_prompts(checked)
    if args.memory_check:
        from rllib_lmgame.experiments.checks.resources import check_fits

        check_fits(checked)
    from rllib_lmgame.experiments.run.resume import place_runs

    place_runs(specs, resume=args.resume)
    from rllib_lmgame.experiments.checks.dry_run import dry_run_lines, limits

    told = [f"warning: {what}" for each in checked if each.algorithm.own for what in limits(each.configs[0])]
    told += [f"note: {notice}" for spec in specs for notice in spec.notices]
    for line in dict.fromkeys(told):
        print(line, file=sys.stderr)
    if not args.dry_run:
        return run_experiments(checked, run_options(args))
    check_resumed(checked, run_options(args))
    for experiment in checked:
        print("\n".join(dry_run_lines(experiment)))
    if args.measure:
        from rllib_lmgame.experiments.run.measure import print_measured

        print_measured(checked, run_options(args))
    return 0


def run_options(args: argparse.Namespace) -> Any:
    from rllib_lmgame.experiments.run.cluster import RunOptions

    return RunOptions(**{each.name: getattr(args, each.name) for each in fields(RunOptions)})


def _as_overrides(args: argparse.Namespace) -> list[str]:
    """The flags that set keys of the experiment, as ``--set`` has them."""
    given = {key.removeprefix(SETS): value for key, value in vars(args).items() if key.startswith(SETS)}
    found = {key: value for key, value in given.items() if value is not None}
    if args.config and args.config.endswith((".yaml", ".yml")):
        why = f"takes settings, not a file: write `rllib train file {args.config}`"
        raise ConfigError("--config", f"{why}; {COMING_FROM}")
    found |= {f"--config config.{key}": value for key, value in mapping(args.config, "--config").items()}
    if args.stop is not None:
        found["--stop stop"] = mapping(args.stop, "--stop")
    return [f"{key}={json.dumps(value)}" for key, value in found.items()]


def _read(args: argparse.Namespace) -> list[ExperimentSpec]:
    path, name = _file_of(args), args.experiment_name
    if path is None and not args.algo:
        how = "name a file (`rllib train file FILE`) or an algorithm (`rllib train --algo PPO --env CartPole-v1`)"
        raise ConfigError("", how)
    if path is None:
        settings = {"run": args.algo, **({"env": args.env} if args.env else {})}
        source = Source("the command line")
        return make_specs(apply_overrides({name or "default": settings}, source, args.overrides), source)
    for flag, key, value in (("--algo", "run", args.algo), ("--env", "env", args.env)):
        if value is not None:
            raise ConfigError("", f"{flag} does not go with a file; use --set {key}=... instead")
    if not Path(path).exists() and path in examples():
        raise ConfigError("", f"there is no file {path}, but an example of that name: `rllib example run {path}`")
    specs = read_experiments(path, args.overrides)
    if name is None or any(spec.name == name for spec in specs):
        return [spec for spec in specs if name in (None, spec.name)]
    if len(specs) > 1:
        raise ConfigError("--experiment-name", f"{name}: the file has {', '.join(spec.name for spec in specs)}")
    check_name(name, "--experiment-name")
    specs[0].name = name
    return specs


def _file_of(args: argparse.Namespace) -> str | None:
    files = args.words[1:] if args.words[:1] == ["file"] else args.words
    if args.words and len(files) != 1:
        raise ConfigError("", f"write `rllib train file FILE`, with one file; got {', '.join(files) or 'none'}")
    return files[0] if files else None
