"""One module, its optimizer and its gradients: what an update does to weights, in plain PyTorch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from rllib_lmgame.base.errors import CheckpointError, ConfigError
from rllib_lmgame.base.plugin import import_path
from rllib_lmgame.base.registry import check_call
from rllib_lmgame.base.storage import follow_umask
from rllib_lmgame.learners.options import LEAST_VALUE_LR, TrainingOptions
from rllib_lmgame.learners.process import ProcessGroup

if TYPE_CHECKING:
    from rllib_lmgame.policies.model.rl_module import LanguageModelRLModule

POLICY, VALUE_HEAD, VALUE_BACKBONE = PARTS = ("policy", "value_head", "value_backbone")
"""Parts of a module that may have learning rates of their own."""
NOTHING: Mapping[str, torch.Tensor] = {}
OPTIMIZER, MUON = "config.training.optimizer", "muon"
KIND = "kind"
"""Key of a saved optimizer's state: its class, since one that loads another's state may fail at its first step."""
PART = "part"
"""Key of a parameter group: the part it belongs to."""
OPTIONS = ("weight_decay", "betas")
"""Of a parameter group, what a checkpoint does not bring back."""


class GuardedOptimizer(torch.optim.Optimizer):
    """Makes an optimizer clip by global norm and skip a step with a NaN or infinite gradient.

    Args:
        max_grad_norm: Bound on the norm over all groups; ``None`` is off.
        guarded: Switched off where DeepSpeed's ZeRO clips and checks.

    ``_global_grad_norm`` (before clipping) and ``overflow`` (of the last step) are names that DeepSpeed's engine looks
    for.
    """

    def __init__(
        self, params: Iterable[Any], *, max_grad_norm: float | None = None, guarded: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(params, **kwargs)
        self.max_grad_norm = max_grad_norm
        self.guarded = guarded
        self._global_grad_norm = 0.0
        self.overflow = False

    def step(self, closure: Any = None) -> Any:
        if not self.guarded:
            return super().step(closure)
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = get_total_norm([p.grad for p in parameters])
        self._global_grad_norm = float(norm)
        self.overflow = not bool(torch.isfinite(norm))
        if self.overflow:
            return None
        if self.max_grad_norm is not None:
            clip_grads_with_norm_(parameters, self.max_grad_norm, norm)
        return super().step(closure)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's; a parameter group stays what it is here, with the decay and betas of the present options."""
        own = [{key: group[key] for key in (PART, *OPTIONS) if key in group} for group in self.param_groups]
        super().load_state_dict(state_dict)
        for group, kept in zip(self.param_groups, own, strict=True):
            group.update(kept)


class MuonAndAdamW(torch.optim.AdamW):
    """Muon in groups that have its ``momentum``, AdamW in the others."""

    param_groups: list[dict[str, Any]]
    __setstate__ = torch.optim.Optimizer.__setstate__  # AdamW's looks for its own state at every parameter.

    def step(self, closure: Any = None) -> Any:
        groups = self.param_groups
        rules: tuple[Any, ...] = (torch.optim.AdamW, torch.optim.Muon)
        for rule in rules:
            self.param_groups = [group for group in groups if _rule(group) is rule]
            rule.step(self, closure)
        self.param_groups = groups

    def _init_group(self, group: dict[str, Any], *lists: Any) -> Any:
        return _rule(group)._init_group(self, group, *lists)


def _rule(group: Mapping[str, Any]) -> Any:
    return torch.optim.Muon if "momentum" in group else torch.optim.AdamW


def optimizer_class(name: str) -> Any:
    """A guarded ``training.optimizer``. Raises: ConfigError: there is none; MissingDependencyError."""
    known = {"adamw": torch.optim.AdamW, MUON: MuonAndAdamW}
    if name not in known and ":" not in name:
        raise ConfigError(OPTIMIZER, f"no optimizer `{name}`; take {', '.join(known)} or give `package.module:Class`")
    own: Any = known.get(name) or import_path(name, OPTIMIZER)
    if not (isinstance(own, type) and issubclass(own, torch.optim.Optimizer)):
        raise ConfigError(OPTIMIZER, f"`{name}` is no torch.optim.Optimizer")
    check_call(own, name, OPTIMIZER, "an optimizer is made as (groups, lr=..., betas=...)", [], lr=0.0, betas=())
    return type(f"Guarded{own.__name__}", (GuardedOptimizer, own), {})


