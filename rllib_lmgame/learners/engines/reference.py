"""Models beside the policy that are not trained: the reference of the KL penalty, averages, the teacher."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.learners.engines.deepspeed_engine import DeepSpeedEngine, shares_of
from rllib_lmgame.learners.engines.torch_engine import TorchEngine
from rllib_lmgame.learners.options import TEACHER, EMAReference, InitialReference, TeacherOptions
from rllib_lmgame.learners.process import ProcessGroup
from rllib_lmgame.policies.model.files import model_directory
from rllib_lmgame.policies.model.network import PolicyNetwork


class Reference:
    """The reference model of one policy. It follows the policy after its updates, on all learners in step.

    An average moves by less than half precision can hold. There the first learner keeps it in float32 in its main
    memory and gives the others what it rounds to. ``weights`` are complete tensors, maybe more exact than the model.
    """

    divided = False
    """Every learner has a share of each tensor, here and of the policy's weights."""

    def __init__(
        self, module: PolicyNetwork, options: InitialReference, ranks: ProcessGroup, weights: Mapping[str, torch.Tensor]
    ) -> None:
        self.module = module
        self.options = options
        self._ranks = ranks
        self._rounds = any(tensor.dtype != torch.float32 for tensor in self._parameters().values())
        self._exact: WeightAverage | None = None
        if isinstance(options, EMAReference) and self._rounds and (self.divided or ranks.rank == 0):
            self._exact = WeightAverage(options.decay)
            self._exact.update(weights)

    def _parameters(self) -> Mapping[str, torch.Tensor]:
        """What moves, by the names of what the policy trains."""
        return self.module.hf_state()

    def _whole(self) -> AbstractContextManager[None]:
        """Inside it :meth:`_parameters` are complete, and what is written to them stays."""
        return nullcontext()

    def forward(self, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Outputs of a pass through it, as of the network's own."""
        return self.module(batch)

    @contextmanager
    def tensors(self) -> Iterator[Mapping[str, torch.Tensor]]:
        """What a checkpoint has to hold, by the names in memory; what counts is the first learner's."""
        with self._whole():
            yield self._parameters() if self._exact is None else self._exact.tensors

    @torch.no_grad()
    def follow(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Take in the policy's tensors, complete or divided as these, after an update. All learners must call."""
        with self._whole():
            own = self._parameters()
            if not isinstance(self.options, EMAReference):
                self._set(weights)
            elif not self._rounds:
                for name, tensor in own.items():
                    tensor.lerp_(weights[name].float(), 1.0 - self.options.decay)
            else:
                if self._exact is not None:
                    self._exact.update(weights)
                    self._set(self._exact.tensors)
                if not self.divided:
                    self._ranks.copy_from_first(own.values())

    def _set(self, weights: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in self._parameters().items():
            tensor.copy_(weights[name])


class AdapterReference(Reference):
    """The reference of a policy with adapters: adapters of its own on the policy's frozen weights."""

    def __init__(
        self, engine: TorchEngine, options: InitialReference, ranks: ProcessGroup, weights: Mapping[str, torch.Tensor]
    ) -> None:
        self._engine = engine
        assert engine.module.adapters is not None
        self._adapters = engine.module.adapters
        super().__init__(engine.module, options, ranks, weights)
        with torch.no_grad(), self._whole():
            self._set(weights)

    def _parameters(self) -> Mapping[str, torch.Tensor]:
        return {name: parameter.detach() for name, parameter in self._adapters.reference_parameters().items()}

    def _whole(self) -> AbstractContextManager[None]:
        return self._engine.whole(self._adapters.reference_parameters().values())

    def forward(self, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
        """See :meth:`Reference.forward`. Collective where the policy's own passes are."""
        with torch.no_grad(), self._adapters.as_reference():
            return self._engine.forward(batch)


class DividedReference(Reference):
    """The reference of a policy that ZeRO 3 divides, divided alike; ``weights`` are shares. Passes are collective."""

    divided = True

    def __init__(
        self,
        engine: DeepSpeedEngine,
        options: InitialReference,
        ranks: ProcessGroup,
        weights: Mapping[str, torch.Tensor],
    ) -> None:
        policy = engine.module
        own = policy.options.model_copy(update={"gradient_checkpointing": False})
        network = PolicyNetwork(own, policy.model_dir, on_gpu=policy.on_gpu, critic=False, empty=True)
        self._engine = engine.frozen_engine(network)
        super().__init__(network, options, ranks, weights)
        with torch.no_grad():
            self._set(weights)

    def _parameters(self) -> Mapping[str, torch.Tensor]:
        return shares_of(self.module)[0]

    @torch.no_grad()
    def forward(self, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
        return self._engine(batch)

    def follow(self, weights: Mapping[str, torch.Tensor]) -> None:
        super().follow(weights)
        self._engine.empty_partition_cache()  # What is kept whole is that of before.


def frozen_copy(module: PolicyNetwork, weights: Mapping[str, Any], device: torch.device | str) -> PolicyNetwork:
    """A copy of the policy without a value function, never trained, complete on every learner, of complete tensors."""
    options = module.options.model_copy(update={"gradient_checkpointing": False})
    copy = PolicyNetwork(options, module.model_dir, on_gpu=module.on_gpu, critic=False)
    copy.load_hf_state(weights)
    copy.requires_grad_(False)
    copy.to(device=device, dtype=next(module.parameters()).dtype)
    own, loaded = dict(module.named_buffers()), copy.state_dict().keys()
    for name, buffer in copy.named_buffers():
        if name not in loaded:  # Frequencies of positions stay exact where the policy's are.
            buffer.data = own[name].detach().to(device, copy=True)
    return copy


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


class Teacher:
    """The teacher of on-policy distillation: a frozen model of any size that judges the policy's own tokens.

    It is on every learner's device in the policy's numerics, divided where ZeRO 3 divides the policy: then passes are
    collective.

    Raises: ConfigError: it does not suit the policy.
    """

    def __init__(self, engine: TorchEngine, options: TeacherOptions, device: torch.device | str) -> None:
        policy = engine.module
        divided = not engine.holds_all_weights
        dtype = str(next(policy.parameters()).dtype).removeprefix("torch.")
        own = policy.options.model_copy(
            update={
                "model": options.model,
                "dtype": policy.options.dtype if dtype == "float32" else dtype,
                "lora": None,
                "value_model": "shared",
                "gradient_checkpointing": False,
                "trust_remote_code": options.trust_remote_code,
            }
        )
        kinds = {"on_gpu": policy.on_gpu, "critic": False, "empty": divided}
        self.module = PolicyNetwork(own, model_directory(options.model, TEACHER), **kinds)
        known, needed = (each.language_model.config.get_text_config().vocab_size for each in (self.module, policy))
        if known < needed:
            raise ConfigError(TEACHER, f"{options.model} knows {known} tokens, the policy {needed}")
        if self.module.layout is not policy.layout or (policy.shares and not self.module.shares):
            layouts = f"`{self.module.layout.value}`, the policy as `{policy.layout.value}`"
            raise ConfigError(TEACHER, f"{options.model} reads rows as {layouts}")
        self.module.replays = False  # The routes are of another model.
        self._forward: Any = self.module.requires_grad_(False).eval().to(device)
        if isinstance(engine, DeepSpeedEngine) and divided:
            self._forward = engine.frozen_engine(self.module, filled=True)

    @torch.no_grad()
    def logprobs(self, inputs: Mapping[str, Any]) -> torch.Tensor:
        """Of a micro-batch's action tokens, float32 ``[A]``; ``inputs`` as of the policy's own pass."""
        logprobs: torch.Tensor = self._forward(inputs)["logprobs"]
        return logprobs
