"""Engines as the algorithm handles them: resources, start, counters."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray

from rllib_lmgame.algorithms.cluster.threads import Places, places
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.text import first_line
from rllib_lmgame.base.threads import AUTO
from rllib_lmgame.inference.options import ADAPTER_ARGUMENTS
from rllib_lmgame.inference.protocol import EngineDeadError
from rllib_lmgame.inference.serving.group import AdapterOf, EngineGroup, EngineOOMError
from rllib_lmgame.inference.serving.interruption import InterruptedWaitError
from rllib_lmgame.policies.model.files import model_directory
from rllib_lmgame.rollouts.plans import stable_seed
from rllib_lmgame.telemetry.phases import UP, telling

if TYPE_CHECKING:
    from rllib_lmgame.algorithms.config import LMGameConfig


@dataclass(frozen=True)
class EngineSet:
    """Engines that hold the same weights.

    Attributes:
        key: The policy whose weights they hold, or a league opponent.
        policy: Whose model they load.
        adapters: Policies and league opponents whose adapters they hold; none if they hold whole weights.
    """

    key: str
    policy: str
    count: int
    adapters: tuple[str, ...] = ()

    @property
    def is_opponent(self) -> bool:
        """Whether they hold a member of the league."""
        return self.key != self.policy


def opponent_key(number: int) -> str:
    """Key of an engine that holds one member of the league at a time."""
    return f"league:{number}"


def engine_sets(config: LMGameConfig, *, training: bool = True) -> list[EngineSet]:
    """The engines a configuration needs: per policy, and for the league's opponents.

    None where training plays nothing. Only ``training`` has opponents, and engines with several adapters: what is
    saved is merged.
    """
    if training and not config.run.plays:
        return []
    count = config.run.inference.num_engines
    policies, trained = config.language_model_policies(), config.trained_policies()
    league = config.run.league if training else None
    opponents = [opponent_key(number) for number in range(0 if league is None else league.opponent_engines)]
    if not (training and config.run.inference.adapters):
        sets = [EngineSet(policy, policy, count) for policy in policies]
        return [*sets, *(EngineSet(key, trained[0], 1) for key in opponents)]
    return [
        *(EngineSet(policy, policy, count) for policy in policies if policy not in trained),
        EngineSet(trained[0], trained[0], count, (*trained, *opponents)),
    ]


def engine_bundles(config: LMGameConfig) -> list[dict[str, float]]:
    """One resource bundle per engine; a tensor-parallel engine's GPUs are one bundle, hence on one node."""
    inference = config.run.inference
    bundle = {"CPU": inference.num_cpus_per_engine}
    if inference.num_gpus_per_engine:
        bundle["GPU"] = inference.num_gpus_per_engine
    return [dict(bundle) for engines in engine_sets(config) for _ in range(engines.count)]


def engine_seed(config: LMGameConfig, engines: EngineSet) -> int:
    """Seed of an engine's draws: the run's for the first policy, another one for each other policy.

    With equal draws, simultaneous choices of players would be correlated, and cooperation would seem to pay.
    """
    seed = config.seed or 0
    first = next(iter(config.language_model_policies()))
    return seed if engines.key == first else stable_seed(seed, engines.key)


