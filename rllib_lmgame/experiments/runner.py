"""Runs checked experiments through Ray Tune."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rllib_lmgame.algorithms.ownership import check_resuming, mark_experiment
from rllib_lmgame.algorithms.ray_cluster import init_ray, join, join_existing, own_session, patience, start_local
from rllib_lmgame.errors import ConfigError
from rllib_lmgame.experiments.callbacks import make_callbacks
from rllib_lmgame.experiments.check import CheckedExperiment
from rllib_lmgame.experiments.checkpoint_paths import find_checkpoint
from rllib_lmgame.experiments.dashboard import dashboard_line, include_dashboard, wants_dashboard
from rllib_lmgame.experiments.footprint import check_memory, machine_mib
from rllib_lmgame.experiments.head import watched_head
from rllib_lmgame.experiments.interrupt import INTERRUPTION, handled_signals, interruptible
from rllib_lmgame.experiments.lock import locked
from rllib_lmgame.experiments.memory_deaths import memory_deaths_are_failures
from rllib_lmgame.experiments.reports import load_report
from rllib_lmgame.experiments.resources import asked_by, check_placeable, node_here, request_of
from rllib_lmgame.experiments.result_files import ProgressFile, ResultFile
from rllib_lmgame.experiments.results import (
    TrialSummary,
    experiment_directory,
    full_disk_line,
    print_ranking,
    print_summary,
    says_full_disk,
    summarize,
)
from rllib_lmgame.experiments.resume import Resumption, check_unchanged, save_settings, with_settings_of
from rllib_lmgame.experiments.sandboxes import tell_sandboxes
from rllib_lmgame.experiments.schedulers import make_scheduler
from rllib_lmgame.experiments.search import to_tune
from rllib_lmgame.experiments.state import StateCopy, adopt_newest, is_started, mend, ways_on
from rllib_lmgame.experiments.waiting import WaitingCallback
from rllib_lmgame.policies.unpacked import remove_unused

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2


@dataclass(frozen=True)
class RunOptions:
    """How experiments are run, whatever they are.

    Attributes:
        resume: Go on with the experiment in the storage path instead of starting it anew.
        trust_checkpoint: Go on also with an experiment that none of this user's runs started.
        verbosity: 0: one line per iteration; 1: Tune's own output and what workers print; 2: debug output.
        address: Ray cluster to join; ``None`` joins the one this machine belongs to, if any, and starts one otherwise.
        num_cpus: CPUs to declare when a cluster is started; ``None``: those of the machine, or what one trial asks for if that is more.
        num_gpus: GPUs to declare when a cluster is started.
        object_store_memory: Bytes of the object store when a cluster is started.
        num_nodes: Start a test cluster of that many nodes on this machine.
        dashboard: Start Ray's dashboard and say how to get in; ``None``: on a terminal, where it is installed.
        memory_check: Refuse a run whose processes would not fit into the memory of this machine, where it has to hold them.
        runtime_env: Ray runtime environment of the workers.
        started: ``time.monotonic()`` when the command was given, which times are told from.
    """

    resume: bool = False
    trust_checkpoint: bool = False
    verbosity: int = 0
    address: str | None = None
    num_cpus: int | None = None
    num_gpus: int | None = None
    object_store_memory: int | None = None
    num_nodes: int | None = None
    dashboard: bool | None = None
    memory_check: bool = True
    runtime_env: dict[str, Any] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)


def run_experiments(checked: Sequence[CheckedExperiment], options: RunOptions) -> int:
    """Run experiments and print where their results are.

    Several experiments run one after another, each with a state of its own to resume from; the trials of one run side by side as far as
    the cluster has room. (Ray's `tune.run_experiments` runs experiments together, but keeps result files of the first one only.)

    Returns:
        Exit code: 0, 1 if a trial failed, 128 + signal number if the run was interrupted.
    """
    if options.resume and not any(_is_started(experiment) for experiment in checked):
        places = ", ".join(experiment_directory(experiment.spec) for experiment in checked)
        raise ConfigError("", f"nothing to resume: there is no experiment in {places} (start it without --resume)")
    with ExitStack() as held:
        for experiment in checked:
            held.enter_context(locked(experiment_directory(experiment.spec)))
        for experiment in checked if options.resume else ():
            check_resuming(experiment_directory(experiment.spec), options.trust_checkpoint)
            for line in [*check_unchanged(experiment.spec), *_mend_state(experiment)]:
                print(f"note: {line}", file=sys.stderr)
        return _run_all(checked, options)


def _run_all(checked: Sequence[CheckedExperiment], options: RunOptions) -> int:
    with _ray(checked, options), watched_head(_head_address()), handled_signals() as interruption:
        tell_sandboxes(checked)
        summaries: list[TrialSummary] = []
        since = options.started
        for experiment in checked:
            try:
                with experiment.spec.source.attached(), memory_deaths_are_failures():
                    summaries += _run_one(experiment, options, since)
            except Exception as error:
                if not says_full_disk(error):
                    raise
                print(f"error: {full_disk_line(experiment.spec)}", file=sys.stderr)
                return EXIT_FAILED
            since = time.monotonic()
            if interruption.requested:
                break
        print_summary(summaries)
        for experiment in checked:
            print_ranking(experiment.spec, [s for s in summaries if s.experiment == experiment.spec.name])
        if interruption.requested:
            print("Interrupted. Go on with the same command and --resume.", file=sys.stderr)
            return interruption.exit_code()
        if any(s.error for s in summaries):
            return EXIT_FAILED
        for experiment in checked:
            _report(experiment, [s for s in summaries if s.experiment == experiment.spec.name])
        print(f"{time.monotonic() - options.started:.0f} s in all", flush=True)
        return EXIT_OK


def _run_one(experiment: CheckedExperiment, options: RunOptions, since: float) -> list[TrialSummary]:
    """Run one experiment, or go on with it."""
    from ray import tune

    spec = experiment.spec
    resumption = None
    if options.resume and _is_started(experiment):
        resumption = _resumption(experiment)
    else:
        mark_experiment(experiment_directory(spec))
        save_settings(spec)
    analysis = tune.run(
        experiment.algorithm.register(),
        name=spec.name,
        config=to_tune(spec.config),
        storage_path=_storage_path(experiment),
        resume_config=None if resumption is None else _resume_config(),
        stop=dict(spec.options.stop),
        num_samples=spec.options.num_samples,
        time_budget_s=spec.options.time_budget_s,
        scheduler=make_scheduler(spec.options.scheduler, wrap=lambda cls: _wrapped(cls, resumption)),
        search_alg=_search_algorithm(experiment),
        checkpoint_config=_checkpoint_config(experiment),
        max_failures=spec.options.max_failures,
        callbacks=[*([resumption] if resumption else []), *_callbacks(experiment, options, since)],
        trial_dirname_creator=trial_directory_name,
        log_to_file=spec.options.log_to_file,
        verbose=_tune_verbosity(options),
        raise_on_failed_trial=False,
        **({} if resumption else _extra_arguments(experiment)),
    )
    return summarize(spec.name, analysis.trials, INTERRUPTION.requested)


def _resumption(experiment: CheckedExperiment) -> Resumption:
    options, directory = experiment.spec.options, Path(experiment_directory(experiment.spec))
    if not _has_own_checkpoints(experiment):
        return Resumption(options)
    return Resumption(options, adopt_newest, lambda: ways_on(directory, _restart(experiment)))


def _wrapped(scheduler: type, resumption: Resumption | None) -> type:
    stopping = interruptible(scheduler)
    return stopping if resumption is None else with_settings_of(resumption, stopping)


def _is_started(experiment: CheckedExperiment) -> bool:
    """Whether an experiment has a state to go on from; always said of remote storage, where Tune looks itself."""
    directory = experiment_directory(experiment.spec)
    return "://" in directory or is_started(Path(directory))


def _mend_state(experiment: CheckedExperiment) -> list[str]:
    """What was done to go on from a whole state, as lines for the user."""
    directory = Path(experiment_directory(experiment.spec))
    return mend(directory, _restart(experiment)) if _is_started(experiment) and directory.is_dir() else []


def _restart(experiment: CheckedExperiment) -> str:
    """Start of a command that begins a new experiment from a checkpoint."""
    return f"rllib train file {experiment.spec.source.name} --experiment-name {experiment.spec.name}-2 --restore"


def _has_own_checkpoints(experiment: CheckedExperiment) -> bool:
    """Whether the driver can see the trials' checkpoints, and say if they are whole."""
    return experiment.algorithm.own and "://" not in experiment_directory(experiment.spec)


def _search_algorithm(experiment: CheckedExperiment) -> Any:
    from ray.tune.search.basic_variant import BasicVariantGenerator

    search = experiment.spec.search
    return BasicVariantGenerator(max_concurrent=search.max_concurrent_trials or 0, random_state=search.seed)


def _checkpoint_config(experiment: CheckedExperiment) -> Any:
    from ray.tune import CheckpointConfig

    return CheckpointConfig(**vars(experiment.spec.checkpoint))


def _resume_config() -> Any:
    from ray.tune import ResumeConfig

    return ResumeConfig(unfinished=ResumeConfig.ResumeType.RESUME, errored=ResumeConfig.ResumeType.RESUME)


def _storage_path(experiment: CheckedExperiment) -> str | None:
    path = experiment.spec.options.storage_path
    return path if path is None or "://" in path else str(Path(path).expanduser().absolute())


def _extra_arguments(experiment: CheckedExperiment) -> dict[str, Any]:
    """What only a new experiment takes, where it is set."""
    options = experiment.spec.options
    extra = {"restore": options.restore and find_checkpoint(options.restore), "export_formats": options.export_formats}
    return {key: value for key, value in extra.items() if value is not None}


def _callbacks(experiment: CheckedExperiment, options: RunOptions, since: float) -> list[Any]:
    from rllib_lmgame.telemetry.progress import ProgressCallback

    own = [ResultFile(), ProgressFile(), StateCopy(), WaitingCallback(request_of(experiment), asked_by(experiment))]
    callbacks = [*make_callbacks(experiment.spec.options.callbacks), *own]
    if options.verbosity == 0:
        callbacks.append(ProgressCallback(experiment.spec.options.stop, since))
    return callbacks


def _tune_verbosity(options: RunOptions) -> int:
    return min(options.verbosity, 2)


def trial_directory_name(trial: Any) -> str:
    """Short directory name of a trial: algorithm, environment, id."""
    env = str(trial.config.get("env") or "").replace("/", "_").replace(":", "_")[:40]
    return "_".join(part for part in (trial.trainable_name, env, trial.trial_id) if part)


def _report(experiment: CheckedExperiment, summaries: list[TrialSummary]) -> None:
    if experiment.spec.options.report is None:
        return
    began = time.monotonic()
    load_report(experiment.spec.options.report)(summaries)
    print(f"report took {time.monotonic() - began:.0f} s", flush=True)


def quieten_ray(verbosity: int) -> int:
    """Set what Ray's loggers print on the driver; returns the level."""
    import ray.rllib  # noqa: F401  (sets its own level when it is imported)

    level = (logging.ERROR, logging.INFO, logging.DEBUG)[min(verbosity, 2)]
    logging.getLogger("ray").setLevel(level)
    for name in ("ray.rllib", "ray._private"):
        logging.getLogger(name).setLevel(level)
    # What Tune calls errors here (a failed or stopped trial) is told at the end, with the cause.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL if verbosity == 0 else level)
    return level


@contextmanager
def _ray(checked: Sequence[CheckedExperiment], options: RunOptions) -> Iterator[None]:
    """A Ray cluster to run in, shut down afterwards if it was started here."""
    import ray

    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "1" if options.verbosity else "0")
    common: dict[str, Any] = {
        "log_to_driver": options.verbosity > 0,
        "logging_level": quieten_ray(options.verbosity),
        "runtime_env": _runtime_env(options),
    }
    cluster = None
    try:
        if options.num_nodes:
            cluster = _local_cluster(checked, options)
            init_ray(address=cluster.address, **common)
            started = True
        else:
            started = not (options.address is None and join_existing(**common)) and _start_or_join(checked, options, common)
        if started:
            check_placeable(checked, [node["Resources"] for node in ray.nodes()])
            if options.memory_check:
                check_memory(checked, machine_mib())
        _tell_dashboard(options)
        yield
    finally:
        ray.shutdown()
        if cluster is not None:
            cluster.shutdown()
        remove_unused()


