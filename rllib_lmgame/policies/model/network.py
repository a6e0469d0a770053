"""The network of a policy: a causal language model with a value head, over packed rows of tokens."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.numerics import computed_in
from rllib_lmgame.base.text import first_line
from rllib_lmgame.policies.model.adapters import Adapters, adapter_header, as_begun, make_real
from rllib_lmgame.policies.model.attention import (
    CHECKPOINTING,
    PACKED,
    Layout,
    PackedRows,
    lay_out,
    resolve_implementation,
)
from rllib_lmgame.policies.model.export import Played, save_policy
from rllib_lmgame.policies.model.files import parameter_count, tokenizer_source, weight_files
from rllib_lmgame.policies.model.heads import (
    ActionValues,
    Allowed,
    ValueHead,
    backbone_of,
    logit_transform,
    save_values,
    token_logprobs,
)
from rllib_lmgame.policies.model.last_layer import prunable, prune_last_layer, select
from rllib_lmgame.policies.model.loading import MODEL, IncompleteModelError, fix_rope, load_language_model, whole_model
from rllib_lmgame.policies.model.router_replay import replay_in
from rllib_lmgame.policies.options import LanguageModelOptions, LoraOptions


@dataclass(frozen=True)
class _BackboneInputs:
    """Arguments of a backbone's forward, the rows they hold, and the output positions that are read, in order."""

    arguments: dict[str, Any]
    rows: PackedRows
    read: Tensor


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
        empty: The weights are left on the meta device until :meth:`fill`, unless ``lora`` has ``modules_to_save``.

    Attributes:
        version: Number of updates the weights have had; what the sampler tags tokens with.
        layout: How the rows of a batch lie in a pass; if each needs one of its own, a batch holds one row.
        shares: A row may continue another one, so that the prompt of several is computed once.
        repeats: Keys and values of what is shared are then repeated for each row.
        replays: Routers take the experts that a batch names.
        autocasts: Passes run in bfloat16, whatever the weights are held in; what stands on the logits stays float32.
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
        empty: bool = False,
    ) -> None:
        """Load the model; arguments as the class has them.

        Raises: ConfigError: there is no causal language model with all its weights.
        """
        self.options, self.model_dir, self.on_gpu = options, model_dir, on_gpu
        computed = getattr(torch, computed_in(options.dtype, lambda: parameter_count(model_dir), on_gpu))
        self.autocasts = options.dtype == "auto" and computed == torch.bfloat16
        empty = empty and not (options.lora and as_begun(options.lora).modules_to_save)  # PEFT copies what is there.
        # Weights that are never updated lose nothing in half precision.
        dtype = torch.float32 if self.autocasts and options.lora is None else computed
        self.attention = resolve_implementation(options.attn_implementation, computed, on_gpu)
        self.language_model, packing = load_language_model(
            model_dir, dtype, self.attention, trust_remote_code=options.trust_remote_code, empty=empty
        )
        self.layout, self.shares = packing.layout, packing.shares
        self.repeats = packing.repeats or self.attention != PACKED or on_gpu
        self._checkpoint_parts = parts_of(self.language_model, unique_state(self.language_model))
        if options.lora is not None:
            self.adapters = Adapters(self.language_model, options.lora, model_dir=model_dir, reference=reference)
            if not empty:
                self.adapters.share_frozen()
        fix_rope(self.language_model, options.context_length)
        if options.gradient_checkpointing:
            self.recompute_activations()
        kinds = dict(action_values or {})
        separate = (critic or bool(kinds)) and options.value_model == "separate"
        backbone = backbone_of(self.language_model)
        self.value_backbone = copy.deepcopy(backbone) if separate else None
        backbones = [backbone] + ([self.value_backbone] if separate else [])
        self.replays = packing.replays is True
        if self.replays:  # A value function's own backbone routes as it likes.
            replay_in(self.language_model)
        self.prunes = self.layout is Layout.PACKED and self.attention == PACKED and prunable(backbone)
        for backbone in backbones if self.prunes else ():
            prune_last_layer(backbone)
        width = self.language_model.get_output_embeddings().in_features
        self.value_head = ValueHead(width, width) if critic else None
        if self.value_head is not None and self.adapters is None:
            self.value_head.to(dtype)
        self.action_values: ActionValues | None = None
        self.target_backbone: nn.Module | None = None
        if kinds:
            self._values_count = float(kinds.pop("beta"))
            vocabulary = self.language_model.get_output_embeddings().weight.shape[0]
            self.action_values = ActionValues(width, width, vocabulary, **kinds).to(dtype)
            if self.value_backbone is not None and kinds["targets"]:
                self.target_backbone = copy.deepcopy(self.value_backbone).requires_grad_(False)
        self._logit_transform = logit_transform(self.language_model.config)

    def _apply(self, fn: Any, recurse: bool = True) -> PolicyNetwork:
        """Also on another device, policies on one base hold it once, at no time twice; what is empty stays so."""
        moved = fn if self.adapters is None else self.adapters.held_once(fn)
        super()._apply(lambda tensor: tensor if tensor.is_meta else moved(tensor), recurse)
        return self

    @property
    def empty(self) -> bool:
        """Whether it was made without weights and has none yet."""
        return any(parameter.is_meta for parameter in self.parameters())

    def checkpoint_reader(self) -> Callable[[str], Tensor]:
        """What :meth:`fill` reads weights with. Raises: ConfigError: they cannot be read, or some are missing."""
        from huggingface_hub import snapshot_download
        from safetensors import safe_open

        directory = self.model_dir
        try:
            if not os.path.isdir(directory):
                directory = snapshot_download(directory, allow_patterns=["*.safetensors", "*.json"])
            files = [safe_open(str(file), "pt") for file in weight_files(Path(directory))]
        except Exception as error:  # A damaged file, or a hub that does not answer, fails in many ways.
            raise ConfigError(MODEL, f"{directory!r} could not be read: {first_line(error)}") from error
        there = {name: file for file in files for name in file.keys()}  # noqa: SIM118
        missing = [name for part in self._checkpoint_parts for name in part.shapes if name not in there]
        if missing:
            raise ConfigError(MODEL, f"{directory!r} lacks {len(missing)} weights, among them {missing[0]!r}")
        return lambda name: there[name].get_tensor(name)

    @torch.no_grad()
    def fill(
        self, read: Callable[[str], Tensor] | None, dtype: torch.dtype | None, device: torch.device
    ) -> Iterator[tuple[dict[str, nn.Parameter], list[nn.Parameter]]]:
        """Give an ``empty`` network the weights of a checkpoint, in a ``dtype`` or their own; without ``read`` they are
        left to chance. Yields the parameters of each part by their names without adapters, and their copies in the
        value function, once they are there. They may be spread over learners before the next ones come.
        """
        own, backbone = unique_state(self.language_model), backbone_of(self.language_model)
        parameters = dict(self.language_model.named_parameters())
        if self.adapters is not None:
            own, parameters = self.adapters.plain(own), self.adapters.plain(parameters)
        copies: dict[int, nn.Parameter] = {}
        if self.value_backbone is not None:
            pairs = zip(backbone.parameters(), self.value_backbone.parameters(), strict=True)
            copies = {id(parameter): copied for parameter, copied in pairs}
        for part in self._checkpoint_parts:
            there = {name: parameters[name] for name in part.names if name in parameters}
            for name, parameter in there.items():
                make_real(parameter, torch.empty(parameter.shape, dtype=dtype or parameter.dtype, device=device))
                own[name] = parameter.detach()
            if read is not None:
                load_checkpoint_tensors(self.language_model, (part,), own, {name: read(name) for name in part.shapes})
            more = {copies[id(p)]: p for p in there.values() if id(p) in copies}
            for copied, parameter in more.items():
                make_real(copied, parameter.detach().clone())
            for name in there:
                del own[name]
            yield there, list(more)

    def recompute_activations(self) -> None:
        """Keep only the layers' inputs for the backward pass, and compute the rest again there."""
        self.language_model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=CHECKPOINTING)

    def compile_layers(self) -> None:
        """Compile norms and feed-forward layers without experts, in place: names stay, and copies are as before."""
        for name, part in self.named_modules():
            if name.endswith(("norm", ".mlp")) and not hasattr(part, "experts"):
                part.compile(dynamic=True)

    def forward(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
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
                ``routed_experts`` ``[T, layers, k]`` or empty.

        Returns: ``logprobs`` ``[A]``, ``entropy`` ``[A]``, and with a value function ``values`` ``[A]``,
        ``bootstrap_values`` ``[B]``, ``value_features`` ``[A, h]`` (what the value head's last layer reads), with
        ``with_action_values`` what :class:`~rllib_lmgame.policies.model.heads.TokenValues` names, as far as
        asked for. ``observed_logprobs`` ``[O]`` are at temperature 1 and among the whole vocabulary.
        """
        ids = batch["input_ids"]
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=self.autocasts and ids.is_cuda == self.on_gpu):
            inputs = self._backbone_inputs(batch)
            if self.adapters is not None:  # Their dropout is all there is.
                self.language_model.train(torch.is_grad_enabled())
            with torch.set_grad_enabled(torch.is_grad_enabled() and not batch.get("detach_backbone", False)):
                hidden = self._hidden(backbone_of(self.language_model), inputs)
            out: dict[str, Tensor] = {}
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
        routes = batch.get("routed_experts")
        if self.replays and routes is not None and routes.shape[0]:
            rows.routes = torch.full((arguments["input_ids"].numel(), *routes.shape[1:]), 2**16 - 1, device=ids.device)
            rows.routes[rows.place(torch.arange(len(ids), device=ids.device))] = routes.long()
        pruned = self.prunes and 2 * read.shape[0] <= ids.shape[0]
        if not pruned or (rows.prefix_tree is not None and ids.device.type != "cpu"):
            return _BackboneInputs(arguments, rows, rows.place(read))
        positions, order = read.unique(return_inverse=True)
        arguments["selection"] = select(positions, batch["cu_seqlens"], rows.groups)
        return _BackboneInputs(arguments, rows, order)

    @staticmethod
    def _hidden(backbone: nn.Module, inputs: _BackboneInputs) -> Tensor:
        with inputs.rows:
            return backbone(**inputs.arguments).last_hidden_state.flatten(0, 1).index_select(0, inputs.read)

    def _logprobs(self, hidden: Tensor, batch: Mapping[str, Any]) -> dict[str, Tensor]:
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

    def _observed_logprobs(self, hidden: Tensor, batch: Mapping[str, Any]) -> Tensor:
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

    def _value_states(self, hidden: Tensor, inputs: _BackboneInputs) -> Tensor:
        if self.value_backbone is not None:
            return self._hidden(self.value_backbone, inputs)
        return hidden.detach() if self.options.freeze_backbone_for_value else hidden

    def _values(
        self, head: ValueHead, hidden: Tensor, batch: Mapping[str, Any], inputs: _BackboneInputs
    ) -> dict[str, Tensor]:
        hidden = self._value_states(hidden, inputs)
        actions, bootstraps = batch["predict_index"].shape[0], batch["bootstrap_index"].shape[0]
        values, features = head.with_features(hidden[: max(1, actions + bootstraps)])
        out = {"values": values[:actions], "bootstrap_values": values[actions : actions + bootstraps]}
        return out | {"value_features": features[:actions]} if batch.get("with_value_features", False) else out

    def _token_values(
        self, values: ActionValues, hidden: Tensor, batch: Mapping[str, Any], inputs: _BackboneInputs
    ) -> dict[str, Tensor]:
        hidden = self._value_states(hidden, inputs)
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

    def played_values(self) -> dict[str, Tensor]:
        """Tensors with which engines play by action values; empty if ``beta`` is 0."""
        if self.action_values is None or not self._values_count:
            return {}
        return self.action_values.for_engines(self._values_count, self.value_backbone)

    def value_output(self) -> nn.Linear:
        """The value head's last layer. Raises: ValueError: The module has no value function."""
        if self.value_head is None:
            raise ValueError("this policy is trained without a value function")
        return self.value_head.outer

    def hf_state(self, trained: bool = False) -> dict[str, Tensor]:
        """The language model's tensors by their names in memory; a tied head is left out. Nothing is copied.

        ``trained``: without frozen weights beside adapters.
        """
        if trained and self.adapters is not None:
            return self.adapters.state()
        return unique_state(self.language_model)

    def merged(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """A complete :meth:`hf_state` as a model without adapters has it, by its names in memory."""
        return state if self.adapters is None else self.adapters.merged(state)

    def as_checkpoint(self, state: Mapping[str, Tensor], device: torch.device | None = None) -> Mapping[str, Tensor]:
        """A complete :meth:`hf_state` by the names of the model's checkpoint, as engines take it (on ``device``)."""
        tensors, values = self._checkpoint(self.merged(state), device), self.played_values()
        return {**tensors, **values} if values else tensors

    def like_checkpoint(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of the names, order and sizes of :meth:`as_checkpoint`, without its work: on the meta device."""
        return {**self._like(state), **self.played_values()}

    def _like(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        tensors: Mapping[str, Tensor] = getattr(state, "like", state)  # Of tensors that are made when they are read.
        merged = tensors if self.adapters is None else self.adapters.merged(tensors).bases()
        return self._checkpoint({name: tensor.to("meta") for name, tensor in merged.items()})

    def _checkpoint(self, state: Mapping[str, Tensor], device: torch.device | None = None) -> CheckpointTensors:
        return CheckpointTensors(self.language_model, self._checkpoint_parts, state, device)

    def load_hf_state(self, state: Mapping[str, Any]) -> None:
        with torch.no_grad():
            for name, tensor in self.hf_state(trained=True).items():
                tensor.copy_(torch.as_tensor(state[name]))

    def save_hf(
        self, directory: str | Path, state: Mapping[str, Tensor] | None = None, played: Played | None = None
    ) -> Path:
        """Write what ``from_pretrained`` and vLLM load: config, safetensors, tokenizer and model card (for ``played``).

        ``state`` replaces the model's own tensors (gathered, averaged). Raises: CheckpointError: naming the file.
        """
        directory, state = Path(directory), state or self.hf_state()
        tensors, like = self._checkpoint(self.merged(state)), self._like(state)
        source, options = tokenizer_source(self.options, self.model_dir), self.options
        save_policy(self.language_model, tensors, like, directory, tokenizer=source, options=options, played=played)
        values = self.played_values()
        if values:
            save_values(values, directory)
        return directory


def _temperature(batch: Mapping[str, Any]) -> float | Tensor:
    shared, own = batch.get("temperature", 1.0), batch.get("temperatures")
    if own is None or not own.shape[0]:
        return float(shared)
    return torch.where(own.isnan(), torch.full_like(own, shared), own)


def _allowed(batch: Mapping[str, Any]) -> Allowed | None:
    positions = batch.get("allowed_action", ())
    return Allowed(positions, batch["allowed_owner"], batch["allowed_ids"]) if len(positions) else None


def merged_checkpoint(directory: Path, base: str, *, trust_remote_code: bool = False) -> Mapping[str, Tensor]:
    """The weights of a ``base`` (directory or hub id) with the adapter of a ``directory``, each made when it is read.

    They have the names of the base's checkpoint, and are what the learner that wrote the adapter sends.

    Raises: ConfigError: the adapter is damaged, or for another base, or that lacks weights; MissingDependencyError.
    """
    dtype = adapter_header(directory).dtype
    try:
        model = whole_model(base, dtype=dtype, trust_remote_code=trust_remote_code)
    except IncompleteModelError as error:
        raise ConfigError("config.language_model.model", f"{base!r} {error}") from error
    parts = parts_of(model, unique_state(model))
    adapters = Adapters(model, LoraOptions(init=str(directory)), model_dir=base)
    return CheckpointTensors(model, parts, adapters.merged(unique_state(model)))


# The weights as the checkpoint of a model has them, which is how engines take them.


@dataclass(frozen=True, eq=False)
class Part:
    """Tensors in memory (``names``), and those of the checkpoint that come of them alone (``shapes`` by name).

    ``renamed``: they differ in nothing but the name.
    """

    names: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]]
    renamed: bool


def unique_state(module: torch.nn.Module) -> dict[str, Tensor]:
    """Parameters, each once (tied ones under their first name), and persistent buffers."""
    named = dict(module.named_parameters())
    aliases = {name for name, _ in module.named_parameters(remove_duplicate=False)} - named.keys()
    for name, tensor in module.state_dict().items():
        if name not in named and name not in aliases:
            named[name] = tensor
    return {name: tensor.detach() for name, tensor in named.items()}


def parts_of(model: Any, state: Mapping[str, Tensor]) -> tuple[Part, ...]:
    """``state`` in the smallest parts that Transformers can take back one by one; only names, shapes and dtypes count.

    Raises: ValueError: if Transformers cannot take back what it did.
    """
    like = {name: torch.empty_like(tensor, device="meta") for name, tensor in state.items()}
    whole = _part(model, like, tuple(like))
    try:
        parts = [_part(model, like, names) for names in _together(model, like)]
    except Exception:  # What is made of several tensors may fail in any way where one of them is missing.
        return (whole,)
    shapes = {name: shape for part in parts for name, shape in part.shapes.items()}
    return tuple(parts) if shapes == whole.shapes else (whole,)


class CheckpointTensors(Mapping[str, Tensor]):
    """The tensors of a checkpoint, made of those in memory (``state``) when they are read, on ``device`` if given.

    In the order of the keys only one :class:`Part` is there at a time, unless the reader keeps it.
    """

    def __init__(
        self, model: Any, parts: tuple[Part, ...], state: Mapping[str, Tensor], device: torch.device | None = None
    ) -> None:
        self._model, self._state, self._device = model, state, device
        self._parts = {name: part for part in parts for name in part.shapes}
        self._last: tuple[Part | None, Mapping[str, Tensor]] = (None, {})

    def __getitem__(self, name: str) -> Tensor:
        part = self._parts[name]
        if self._last[0] is not part:
            self._last = (None, {})
            own = {name: self._state[name] for name in part.names}
            if self._device is not None:
                own = {name: tensor.to(self._device) for name, tensor in own.items()}
            self._last = part, _taken_back(self._model, own)
        return self._last[1][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


@torch.no_grad()
def load_checkpoint_tensors(
    model: Any, parts: tuple[Part, ...], own: Mapping[str, Tensor], tensors: Mapping[str, Tensor]
) -> None:
    """Copy a checkpoint's ``tensors`` into a model's ``own``, in place. Parts that lack a tensor stay as they are.

    Others than renamed ones need 16 bytes an entry, one part at a time, to find where each entry goes.
    """
    for part in parts:
        if not part.shapes.keys() <= tensors.keys():
            continue
        if part.renamed:
            own[part.names[0]].copy_(tensors[next(iter(part.shapes))])
            continue
        sizes = [own[name].numel() for name in part.names]
        first = own[part.names[0]]
        numbers = torch.arange(sum(sizes), device=first.device).split(sizes)
        numbered = {name: ids.view_as(own[name]) for name, ids in zip(part.names, numbers, strict=True)}
        flat = torch.empty(sum(sizes), dtype=first.dtype, device=first.device)
        for name, places in _taken_back(model, numbered).items():
            flat[places.reshape(-1)] = tensors[name].to(flat).reshape(-1)
        for name, values in zip(part.names, flat.split(sizes), strict=True):
            own[name].copy_(values.view_as(own[name]))


def _together(model: Any, like: Mapping[str, Tensor]) -> list[tuple[str, ...]]:
    """Names in memory, those together that have a part in one tensor of the checkpoint."""
    home: dict[str, list[str]] = {}
    for name, tensor in like.items():
        made = list(_taken_back(model, {name: tensor}))
        own = next((home[other] for other in made if other in home), [])
        own.append(name)
        home |= dict.fromkeys(made, own)
    return [tuple(names) for names in {id(names): names for names in home.values()}.values()]


def _part(model: Any, like: Mapping[str, Tensor], names: tuple[str, ...]) -> Part:
    own = {name: like[name] for name in names}
    made = _taken_back(model, own)
    shapes = {name: tuple(tensor.shape) for name, tensor in made.items()}
    return Part(names, shapes, len(names) == 1 and list(map(id, made.values())) == [id(own[names[0]])])


def _taken_back(model: Any, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    from transformers.core_model_loading import revert_weight_conversion

    return revert_weight_conversion(model, dict(own))
