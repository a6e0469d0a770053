"""Which sandbox the programs of a run's players get: shown by ``--dry-run`` and when a run starts."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.registry import game_spec, load_factory
from rllib_lmgame.experiments.checks.check import CheckedExperiment
from rllib_lmgame.sandbox.limits import SandboxError
from rllib_lmgame.sandbox.programs import SandboxReport, report_sandbox

ASK_S = 60.0
"""Seconds the other machines of a cluster have to answer."""


def sandboxed_games(experiment: CheckedExperiment) -> list[str]:
    """Games of an experiment, evaluation included, that run what players write."""
    if not experiment.algorithm.own:
        return []
    games = (
        game.env
        for config in experiment.configs
        for game in (*config.training_games(), *(config.evaluation_options.games or ()))
    )
    return [game for game in dict.fromkeys(games) if getattr(load_factory(game_spec(game)), "uses_sandbox", False)]


def dry_run_sandbox(experiment: CheckedExperiment) -> list[str]:
    """Lines of the dry run."""
    games = sandboxed_games(experiment)
    if not games:
        return []
    report = _here()
    warning = [f"#   warning: {report.warning}"] if report.warning else []
    return [f"# sandbox for what players of {', '.join(games)} write (this machine)", f"#   {report.text}", *warning]


def tell_sandboxes(experiments: Iterable[CheckedExperiment]) -> None:
    """Print the sandbox of each machine, if a game needs one; Ray is running.

    Raises: ConfigError: if every machine would refuse programs.
    """
    games = list(dict.fromkeys(game for experiment in experiments for game in sandboxed_games(experiment)))
    if not games:
        return
    reports, silent = _of_cluster()
    for line in (*sandbox_lines(reports), *(f"warning: {host} did not tell which sandbox it has" for host in silent)):
        print(line, file=sys.stderr if line.startswith("warning") else sys.stdout, flush=True)
    if not silent and all(report.refused for report in reports):
        raise ConfigError("config.env", f"{', '.join(games)} cannot be played: {reports[0].warning}")


def sandbox_lines(reports: Sequence[SandboxReport]) -> list[str]:
    """One line per kind of sandbox, with the machines' names where there are several, and the warnings."""
    lines: list[str] = []
    for text, warning in dict.fromkeys((report.text, report.warning) for report in reports):
        hosts = sorted(report.host for report in reports if (report.text, report.warning) == (text, warning))
        where = f" on {', '.join(hosts)}" if len(reports) > 1 else ""
        lines += [
            f"sandbox for programs{where}: {text}",
            *([f"warning: sandbox for programs{where}: {warning}"] if warning else []),
        ]
    return lines


def _here() -> SandboxReport:
    try:
        return report_sandbox()
    except SandboxError as error:
        raise ConfigError("", str(error)) from None


def _of_cluster() -> tuple[list[SandboxReport], list[str]]:
    """Reports of this machine and of the others of the cluster, and names of those that did not answer."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ask = ray.remote(num_cpus=0, max_retries=0)(report_sandbox)
    asked: dict[str, Any] = {}
    for node in ray.nodes():
        host = node["NodeManagerHostname"]
        if node["Alive"] and host != platform.node() and host not in asked:
            asked[host] = ask.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            ).remote()
    reports, silent = [_here()], []
    ray.wait(list(asked.values()), num_returns=len(asked), timeout=ASK_S) if asked else None
    for host, answer in asked.items():
        try:
            reports.append(ray.get(answer, timeout=0))
        except Exception:  # the node is gone, lacks the package, or was too slow
            silent.append(host)
    return reports, silent
