"""DeepSpeed inside an RLlib learner: ZeRO 0-3, offload, mixed precision.

RLlib starts the learners and their process group; DeepSpeed takes both over. The learner's loop owns gradient
accumulation, so the number of micro-batches may change from step to step. Nothing is compiled: the optimizer is
PyTorch's AdamW, and DeepSpeed's own CPU communication kernel is not built.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rllib_lmgame.base.errors import CheckpointError, ConfigError, MissingDependencyError
from rllib_lmgame.base.group import describe, unknown_key
from rllib_lmgame.learners.engines.torch_engine import GuardedAdamW, StepResult, TorchEngine
from rllib_lmgame.learners.options import HALF, half_precision
from rllib_lmgame.learners.process import ProcessGroup
from rllib_lmgame.policies.model.rl_module import BASE, LanguageModelRLModule

_TAG = "state"
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
_KNOWN_KEYS = frozenset(
    (
        *("activation_checkpointing", "aio", "amp", "bf16", "bfloat16", "checkpoint", "comms_logger"),
        *("communication_data_type", "data_types", "disable_allgather", "dump_state", "flops_profiler", "fp16"),
        *("gradient_predivide_factor", "memory_breakdown", "monitor_config", "prescale_gradients"),
        *("seq_parallel_communication_data_type", "sparse_gradients", "steps_per_print"),
        *("tensorboard", "csv_monitor", "wandb", "timers", "torch_autocast", "wall_clock_breakdown"),
        *("zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "zero_optimization"),
    )
)


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


def optimizer_is_guarded(user: Mapping[str, Any] | None) -> bool:
    """Whether our optimizer clips and checks gradients itself; else ZeRO does."""
    return not half_precision(user) and not ((user or {}).get("zero_optimization") or {}).get("stage", 0)


class DeepSpeedEngine(TorchEngine):
    """A ``deepspeed`` engine behind the same interface.

    The module is changed in place: cast, and with ZeRO 3 partitioned. ``config`` is that of :func:`deepspeed_config`.

    Raises: MissingDependencyError: if DeepSpeed is not installed.
    """

    keeps_graphs = False

    def __init__(
        self, module: LanguageModelRLModule, optimizer: GuardedAdamW, ranks: ProcessGroup, config: dict[str, Any]
    ) -> None:
        deepspeed = import_deepspeed(ranks)
        self.module = module
        self.ranks = ranks
        self.stage = int(config["zero_optimization"].get("stage", 0))
        if self.stage == 3 and ranks.world > 1:
            module.prunes = False  # Every learner must gather the same layers in the same order, whatever its batch.
        config = with_bucket_sizes(config, sum(p.numel() for p in module.parameters() if p.requires_grad))
        self.engine, self._optimizer, _, _ = deepspeed.initialize(
            model=module, optimizer=optimizer, config=config, dist_init_required=False
        )
        self._gathered = deepspeed.zero.GatheredParameters
        self.lockstep = self.stage >= 2 and ranks.world > 1
        self.loss_factor = float(ranks.world)
        self.holds_all_weights = self.stage < 3

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
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_local_fp32_param

        outer, ranks = self.module.value_output(), self.ranks
        ranks.copy_from_first((weight, bias))
        with self.whole((outer.weight, outer.bias)):
            outer.weight.copy_(weight)
            outer.bias.copy_(bias)
        for parameter, value in ((outer.weight, weight), (outer.bias, bias)):
            if self.holds_all_weights:
                safe_set_full_fp32_param(parameter, value.float())  # Does nothing where there is one copy only.
                continue
            part = int(getattr(parameter, "ds_tensor").numel())  # noqa: B009
            padded = torch.zeros(part * ranks.world, device=value.device)
            padded[: value.numel()] = value.flatten()
            safe_set_local_fp32_param(parameter, padded[part * ranks.rank : part * (ranks.rank + 1)])

    @contextmanager
    def full_state(self, trained: bool = False) -> Iterator[dict[str, torch.Tensor]]:
        model = self.module.language_model
        partitioned = (
            [] if self.holds_all_weights else [p for p in model.parameters() if p.requires_grad or not trained]
        )
        with self._gathered(partitioned, enabled=bool(partitioned)):
            yield self.module.hf_state(trained)

    @contextmanager
    def whole(self, parameters: Iterable[torch.nn.Parameter]) -> Iterator[None]:
        partitioned = [] if self.holds_all_weights else list(parameters)
        with self._gathered(partitioned, modifier_rank=0, enabled=bool(partitioned)):
            yield

    def save(self, directory: Path) -> None:
        """Every learner writes its shards. Raises: OSError, or OtherLearnerError: those of another cannot be written.

        DeepSpeed's learners wait for each other when they have written: an error of one is kept until all are through.
        """
        failures: list[Exception] = []
        with self.ranks.all_or_none():
            (directory / _TAG).mkdir(parents=True, exist_ok=True)
        with (
            _errors_kept(self.engine.checkpoint_engine, "save", failures),
            _errors_kept(self.engine, "_copy_recovery_script", failures),
        ):
            adapters = self.module.adapters
            self.engine.save_checkpoint(
                str(directory),
                tag=_TAG,
                client_state={} if adapters is None else {BASE: adapters.fingerprint},
                save_latest=False,
                exclude_frozen_parameters=adapters is not None,
            )
        with self.ranks.all_or_none():
            if failures:
                raise failures[0]
            if self.ranks.rank == 0:
                (directory / "latest").write_text(_TAG)  # Read by DeepSpeed's own scripts.

    def load(self, directory: Path) -> None:
        """Read the shards. Raises: CheckpointError: missing, damaged, or of another number of learners."""
        adapters = self.module.adapters
        try:
            path, own = self.engine.load_checkpoint(
                str(directory), tag=_TAG, load_lr_scheduler_states=False, load_module_strict=adapters is None
            )
        except Exception as error:
            raise CheckpointError(
                f"{directory / _TAG}: DeepSpeed cannot load it into {self.ranks.world} learners "
                f"({type(error).__name__}: {error})"
            ) from error
        if path is None:
            raise CheckpointError(f"{directory / _TAG}: DeepSpeed finds no checkpoint")
        if own.get(BASE) != (None if adapters is None else adapters.fingerprint):
            raise CheckpointError(
                f"{directory / _TAG} does not suit language_model.lora, or its adapters are for other weights"
            )


@contextmanager
def _errors_kept(owner: Any, method: str, failures: list[Exception]) -> Iterator[None]:
    """Meanwhile errors of ``owner``'s method go to ``failures`` instead of being raised."""
    plain = getattr(owner, method)

    def kept(*args: Any, **kwargs: Any) -> None:
        try:
            plain(*args, **kwargs)
        except Exception as error:
            failures.append(error)

    setattr(owner, method, kept)
    try:
        yield
    finally:
        delattr(owner, method)


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
