"""AdamW with a bounded gradient norm that leaves the weights alone when gradients are not finite."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from rllib_lmgame.settings.sections.token_ppo import LEAST_VALUE_LR, TokenPPOOptions

POLICY, VALUE_HEAD, VALUE_BACKBONE = PARTS = ("policy", "value_head", "value_backbone")
"""Parts of a module that may have learning rates of their own."""
VALUE_PARTS = frozenset((VALUE_HEAD, VALUE_BACKBONE))
PART = "part"
"""Key of a parameter group: the part it belongs to."""


class GuardedAdamW(torch.optim.AdamW):
    """AdamW that clips by global norm and skips a step with a NaN or infinite gradient.

    Args:
        params: Parameter groups.
        max_grad_norm: Bound on the norm over all groups; ``None`` is off.
        max_value_grad_norm: Bound on the norm over the value function's groups; the other one is then on the norm over
            the rest. ``None``: they have one norm.
        guarded: Switched off where somebody else (DeepSpeed's ZeRO) clips and checks.
        kwargs: Those of ``torch.optim.AdamW``.

    Attributes:
        _global_grad_norm: Norm before clipping at the last step.
        overflow: Whether the last step was skipped. (Both names are those DeepSpeed's engine looks for.)
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        max_grad_norm: float | None = None,
        max_value_grad_norm: float | None = None,
        guarded: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(params, **kwargs)
        self.max_grad_norm = max_grad_norm
        self.max_value_grad_norm = max_value_grad_norm
        self.guarded = guarded
        self._global_grad_norm = 0.0
        self.overflow = False

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        """One update, or none if a gradient is not finite."""
        if not self.guarded:
            return super().step(closure)
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = get_total_norm([p.grad for p in parameters])
        self._global_grad_norm = float(norm)
        self.overflow = not bool(torch.isfinite(norm))
        if self.overflow:
            return None
        if self.max_value_grad_norm is not None:
            self._clip_parts(self.max_value_grad_norm)
        elif self.max_grad_norm is not None:
            clip_grads_with_norm_(parameters, self.max_grad_norm, norm)
        return super().step(closure)

    def _clip_parts(self, value_bound: float) -> None:
        for parts, bound in ((VALUE_PARTS, value_bound), (frozenset({POLICY}), self.max_grad_norm)):
            groups = [group["params"] for group in self.param_groups if group[PART] in parts]
            parameters = [p for group in groups for p in group if p.grad is not None]
            if bound is not None and parameters:
                clip_grads_with_norm_(parameters, bound, get_total_norm([p.grad for p in parameters]))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's; what a parameter group belongs to is this optimizer's, not the file's."""
        parts = [group.get(PART) for group in self.param_groups]
        super().load_state_dict(state_dict)
        for group, part in zip(self.param_groups, parts, strict=True):
            group[PART] = part


def parameter_groups(module: nn.Module, options: TokenPPOOptions) -> list[dict[str, Any]]:
    """Groups of the trainable parameters: the value function may have rates of its own or rest, vectors (norms, biases)
    have no decay.
    """
    chosen: dict[tuple[str, bool], list[nn.Parameter]] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            decays = options.weight_decay > 0 and parameter.ndim >= 2
            chosen.setdefault((_part(name), decays), []).append(parameter)
    order = sorted(chosen, key=lambda key: (PARTS.index(key[0]), key[1]))
    return [
        {"params": chosen[part, decays], "weight_decay": options.weight_decay if decays else 0.0, PART: part}
        for part, decays in order
    ]


def _part(name: str) -> str:
    first = name.partition(".")[0]
    return first if first in PARTS else POLICY


def make_optimizer(
    module: nn.Module, options: TokenPPOOptions, *, max_grad_norm: float | None, lr: float, guarded: bool = True
) -> GuardedAdamW:
    """The optimizer of one module."""
    return GuardedAdamW(
        parameter_groups(module, options),
        lr=lr,
        betas=tuple(options.adam_betas),
        max_grad_norm=max_grad_norm,
        max_value_grad_norm=options.value_grad_clip,
        guarded=guarded,
        fused=True,  # without it a step makes a copy of the size of the parameters
    )


def learning_rates(
    options: TokenPPOOptions, lr: float, factor: float = 1.0, critic_alone: bool = False
) -> dict[str, float]:
    """Rate of each part.

    Args:
        options: Rates of the value function's parts; those that are not set follow ``lr``, the head's from
            ``LEAST_VALUE_LR`` upwards.
        lr: Rate of the schedule.
        factor: Of the warm-up.
        critic_alone: The iteration belongs to the critic's warm-up.
    """
    head = options.critic_warmup_lr if critic_alone and options.critic_warmup_lr is not None else options.value_lr
    if head is None:
        head = max(lr, LEAST_VALUE_LR) if lr > 0 else 0.0
    own = {POLICY: None, VALUE_HEAD: head, VALUE_BACKBONE: options.value_backbone_lr}
    return {part: (lr if rate is None else rate) * factor for part, rate in own.items()}


def set_learning_rates(optimizer: torch.optim.Optimizer, rates: Mapping[str, float]) -> None:
    """Set the rate of each part; 0 for one that rests.

    No gradient is not enough: to ZeRO it is a gradient of zero, and momentum and decay go on.
    """
    for group in optimizer.param_groups:
        group["lr"] = rates[group[PART]]


@torch.no_grad()
def forget_moments(optimizer: torch.optim.Optimizer) -> None:
    """Make the optimizer one that has not stepped yet. In place, since ZeRO keeps its own references (states it has put
    on NVMe are not reached).
    """
    for state in optimizer.state.values():
        for tensor in state.values():
            tensor.zero_()


def warmup_factor(steps_done: int, warmup_steps: int) -> float:
    """Linear warm-up: the first of ``warmup_steps`` steps has ``1 / warmup_steps`` of the rate, the
    last one all of it.
    """
    return 1.0 if warmup_steps == 0 else min(1.0, (steps_done + 1) / warmup_steps)


def parameter_counts(module: torch.nn.Module) -> tuple[int, int]:
    """Numbers of trainable and of frozen parameters; those of the whole model where DeepSpeed has sharded them."""
    counts = [0, 0]
    for parameter in module.parameters():
        counts[not parameter.requires_grad] += int(getattr(parameter, "ds_numel", parameter.numel()))
    return counts[0], counts[1]
