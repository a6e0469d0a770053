"""The memory a trial's processes will take, and where they lie."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rllib_lmgame.algorithms.cluster import memory
from rllib_lmgame.base.numerics import computed_in
from rllib_lmgame.inference.weights import PART_BYTES
from rllib_lmgame.learners.microbatch import AUTOCAST_WIDTH, MOST_TOKENS, Room, default_tokens, kept_per_token
from rllib_lmgame.learners.options import EMAReference, divides_weights, half_precision, offloaded

if TYPE_CHECKING:
    from rllib_lmgame.algorithms.cluster.workers import EngineSet

LEARNER, ENGINE = "learner of", "engine of"
"""What the names of these processes begin with."""
VALUES = "action values"
OFFLOADED, OFFLOADED_WEIGHTS = "optimizer in host memory", "weights in host memory"
MERGING = "a member's weights, in host memory"
"""What an engine has beside its own while it merges a member's adapter: the base, and what comes of it."""
AWAY = "what leaves the GPU in turn, in host memory"
ON_HOST = (OFFLOADED, OFFLOADED_WEIGHTS, MERGING, AWAY)
USABLE = 0.95
"""Share of a machine's memory at which Ray begins to kill processes."""
TEACHER = "teacher"
STAYS = ("weights", "optimizer", memory.ZERO_BUFFERS, TEACHER)
"""What a learner holds of a policy between its updates."""


@dataclass(frozen=True)
class Processes:
    """Equal processes of a trial.

    Attributes:
        process: MiB of one with nothing in it.
        parts: MiB of one at its peak, by what takes them; in GPU memory if it has ``gpus``, but for :data:`ON_HOST`.
        gpus: Of one process.
    """

    name: str
    count: int
    process: float
    parts: dict[str, float]
    gpus: float = 0.0

    @property
    def each(self) -> float:
        """MiB of one, where its weights are."""
        return self.process + sum(value for part, value in self.parts.items() if part not in ON_HOST)

    @property
    def held(self) -> float:
        """MiB of one between its updates."""
        return sum(self.parts.get(part, 0.0) for part in STAYS)

    @property
    def on_host(self) -> float:
        """MiB of host memory of all together."""
        on_host = self.process if self.gpus else self.each
        return self.count * (on_host + sum(self.parts.get(part, 0.0) for part in ON_HOST))


@dataclass(frozen=True)
class Footprint:
    """What a trial takes.

    Attributes:
        policies: Shapes of language-model policies; ``None`` where a shape cannot be known.
        processes: Of the policies with known shapes, and the env runners.
        microbatches: Tokens of a micro-batch of the trained policies with known shapes; at most as many on GPUs.
        object_store: MiB of weights on their way to the engines: in Ray's object store, and while they are packed.
        copied: MiB of files in ``/dev/shm`` by which engines with tensor parallelism take weights, part by part.
    """

    policies: dict[str, memory.ModelShape | None]
    processes: tuple[Processes, ...]
    microbatches: dict[str, int]
    object_store: float
    copied: float = 0.0

    @property
    def shared_memory(self) -> float:
        """MiB of ``/dev/shm`` that weights take, where engines have tensor parallelism, if all are on one machine."""
        return self.object_store + self.copied if self.copied else 0.0

    @property
    def on_host(self) -> float:
        """MiB of host memory, if all processes are on one machine."""
        return sum(p.on_host for p in self.processes) + self.object_store + self.copied + memory.RAY_MIB