def make_optimizer(
    module: nn.Module, options: TrainingOptions, *, max_grad_norm: float | None, lr: float, guarded: bool = True
) -> GuardedOptimizer:
    """Of the trainable parameters, in groups by part; vectors (norms, biases) have no decay."""
    chosen: dict[tuple[str, bool, bool], list[nn.Parameter]] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            shape = getattr(parameter, "ds_shape", parameter.shape)  # Its own, where learners share it.
            decays = options.weight_decay > 0 and len(shape) >= 2
            first = name.partition(".")[0].replace("action_values", VALUE_HEAD)  # Trained also where the policy rests.
            part = first if first in PARTS else POLICY
            of_layer = part != VALUE_HEAD and re.search(r"\.\d+\.", name) is not None
            matrix = options.optimizer == MUON and of_layer and len(shape) == 2
            chosen.setdefault((part, decays, matrix), []).append(parameter)
    groups: list[dict[str, Any]] = []
    for part, decays, matrix in sorted(chosen, key=lambda key: (PARTS.index(key[0]), *key[1:])):
        parameters, own = chosen[part, decays, matrix], {}
        if matrix:
            own = torch.optim.Muon(parameters, adjust_lr_fn="match_rms_adamw").defaults
        decay = options.weight_decay if decays else 0.0
        groups.append({**own, "params": parameters, "lr": lr, "weight_decay": decay, PART: part})
    shared = {"lr": lr, "betas": tuple(options.adam_betas), "max_grad_norm": max_grad_norm, "guarded": guarded}
    if ":" not in options.optimizer:
        shared["fused"] = True  # Without it a step makes a copy of the size of the parameters.
    return optimizer_class(options.optimizer)(groups, **shared)


def learning_rates(options: TrainingOptions, lr: float, factor: float = 1.0) -> dict[str, float]:
    """Rate of each part: ``factor`` times its own or ``lr``; the head's is at least ``LEAST_VALUE_LR`` by default."""
    head = options.critic.lr
    if head is None:
        head = max(lr, LEAST_VALUE_LR) if lr > 0 else 0.0
    own = {POLICY: None, VALUE_HEAD: head, VALUE_BACKBONE: options.critic.backbone_lr}
    return {part: (lr if rate is None else rate) * factor for part, rate in own.items()}


def set_learning_rates(optimizer: torch.optim.Optimizer, rates: Mapping[str, float]) -> None:
    """Set the rate of each part; 0 for one that rests: no gradient is to ZeRO one of zero, and momentum goes on."""
    for group in optimizer.param_groups:
        rate, held = rates[group[PART]], group["lr"]  # torchao's holds a tensor: a number would compile anew.
        group["lr"] = torch.full_like(held, rate) if isinstance(held, torch.Tensor) else rate


@torch.no_grad()
def forget_moments(optimizer: torch.optim.Optimizer) -> None:
    """Make the optimizer one that has not stepped, in place, since ZeRO keeps its own references to its states."""
    if not isinstance(optimizer, torch.optim.AdamW):  # What 0 means in others' states nobody knows.
        optimizer.state.clear()
    for state in optimizer.state.values():
        for tensor in state.values():
            tensor.zero_()


def warmup_factor(steps_done: int, warmup_steps: int) -> float:
    """Linear warm-up: of ``warmup_steps`` steps the first has ``1 / warmup_steps`` of the rate, the last all of it."""
    return 1.0 if warmup_steps == 0 else min(1.0, (steps_done + 1) / warmup_steps)


WEIGHTS_FILE = "weights.safetensors"
OPTIMIZER_FILE = "optimizer.pt"


class StepResult(NamedTuple):
    """Gradient norm before clipping, and whether the step was skipped for gradients that are not finite."""

    grad_norm: float
    skipped: bool


