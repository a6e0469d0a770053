"""DeepSpeed inside an RLlib learner: ZeRO 0-3, offload, mixed precision.

RLlib starts the learners and their process group; DeepSpeed takes both over. The learner's loop owns gradient
accumulation, so the number of micro-batches may change from step to step. Nothing is compiled: the optimizer is
PyTorch's AdamW, and DeepSpeed's own CPU communication kernel is not built.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from rllib_lmgame.base.errors import CheckpointError, ConfigError, MissingDependencyError
from rllib_lmgame.base.group import describe, unknown_key
from rllib_lmgame.learners.engines.shards import GatheredTensors, SavedShares, save_shares
from rllib_lmgame.learners.engines.torch_engine import KIND, NOTHING, GuardedOptimizer, StepResult, TorchEngine
from rllib_lmgame.learners.options import HALF, half_precision
from rllib_lmgame.learners.process import ProcessGroup
from rllib_lmgame.policies.model.network import PolicyNetwork
from rllib_lmgame.policies.model.rl_module import BASE, LanguageModelRLModule

SHARES = "zero"
"""Beginning of the names of learners' files."""
WEIGHTS, MOMENTS, MUON_MOMENTS = "weights", ("exp_avg", "exp_avg_sq"), ("momentum_buffer",)
"""What they have of each parameter."""
_MOST_PER_BUCKET = 500_000_000
"""DeepSpeed's own ``reduce_bucket_size``, in entries."""
_MISSING = (
    "deepspeed: the section needs the package deepspeed; install it (pip install deepspeed), or leave the section out"
)
_REPLACED_BY = {
    "optimizer": "`lr`, `training.adam_betas` and `training.weight_decay`",
    "scheduler": "RLlib's `lr` schedule and `training.lr_warmup_steps`",
    "train_batch_size": "`text_rollouts.episodes_per_iteration`",
    "train_micro_batch_size_per_gpu": "`training.max_tokens_per_microbatch`",
    "gradient_accumulation_steps": "`training.max_tokens_per_microbatch` and `training.num_minibatches`",
    "managed_gradient_accumulation": "the learner, which accumulates gradients itself",
    "gradient_clipping": "`grad_clip`",
}
_WITHOUT_COPIES = {"bf16_master_weights_and_grads", "bf16_optimizer_states", "fp16_master_weights_and_grads"}
"""Options of half precision that leave no float32 copies of the weights, or states of the optimizer."""
_KNOWN_KEYS = {
    *("activation_checkpointing", "aio", "amp", "bf16", "bfloat16", "checkpoint", "comms_logger", "csv_monitor"),
    *("communication_data_type", "data_types", "disable_allgather", "dump_state", "flops_profiler", "fp16", "timers"),
    *("gradient_predivide_factor", "memory_breakdown", "monitor_config", "prescale_gradients", "sparse_gradients"),
    *("seq_parallel_communication_data_type", "steps_per_print", "tensorboard", "wandb", "torch_autocast"),
    *("wall_clock_breakdown", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "zero_optimization"),
}