def footprint(config: Any, microbatch: int | None = None) -> Footprint:
    """Estimate for one configuration of this package's algorithms.

    ``microbatch``: tokens of a micro-batch in place of those that ``auto`` finds.
    """
    from rllib_lmgame.algorithms.cluster.workers import engine_sets

    policies = {policy: memory.shape_of(config, policy) for policy in config.language_model_policies()}
    known = {policy: shape for policy, shape in policies.items() if shape is not None}
    trained = {policy: shape for policy, shape in known.items() if config.run.is_trained(policy)}
    engines = [_engine(config, known[each.policy], each) for each in engine_sets(config) if each.policy in known]
    tokens = {policy: microbatch_tokens(config, policy, shape, microbatch) for policy, shape in trained.items()}
    holders = {_base(config, policy): policy for policy in trained}.values()
    learners = [_learner(config, policy, shape, tokens[policy], policy in holders) for policy, shape in trained.items()]
    if away := sum(each.parts.get(AWAY, 0.0) for each in learners):  # Page-locked in one block: a power of two.
        learners[0].parts[AWAY] += 2.0 ** math.ceil(math.log2(max(1.0, away))) - away
    learners += [average for policy, shape in trained.items() for average in _averages(config, policy, shape)]
    others = [Processes("algorithm", 1, memory.MAIN_PROCESS_MIB, {})]
    if config.num_env_runners:
        others.append(Processes("env runner", config.num_env_runners, memory.RUNNER_PROCESS_MIB, {}))
    pushed = [weights_mib(shape, _learner_width(config, policy)) for policy, shape in trained.items()]
    adapters = [adapters_of(config, policy, shape) for policy, shape in trained.items()]
    snapshots = [a if b is None else b * 4 / memory.MIB for a, b in zip(pushed, adapters, strict=True)]
    if config.run.inference.adapters:
        pushed = snapshots
    elif config.run.inference.over_devices:
        pushed = []  # But of a league's members, whose weights are files.
    league = config.run.league
    members = max(snapshots, default=0.0) * (0 if league is None else league.opponent_engines)
    zero = (config.run.deepspeed or {}).get("zero_optimization") or {}
    # The first learner packs one policy at a time; without GPU, shards and adapters that is less than the gradients
    # it no longer has.
    few = any(config.language_model_of(policy).lora is not None for policy in trained)
    packed = max(pushed, default=0.0) if config.num_gpus_per_learner or zero.get("stage", 0) >= 2 or few else 0.0
    stored, split = sum(pushed) + members + packed, config.run.inference.split > 1
    # Engines of one policy take their weights at once: the next part comes while a layer waits for its end.
    tensors = (shape.largest * _learner_width(config, policy) for policy, shape in trained.items())
    part = min(max(pushed, default=0.0), (PART_BYTES + max(PART_BYTES, *tensors, 0)) / memory.MIB)
    copied = config.run.inference.num_engines * part * split
    return Footprint(policies, (*learners, *engines, *others), tokens, stored, copied)


def weights_mib(shape: memory.ModelShape, width: int) -> float:
    return shape.parameters * width / memory.MIB


def machine_mib() -> float:
    """Memory of this machine, or of the container this program runs in."""
    from ray._common.utils import get_system_memory

    return get_system_memory() / memory.MIB


def free_mib() -> float:
    """Of that, what nobody has taken."""
    from ray._private.utils import estimate_available_memory

    return estimate_available_memory() / memory.MIB


def learner_dtype(config: Any, policy: str) -> str:
    """Numerics that learners hold weights in; beside adapters those that they compute in."""
    options = config.language_model_of(policy)
    return "float32" if options.dtype == "auto" and options.lora is None else computing_dtype(config, policy)


def computing_dtype(config: Any, policy: str) -> str:
    """Numerics that a policy's learners compute in, on a processor like this one."""
    dtype, on_gpu = config.language_model_of(policy).dtype, config.num_gpus_per_learner > 0
    return computed_in(dtype, lambda: getattr(memory.shape_of(config, policy), "parameters", 0), on_gpu)


def _autocasts(config: Any, policy: str) -> bool:
    """Whether passes on a processor run in bfloat16 over float32 weights."""
    narrow, on_gpu = memory.BYTES[computing_dtype(config, policy)], config.num_gpus_per_learner
    return not on_gpu and narrow < _learner_width(config, policy)


def _learner_width(config: Any, policy: str) -> int:
    return 2 if half_precision(config.run.deepspeed) else memory.BYTES[learner_dtype(config, policy)]


def adapters_of(config: Any, policy: str, shape: memory.ModelShape) -> int | None:
    """Parameters of a policy's adapters; ``None`` where all its weights are trained."""
    lora = config.language_model_of(policy).lora
    return None if lora is None else memory.adapter_parameters(shape, lora)


def _base(config: Any, policy: str) -> str:
    """What a learner holds once for all policies with adapters on it; a policy without has its own."""
    options = config.language_model_of(policy)
    own = policy if options.lora is None else ""
    return repr((own, options.model, sorted(options.tiny.items()), learner_dtype(config, policy)))


