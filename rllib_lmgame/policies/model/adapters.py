"""LoRA: small trained matrices beside the frozen weights of a language model (Hu et al. 2021).

A linear layer's weight is ``W + scale * B A``. PEFT has the layers and the files. Engines and ``hf/`` get merged
weights: each tensor is worked out anew from ``W`` and the adapter, in float32, and rounded once; ``W`` never changes.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import importlib.util
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rllib_lmgame.errors import CheckpointError, ConfigError, MissingDependencyError
from rllib_lmgame.json_files import read_mapping
from rllib_lmgame.policies.model.files import weight_files
from rllib_lmgame.settings.schema import given
from rllib_lmgame.settings.sections.language_model import ALL_LINEAR, LoraOptions
from rllib_lmgame.storage import expanded, follow_umask
from rllib_lmgame.text import first_line

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
KEY = "language_model.lora"
IN_PEFT = {"r": "r", "lora_alpha": "alpha", "use_rslora": "use_rslora"}
"""Numbers of an adapter: PEFT's names -> ours."""
_ACTIVE, _REFERENCE = "default", "reference"
_PEFT_PREFIX = "base_model.model."
_SAMPLED = 16
"""Numbers of each adapted weight that tell one base from another."""
_MAX_CONFIG_BYTES = 1 << 20
_MISSING = f"{KEY}: needs the package peft; install the extra `rllib-lmgame[lora]` (pip install 'rllib-lmgame[lora]')"
_PLAIN = {
    "use_dora": (False, None),
    "bias": ("none", None),
    "lora_bias": (False, None),
    "fan_in_fan_out": (False, True, None),
    "trainable_token_indices": (None,),
    "target_parameters": (None, []),
    "layer_replication": (None,),
    "megatron_config": (None,),
}
"""Fields of PEFT's configuration -> values with which an adapter is ``scale * B A`` and no more."""


def check_peft() -> None:
    """Raises: MissingDependencyError: PEFT is not installed."""
    if importlib.util.find_spec("peft") is None:
        raise MissingDependencyError(_MISSING)


@dataclass(frozen=True)
class Source:
    """Where a weight of the merged model comes from, by names in memory; ``down`` and ``up`` are ``A`` and ``B``."""

    base: str
    down: str | None = None
    up: str | None = None
    scale: float = 1.0
    transposed: bool = False


class MergedTensors(Mapping[str, torch.Tensor]):
    """The tensors of a model without adapters, by its names, made of ``state`` when they are read."""

    def __init__(self, sources: Mapping[str, Source], state: Mapping[str, torch.Tensor]) -> None:
        self._sources, self._state = sources, state

    @torch.no_grad()
    def __getitem__(self, name: str) -> torch.Tensor:
        source = self._sources[name]
        base = self._state[source.base].detach()
        if source.down is None or source.up is None:
            return base
        change = self._state[source.up].detach().float() @ self._state[source.down].detach().float()
        change = change.T if source.transposed else change
        return torch.add(base.float(), change, alpha=source.scale).to(base.dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)


