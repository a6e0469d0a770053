"""Which processes of a trial compute at the same time: what ``num_threads: auto`` comes to."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray

from rllib_lmgame.algorithms.cluster.memory import shape_of
from rllib_lmgame.base.json_files import mapping_of, number_of, parse, write_json_to
from rllib_lmgame.base.threads import (
    AUTO,
    FEW_PARAMETERS,
    cores_of_trial,
    first_environment,
    openmp_threads,
    threads_each,
    usable_cores,
)
from rllib_lmgame.learners.options import learner_threads, offloaded
from rllib_lmgame.telemetry.progress import phase_of, tell_phase

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

    from rllib_lmgame.algorithms.config import LMGameConfig

THREADS_FILE = "threads.json"
"""In a trial's directory of the run's storage, if the run repeats: another number of threads may round differently."""


@dataclass(frozen=True)
class Places:
    """A trial's processes on one machine; on several, as many as on the fullest if they are spread evenly.

    Attributes:
        cores: The trial's cores there.
        most: Threads that ``OMP_NUM_THREADS`` asks for, or a small model.
        together: Games are played while learners update, so that they share the cores.
        kept: Threads of each engine and of each learner, if an earlier start of the run has settled them.
    """

    cores: float
    engines: int
    learners: int
    runners: int
    most: int | None = None
    together: bool = False
    kept: tuple[int, int] | None = None

    def engine_threads(self) -> int:
        """Threads per engine while games are played; a local env runner is not counted, since it mostly waits."""
        if self.kept is not None:
            return self.kept[0]
        return threads_each(self.cores, self.engines, self.runners + self.learners * self.together, self.most)

    def learner_threads(self) -> int:
        """Threads of each learner during an update."""
        if self.kept is not None:
            return self.kept[1]
        return threads_each(self.cores, self.learners, (self.runners + self.engines) * self.together, self.most)


def places(config: LMGameConfig, engines: int) -> Places:
    """A trial's processes, of which so many are ``engines``. With a small model everything has one thread."""
    # Ray sets the variable in its workers, to the CPUs they have reserved: nobody asked for that.
    in_actor = ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None
    environment = first_environment() if in_actor else os.environ
    group = ray.util.get_current_placement_group()
    if group is None or group.bundle_count <= engines:
        return places_here(config, engines, usable_cores(), environment)
    nodes = len({*ray.util.placement_group_table(group)["bundles_to_node_id"].values()})
    own = ray.get_runtime_context().get_node_id()
    declared = next(node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["NodeID"] == own)
    reserved = sum(bundle.get("CPU", 0) for bundle in group.bundle_specs) / nodes
    cores = cores_of_trial(usable_cores(), declared, reserved, trials_at_once())
    return places_here(config, engines, cores, environment, nodes)


def places_here(
    config: LMGameConfig, engines: int, cores: float, environment: Mapping[str, str], nodes: int = 1
) -> Places:
    """A trial's processes on this machine, with so many cores of it, or spread over several such ``nodes``."""
    learners, runners = max(1, config.num_learners), config.num_env_runners
    engines, learners, runners = (math.ceil(count / nodes) for count in (engines, learners, runners))
    most = 1 if is_small(config) else openmp_threads(environment)
    return Places(cores, engines, learners, runners, most, config.run.async_rollouts.max_staleness > 0)


def with_kept_threads(files: FileSystem, directory: str, found: Places) -> Places:
    """Places with the threads of the first start of the run in ``directory``, which writes them there."""
    path = f"{directory}/{THREADS_FILE}"
    try:
        with files.open_input_stream(path) as file:
            kept = mapping_of(parse(file.readall()), path)
        engine, learner = (int(number_of(kept[name], name, low=1)) for name in ("engine", "learner"))
    except (OSError, ValueError, KeyError):  # A first start, or a damaged file.
        engine, learner = found.engine_threads(), found.learner_threads()
        write_json_to(files, path, {"engine": engine, "learner": learner})
    return dataclasses.replace(found, kept=(engine, learner))


def is_small(config: LMGameConfig) -> bool:
    """Whether no policy has a model that gains from a second thread, as far as that is known."""
    shapes = (shape_of(config, policy) for policy in config.language_model_policies())
    return all(shape is None or shape.parameters < FEW_PARAMETERS for shape in shapes)


def learners_use_cores(config: LMGameConfig) -> bool:
    """Whether learners compute on CPUs; on GPUs only an offloaded optimizer does."""
    deepspeed: Any = config.run.deepspeed or {}
    return not config.num_gpus_per_learner or offloaded(deepspeed.get("zero_optimization"))


def threads_of(config: LMGameConfig, places: Places) -> tuple[int | None, int | None]:
    """Threads of each engine and of each learner; ``None`` on GPUs, and where no number was set."""
    inference, update = config.run.inference.num_threads, config.run.training.num_threads
    engine = places.engine_threads() if inference == AUTO else inference
    learner = places.learner_threads() if update == AUTO else learner_threads(config)
    return (None if config.run.inference.on_gpu else engine, learner if learners_use_cores(config) else None)


def thread_words(engine: int | None, learner: int | None) -> list[str]:
    """What :func:`threads_of` gives, in words."""
    threads = {"engine": engine, "learner": learner}
    return [f"{count} thread{'s' * (count > 1)} in each {name}" for name, count in threads.items() if count]


def tell_trials_at_once(count: int) -> None:
    """Tell the trials of this program; for a cluster that was started for it and nothing else."""
    tell_phase(_key(), str(count))


def trials_at_once() -> int | None:
    """Trials that may run at once on this machine; ``None``: nobody knows, or there are other machines."""
    told = phase_of(_key()) if ray.is_initialized() else None
    return int(told) if told is not None and sum(node["Alive"] for node in ray.nodes()) == 1 else None


def _key() -> str:
    return f"{ray.get_runtime_context().get_job_id()}/trials"
