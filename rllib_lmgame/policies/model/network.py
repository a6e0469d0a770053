"""The network of a policy: a causal language model with a value head, over packed rows of tokens."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.text import first_line
from rllib_lmgame.policies.model.action_values import ActionValues, save_values
from rllib_lmgame.policies.model.adapters import Adapters
from rllib_lmgame.policies.model.attention import CHECKPOINTING, FLASH, PACKED, PackedRows, resolve_implementation
from rllib_lmgame.policies.model.batch_layout import Layout
from rllib_lmgame.policies.model.card import Played
from rllib_lmgame.policies.model.checkpoint_names import CheckpointTensors, parts_of, unique_state
from rllib_lmgame.policies.model.export import save_policy
from rllib_lmgame.policies.model.files import tokenizer_source
from rllib_lmgame.policies.model.last_layer import prunable, prune_last_layer, select
from rllib_lmgame.policies.model.lm_head import Allowed, logit_transform, token_logprobs
from rllib_lmgame.policies.model.loading import IncompleteModelError, whole_model
from rllib_lmgame.policies.model.packing_support import Packing, UnfitModelError, backbone_of, lay_out, packing_of
from rllib_lmgame.policies.model.positions import fix_rope
from rllib_lmgame.policies.options import LanguageModelOptions

logger = logging.getLogger(__name__)

_DTYPES = {"auto": torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Numerics of the weights; under ``auto`` a forward pass on a GPU runs in bfloat16."""


@dataclass(frozen=True)
class _BackboneInputs:
    """Arguments of a backbone's forward, the rows they hold, and the output positions that are read, in order."""

    arguments: dict[str, Any]
    rows: PackedRows
    read: torch.Tensor


class ValueHead(nn.Module):
    """Two-layer tanh MLP from hidden states ``[n, width]`` to values ``[n]``; starts at zero."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, hidden)
        self.outer = nn.Linear(hidden, 1)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.with_features(hidden)[0]

    def with_features(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The values, and the features ``[n, hidden]`` that they are linear in."""
        features = torch.tanh(self.inner(hidden.to(self.inner.weight.dtype)))
        return self.outer(features).squeeze(-1).float(), features


