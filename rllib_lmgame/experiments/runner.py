"""Runs checked experiments through Ray Tune."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any

from rllib_lmgame.algorithms.checkpoints.background import EVERY
from rllib_lmgame.algorithms.checkpoints.paths import check_resuming, find_checkpoint
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import values_of
from rllib_lmgame.base.lock import locked
from rllib_lmgame.base.storage import absolute, is_uri, with_absolute_paths
from rllib_lmgame.config.algorithms import AlgorithmEntry
from rllib_lmgame.config.run import OVERRIDES
from rllib_lmgame.envs.registry import options_of
from rllib_lmgame.experiments.checks.algorithms import make_callbacks
from rllib_lmgame.experiments.checks.check import CheckedExperiment, named_metrics
from rllib_lmgame.experiments.checks.outside import tell_sandbox
from rllib_lmgame.experiments.checks.resources import asked_by, request_of
from rllib_lmgame.experiments.results.comparison import print_comparison
from rllib_lmgame.experiments.results.next_commands import next_commands, resume_command
from rllib_lmgame.experiments.results.outcome import (
    TrialSummary,
    experiment_directory,
    load_report,
    print_ranking,
    print_summary,
    reason,
    says_full_disk,
    summary_of,
)
from rllib_lmgame.experiments.results.tensorboard import TensorBoardFile
from rllib_lmgame.experiments.run.callbacks import (
    INTERRUPTION,
    MetricNames,
    ProgressFile,
    ResultFile,
    WaitingCallback,
    WholeCheckpoints,
    handled_signals,
    oom_is_a_failure,
    watched,
)
from rllib_lmgame.experiments.run.cluster import RunOptions, running_cluster
from rllib_lmgame.experiments.run.resume import (
    Resumption,
    adopt_newest,
    check_unchanged,
    is_started,
    reached,
    save_settings,
)
from rllib_lmgame.experiments.search.schedulers import make_scheduler, make_searcher
from rllib_lmgame.experiments.search.spaces import to_tune
from rllib_lmgame.telemetry.progress import ProgressCallback
from rllib_lmgame.telemetry.trial_names import settings_name, trial_settings

EXIT_OK, EXIT_FAILED = 0, 1


def run_experiments(checked: Sequence[CheckedExperiment], options: RunOptions) -> int:
    """Run experiments and print where their results are; returns 0, 1 if a trial failed, or 128 + signal number.

    They run one after another, each with its own state to resume from. (``tune.run_experiments`` runs them together,
    but keeps result files of the first one only.)
    """
    _check_started(checked, options)
    with ExitStack() as held:
        for directory in [experiment_directory(experiment.spec) for experiment in checked]:
            try:
                held.enter_context(_locked(directory))
            except OSError as error:
                reason = f"{directory} cannot be written: {error.strerror}"
                raise ConfigError("storage_path", f"{reason}; name another place with --storage-path") from None
        check_resumed(checked, options)
        return _run_all(checked, options)


def _locked(directory: str) -> AbstractContextManager[None]:
    taken = f"a run of {Path(directory).name!r} is already writing to {directory}"
    hint = "give this run another name (--experiment-name), or end that one and go on from it with --resume"
    return locked(directory, "", taken, hint)


def check_resumed(checked: Sequence[CheckedExperiment], options: RunOptions) -> None:
    """Raises: ConfigError: nothing to resume, or a setting differs; CheckpointError: others can have written it."""
    _check_started(checked, options)
    for experiment in checked if options.resume else ():
        check_resuming(experiment_directory(experiment.spec), options.trust_checkpoint)
        check_unchanged(experiment.spec)


def _check_started(checked: Sequence[CheckedExperiment], options: RunOptions) -> None:
    if options.resume and not any(_is_started(experiment) for experiment in checked):
        places = ", ".join(experiment_directory(experiment.spec) for experiment in checked)
        raise ConfigError("", f"nothing to resume: there is no experiment in {places} (start it without --resume)")


def _run_all(checked: Sequence[CheckedExperiment], options: RunOptions) -> int:
    with running_cluster(checked, options), handled_signals() as interruption:
        tell_sandbox(checked)
        summaries: list[TrialSummary] = []
        best: dict[str, TrialSummary] = {}
        try:
            _run_each(checked, options, summaries)
        finally:  # What has been run is told of, also if a later experiment could not be.
            best = _tell(checked, summaries)
        if interruption.requested:
            saved = any(summary.checkpoint for summary in summaries)
            way_on = "Go on with" if saved else "Nothing was saved yet. Begin anew with"
            print(f"Interrupted. {way_on} {resume_command()}", file=sys.stderr)
            return interruption.exit_code()
        if any(s.error for s in summaries):
            print(f"Once that is mended, go on with {resume_command()}", file=sys.stderr)
            return EXIT_FAILED
        for experiment in checked:
            if (report := experiment.spec.options.report) is not None:
                load_report(report)([s for s in summaries if s.experiment == experiment.spec.name])
            if (found := best.get(experiment.spec.name)) is not None:
                own = experiment.algorithm.own
                plays = not own or experiment.configs[0].run.plays
                stopped = reached(experiment.spec.options.stop, found.last_result)
                print("", *next_commands(found, own=own, plays=plays, stopped=stopped), sep="\n", flush=True)
        print(f"{time.monotonic() - options.started:.0f} s in all", flush=True)
        return EXIT_OK


def _run_each(checked: Sequence[CheckedExperiment], options: RunOptions, summaries: list[TrialSummary]) -> None:
    since = options.started
    for number, experiment in enumerate(checked, 1):
        if len(checked) > 1:
            print(f"{experiment.spec.name}: experiment {number} of {len(checked)}", flush=True)
        INTERRUPTION.begin_experiment()
        with experiment.spec.source.attached(), oom_is_a_failure():
            try:
                summaries += _run_one(experiment, options, since)
            except Exception as error:
                if says_full_disk(error):
                    raise ConfigError("storage_path", "the disk is full; make room and go on with --resume") from error
                raise
        since = time.monotonic()
        if INTERRUPTION.requested:
            return


def _tell(checked: Sequence[CheckedExperiment], summaries: Sequence[TrialSummary]) -> dict[str, TrialSummary]:
    """Print what came out; the best trial of each experiment that has any."""
    print_summary(summaries)
    best = {}
    for spec in [experiment.spec for experiment in checked]:
        own = [summary for summary in summaries if summary.experiment == spec.name]
        first = print_ranking(spec, own)
        if len(own) > 1 and not is_uri(own[0].path):
            measured = [Path(summary.path) for summary in own if summary.last_result]
            print_comparison(Path(experiment_directory(spec)), measured)
        if first is not None:
            best[spec.name] = first
    return best


def _run_one(experiment: CheckedExperiment, options: RunOptions, since: float) -> list[TrialSummary]:
    from ray import tune

    tune.register_trainable(experiment.algorithm.name, experiment.algorithm.cls)
    spec, settings = experiment.spec, experiment.spec.options
    resumption: Resumption | None = None
    restored: str | None = None
    if options.resume and _is_started(experiment):
        # The driver sees only in its own file system whether checkpoints are whole.
        whole = experiment.algorithm.own and not is_uri(experiment_directory(spec))
        resumption = Resumption(settings, adopt_newest) if whole else Resumption(settings)
    else:
        save_settings(spec)
        restored = settings.restore and find_checkpoint(settings.restore)
    every, checkpoints = tune.ResumeConfig.ResumeType.RESUME, values_of(spec.options.checkpoint_config)
    config = to_tune(with_paths_of_here(spec.config, experiment.algorithm.entry))
    if checkpoints.pop("asynchronous") and experiment.algorithm.own:
        config[EVERY] = checkpoints.pop("checkpoint_frequency")
    names = MetricNames(named_metrics(spec) if experiment.algorithm.own else {}, INTERRUPTION.end_at_once)
    analysis = tune.run(
        experiment.algorithm.name,
        name=spec.name,
        config=config,
        storage_path=settings.storage_path and absolute(settings.storage_path),
        resume_config=resumption and tune.ResumeConfig(unfinished=every, errored=every),
        stop=settings.stop,
        num_samples=settings.num_samples,
        time_budget_s=settings.time_budget_s,
        scheduler=make_scheduler(settings.scheduler, wrap=lambda cls: watched(cls, resumption and resumption.take)),
        search_alg=make_searcher(spec),
        max_concurrent_trials=spec.options.search.max_concurrent_trials if spec.options.search.type else None,
        checkpoint_config=tune.CheckpointConfig(**checkpoints),
        max_failures=settings.max_failures,
        callbacks=[*([resumption] if resumption else []), names, *_callbacks(experiment, options, since)],
        trial_dirname_creator=trial_directory_name,
        verbose=min(options.verbosity, 2),
        raise_on_failed_trial=False,
        restore=restored,
    )
    if names.error is not None:
        raise names.error
    return [summary_of(spec.name, trial, INTERRUPTION.requested) for trial in analysis.trials]


def _is_started(experiment: CheckedExperiment) -> bool:
    """Whether an experiment has a state to go on from; always said of remote storage, where Tune looks itself."""
    directory = experiment_directory(experiment.spec)
    return is_uri(directory) or is_started(Path(directory))


def _callbacks(experiment: CheckedExperiment, options: RunOptions, since: float) -> list[Any]:
    own = [ResultFile(), ProgressFile(), WaitingCallback(request_of(experiment), asked_by(experiment))]
    callbacks = [WholeCheckpoints(), *make_callbacks(experiment.spec.options.callbacks), *own]
    with suppress(ImportError):  # Tune says that tensorboardX is not there.
        callbacks.append(TensorBoardFile())
    if options.verbosity == 0:
        callbacks.append(ProgressCallback(experiment.spec.options.stop, since, why=reason))
    return callbacks


def trial_directory_name(trial: Any) -> str:
    """Short directory name of a trial: what it drew from the search space, or algorithm and environment; then its id.

    TensorBoard and the viewer call the trial by it.
    """
    drawn = re.sub(r"[^\w.=+-]+", "_", settings_name(trial_settings(trial)))
    drawn = drawn.encode()[:100].decode(errors="ignore")  # File systems count bytes.
    if drawn:
        return f"{drawn}_{trial.trial_id}"
    env = str(trial.config.get("env") or "").replace("/", "_").replace(":", "_")[:40]
    return "_".join(part for part in (trial.trainable_name, env, trial.trial_id) if part)


def with_paths_of_here(config: Mapping[str, Any], entry: AlgorithmEntry | None) -> dict[str, Any]:
    """The configuration with absolute paths of local models, tokenizers, logs and games' path options.

    Looks into search spaces too. ``entry`` is the algorithm's; ``None`` for other algorithms.
    """
    if entry is None:
        return dict(config)

    def whole(settings: Any, groups: Mapping[str, type] = entry.groups) -> Any:
        if isinstance(settings, list | tuple):
            return [whole(each) for each in settings]
        if not isinstance(settings, Mapping):
            return settings
        found = dict(settings)
        for key, each in settings.items():
            if key in groups:
                found[key] = with_absolute_paths(groups[key], each)
            elif key != "env_config":  # Of which a game of others says nothing.
                found[key] = whole(each, {} if groups and key in ("policies", OVERRIDES) else entry.groups)
        for name in _texts(settings.get("env")) if "env_config" in found else ():
            if (group := options_of(name)) is not None:
                found["env_config"] = with_absolute_paths(group, found["env_config"])
        return found

    return whole(config)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
        yield from _texts(item)
