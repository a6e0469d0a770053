"""One module, its optimizer and its gradients: what an update does to weights, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from rllib_lmgame.errors import CheckpointError
from rllib_lmgame.learners.engines.optim import GuardedAdamW
from rllib_lmgame.learners.ranks import Ranks
from rllib_lmgame.policies.model.rl_module import LanguageModelRLModule
from rllib_lmgame.storage import follow_umask

WEIGHTS_FILE = "weights.safetensors"
OPTIMIZER_FILE = "optimizer.pt"


@dataclass(frozen=True)
class StepResult:
    """Outcome of an optimizer step: gradient norm before clipping, and whether it was skipped for gradients that are
    not finite.
    """

    grad_norm: float
    skipped: bool


class UpdateEngine(Protocol):
    """What the learner's loop needs. Every learner calls every method, in the same order.

    Attributes:
        module: What it trains.
        lockstep: Forward and backward passes are collective: all learners must run the same number of them.
        loss_factor: Factor on a loss that is normalised over all learners' tokens (an engine that averages gradients
            over learners needs their number).
        holds_all_weights: The module's parameters are complete on every learner.
        keeps_graphs: Several forward passes may run before the first backward pass.
    """

    module: LanguageModelRLModule
    keeps_graphs: bool
    lockstep: bool
    loss_factor: float
    holds_all_weights: bool

    def forward(self, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Outputs of the module's training forward pass."""

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of one micro-batch."""

    def step(self) -> StepResult:
        """Combine gradients over learners, clip, update, forget the gradients."""

    def value_output(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Weight ``[1, h]`` and bias ``[1]`` of the value head's last layer: complete float32 copies."""

    def set_value_output(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        """Replace them; what counts is the first learner's."""

    def full_state(self) -> AbstractContextManager[dict[str, torch.Tensor]]:
        """The language model's complete tensors by their names in memory, on every rank, valid (not copies)
        inside the context.
        """

    def save(self, directory: Path) -> None:
        """Write this learner's part of weights and optimizer."""

    def load(self, directory: Path) -> None:
        """Read what :meth:`save` wrote."""


class TorchEngine:
    """Every learner holds all weights; gradients are summed over learners once per optimizer step.

    Args:
        module: The module to train.
        optimizer: Over its parameters.
        ranks: The learners.
    """

    keeps_graphs = True
    lockstep = False
    loss_factor = 1.0
    holds_all_weights = True

    def __init__(self, module: LanguageModelRLModule, optimizer: GuardedAdamW, ranks: Ranks) -> None:
        self.module = module
        self.optimizer = optimizer
        self.ranks = ranks

    def forward(self, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
        """See :class:`UpdateEngine`."""
        return self.module.forward_train(batch)

    def backward(self, loss: torch.Tensor) -> None:
        """See :class:`UpdateEngine`."""
        loss.backward()

    def step(self) -> StepResult:
        """See :class:`UpdateEngine`."""
        self.ranks.sum_gradients([p for group in self.optimizer.param_groups for p in group["params"]])
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return StepResult(self.optimizer._global_grad_norm, self.optimizer.overflow)

    def value_output(self) -> tuple[torch.Tensor, torch.Tensor]:
        """See :class:`UpdateEngine`."""
        outer = self.module.value_output()
        return outer.weight.detach().float().clone(), outer.bias.detach().float().clone()

    @torch.no_grad()
    def set_value_output(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        """See :class:`UpdateEngine`."""
        outer = self.module.value_output()
        outer.weight.copy_(weight)
        outer.bias.copy_(bias)
        self.ranks.copy_from_first(outer.parameters())

    def full_state(self) -> AbstractContextManager[dict[str, torch.Tensor]]:
        """See :class:`UpdateEngine`."""
        return nullcontext(self.module.hf_state())

    def save(self, directory: Path) -> None:
        """Rank 0 writes ``weights.safetensors`` (value function included) and ``optimizer.pt``."""
        with self.ranks.all_or_none():
            if self.ranks.rank == 0:
                directory.mkdir(parents=True, exist_ok=True)
                save_tensors(
                    {name: torch.as_tensor(value) for name, value in self.module.get_state().items()},
                    directory / WEIGHTS_FILE,
                )
                torch.save(self.optimizer.state_dict(), directory / OPTIMIZER_FILE)

    def load(self, directory: Path) -> None:
        """Every learner reads the same files.

        Raises:
            CheckpointError: naming a file that is missing or damaged.
        """
        state: dict[str, Any] = dict(load_tensors(directory / WEIGHTS_FILE))
        state["version"] = int(state["version"])
        self.module.set_state(state)
        path = directory / OPTIMIZER_FILE
        try:
            self.optimizer.load_state_dict(torch.load(path, weights_only=True, map_location="cpu"))
        except Exception as error:
            raise CheckpointError(
                f"{path}: the optimizer's state cannot be read ({type(error).__name__}: {error})"
            ) from error


def save_tensors(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write tensors as one safetensors file."""
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    follow_umask(path)


def load_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Read a file of :func:`save_tensors`.

    Raises:
        CheckpointError: if it is missing or damaged.
    """
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error})") from error