class PolicyNetwork(nn.Module):
    """A causal language model and a value function, over packed rows of tokens: a plain PyTorch module.

    Args:
        options: The ``language_model`` section.
        model_dir: Directory or hub id of the weights.
        on_gpu: Whether the module will live on a GPU; that this process sees one says little.
        critic: Whether it has a value function.
        action_values: Which values of tokens it has beside it (``heads``, ``state``, ``targets``, ``q_init``), and
            ``beta``, what they count where it plays.
        reference: Whether adapters have others beside them that the KL penalty compares with.

    Attributes:
        version: Number of updates the weights have had; what the sampler tags tokens with.
        layout: How the rows of a batch lie in a pass; if each needs one of its own, a batch holds one row.
        shares: A row may continue another one, so that the prompt of several is computed once.
        repeats: Keys and values of what is shared are then repeated for each row.
        prunes: The last layer may be computed only at positions that are read, if the batch suits it.
        sharded: An engine spreads the weights over learners; states then carry the version alone.
        value_backbone: The value function's own (``value_model: separate``), else ``None``.
        adapters: What is trained of the language model in place of its weights (``lora``), else ``None``.
        action_values: Values of tokens, else ``None``; ``value_backbone`` is then theirs, and ``target_backbone`` what
            follows it slowly.
    """

    version: int = 0
    sharded: bool = False
    adapters: Adapters | None = None

    def __init__(self, options: LanguageModelOptions, model_dir: str, **kinds: Any) -> None:
        super().__init__()
        self.load(options, model_dir, **kinds)

    def load(
        self,
        options: LanguageModelOptions,
        model_dir: str,
        *,
        on_gpu: bool = False,
        critic: bool = True,
        action_values: Mapping[str, Any] | None = None,
        reference: bool = False,
    ) -> None:
        """Load the model; arguments as the class has them.

        Raises: ConfigError: there is no causal language model with all its weights.
        """
        self.options, self.model_dir, self.on_gpu = options, model_dir, on_gpu
        dtype = _DTYPES[options.dtype]
        self._autocast = on_gpu and self.options.dtype == "auto"
        if self._autocast and self.options.lora is not None:
            dtype = torch.bfloat16  # Weights that are never updated lose nothing.
        self.attention = resolve_implementation(
            self.options.attn_implementation, torch.bfloat16 if self._autocast else dtype, on_gpu
        )
        self.language_model, packing = load_language_model(
            self.model_dir, dtype, self.attention, trust_remote_code=self.options.trust_remote_code
        )
        self.layout, self.shares = packing.layout, packing.shares
        self.repeats = packing.repeats or self.attention != PACKED or on_gpu
        self._checkpoint_parts = parts_of(self.language_model, unique_state(self.language_model))
        if self.options.lora is not None:
            self.adapters = Adapters(
                self.language_model,
                self.options.lora,
                model_dir=self.model_dir,
                reference=reference,
            )
            self.adapters.share_frozen()
        fix_rope(self.language_model, self.options.context_length)
        if self.options.gradient_checkpointing:
            self.recompute_activations()
        kinds = dict(action_values or {})
        separate = (critic or bool(kinds)) and self.options.value_model == "separate"
        backbone = backbone_of(self.language_model)
        self.value_backbone = copy.deepcopy(backbone) if separate else None
        backbones = [backbone] + ([self.value_backbone] if separate else [])
        self.prunes = self.layout is Layout.PACKED and self.attention == PACKED and prunable(backbone)
        for backbone in backbones if self.prunes else ():
            prune_last_layer(backbone)
        width = self.language_model.get_output_embeddings().in_features
        self.value_head = ValueHead(width, self.options.value_hidden_size or width) if critic else None
        if self.value_head is not None and self.adapters is None:
            self.value_head.to(dtype)
        self.action_values: ActionValues | None = None
        self.target_backbone: nn.Module | None = None
        if kinds:
            self._values_count = float(kinds.pop("beta"))
            vocabulary = self.language_model.get_output_embeddings().weight.shape[0]
            hidden = self.options.value_hidden_size or width
            self.action_values = ActionValues(width, hidden, vocabulary, **kinds).to(dtype)
            if self.value_backbone is not None and kinds["targets"]:
                self.target_backbone = copy.deepcopy(self.value_backbone).requires_grad_(False)
        self._logit_transform = logit_transform(self.language_model.config)

    def _apply(self, fn: Any, recurse: bool = True) -> PolicyNetwork:
        """Also on another device, policies on one base hold it once, at no time twice."""
        super()._apply(fn if self.adapters is None else self.adapters.held_once(fn), recurse)
        return self

    def recompute_activations(self) -> None:
        """Keep only the layers' inputs for the backward pass, and compute the rest again there."""
        self.language_model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=CHECKPOINTING)

    def forward(self, batch: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Log-probabilities, entropies and values of a packed batch, from one pass through the backbone.

        Args:
            batch: What ``PackedBatch`` names, as tensors: ``input_ids``, ``position_ids`` int64 ``[T]``, ``cu_seqlens``
                int32 ``[R+1]``, ``predict_index``, ``target_ids`` int64 ``[A]``, ``bootstrap_index`` int64 ``[B]``.
                With ``allowed_action``, ``allowed_owner`` and ``allowed_ids``, log-probability and entropy are those
                among these ids. Switches: ``with_entropy``, ``with_logprobs``, ``with_values`` (True);
                ``entropy_gradient``, ``with_value_features``, ``detach_backbone`` (False; in the critic's warm-up only
                the value function is differentiated). Numbers: ``temperature`` (1.0), ``head_chunks`` (1);
                ``temperatures`` float32 ``[A]`` go before the former where they are no NaN. With ``with_observed``
                (False) also ``observed_index`` and ``observed_ids`` int64 ``[O]``, in ``observed_chunks``.

        Returns: ``logprobs`` ``[A]``, ``entropy`` ``[A]``, and with a value function ``values`` ``[A]``,
        ``bootstrap_values`` ``[B]``, ``value_features`` ``[A, h]`` (what the value head's last layer reads), with
        ``with_action_values`` what :class:`~rllib_lmgame.policies.model.action_values.TokenValues` names, as far as
        asked for. ``observed_logprobs`` ``[O]`` are at temperature 1 and among the whole vocabulary.
        """
        device = batch["input_ids"].device
        with torch.autocast(device.type, torch.bfloat16, enabled=self._autocast and device.type == "cuda"):
            inputs = self._backbone_inputs(batch)
            if self.adapters is not None:  # Their dropout is all there is.
                self.language_model.train(torch.is_grad_enabled())
            with torch.set_grad_enabled(torch.is_grad_enabled() and not batch.get("detach_backbone", False)):
                hidden = self._hidden(backbone_of(self.language_model), inputs)
            out: dict[str, torch.Tensor] = {}
            if batch.get("with_logprobs", True):
                out |= self._logprobs(hidden, batch)
            if batch.get("with_observed", False):
                out["observed_logprobs"] = self._observed_logprobs(hidden, batch)
            if self.value_head is not None and batch.get("with_values", True):
                out |= self._values(self.value_head, hidden, batch, inputs)
            if self.action_values is not None and batch.get("with_action_values", False):
                out |= self._token_values(self.action_values, hidden, batch, inputs)
        return out

    def _backbone_inputs(self, batch: Mapping[str, Any]) -> _BackboneInputs:
        """What the backbones are called with, and which positions are read. Raises: ValueError: rows would mix."""
        if self.layout is Layout.ALONE and batch["cu_seqlens"].shape[0] > 2:
            raise ValueError(f"{self.model_dir} takes one row a pass, not {batch['cu_seqlens'].shape[0] - 1}")
        read = torch.cat([batch["predict_index"], batch["bootstrap_index"]])
        if batch.get("with_observed", False):
            read = torch.cat([read, batch["observed_index"]])
        # A pass with nothing to predict still goes through every layer: with partitioned weights it is collective.
        read = read if read.shape[0] else read.new_zeros(1)
        ids, parents = batch["input_ids"], batch.get("parents")
        rows, arguments = lay_out(ids, batch["position_ids"], batch["cu_seqlens"], self.layout, parents)
        pruned = self.prunes and 2 * read.shape[0] <= ids.shape[0]
        if not pruned or (rows.prefix_tree is not None and ids.device.type != "cpu"):
            return _BackboneInputs(arguments, rows, rows.place(read))
        positions, order = read.unique(return_inverse=True)
        arguments["selection"] = select(positions, batch["cu_seqlens"], rows.groups)
        return _BackboneInputs(arguments, rows, order)

    @staticmethod
    def _hidden(backbone: nn.Module, inputs: _BackboneInputs) -> torch.Tensor:
        """Final hidden states ``[A + B + O, width]`` at positions that are read (if none, one arbitrary state)."""
        with inputs.rows:
            return backbone(**inputs.arguments).last_hidden_state.flatten(0, 1).index_select(0, inputs.read)

    def _logprobs(self, hidden: torch.Tensor, batch: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        head = self.language_model.get_output_embeddings()
        actions = batch["target_ids"].shape[0]
        targets = batch["target_ids"] if actions else batch["target_ids"].new_zeros(1)
        logprobs, entropy = token_logprobs(
            lambda h: self._logit_transform(head(h)),
            hidden[: targets.shape[0]],
            targets,
            chunks=batch.get("head_chunks", 1),
            temperature=_temperature(batch),
            with_entropy=batch.get("with_entropy", True),
            entropy_gradient=batch.get("entropy_gradient", False),
            allowed=_allowed(batch),
        )
        out = {"logprobs": logprobs[:actions]}
        return out if entropy is None else out | {"entropy": entropy[:actions]}

    def _observed_logprobs(self, hidden: torch.Tensor, batch: Mapping[str, Any]) -> torch.Tensor:
        """Float32 ``[O]``: of the game's text, whatever the policy's replies are sampled and chosen by."""
        head, targets = self.language_model.get_output_embeddings(), batch["observed_ids"]
        count, before = targets.shape[0], batch["predict_index"].shape[0] + batch["bootstrap_index"].shape[0]
        found, _ = token_logprobs(
            lambda h: self._logit_transform(head(h)),
            hidden[before:] if count else hidden[:1],  # Under partitioned weights it is a collective.
            targets if count else targets.new_zeros(1),
            chunks=batch.get("observed_chunks", 1),
            with_entropy=False,
        )
        return found[:count]

    def _values(
        self, head: ValueHead, hidden: torch.Tensor, batch: Mapping[str, Any], inputs: _BackboneInputs
    ) -> dict[str, torch.Tensor]:
        if self.value_backbone is not None:
            hidden = self._hidden(self.value_backbone, inputs)
        elif self.options.freeze_backbone_for_value:
            hidden = hidden.detach()
        actions, bootstraps = batch["predict_index"].shape[0], batch["bootstrap_index"].shape[0]
        values, features = head.with_features(hidden[: max(1, actions + bootstraps)])
        out = {"values": values[:actions], "bootstrap_values": values[actions : actions + bootstraps]}
        return out | {"value_features": features[:actions]} if batch.get("with_value_features", False) else out

    def _token_values(
        self, values: ActionValues, hidden: torch.Tensor, batch: Mapping[str, Any], inputs: _BackboneInputs
    ) -> dict[str, torch.Tensor]:
        if self.value_backbone is not None:
            hidden = self._hidden(self.value_backbone, inputs)
        elif self.options.freeze_backbone_for_value:
            hidden = hidden.detach()
        slow = hidden.detach()
        if self.target_backbone is not None:
            with torch.no_grad():
                slow = self._hidden(self.target_backbone, inputs)
        actions, bootstraps = batch["predict_index"].shape[0], batch["bootstrap_index"].shape[0]
        last, tokens = hidden[actions : actions + bootstraps], batch["target_ids"]
        return values(hidden[:actions], slow[:actions], tokens, last, batch.get("head_chunks", 1))._asdict()

    def follow_values(self, rate: float) -> None:
        """Let the slow copies of the values go ``rate`` of the way to these."""
        assert self.action_values is not None
        self.action_values.follow(rate, self.value_backbone, self.target_backbone)

    def played_values(self) -> dict[str, torch.Tensor]:
        """Tensors with which engines play by action values; empty if ``beta`` is 0."""
        if self.action_values is None or not self._values_count:
            return {}
        return self.action_values.for_engines(self._values_count, self.value_backbone)

    def value_output(self) -> nn.Linear:
        """The value head's last layer. Raises: ValueError: The module has no value function."""
        if self.value_head is None:
            raise ValueError("this policy is trained without a value function")
        return self.value_head.outer

    def hf_state(self, trained: bool = False) -> dict[str, torch.Tensor]:
        """The language model's tensors by their names in memory; a tied head is left out. Nothing is copied.

        ``trained``: without frozen weights beside adapters.
        """
        if trained and self.adapters is not None:
            return self.adapters.state()
        return unique_state(self.language_model)

    def merged(self, state: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """A complete :meth:`hf_state` as a model without adapters has it, by its names in memory."""
        return state if self.adapters is None else self.adapters.merged(state)

    def as_checkpoint(
        self, state: Mapping[str, torch.Tensor], device: torch.device | None = None
    ) -> Mapping[str, torch.Tensor]:
        """A complete :meth:`hf_state` by the names of the model's checkpoint, as engines take it (on ``device``)."""
        tensors = CheckpointTensors(self.language_model, self._checkpoint_parts, self.merged(state), device)
        values = self.played_values()
        return {**tensors, **values} if values else tensors

    def like_checkpoint(self, state: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Tensors of the names, order and sizes of :meth:`as_checkpoint`, without the adapters' work."""
        bases = state if self.adapters is None else self.adapters.merged(state).bases()
        tensors = CheckpointTensors(self.language_model, self._checkpoint_parts, bases)
        values = self.played_values()
        return {**tensors, **values} if values else tensors

    def load_hf_state(self, state: Mapping[str, Any]) -> None:
        with torch.no_grad():
            for name, tensor in self.hf_state(trained=True).items():
                tensor.copy_(torch.as_tensor(state[name]))

    def save_hf(
        self, directory: str | Path, state: Mapping[str, torch.Tensor] | None = None, played: Played | None = None
    ) -> Path:
        """Write what ``from_pretrained`` and vLLM load: config, safetensors, tokenizer and model card (for ``played``).

        ``state`` replaces the model's own tensors (gathered, averaged). Raises: CheckpointError: naming the file.
        """
        directory = Path(directory)
        whole = self.merged(state or self.hf_state())
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in whole.items()}
        source = tokenizer_source(self.options, self.model_dir)
        save_policy(self.language_model, tensors, directory, tokenizer=source, options=self.options, played=played)
        values = self.played_values()
        if values:
            save_values(values, directory)
        return directory


def _temperature(batch: Mapping[str, Any]) -> float | torch.Tensor:
    shared, own = batch.get("temperature", 1.0), batch.get("temperatures")
    if own is None or not own.shape[0]:
        return float(shared)
    return torch.where(own.isnan(), torch.full_like(own, shared), own)


def _allowed(batch: Mapping[str, Any]) -> Allowed | None:
    positions = batch.get("allowed_action")
    if positions is None or not positions.shape[0]:
        return None
    return Allowed(positions, batch["allowed_owner"], batch["allowed_ids"])


def load_language_model(
    model_dir: str, dtype: torch.dtype, attention: str, *, trust_remote_code: bool = False
) -> tuple[Any, Packing]:
    """An ``AutoModelForCausalLM`` with dropout and noise off and attention packed where that is right, and how rows go
    through it.

    Raises: ConfigError: no such model, of a kind that cannot be trained here, or weights are missing.
    """
    from transformers import AutoConfig

    config: Any = None
    try:
        config = AutoConfig.from_pretrained(model_dir, trust_remote_code=trust_remote_code)
        packing = packing_of(config)
        _silence(config)
        model = whole_model(
            model_dir,
            config=config,
            dtype=dtype,
            attn_implementation=attention if packing.fits or attention == FLASH else None,
            trust_remote_code=trust_remote_code,
        )
    except UnfitModelError as error:
        raise ConfigError(
            "language_model.model", f"{config.model_type} models cannot be trained here: {error}"
        ) from error
    except IncompleteModelError as error:
        raise ConfigError("language_model.model", f"{model_dir!r} {error}") from error
    except (OSError, TypeError, ValueError, ImportError, AttributeError, KeyError) as error:
        what = "directory" if Path(model_dir).is_dir() else "directory or hub id"
        quantized = getattr(config, "quantization_config", None) is not None
        of = " as its quantization_config says" if quantized else ""
        raise ConfigError(
            "language_model.model",
            f"{what} {model_dir!r} could not be loaded as a causal language model{of}: {first_line(error)}",
        ) from error
    if not packing.fits:
        what = f"{packing.layout.value} instead of packed, since {packing.reason}; no prompt is shared"
        logger.warning("%s: %s", model_dir, what)
    elif not packing.shares:
        logger.warning("%s: a prompt of several rows is computed for each: %s", model_dir, packing.error)
    return model, packing


def _silence(config: Any) -> None:
    """Turn off what a model draws at random in training: dropout, layers left out, the noise of some routers."""
    for name, value in vars(config).items():
        if isinstance(value, float) and ("drop" in name or "jitter" in name):
            setattr(config, name, 0.0)
        elif hasattr(value, "to_diff_dict"):  # Another configuration inside.
            _silence(value)
