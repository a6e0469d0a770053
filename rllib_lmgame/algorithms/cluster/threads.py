"""Which processes of a trial compute at the same time, and where: what ``num_threads: auto`` comes to."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray

from rllib_lmgame.algorithms.cluster.memory import offloaded, shape_of
from rllib_lmgame.algorithms.cluster.trials import trials_at_once
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
from rllib_lmgame.learners.settings import learner_threads

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

    from rllib_lmgame.algorithms.config import LMGameConfig

HERE = "here"
THREADS_FILE = "threads.json"
"""In a trial's directory of the run's storage, if the run repeats: another number of threads may round differently."""


@dataclass(frozen=True)
class Places:
    """Where a trial's processes are.

    Attributes:
        cores: Node -> the trial's cores there.
        engines, learners, runners: The node of each.
        most: Threads that ``OMP_NUM_THREADS`` asks for, or a small model.
        together: Games are played while learners update, so that they share the cores.
        kept: Threads of each engine and of each learner, if an earlier start of the run has settled them.
    """

    cores: Mapping[str, float]
    engines: Sequence[str]
    learners: Sequence[str]
    runners: Sequence[str]
    most: int | None = None
    together: bool = False
    kept: tuple[int, int] | None = None

    def engine_threads(self) -> int:
        """Threads per engine while games are played; a local env runner is not counted, since it mostly waits."""
        if self.kept is not None:
            return self.kept[0]
        beside = [*self.runners, *self.learners] if self.together else self.runners
        return threads_each(self.cores, self.engines, beside, self.most)

    def learner_threads(self) -> int:
        """Threads of each learner during an update."""
        if self.kept is not None:
            return self.kept[1]
        beside = [*self.runners, *self.engines] if self.together else ()
        return threads_each(self.cores, self.learners, beside, self.most)


def places(config: LMGameConfig, engines: int) -> Places:
    """The places of a trial's processes. With a small model everything has one thread."""
    # Ray sets the variable in its workers, to the CPUs they have reserved: nobody asked for that.
    in_actor = ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None
    environment = first_environment() if in_actor else os.environ
    group = ray.util.get_current_placement_group()
    if group is None or group.bundle_count <= engines:
        return places_here(config, engines, usable_cores(), environment)
    return in_group(ray.util.placement_group_table(group), ray.nodes(), config, engines, _most(config, environment))


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


def _together(config: LMGameConfig) -> bool:
    return config.run.async_rollouts.max_staleness > 0


def places_here(config: LMGameConfig, engines: int, cores: float, environment: Mapping[str, str]) -> Places:
    """All on this machine, with so many cores of it."""
    learners, runners = max(1, config.num_learners), config.num_env_runners
    where = [HERE] * engines, [HERE] * learners, [HERE] * runners
    return Places({HERE: cores}, *where, _most(config, environment), _together(config))


def _most(config: LMGameConfig, environment: Mapping[str, str]) -> int | None:
    if is_small(config):
        return 1
    return openmp_threads(environment)


def is_small(config: LMGameConfig) -> bool:
    """Whether no policy has a model that gains from a second thread, as far as that is known."""
    shapes = (shape_of(config, policy) for policy in config.language_model_policies())
    return all(shape is None or shape.parameters < FEW_PARAMETERS for shape in shapes)


def in_group(
    table: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]], config: LMGameConfig, engines: int, most: int | None
) -> Places:
    """The places of a trial with a placement group of Tune's.

    Args:
        table: Ray's, of the group: the main process, env runners, (others,) learners, engines.
        nodes: Ray's, of the cluster.
        engines: How many there are.
        most: See :class:`Places`.
    """
    where = [table["bundles_to_node_id"][i] for i in sorted(table["bundles_to_node_id"])]
    reserved: Counter[str] = Counter()
    for i, node in table["bundles_to_node_id"].items():
        reserved[node] += table["bundles"][i].get("CPU", 0)
    declared = {node["NodeID"]: node["Resources"].get("CPU", 0.0) for node in nodes}
    usable = {**declared, ray.get_runtime_context().get_node_id(): usable_cores()}
    trials = trials_at_once()
    cores = {node: cores_of_trial(usable[node], declared[node], reserved[node], trials) for node in reserved}
    others = len(where) - engines
    learners = where[others - config.num_learners : others] if config.num_learners else where[:1]
    runners = where[1 : 1 + config.num_env_runners]
    return Places(cores, where[others:], learners, runners, most, _together(config))


def learners_use_cores(config: LMGameConfig) -> bool:
    """Whether learners compute on CPUs; on GPUs only an offloaded optimizer does."""
    return not config.num_gpus_per_learner or offloaded((config.run.deepspeed or {}).get("zero_optimization"))


def threads_of(config: LMGameConfig, places: Places) -> tuple[int | None, int | None]:
    """Threads of each engine and of each learner; ``None`` on GPUs, and where no number was set."""
    inference, update = config.run.inference.num_threads, config.run.token_ppo.num_threads
    engine = places.engine_threads() if inference == AUTO else inference
    learner = places.learner_threads() if update == AUTO else learner_threads(config)
    return (None if config.run.inference.on_gpu else engine, learner if learners_use_cores(config) else None)


def thread_words(engine: int | None, learner: int | None) -> list[str]:
    """What :func:`threads_of` gives, in words."""
    threads = {"engine": engine, "learner": learner}
    return [f"{count} thread{'s' * (count > 1)} in each {name}" for name, count in threads.items() if count]