class Adapters:
    """The adapters of one language model, which is changed in place: base frozen, adapters in float32.

    Attributes:
        trained: Names in memory of what is trained.
        fingerprint: Of the base weights they belong to.
    """

    def __init__(self, model: Any, options: LoraOptions, *, model_dir: str, reference: bool = False) -> None:
        """Add adapters; ``reference``: also those of the policy that the KL penalty compares with.

        Raises: ConfigError: no such modules, or an adapter for another model; MissingDependencyError.
        """
        check_peft()
        from peft import inject_adapter_in_model

        names = [name for name, _ in model.named_parameters()]
        tied = dict(model.named_parameters(remove_duplicate=False))
        names += [name for name in model.state_dict() if name not in tied]
        self.config = lora_config(options)
        targets = _targets(model, own_modules(options, self.config))
        self._model = model
        self.fingerprint = fingerprint(_heads(name, model.get_submodule(name).weight) for name in targets.adapted)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Already found a `peft_config`")
            for adapter in (_ACTIVE, _REFERENCE)[: 1 + reference]:
                inject_adapter_in_model(copy.deepcopy(self.config), model, adapter)
        self.config.target_modules = sorted(model.peft_config[_ACTIVE].target_modules)
        self._switch(_ACTIVE)
        self.model_dir = model_dir
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()
        self.trained = tuple(name for name, p in model.named_parameters() if p.requires_grad)
        self._sources = {name: self._source(name, targets) for name in names}
        if options.init is not None:
            self._load(expanded(options.init))
        if reference:
            self.set_reference(self.state())

    def _source(self, name: str, targets: Targets) -> Source:
        module, _, parameter = name.rpartition(".")
        if module in targets.saved:
            return Source(f"{module}.modules_to_save.{_ACTIVE}.{parameter}")
        if module not in targets.adapted:
            inside = next((saved for saved in targets.saved if name.startswith(f"{saved}.")), None)
            if inside is not None:
                return Source(f"{inside}.modules_to_save.{_ACTIVE}{name.removeprefix(inside)}")
            return Source(name)
        base = f"{module}.base_layer.{parameter}"
        if parameter != "weight":
            return Source(base)
        layer = self._model.get_submodule(module)
        down, up = (f"{module}.lora_{which}.{_ACTIVE}.weight" for which in "AB")
        return Source(base, down, up, float(layer.scaling[_ACTIVE]), bool(layer.fan_in_fan_out))

    def state(self) -> dict[str, torch.Tensor]:
        """What is trained, by names in memory. Nothing is copied."""
        named = dict(self._model.named_parameters())
        return {name: named[name].detach() for name in self.trained}

    def merged(self, state: Mapping[str, torch.Tensor]) -> MergedTensors:
        """The weights of a model without adapters; ``state`` has base and adapters by names in memory."""
        return MergedTensors(self._sources, state)

    # The policy that the KL penalty compares with: other adapters on the same weights.

    def reference_parameters(self) -> dict[str, nn.Parameter]:
        """Parameters of the reference, by the names of those that are trained."""
        named = dict(self._model.named_parameters())
        return {name: named[name.replace(f".{_ACTIVE}.", f".{_REFERENCE}.")] for name in self.trained}

    @torch.no_grad()
    def set_reference(self, state: Mapping[str, torch.Tensor]) -> None:
        """Make the reference that of ``state``; its parameters have to be whole."""
        for name, parameter in self.reference_parameters().items():
            parameter.copy_(torch.as_tensor(state[name]))

    @contextlib.contextmanager
    def as_reference(self) -> Iterator[None]:
        """Passes inside are those of the reference."""
        self._switch(_REFERENCE)
        try:
            yield
        finally:
            self._switch(_ACTIVE)

    def _switch(self, adapter: str) -> None:
        from peft.functional import set_adapter

        set_adapter(self._model, adapter, inference_mode=adapter != _ACTIVE)

    # Files in PEFT's form.

    def save(self, directory: Path, state: Mapping[str, torch.Tensor]) -> None:
        """Write what ``peft.PeftModel.from_pretrained`` loads. Raises: CheckpointError: it cannot be written."""
        from safetensors.torch import save_file

        config = dataclasses.replace(self.config, inference_mode=True, base_model_name_or_path=self.model_dir)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            config.save_pretrained(str(directory))
            tensors = {_in_file(name): state[name].detach().cpu().contiguous() for name in self.trained}
            save_file(tensors, directory / WEIGHTS_FILE, {"format": "pt", "base": self.fingerprint})
            follow_umask(directory / WEIGHTS_FILE)
        except Exception as error:  # A full disk shows in many ways.
            raise CheckpointError(f"{directory} cannot be written: {first_line(error)}") from error

    @torch.no_grad()
    def _load(self, directory: Path) -> None:
        """Take the adapter of a directory. Raises: ConfigError: it is damaged, or for another model."""
        problem = self._problem(directory)
        if problem is not None:
            raise ConfigError(f"{KEY}.init", problem)
        from safetensors.torch import load_file

        tensors = load_file(directory / WEIGHTS_FILE)
        for name, parameter in self.state().items():
            parameter.copy_(tensors[_in_file(name)])

    def _problem(self, directory: Path) -> str | None:
        own = {_in_file(name): tuple(tensor.shape) for name, tensor in self.state().items()}
        base, there = adapter_header(directory)
        return _misfit(directory, own, there) or wrong_base(directory, base, self.fingerprint)


@dataclass(frozen=True)
class Targets:
    """Names of modules: those that get adapters, and those that are trained whole."""

    adapted: tuple[str, ...]
    saved: tuple[str, ...]


def own_modules(options: LoraOptions, config: Any) -> LoraOptions:
    """The options with the modules that the file to begin with names, if there is one."""
    if options.init is None:
        return options
    found = config.target_modules
    return dataclasses.replace(
        options,
        target_modules=found if isinstance(found, str) else sorted(found),
        modules_to_save=sorted(config.modules_to_save or ()),
    )


def _targets(model: Any, options: LoraOptions) -> Targets:
    head = model.get_output_embeddings()
    return find_targets(
        {name: module_kind(module) for name, module in model.named_modules() if name},
        options,
        head=next((name for name, module in model.named_modules() if module is head), ""),
        tied=bool(getattr(model.config.get_text_config(), "tie_word_embeddings", False)),
    )


LINEAR, OTHER = "linear", "other"


def module_kind(module: nn.Module) -> str:
    return LINEAR if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D" else OTHER


