"""The reference model of the KL penalty: frozen during an update, and between two of them where it is to be."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from rllib_lmgame.learners.ranks import Ranks
from rllib_lmgame.policies.model.rl_module import LanguageModelRLModule
from rllib_lmgame.settings.sections.token_ppo import EMA, REFRESH, ReferenceOptions


class Reference:
    """The reference model of one policy. It follows the policy after its updates, on all learners in step.

    An average moves by less than half precision can hold. There the first learner keeps it in float32 in its main
    memory and gives the others what it rounds to. ``weights`` are complete tensors, maybe more exact than the model.
    """

    def __init__(
        self,
        module: LanguageModelRLModule,
        options: ReferenceOptions,
        ranks: Ranks,
        weights: Mapping[str, torch.Tensor],
    ) -> None:
        self.module = module
        self._options = options
        self._ranks = ranks
        self._rounds = next(module.parameters()).dtype != torch.float32
        self._exact: WeightAverage | None = None
        if options.type == EMA and self._rounds and ranks.rank == 0:
            self._exact = WeightAverage(options.decay)
            self._exact.update(weights)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """What a checkpoint has to hold, by the names in memory; what counts is the first learner's."""
        return self.module.hf_state() if self._exact is None else self._exact.tensors

    def moves_after(self, updates: int) -> bool:
        """Whether it changes after the policy's update of this number, the first being 1."""
        return self._options.type == EMA or (self._options.type == REFRESH and updates % self._options.every == 0)

    @torch.no_grad()
    def follow(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Take in the policy's complete tensors after an update. All learners must call."""
        if self._options.type == REFRESH:
            self.module.load_hf_state(weights)
        elif not self._rounds:
            for name, tensor in self.module.hf_state().items():
                tensor.lerp_(weights[name].float(), 1.0 - self._options.decay)
        else:
            if self._exact is not None:
                self._exact.update(weights)
                self.module.load_hf_state(self._exact.tensors)
            self._ranks.copy_from_first(self.module.hf_state().values())


def frozen_copy(
    module: LanguageModelRLModule, weights: Mapping[str, Any], device: torch.device | str
) -> LanguageModelRLModule:
    """A copy of the policy that is never trained, without a value function, made of complete tensors by their names.

    It is complete on every learner, whatever partitioning the policy has.
    """
    config: dict[str, Any] = dict(module.model_config)  # type: ignore[arg-type]
    config["options"] = dataclasses.replace(module.options, gradient_checkpointing=False)
    config |= {"model_dir": module.model_dir, "critic": False}
    copy = LanguageModelRLModule(
        observation_space=module.observation_space,
        action_space=module.action_space,
        inference_only=False,
        model_config=config,
    )
    copy.load_hf_state(weights)
    copy.requires_grad_(False)
    return copy.to(device=device, dtype=next(module.parameters()).dtype)


class WeightAverage:
    """``average = decay * average + (1 - decay) * weights`` after an update, in float32; it begins as a copy."""

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.tensors: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def update(self, weights: Mapping[str, torch.Tensor]) -> None:
        if not self.tensors:
            self.tensors = {name: tensor.detach().float().cpu().clone() for name, tensor in weights.items()}
            return
        for name, tensor in weights.items():
            self.tensors[name].lerp_(tensor.detach().float().cpu(), 1.0 - self.decay)