def _learner(config: Any, policy: str, shape: memory.ModelShape, microbatch: int, holds_base: bool) -> Processes:
    from rllib_lmgame.policies.model.adapters import as_begun  # Loads much.

    own = config.get_config_for_module(policy)
    options, update = config.language_model_of(policy), own.run.training
    separate = options.value_model == "separate"
    critic = config.run.needs_critic(policy)
    adapters = adapters_of(config, policy, shape)
    zero = _zero(config, memory.trained_parameters(shape, separate, critic, adapters))
    parts = memory.learner_mib(
        shape,
        dtype=learner_dtype(config, policy),
        mixed_precision=half_precision(config.run.deepspeed),
        zero=zero,
        num_learners=config.num_learners,
        microbatch_tokens=microbatch,
        head_chunk_tokens=update.head_chunk_tokens,
        observes=config.learns_observations(policy),
        constrained_decoding=config.run.text_rollouts.constrained_decoding,
        gradient_checkpointing=options.gradient_checkpointing,
        copies=int(config.run.needs_reference(policy)),
        separate_value=separate,
        critic=critic,
        context=longest_row(config, policy),
        adapters=adapters,
        holds_base=holds_base,
        autocasts=_autocasts(config, policy),
        loads_whole=options.lora is not None and bool(as_begun(options.lora).modules_to_save),
    )
    parts |= _values(config, policy, shape, min(microbatch, update.head_chunk_tokens))[0]
    held = config.run.teacher is not None and not config.run.teacher.is_asked
    teacher = memory.shape_of_model(config.run.teacher.model) if held else None
    if teacher is not None:
        share = max(1, config.num_learners) if divides_weights(config.run.deepspeed) else 1
        parts[TEACHER] = weights_mib(teacher, _learner_width(config, policy)) / share
    if offloaded(zero):
        parts[OFFLOADED] = parts.pop("optimizer")
    if offloaded(zero, "offload_param"):
        parts[OFFLOADED_WEIGHTS] = parts.pop("weights")
    if config.run.training.offload_during_rollout:
        away = (*STAYS, *["gradients"] * (zero.get("stage") == 3 and not offloaded(zero)))  # These have a buffer.
        parts[AWAY] = sum(parts.get(part, 0.0) for part in away)
    # Without one of its own it is the algorithm's.
    process = memory.LEARNER_PROCESS_MIB if config.num_learners else 0.0
    return Processes(f"{LEARNER} {policy}", max(1, config.num_learners), process, parts, config.num_gpus_per_learner)


def _values(
    config: Any, policy: str, shape: memory.ModelShape, chunk: int
) -> tuple[dict[str, float], dict[str, float]]:
    """MiB of a policy's action values in a learner and in an engine; nothing where it has none."""
    kinds, options = config.values_of(policy), config.language_model_of(policy)
    if kinds is None:
        return {}, {}
    separate = options.value_model == "separate"
    sizes = memory.action_values_bytes(shape, kinds["heads"], kinds["state"], kinds["targets"], separate, chunk)
    learner, engine = ({VALUES: size / memory.MIB} for size in sizes)
    return learner, engine if kinds["beta"] else {}


def longest_row(config: Any, policy: str) -> int:
    rows = config.get_config_for_module(policy).run.training.max_row_tokens
    return int(rows or config.language_model_of(policy).context_length)


def microbatch_tokens(config: Any, policy: str, shape: memory.ModelShape, found: int | None = None) -> int:
    """Tokens of a micro-batch, at most; ``found`` is what ``auto`` finds."""
    asked = config.get_config_for_module(policy).run.training.microbatch or found
    if asked is not None:
        return int(asked)
    options = config.language_model_of(policy)
    width = AUTOCAST_WIDTH if _autocasts(config, policy) else _learner_width(config, policy)
    backbones = 2 if options.value_model == "separate" else 1
    context = longest_row(config, policy)
    kept = kept_per_token(shape.layers, shape.layer, width, context, options.gradient_checkpointing)
    return default_tokens(kept * backbones, config.num_gpus_per_learner > 0)