@dataclass(eq=False)
class TorchEngine:
    """What carries out an update: here every learner holds all weights, and gradients are summed once a step.

    Every learner calls every method, in the same order.

    Attributes:
        lockstep: Forward and backward passes are collective: all learners must run the same number of them.
        loss_factor: On a loss normalised over all learners' tokens: their number if the engine averages gradients.
        holds_all_weights: The module's parameters are complete on every learner.
        divides_copies: Every learner has a share of each weight, and of a reference or an average.
        keeps_graphs: Several forward passes may run before the first backward pass.
    """

    module: LanguageModelRLModule
    optimizer: GuardedOptimizer
    ranks: ProcessGroup

    keeps_graphs = True
    lockstep = False
    loss_factor = 1.0
    holds_all_weights = True
    divides_copies = False

    def forward(self, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Outputs of the module's training forward pass."""
        return self.module.forward_train(batch)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of one micro-batch."""
        loss.backward()

    def step(self) -> StepResult:
        """Combine gradients over learners, clip, update, forget the gradients."""
        self.ranks.sum_gradients([p for group in self.optimizer.param_groups for p in group["params"]])
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return StepResult(self.optimizer._global_grad_norm, self.optimizer.overflow)

    def value_output(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Weight ``[1, h]`` and bias ``[1]`` of the value head's last layer: complete float32 copies."""
        outer = self.module.value_output()
        return outer.weight.detach().float().clone(), outer.bias.detach().float().clone()

    @torch.no_grad()
    def set_value_output(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        """Replace them; what counts is the first learner's."""
        outer = self.module.value_output()
        outer.weight.copy_(weight)
        outer.bias.copy_(bias)
        self.ranks.copy_from_first(outer.parameters())

    def full_state(
        self, trained: bool = False, others: Mapping[str, torch.Tensor] = NOTHING, everyone: bool = False
    ) -> AbstractContextManager[Mapping[str, torch.Tensor]]:
        """The language model's complete tensors by their names, valid inside the context: to be read on the first
        rank, or with ``everyone`` on all ranks in the same order. Where learners share the weights, each tensor is put
        together when it is read.

        ``trained``: without frozen weights beside adapters; ``others``: an average in place of what it holds.
        """
        state = self.module.hf_state(trained)
        return nullcontext(state | {name: tensor.to(state[name].dtype) for name, tensor in others.items()})

    def own_state(self) -> AbstractContextManager[Mapping[str, torch.Tensor]]:
        """What this learner holds of what is trained: complete tensors, or with ``divides_copies`` its shares."""
        return self.full_state(trained=True)

    def whole(self, parameters: Iterable[nn.Parameter]) -> AbstractContextManager[None]:
        """Inside the context these are complete; what is written to them, the same on all ranks, stays."""
        return nullcontext()

    def states(self) -> list[Any]:
        """What lies on this learner's device between two updates, tensors in modules, mappings and sequences."""
        return [self.module, self.optimizer.state]

    def save(self, directory: Path) -> None:
        """Write this learner's part of weights (value function included) and optimizer: all of it, by rank 0."""
        with self.ranks.all_or_none():
            if self.ranks.rank == 0:
                directory.mkdir(parents=True, exist_ok=True)
                state = {name: torch.as_tensor(value) for name, value in self.module.get_state().items()}
                save_tensors(state, directory / WEIGHTS_FILE)
                kind = type(self.optimizer).__name__
                torch.save({**self.optimizer.state_dict(), KIND: kind}, directory / OPTIMIZER_FILE)

    def load(self, directory: Path) -> None:
        """Read what :meth:`save` wrote. Raises: CheckpointError: names a file that is missing or damaged."""
        state: dict[str, Any] = dict(load_tensors(directory / WEIGHTS_FILE))
        state["version"] = int(state["version"])
        self.module.set_state(state)
        path = directory / OPTIMIZER_FILE
        try:
            saved = torch.load(path, weights_only=True, map_location="cpu")
            if (kind := saved.pop(KIND, None)) not in (None, type(self.optimizer).__name__):
                raise ValueError(f"of {kind}, not config.training.optimizer")
            self.optimizer.load_state_dict(saved)
        except Exception as error:
            raise CheckpointError(f"{path}: cannot be read ({type(error).__name__}: {error})") from error


def save_tensors(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    follow_umask(path)


def load_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Read a file of :func:`save_tensors`. Raises: CheckpointError: It is missing or damaged."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error})") from error