def _head_address() -> str:
    import ray

    return "" if ray.util.client.ray.is_connected() else str(ray.get_runtime_context().gcs_address)


def _tell_dashboard(options: RunOptions) -> None:
    """Print where the dashboard is, if somebody wants it."""
    import ray

    if wants_dashboard(options.dashboard):
        print(dashboard_line(ray._private.worker.get_dashboard_url()), flush=True)


def join_or_start(address: str | None, verbosity: int) -> None:
    """Connect to the cluster at ``address``, to the one this machine belongs to, or to a new local one."""
    common = {"log_to_driver": verbosity > 0, "logging_level": quieten_ray(verbosity)}
    options = RunOptions(address=address, num_cpus=max(8, os.cpu_count() or 1), dashboard=False)
    if address or not join_existing(**common):
        _start_or_join([], options, common)


def _start_or_join(checked: Sequence[CheckedExperiment], options: RunOptions, common: dict[str, Any]) -> bool:
    """Connect to the cluster the options name, or to a new one; whether it was started here."""
    if options.address and options.address != "local":
        join(options.address, f"--ray-address {options.address}", **common)
        return False
    num_cpus = _declared_cpus(checked, options)
    check_placeable(checked, [node_here(num_cpus, options.num_gpus)])  # Ray would take its time to start before it is refused.
    start_local(
        num_cpus=num_cpus,
        num_gpus=options.num_gpus,
        object_store_memory=options.object_store_memory,
        include_dashboard=include_dashboard(options.dashboard),
        **common,
    )
    return True