def find_targets(modules: Mapping[str, str], options: LoraOptions, *, head: str, tied: bool) -> Targets:
    """Which ``modules`` (name -> :func:`module_kind`) the options mean; ``head`` is the output head's name.

    Raises: ConfigError: a name that no module has, or one that adapters cannot stand beside.
    """
    linear = [name for name, kind in modules.items() if kind == LINEAR and name != head]
    if options.target_modules == ALL_LINEAR:
        adapted = linear
        if not adapted:
            raise ConfigError(f"{KEY}.target_modules", "the model has no linear layers")
    elif isinstance(options.target_modules, str):
        raise ConfigError(
            f"{KEY}.target_modules", f"expected {ALL_LINEAR} or a list of names, got {options.target_modules!r}"
        )
    else:
        adapted = _named(modules, options.target_modules, f"{KEY}.target_modules", linear)
        for name in adapted:
            if modules[name] != LINEAR:
                raise ConfigError(f"{KEY}.target_modules", f"{name} is no linear layer; {_there(linear)}")
    saved = _named(modules, options.modules_to_save, f"{KEY}.modules_to_save", modules)
    for key, names in (("target_modules", adapted), ("modules_to_save", saved)):
        if tied and any(name == head or name.endswith("embed_tokens") for name in names):
            raise ConfigError(
                f"{KEY}.{key}", f"{names[-1]} shares its weights with the model's other end; leave it out"
            )
    both = sorted(set(adapted) & set(saved))
    if both:
        raise ConfigError(f"{KEY}.modules_to_save", f"{both[0]} has an adapter already (target_modules)")
    return Targets(tuple(adapted), tuple(saved))


def _named(modules: Iterable[str], ends: Sequence[str], key: str, those: Iterable[str]) -> list[str]:
    """Modules whose names end as asked for, in PEFT's sense: targets by whole words, modules to save by letters."""
    found: list[str] = []
    for end in ends:
        word = "" if key.endswith("modules_to_save") else "."
        matching = [name for name in modules if name == end or name.endswith(word + end)]
        if not matching:
            raise ConfigError(key, f"the model has no module {end!r}; {_there(those)}")
        found += [name for name in matching if name not in found]
    if not found and key.endswith("target_modules"):
        raise ConfigError(key, f"names no module; {_there(those)}")
    return found


def _there(names: Iterable[str]) -> str:
    last = {name.rpartition(".")[2] for name in names}
    return f"there are {', '.join(sorted(name for name in last if not name.isdigit()))}"


def lora_config(options: LoraOptions) -> Any:
    """PEFT's configuration of adapters. Raises: ConfigError: the file to begin with says otherwise than an option."""
    from peft import LoraConfig

    if options.init is None:
        chosen = options.target_modules
        return LoraConfig(
            r=options.r,
            lora_alpha=options.alpha,
            lora_dropout=options.dropout,
            target_modules=chosen if isinstance(chosen, str) else list(chosen),
            modules_to_save=list(options.modules_to_save) or None,
            use_rslora=options.use_rslora,
            task_type="CAUSAL_LM",
        )
    directory = expanded(options.init)
    check_adapter(options)
    try:
        found = LoraConfig.from_pretrained(str(directory))
    except Exception as error:  # A damaged file fails in many ways.
        raise ConfigError(f"{KEY}.init", f"{directory / CONFIG_FILE}: {first_line(error)}") from error
    return dataclasses.replace(found, inference_mode=False, lora_dropout=options.dropout, init_lora_weights=True)


def check_adapter(options: LoraOptions, key: str = KEY) -> None:
    """Check the directory to begin with, as far as its files tell. Raises: ConfigError: at the option."""
    if options.init is None:
        return
    directory = expanded(options.init)
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (directory / name).is_file():
            raise ConfigError(f"{key}.init", f"{options.init} has no {name}; an adapter's directory is needed")
    try:
        config = read_mapping(directory / CONFIG_FILE, _MAX_CONFIG_BYTES)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{key}.init", f"{directory / CONFIG_FILE} cannot be read: {first_line(error)}") from error
    if config.get("peft_type") != "LORA":
        raise ConfigError(f"{key}.init", f"{options.init} is an adapter of type {config.get('peft_type')!r}, not LORA")
    for name, plain in _PLAIN.items():
        if name in config and config[name] not in plain:
            raise ConfigError(f"{key}.init", f"{options.init} has {name}: {config[name]!r}, which is not known here")
    for name, own in IN_PEFT.items():
        if own in given(options) and getattr(options, own) != config.get(name):
            raise ConfigError(
                f"{key}.{own}",
                f"is {getattr(options, own)}, but {config.get(name)} in {options.init}; leave it out, or begin anew",
            )
    for name in ("target_modules", "modules_to_save"):
        if name in given(options):
            raise ConfigError(f"{key}.{name}", "is what lora.init says; leave it out, or begin anew")


