"""A second run of an experiment: its results stand beside the first ones, never among them.

1. Without ``--resume`` a run goes to ``NAME-2``, ``NAME-3``, ...; with it the last of these goes on.
2. The lock of a directory refuses a second run while the first still goes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path

from rllib_lmgame.base.lock import is_running
from rllib_lmgame.base.storage import is_uri
from rllib_lmgame.experiments.results.outcome import experiment_directory
from rllib_lmgame.experiments.spec import ExperimentSpec


def place_runs(specs: Iterable[ExperimentSpec], *, resume: bool) -> None:
    """Name this run of every experiment, with a notice if the name changes; for remote storage Tune does it itself."""
    specs = list(specs)
    taken = {spec.name for spec in specs}
    for spec in specs:
        if is_uri(experiment_directory(spec)):
            continue
        root = Path(experiment_directory(spec)).parent
        has, runs = ((lambda name, of=of, root=root: of(root / name)) for of in (has_run, is_running))
        name = run_name(spec.name, has, runs, resume=resume)
        while name != spec.name and name in taken:
            name += "-2"
        if name != spec.name and resume:
            spec.notices.append(f"{spec.name} was run several times; going on with the last one, {root / name}")
        elif name != spec.name:
            spec.notices.append(
                f"{spec.name} has been run before: its results stay where they are, this run's go to {root / name}"
            )
        spec.name = name


def run_name(name: str, has_run: Callable[[str], bool], is_running: Callable[[str], bool], *, resume: bool) -> str:
    """The name of this run among the runs of ``name``: the last one's with ``resume``, else a new one."""
    last = None
    for number in itertools.count(1):
        candidate = name if number == 1 else f"{name}-{number}"
        if not has_run(candidate):
            return candidate if last is None or not (resume or is_running(last)) else last
        last = candidate
    raise AssertionError("unreachable")


def has_run(directory: Path) -> bool:
    """Whether a directory holds the trials of a run, also of one whose state was lost."""
    patterns = ("*experiment_state*", "*/result.json")
    return any(next(directory.glob(pattern), None) for pattern in patterns) or is_running(directory)