def _declared_cpus(checked: Sequence[CheckedExperiment], options: RunOptions) -> int:
    """CPUs to declare on a machine of one's own: processes of one trial take turns, so more than there are cores is fine."""
    if options.num_cpus is not None:
        return options.num_cpus
    wanted = max(int(request_of(c).total.get("CPU", 1) + 0.999) for c in checked)
    return max(os.cpu_count() or 1, wanted)


def _local_cluster(checked: Sequence[CheckedExperiment], options: RunOptions) -> Any:
    from ray.cluster_utils import Cluster

    dashboard = include_dashboard(options.dashboard)
    node = {"num_cpus": _declared_cpus(checked, options), "num_gpus": options.num_gpus or 0}
    if options.object_store_memory is not None:
        node["object_store_memory"] = options.object_store_memory
    check_placeable(checked, [node_here(node["num_cpus"], node["num_gpus"])] * (options.num_nodes or 1))
    cluster = Cluster()
    with own_session(), patience():
        cluster.add_node(**node, include_dashboard=dashboard)
        for _ in range((options.num_nodes or 1) - 1):
            cluster.add_node(**node)
    cluster.wait_for_nodes()
    return cluster


def _runtime_env(options: RunOptions) -> dict[str, Any] | None:
    return options.runtime_env or None