def deepspeed_config(user: Mapping[str, Any], grad_clip: float | None = None) -> dict[str, Any]:
    """DeepSpeed's configuration: the user's section (``auto`` leaves a value to us), and what the learner must set.

    Raises: ConfigError: for an unknown key, or one that another setting of the algorithm decides.
    """
    config = {key: value for key, value in user.items() if value != "auto"}
    for key in config:
        if key in _REPLACED_BY:
            raise ConfigError(f"deepspeed.{key}", f"is set by {_REPLACED_BY[key]}; leave it out")
        if key not in _KNOWN_KEYS:
            raise unknown_key(key, _KNOWN_KEYS, "deepspeed")
    for name in HALF:
        half_section = _section(config, name, "{enabled: true}")
        enabled = half_section.get("enabled", False)
        if not isinstance(enabled, bool):  # `no` is a text in YAML 1.2.
            raise ConfigError(f"deepspeed.{name}.enabled", f"must be true or false, got {describe(enabled)}")
        for key in _WITHOUT_COPIES & half_section.keys():
            if half_section[key]:
                why = "keeps no float32 copies, without which small steps are lost in rounding; leave it out"
                raise ConfigError(f"deepspeed.{name}.{key}", why)
    half = half_precision(config)
    config.setdefault("zero_optimization", {"stage": int(half)})
    zero = _section(config, "zero_optimization", "{stage: 2}")
    stage = zero.get("stage", 0)
    if isinstance(stage, bool) or stage not in (0, 1, 2, 3):
        raise ConfigError("deepspeed.zero_optimization.stage", f"must be 0, 1, 2 or 3, got {describe(stage)}")
    if half and stage == 0:
        raise ConfigError("deepspeed.zero_optimization.stage", "must be 1, 2 or 3 in half precision, got 0")
    if stage < 2 and zero.get("overlap_comm"):
        raise ConfigError("deepspeed.zero_optimization.overlap_comm", f"needs stage 2 or 3, got stage {stage}")
    types = _section(config, "data_types", "{grad_accum_dtype: fp32}")
    if half:  # DeepSpeed would sum in 16 bits.
        config["data_types"] = {"grad_accum_dtype": "fp32", **types}
    config.pop("activation_checkpointing", None)
    config.setdefault("steps_per_print", 2**31 - 1)
    # Without ZeRO the optimizer itself clips, since it has to look at the norm anyway.
    return config | {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": float(grad_clip or 0.0) if stage else 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }


def _section(config: Mapping[str, Any], name: str, such_as: str) -> Mapping[str, Any]:
    value = {} if config.get(name) is None else config[name]
    if not isinstance(value, Mapping):
        raise ConfigError(f"deepspeed.{name}", f"expected a mapping such as {such_as}, got {describe(value)}")
    return value


def with_bucket_sizes(config: Mapping[str, Any], parameters: int) -> dict[str, Any]:
    """``config`` with gradient buckets no larger than the trained ``parameters``; what the user set stays.

    Each learner sets aside ``reduce_bucket_size`` entries, 2 GB by default. One that holds every gradient is enough.
    """
    zero = dict(config["zero_optimization"])
    if zero.get("stage", 0) > 0 and zero.get("reduce_bucket_size", "auto") == "auto":
        zero["reduce_bucket_size"] = min(_MOST_PER_BUCKET, max(1, parameters))
    return dict(config) | {"zero_optimization": zero}


class DeepSpeedEngine(TorchEngine):
    """A ``deepspeed`` engine behind the same interface.

    The module is changed in place: cast, and with ZeRO 3 partitioned. ``config`` is that of :func:`deepspeed_config`.

    Raises: MissingDependencyError: if DeepSpeed is not installed.
    """

    keeps_graphs = False

    def __init__(
        self, module: LanguageModelRLModule, optimizer: GuardedOptimizer, ranks: ProcessGroup, config: dict[str, Any]
    ) -> None:
        deepspeed = import_deepspeed(ranks)
        self.module, self.ranks, self._adam = module, ranks, optimizer
        self._by_muon = {id(p) for group in optimizer.param_groups if "momentum" in group for p in group["params"]}
        self.stage = int(config["zero_optimization"].get("stage", 0))
        if self.stage == 3 and ranks.world > 1:
            module.prunes = False  # Every learner must gather the same layers in the same order, whatever its batch.
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.config = config = with_bucket_sizes(config, sum(getattr(p, "ds_numel", p.numel()) for p in trained))
        self.engine, self._optimizer, _, _ = deepspeed.initialize(
            model=module, optimizer=optimizer, config=config, dist_init_required=False
        )
        self._gathered = deepspeed.zero.GatheredParameters
        self.lockstep = self.stage >= 2 and ranks.world > 1
        self.loss_factor = float(ranks.world)
        self.holds_all_weights = self.stage < 3
        self.divides_copies = self.stage == 3 and module.adapters is None

    def forward(self, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
        return self.engine(batch)

    def backward(self, loss: torch.Tensor) -> None:
        self.engine.backward(loss)

    def step(self) -> StepResult:
        self.engine.step()
        norm = self.engine.get_global_grad_norm()
        skipped = bool(getattr(self._optimizer, "overflow", False))
        return StepResult(float("nan") if skipped or norm is None else float(norm), skipped)

    def value_output(self) -> tuple[torch.Tensor, torch.Tensor]:
        from deepspeed.utils import safe_get_full_fp32_param

        def whole(parameter: torch.Tensor) -> torch.Tensor:
            found = safe_get_full_fp32_param(parameter)
            return (parameter if found is None else found).detach().float().clone()

        outer = self.module.value_output()
        return whole(outer.weight), whole(outer.bias)

    @torch.no_grad()
    def set_value_output(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        outer = self.module.value_output()
        self.ranks.copy_from_first((weight, bias))
        with self.whole((outer.weight, outer.bias)):
            outer.weight.copy_(weight)
            outer.bias.copy_(bias)
        values = {id(outer.weight): weight, id(outer.bias): bias}
        for _, parameter, begin, size in self._fragments():
            if id(parameter) in values:
                self._set_state(parameter, None, values[id(parameter)].flatten()[begin : begin + size])

    @contextmanager
    def full_state(
        self, trained: bool = False, others: Mapping[str, torch.Tensor] = NOTHING, everyone: bool = False
    ) -> Iterator[Mapping[str, torch.Tensor]]:
        if self.holds_all_weights:
            with super().full_state(trained, others) as complete:
                yield complete
        elif trained and self.module.adapters is not None:  # On every rank, since it is little.
            with self.whole(p for p in self.module.language_model.parameters() if p.requires_grad):
                state = self.module.hf_state(trained)
                yield state | {name: tensor.to(state[name].dtype) for name, tensor in others.items()}
        else:
            tensors, like = shares_of(self.module)
            if not self.divides_copies:  # An average of adapters is whole.
                others = {name: tensor.to(like.pop(name).dtype) for name, tensor in others.items()}
            gathered = GatheredTensors({**tensors, **others}, like, self.ranks)
            with nullcontext(gathered) if everyone else gathered.read_by_first():
                yield gathered

    def own_state(self) -> AbstractContextManager[Mapping[str, torch.Tensor]]:
        return nullcontext(shares_of(self.module)[0]) if self.divides_copies else self.full_state(trained=True)

    def frozen_engine(self, network: PolicyNetwork, filled: bool = False) -> Any:
        """DeepSpeed's engine of an empty ``network`` that is never trained, divided as the policy is; ``filled`` as of
        :func:`divide`.
        """
        deepspeed = import_deepspeed(self.ranks)
        network.prunes = network.prunes and self.module.prunes
        divide(network.requires_grad_(False).to(self.ranks.device), self.ranks, self.config, filled=filled)
        zero = {key: value for key, value in self.config["zero_optimization"].items() if key != "offload_optimizer"}
        config = self.config | {"zero_optimization": zero}
        engine = deepspeed.initialize(model=network, config=config, dist_init_required=False)[0]
        engine.eval()
        return engine

    @contextmanager
    def whole(self, parameters: Iterable[torch.nn.Parameter]) -> Iterator[None]:
        partitioned = [] if self.holds_all_weights else list(parameters)
        with self._gathered(partitioned, modifier_rank=0, enabled=bool(partitioned)):
            yield

    def states(self) -> list[Any]:
        own = vars(self._optimizer)
        return [self.module, self._adam.state, own, [vars(each) for each in own.get("ipg_buckets", {}).values()]]

    def save(self, directory: Path) -> None:
        """Every learner writes its share. Raises: OSError, or OtherLearnerError: one cannot be written."""
        self._make_moments()
        about = {
            BASE: self._base(),
            KIND: type(self._adam).__name__,
            "step": next((float(state["step"]) for state in self._adam.state.values() if "step" in state), 0.0),
            "scaler": {name: value for name, value in self._scaler().items() if isinstance(value, int | float)},
        }
        shares = (
            (f"{name}:{key or WEIGHTS}", begin, self._state(parameter, key).flatten()[:size])
            for name, parameter, begin, size in self._fragments()
            for key in (None, *self._moments(parameter))
            if self.stage or self.ranks.rank == 0
        )
        with self.ranks.all_or_none():
            directory.mkdir(parents=True, exist_ok=True)
            save_shares(shares, directory / SHARES, self.ranks, about)

    def load(self, directory: Path) -> None:
        """Read what any number of learners saved. Raises: CheckpointError: missing, damaged, or of another model."""
        if self.stage == 3:
            self._optimizer.checkpoint_event_prologue()
        self._make_moments()
        with self.ranks.all_or_none():
            saved = SavedShares(directory / SHARES)
            if not saved:
                raise CheckpointError(f"{directory / SHARES}: there are no such files")
            if saved.about[BASE] != self._base():
                raise CheckpointError(
                    f"{directory / SHARES} does not suit language_model.lora, or its adapters are for other weights"
                )
            if (kind := saved.about.get(KIND)) not in (None, type(self._adam).__name__):
                raise CheckpointError(f"{directory / SHARES}: of {kind}, not config.training.optimizer")
            for name, parameter, begin, size in self._fragments():
                for key in (None, *self._moments(parameter)):
                    self._set_state(parameter, key, saved.read(f"{name}:{key or WEIGHTS}", begin, size))
            for state in self._adam.state.values():
                if "step" in state:
                    state["step"].fill_(saved.about["step"])
        self._scaler().update(saved.about["scaler"])
        if self.stage == 3:
            self._optimizer.checkpoint_event_epilogue()
        elif self.stage:
            self._optimizer.update_lp_params()

    def _base(self) -> str | None:
        return None if self.module.adapters is None else self.module.adapters.fingerprint

    def _scaler(self) -> dict[str, Any]:
        """Attributes of what scales losses in float16."""
        return vars(getattr(self._optimizer, "loss_scaler", SimpleNamespace()))

    def _fragments(self) -> Iterator[tuple[str, Any, int, int]]:
        """Trained parameters by name, and first entry and size of what this learner's optimizer has of each."""
        for name, parameter in self.module.named_parameters():
            at: Any = getattr(parameter, "_hp_mapping", None)
            if not parameter.requires_grad or (self.stage in (1, 2) and at is None):
                continue
            if self.stage == 3:
                length, numel = parameter.ds_tensor.numel(), parameter.ds_numel
                begin = min(length * self.ranks.rank, numel)
                yield name, parameter, begin, min(length, numel - begin)
            elif self.stage:
                yield name, parameter, at.lp_fragment_address.start, at.lp_fragment_address.numel
            else:
                yield name, parameter, 0, parameter.numel()

    def _state(self, parameter: Any, key: str | None) -> torch.Tensor:
        """Of a fragment: the optimizer's own weights, or one of :data:`MOMENTS`; padded with ZeRO 3."""
        if self.stage == 3:
            return parameter._z3_optimizer.get_local_fp32_param(parameter, key)
        if not self.stage:
            return parameter.detach() if key is None else self._adam.state[parameter][key]
        here = parameter._hp_mapping  # Whose own links to moments miss those of all groups but the first.
        (flat,) = self._adam.param_groups[here.param_group_index]["params"]
        at = here.hp_fragment_address
        return (flat if key is None else self._adam.state[flat][key]).detach().narrow(0, at.start, at.numel)

    @torch.no_grad()
    def _set_state(self, parameter: Any, key: str | None, value: torch.Tensor) -> None:
        if self.stage < 3:
            own = self._state(parameter, key)
            own.copy_(value.view_as(own))
            return
        padded = torch.nn.functional.pad(value, (0, parameter.ds_tensor.numel() - len(value)))
        parameter._z3_optimizer.set_local_hp_param(padded, parameter, key)
        if key is None:
            parameter.ds_tensor.copy_(padded)

    def _make_moments(self) -> None:
        own = [parameter for group in self._adam.param_groups for parameter in group["params"]]
        for parameter in self._optimizer.fp32_partitioned_groups_flat if self.stage == 3 else own:
            if not self._adam.state[parameter]:
                moments = self._moments(parameter)
                step = {"step": torch.zeros((), device=parameter.device)} if moments == MOMENTS else {}
                self._adam.state[parameter] = step | {key: torch.zeros_like(parameter) for key in moments}

    def _moments(self, parameter: torch.Tensor) -> tuple[str, ...]:
        return MUON_MOMENTS if id(parameter) in self._by_muon else MOMENTS


def divide(network: PolicyNetwork, ranks: ProcessGroup, config: Mapping[str, Any], *, filled: bool = True) -> None:
    """Spread an ``empty`` network over the learners for ZeRO 3: none holds more of it than its share and one part.

    The first learner reads its checkpoint. If it is not ``filled``, the weights are left to chance.
    Raises: ConfigError: the checkpoint lacks weights.
    """
    deepspeed = import_deepspeed(ranks)
    enabled = {name for name in HALF if (config.get(name) or {}).get("enabled")}
    dtype = (torch.float16 if "fp16" in enabled else torch.bfloat16) if enabled else None
    read, samples = None, list[Any]()
    with ranks.all_or_none():
        if filled and ranks.rank == 0:
            read = network.checkpoint_reader()
    for parameter in network.parameters():
        if not parameter.is_meta:
            parameter.data = parameter.data.to(ranks.device, dtype or parameter.dtype)
    first: Any = None
    for named, copies in network.fill(read, dtype, ranks.device):
        if network.adapters is not None:
            samples += network.adapters.samples(named)
        parameters = [*named.values(), *copies]
        if first is None:  # What is set up here, all others get from it.
            deepspeed.zero.Init(module=torch.nn.ParameterList(parameters), config_dict_or_path=dict(config))
            first = parameters[0]
        else:
            first.convert_to_zero_parameters(param_list=parameters)
    if network.adapters is not None:  # The first learner's alone are of what was read.
        network.adapters.belong_to(ranks.gathered(samples)[0])


def shares_of(network: PolicyNetwork) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """A divided network's tensors by their names, and those that are shares as :class:`GatheredTensors` wants them."""
    parameters: dict[str, Any] = dict(network.language_model.named_parameters())
    tensors = {
        name: parameters[name].ds_tensor if name in parameters else tensor
        for name, tensor in network.hf_state().items()
    }
    like = {name: torch.empty(p.ds_shape, dtype=p.dtype, device="meta") for name, p in parameters.items()}
    return tensors, like


def import_deepspeed(ranks: ProcessGroup) -> Any:
    """Import DeepSpeed on the learners' process group. Raises: MissingDependencyError: it is not installed."""
    on_gpu = ranks.device.type == "cuda"
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if on_gpu else "cpu")
    os.environ.update(LOCAL_RANK="0", RANK=str(ranks.rank), WORLD_SIZE=str(ranks.world))
    try:
        import deepspeed
    except ImportError as error:
        raise MissingDependencyError(_MISSING) from error
    backend = "nccl" if on_gpu else "gloo"
    if not dist.is_initialized():
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    if dist.get_world_size() != ranks.world:
        raise RuntimeError(
            f"{ranks.world} learner(s), but this process already belongs to a group of {dist.get_world_size()}"
        )
    if not on_gpu:  # Its shared-memory kernel would be compiled in the middle of the run.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, verbose=False)
    return deepspeed


def check_deepspeed(user: Mapping[str, Any] | None, grad_clip: float | None) -> None:
    """Check the section on the driver. Raises: ConfigError: it cannot work; MissingDependencyError: no DeepSpeed."""
    if user is None:
        return
    import importlib.util

    deepspeed_config(user, grad_clip)
    if importlib.util.find_spec("deepspeed") is None:
        raise MissingDependencyError(_MISSING)
