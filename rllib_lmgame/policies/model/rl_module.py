"""RLlib's RLModules: the network of a policy, and players that have no weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import Tensor

from rllib_lmgame.base.errors import CheckpointError
from rllib_lmgame.base.group import build
from rllib_lmgame.policies.model.network import PolicyNetwork, unique_state
from rllib_lmgame.policies.options import LanguageModelOptions

VERSION = "version"
"""Key of the policy version in a module's state; the only one in an inference-only state."""

KINDS = ("on_gpu", "critic", "action_values", "reference", "empty")
"""Other keys of a ``model_config`` than ``options`` and ``model_dir``."""

BASE = "base"
"""Key of the frozen weights' fingerprint in the state of a module with adapters."""


class LanguageModelRLModule(TorchRLModule, ValueFunctionAPI, PolicyNetwork):
    """A :class:`~rllib_lmgame.policies.model.network.PolicyNetwork`, whose arguments are the ``model_config``.

    ``options`` may be a mapping of their fields; ``model_dir`` is ``options.model`` if absent.
    """

    def setup(self) -> None:
        """Load the model. Raises: ConfigError: there is no causal language model with all its weights."""
        if self.inference_only:
            return
        try:
            config: Mapping[str, Any] = self.model_config or {}
            options = config.get("options", {})
            if not isinstance(options, LanguageModelOptions):
                options = build(LanguageModelOptions, options, "language_model")
            kinds = {name: config[name] for name in KINDS if name in config}  # RLlib adds keys of its own.
            self.load(options, str(config.get("model_dir") or options.model), **kinds)
        except AttributeError as error:  # RLlib would take it for an old constructor and hide it.
            raise RuntimeError(f"could not build the language model: {error}") from error

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        raise NotImplementedError("the engines sample replies; `module.language_model.generate` takes token ids")

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Tensor]:
        return PolicyNetwork.forward(self, batch)

    def compute_values(self, batch: dict[str, Any], embeddings: Any | None = None) -> Tensor:
        """Values ``[A]`` at the action tokens of a packed batch. Raises: ValueError: there is no value function."""
        self.value_output()
        return self._forward_train({**batch, "with_logprobs": False})["values"]

    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        inference_only: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """All tensors as arrays and the version; only the version for env runners, which hold no weights.

        Of frozen weights beside adapters there is a fingerprint.
        """
        if inference_only or self.inference_only or self.sharded:
            return {VERSION: self.version}
        base = {} if self.adapters is None else {BASE: int(self.adapters.fingerprint, 16)}
        return {VERSION: self.version, **base, **{name: _to_numpy(t) for name, t in self._own_state().items()}}

    def _own_state(self) -> dict[str, Tensor]:
        if self.adapters is None:
            return unique_state(self)
        return {name: p.detach() for name, p in self.named_parameters() if p.requires_grad}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over a state of :meth:`get_state`; one without tensors changes the version alone.

        Raises: ValueError: tensors are missing; CheckpointError: it belongs to other frozen weights or adapters.
        """
        self.version = int(state.get(VERSION, self.version))
        if self.inference_only or not set(state) - {VERSION}:
            return
        own = self._own_state()
        self._check_base(state)
        missing = own.keys() - state.keys()
        if missing:
            raise ValueError(f"the state lacks {len(missing)} tensors of this model, among them {sorted(missing)[0]!r}")
        more = state.keys() - own.keys() - {VERSION, BASE}
        if more and self.adapters is not None:
            raise CheckpointError(f"{min(more)} is in the state and is not trained here (language_model.lora)")
        with torch.no_grad():
            for name, tensor in own.items():
                value = torch.as_tensor(np.asarray(state[name]))
                if self.adapters is not None and value.shape != tensor.shape:
                    raise CheckpointError(f"{name} is {list(value.shape)} in the state, {list(tensor.shape)} here")
                tensor.copy_(value)

    def _check_base(self, state: Mapping[str, Any]) -> None:
        """Raises: CheckpointError: the state has adapters and the module has none, or for other frozen weights."""
        if (BASE in state) != (self.adapters is not None):
            have = "adapters" if BASE in state else "whole weights"
            raise CheckpointError(f"the state has {have}: language_model.lora is set there or here, not in both")
        if self.adapters is not None and int(state[BASE]) != int(self.adapters.fingerprint, 16):
            raise CheckpointError(f"the state's adapters are for other weights or modules than {self.model_dir} has")


class ScriptedRLModule(TorchRLModule):
    """Stands for a player without weights (random, solver, minimax); the env runner plays it."""

    version: int = 0

    def setup(self) -> None:
        """Nothing to build."""

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        raise NotImplementedError("a scripted player is played by the env runner; see rllib_lmgame.policies.scripted")

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {VERSION: 0}

    def set_state(self, state: dict[str, Any]) -> None:
        """Nothing to set."""


def _to_numpy(tensor: Tensor) -> np.ndarray:
    """A copy; bfloat16, which numpy lacks, becomes float32 (exact)."""
    tensor = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    return tensor.cpu().numpy().copy()