def start_engines(
    config: LMGameConfig, found: Places | None = None, *, training: bool = True
) -> dict[str, EngineGroup | AdapterOf]:
    """Start engines on the last bundles of the placement group; policy or opponent -> group, as :func:`engine_sets`.

    ``found`` are the places of the trial's processes, where they are known already.
    """
    sets = engine_sets(config, training=training)
    placement_group = ray.util.get_current_placement_group()
    bundles = None
    if placement_group is not None:
        first = placement_group.bundle_count - sum(engines.count for engines in sets)
        if first < 1:  # Not a placement group of this algorithm's own request.
            placement_group = None
        else:
            bundles = iter(range(first, placement_group.bundle_count))
    shared = config.run.inference
    if shared.num_threads == AUTO and not shared.on_gpu:
        found = found or places(config, sum(engines.count for engines in sets))
        shared = shared.model_copy(update={"num_threads": found.engine_threads()})
    groups: dict[str, EngineGroup] = {}
    try:
        for engines in sets:
            options = config.language_model_of(engines.policy)
            inference = shared.model_copy(update={"num_engines": engines.count})
            if engines.is_opponent:  # Members come from files, not from a learner's device.
                inference = inference.model_copy(update={"weight_transport": "object_store"})
            if engines.adapters:
                own = adapter_arguments(config, len(engines.adapters))
                inference = inference.model_copy(update={"engine_kwargs": inference.engine_kwargs | own})
            groups[engines.key] = EngineGroup.create(
                f"lmgame-{engines.key}-{uuid.uuid4().hex[:12]}",
                config.model_files[engines.policy],
                inference,
                context_length=options.context_length,
                seed=engine_seed(config, engines),
                trust_remote_code=options.trust_remote_code,
                tokenizer=None if options.tokenizer is None else model_directory(options.tokenizer),
                placement_group=placement_group,
                bundle_indices=None if bundles is None else [next(bundles) for _ in range(engines.count)],
                wait=False,
            )
        with telling(config.watched_as, UP, "driver", sum(engines.count for engines in sets)) as up:
            for engines in sets:
                with _model_named(config, engines.policy):
                    groups[engines.key].wait_until_ready(up)
    except BaseException:
        for group in groups.values():
            group.shutdown()
        raise
    return {key: group for engines in sets for key, group in _by_key(engines, groups[engines.key]).items()}


def _by_key(engines: EngineSet, group: EngineGroup) -> dict[str, EngineGroup | AdapterOf]:
    return {key: AdapterOf(group, key) for key in engines.adapters} or {engines.key: group}


def adapter_arguments(config: LMGameConfig, count: int) -> dict[str, Any]:
    """What vLLM needs to hold as many adapters as trained policies and members have.

    Other layers than those with adapters have no place for any: not the head, whose place vLLM 0.32 has for one row of
    a request on CPUs, where replies that are scored have many.
    """
    from rllib_lmgame.policies.model.adapters import served_modules, served_rank

    policies = config.trained_policies()
    directory = model_directory(config.model_files[policies[0]].directory())
    ranks, modules = [], set()
    for options in map(config.language_model_of, policies):
        assert options.lora is not None
        ranks.append(served_rank(options.lora))
        modules |= served_modules(options.lora, directory, trust_remote_code=options.trust_remote_code)
    values = (True, count, count, max(ranks), sorted(modules))
    return dict(zip(ADAPTER_ARGUMENTS, values, strict=True))


def each_group(groups: Mapping[str, EngineGroup | AdapterOf]) -> list[EngineGroup]:
    """Every group of engines once."""
    return list(dict.fromkeys(each.group if isinstance(each, AdapterOf) else each for each in groups.values()))


@contextmanager
def _model_named(config: LMGameConfig, policy: str) -> Iterator[None]:
    """What an engine says of a model that it cannot load is said with the model's name and its key."""
    try:
        yield
    except (ConfigError, TimeoutError, EngineDeadError, EngineOOMError, InterruptedWaitError):
        raise
    except Exception as error:  # Weights that do not fit the configuration fail in many ways.
        key, source = config.run.policy(policy).place("language_model.model"), config.model_files[policy].source
        raise ConfigError(key, f"no engine starts with the model {source!r}: {first_line(error)}") from error


def engine_stats(groups: Mapping[str, EngineGroup | AdapterOf]) -> dict[str, float]:
    """Counters over all engines."""
    stats = [each for group in each_group(groups) for each in group.stats()]
    counted = ("generated_tokens", "prompt_tokens", "prompt_tokens_computed", "busy_s")
    return {key: float(sum(getattr(each, key) for each in stats)) for key in counted} | {"engines": float(len(stats))}


def engine_metrics(before: Mapping[str, float], after: Mapping[str, float], wall_s: float) -> dict[str, float]:
    """What the engines did between two calls of :func:`engine_stats`, as metrics."""
    delta = {key: max(0.0, after[key] - before[key]) for key in after}
    prompt = max(1.0, delta["prompt_tokens"])
    return {
        "engine_busy_fraction": delta["busy_s"] / max(1e-9, wall_s * max(1.0, after["engines"])),
        "prompt_tokens_computed_fraction": delta["prompt_tokens_computed"] / prompt,
    }