def learner_rooms(config: Any) -> dict[str, Room]:
    """Where the activations of trained policies must fit, for ``max_tokens_per_microbatch: auto``.

    On a GPU that is nine tenths of what engines and the learner's states leave of its card; nothing else is limited so.
    """
    follows = any(
        config.get_config_for_module(policy).run.training.microbatch is None for policy in config.trained_policies()
    )
    if not follows or config.run.deterministic or not config.num_gpus_per_learner:
        return {}
    taken = footprint(config, MOST_TOKENS)
    learners = {policy: p for policy in taken.policies for p in taken.processes if p.name == f"{LEARNER} {policy}"}
    share, states = _share_of_card(config, taken), sum(p.held for p in learners.values())
    return {
        policy: Room((states + p.each - p.held - p.parts["activations"]) * memory.MIB, share)
        for policy, p in learners.items()
    }


def engines_beside(taken: Footprint, room: float) -> int:
    """Engines that Ray may put into ``room`` of a GPU, at most."""
    engines = [p for p in taken.processes if p.gpus and p.name.startswith(ENGINE)]
    return min(sum(p.count for p in engines), int(room / engines[0].gpus + 1e-6)) if engines else 0


def _share_of_card(config: Any, taken: Footprint) -> float:
    inference, gpus = config.run.inference, config.num_gpus_per_learner
    beside = engines_beside(taken, 1 - gpus)
    if not beside:
        return float(min(1.0, gpus))
    return 1.0 if inference.sleep_during_update else max(0.0, 1 - inference.gpu_memory_utilization * beside)


def _averages(config: Any, policy: str, shape: memory.ModelShape) -> list[Processes]:
    update, adapters = config.get_config_for_module(policy).run.training, adapters_of(config, policy, shape)
    ema = update.kl is not None and isinstance(update.kl.reference, EMAReference)
    moving = ema and _learner_width(config, policy) == 2
    count = max(1, config.num_learners) if adapters is None and divides_weights(config.run.deepspeed) else 1
    mib = (shape.parameters if adapters is None else adapters) * 4 / memory.MIB / count
    kept = {"averaged weights": update.ema_decay is not None, "moving reference": moving}
    return [Processes(f"{what} of {policy}", count, 0.0, {"weights": mib}) for what, there in kept.items() if there]


def _zero(config: Any, trained: int) -> dict[str, Any]:
    from rllib_lmgame.learners.engines.deepspeed_engine import deepspeed_config, with_bucket_sizes

    if config.run.deepspeed is None:
        return {}
    return with_bucket_sizes(deepspeed_config(config.run.deepspeed, config.grad_clip), trained)["zero_optimization"]


def engine_numerics(config: Any, policy: str) -> tuple[str, float | None]:
    """Numerics of a policy's engines, and MiB of each one's key-value cache; ``None``: none is set aside in advance."""
    options = config.run.engine_options
    dtype = options.dtype_on(options.on_gpu, lambda: getattr(memory.shape_of(config, policy), "parameters", 0))
    return "bfloat16" if dtype == "auto" else dtype, options.cache_mib if options.engine.reserves_cache else None


def _engine(config: Any, shape: memory.ModelShape, engines: EngineSet) -> Processes:
    options = config.run.inference
    dtype, cache = engine_numerics(config, engines.policy)
    if options.engine.outside:
        return Processes(f"{ENGINE} {engines.key}", engines.count, options.engine.process_mib, {}, 0)
    games = max(1, config.num_env_runners) * config.num_envs_per_env_runner
    at_once = min(options.max_num_seqs, -(-games // options.num_engines))
    parts = memory.engine_mib(shape, dtype=dtype, split=options.split, kv_cache_mib=cache, sequences=at_once)
    if options.engine.copies_tied_head and not options.on_gpu and shape.tied:
        parts["weights"] += shape.head * memory.BYTES[dtype] / memory.MIB
    if options.engine.plays_values and not engines.is_opponent:
        parts |= _values(config, engines.policy, shape, 0)[1]
    if engines.adapters:  # Places of the largest one.
        each = max(adapters_of(config, policy, shape) or 0 for policy in config.trained_policies())
        parts["adapters"] = len(engines.adapters) * each * memory.BYTES[dtype] / memory.MIB
    if engines.is_opponent and config.language_model_of(engines.policy).lora is not None:
        parts[MERGING] = 2 * weights_mib(shape, _learner_width(config, engines.policy))
    if config.run.training.offload_during_rollout:  # While a checkpoint is written; a power of two for each tensor.
        parts[AWAY] = 2 * parts["weights"]
    return Processes(
        f"{ENGINE} {engines.key}", engines.count, options.engine.process_mib, parts, options.num_gpus_per_engine
    )