def check_lora(options: LoraOptions, config: Any | None, directory: Path | None) -> None:
    """Check adapters for a model of a ``transformers`` configuration, whose weights may be in a ``directory``.

    Raises: ConfigError: as :class:`Adapters`, at the option; MissingDependencyError.
    """
    check_peft()
    check_adapter(options)
    if config is None:
        return
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    modules = {name: module for name, module in model.named_modules() if name}
    chosen = own_modules(options, lora_config(options))
    targets = _targets(model, chosen)
    if options.init is None:
        return
    init, patterns = expanded(options.init), lora_config(options)
    base, there = adapter_header(init)
    own: dict[str, tuple[int, ...]] = {}
    for name in targets.adapted:
        rows, columns = modules[name].weight.shape
        if type(modules[name]).__name__ == "Conv1D":
            rows, columns = columns, rows
        rank = patterns.r
        if patterns.rank_pattern:
            rank = there.get(f"{_PEFT_PREFIX}{name}.lora_A.weight", (rank,))[0]
        own[f"{_PEFT_PREFIX}{name}.lora_A.weight"] = (rank, columns)
        own[f"{_PEFT_PREFIX}{name}.lora_B.weight"] = (rows, rank)
    for name in targets.saved:
        own |= {f"{_PEFT_PREFIX}{name}.{end}": tuple(p.shape) for end, p in modules[name].named_parameters()}
    problem = _misfit(init, own, there) or wrong_base(init, base, _on_disk(directory, targets.adapted))
    if problem is not None:
        raise ConfigError(f"{KEY}.init", problem)


def _on_disk(directory: Path | None, names: Sequence[str]) -> str | None:
    """:func:`fingerprint` of weights in a directory; ``None`` if they are not there under these names."""
    from safetensors import safe_open

    left, found = {f"{name}.weight": name for name in names}, []
    for file in () if directory is None else weight_files(directory):
        with safe_open(str(file), framework="pt") as tensors:
            for weight in left.keys() & set(tensors.keys()):
                part = tensors.get_slice(weight)
                found.append((left.pop(weight), tuple(part.get_shape()), part[0, :_SAMPLED]))
    return None if left else fingerprint(found)


def adapter_header(directory: Path) -> tuple[str | None, dict[str, tuple[int, ...]]]:
    """Fingerprint of the base if the adapter's file says it, and its shapes. Raises: ConfigError: damaged."""
    from safetensors import safe_open

    file = directory / WEIGHTS_FILE
    try:
        with safe_open(str(file), framework="np") as tensors:
            shapes = {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
            return (tensors.metadata() or {}).get("base"), shapes
    except Exception as error:
        raise ConfigError(f"{KEY}.init", f"{file} cannot be read: {first_line(error)}") from error


def wrong_base(directory: Path, there: str | None, here: str | None) -> str | None:
    """What to say of an adapter that was trained on other weights; ``None`` where that is not known."""
    if there is None or here is None or there == here:
        return None
    trained_on = read_mapping(directory / CONFIG_FILE, _MAX_CONFIG_BYTES).get("base_model_name_or_path")
    return f"{directory} is an adapter for other weights ({trained_on}) than language_model.model"


def _misfit(directory: Path, own: Mapping[str, tuple[int, ...]], there: Mapping[str, tuple[int, ...]]) -> str | None:
    for name, shape in own.items():
        if name not in there:
            return f"{directory} is an adapter for another model: it has no {name}"
        if there[name] != shape:
            return f"{directory} is an adapter for another model: {name} is {list(there[name])}, not {list(shape)}"
    more = sorted(there.keys() - own.keys())
    return f"{directory} is an adapter for another model: {more[0]} belongs to no module here" if more else None


def _in_file(name: str) -> str:
    """PEFT's key of a trained tensor, by its name in memory."""
    return _PEFT_PREFIX + name.replace(f".modules_to_save.{_ACTIVE}.", ".").replace(f".{_ACTIVE}.", ".")


def _heads(name: str, weight: torch.Tensor) -> tuple[str, tuple[int, ...], torch.Tensor]:
    return name, tuple(weight.shape), weight.detach()[0, :_SAMPLED]


def fingerprint(weights: Iterable[tuple[str, tuple[int, ...], torch.Tensor]]) -> str:
    """15 hexadecimal digits of names, shapes and first numbers of weights, rounded to bfloat16.

    So it is the same in float32 and bfloat16.
    """
    digest = hashlib.blake2b(digest_size=8)
    for name, shape, numbers in sorted(weights, key=lambda weight: weight[0]):
        rounded = numbers.to(device="cpu", dtype=torch.bfloat16).contiguous().view(torch.int16).numpy()
        digest.update(f"{name} {shape}".encode() + rounded.tobytes())
    return digest.hexdigest()[:15]
