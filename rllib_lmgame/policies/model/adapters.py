"""LoRA: small trainable matrices added to the frozen weights of a language model (Hu et al. 2021).

A linear layer's weight is ``W + scale * B A``. PEFT has the layers and the files. Engines and ``hf/`` get merged
weights: each tensor is worked out anew from ``W`` and the adapter, in float32, and rounded once; ``W`` never changes.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import importlib.util
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from rllib_lmgame.base.errors import CheckpointError, ConfigError, MissingDependencyError
from rllib_lmgame.base.group import build, given
from rllib_lmgame.base.json_files import read_mapping
from rllib_lmgame.base.storage import expanded
from rllib_lmgame.base.text import first_line
from rllib_lmgame.policies.model.files import ADAPTER_DIRECTORY, ADAPTER_FILES
from rllib_lmgame.policies.options import ALL_LINEAR, LoraOptions

CONFIG_FILE, WEIGHTS_FILE = ADAPTER_FILES
KEY = "language_model.lora"
IN_PEFT = {"r": "r", "lora_alpha": "alpha", "use_rslora": "use_rslora"}
"""Numbers of an adapter: PEFT's names -> ours."""
_ACTIVE, _REFERENCE = "default", "reference"
Sample = tuple[str, tuple[int, ...], Tensor]

_FROZEN: WeakValueDictionary[tuple[str, str], nn.Parameter] = WeakValueDictionary()
"""Frozen weights of this process, by fingerprint and the model's own name. Nothing changes them."""
_WRAPPED = re.compile(r"\.(base_layer|original_module)(?=\.)")
"""What PEFT puts into the names of frozen weights where it adds something."""
_PEFT_PREFIX = "base_model.model."
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_SAMPLED = 16
"""Numbers of each adapted weight that tell one base from another."""
_MAX_CONFIG_BYTES = 1 << 20
_READ = (*IN_PEFT, "target_modules", "modules_to_save")
_IDLE = (
    *("peft_type", "peft_version", "task_type", "base_model_name_or_path", "revision", "auto_mapping"),
    *("runtime_config", "inference_mode", "lora_dropout", "fan_in_fan_out", "init_lora_weights", "eva_config"),
)
"""Fields of PEFT's configuration that say what an adapter is, and those that it does not depend on."""
_BEGUN = (True, False, None, "gaussian", "orthogonal", "eva", "mica")
"""Values of ``init_lora_weights`` that leave the base weights as they are."""


@dataclass(frozen=True)
class Source:
    """Where a weight of the merged model comes from, by names in memory; ``down`` and ``up`` are ``A`` and ``B``."""

    base: str
    down: str | None = None
    up: str | None = None
    scale: float = 1.0
    transposed: bool = False


class MergedTensors(Mapping[str, Tensor]):
    """The tensors of a model without adapters, by its names, made of ``state`` when they are read."""

    def __init__(self, sources: Mapping[str, Source], state: Mapping[str, Tensor]) -> None:
        self._sources, self._state = sources, state

    @torch.no_grad()
    def __getitem__(self, name: str) -> Tensor:
        source = self._sources[name]
        base = self._state[source.base].detach()
        if source.down is None or source.up is None:
            return base
        change = self._state[source.up].detach().float() @ self._state[source.down].detach().float()
        change = change.T if source.transposed else change
        return torch.add(base.float(), change, alpha=source.scale).to(base.dtype)

    def bases(self) -> dict[str, Tensor]:
        """Tensors of the same names, shapes and dtypes, of which none is worked out."""
        return {name: self._state[source.base] for name, source in self._sources.items()}

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)


class Adapters:
    """The adapters of one language model, which is changed in place: base frozen, adapters in float32.

    ``reference``: also those of the policy that the KL penalty compares with. A model without weights gets them later,
    then :meth:`belong_to` must be called.

    Attributes:
        trained: Names in memory of what is trained.
        fingerprint: Of the base weights they belong to.

    Raises: ConfigError: no such modules, or an adapter for another model; MissingDependencyError.
    """

    def __init__(self, model: Any, options: LoraOptions, *, model_dir: str, reference: bool = False) -> None:
        names = [name for name, _ in model.named_parameters()]
        tied = dict(model.named_parameters(remove_duplicate=False))
        names += [name for name in model.state_dict() if name not in tied]
        self._model, self.model_dir = model, model_dir
        self._init = None if options.init is None else expanded(options.init)
        empty = any(parameter.is_meta for parameter in model.parameters())
        with _standing_in(model):
            self.config, targets = _inject(model, options, (_ACTIVE, _REFERENCE)[: 1 + reference])
        self._bases = frozenset(targets.adapted)
        self.fingerprint = "" if empty else fingerprint(self.samples(self.plain(dict(model.named_parameters()))))
        self._switch(_ACTIVE)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()
        self.trained = tuple(_trained(model))
        self._sources = {name: self._source(name, targets) for name in names}
        if self._init is not None:
            self._load(self._init)
        if reference:
            self.set_reference(self.state())

    def _source(self, name: str, targets: Targets) -> Source:
        saved = next((saved for saved in targets.saved if name.startswith(f"{saved}.")), None)
        if saved is not None:
            return Source(f"{saved}.modules_to_save.{_ACTIVE}{name.removeprefix(saved)}")
        module, _, parameter = name.rpartition(".")
        if module not in targets.adapted:
            return Source(name)
        base = f"{module}.base_layer.{parameter}"
        if parameter != "weight":
            return Source(base)
        layer = self._model.get_submodule(module)
        down, up = (f"{module}.lora_{which}.{_ACTIVE}.weight" for which in "AB")
        return Source(base, down, up, float(layer.scaling[_ACTIVE]), bool(layer.fan_in_fan_out))

    def frozen(self) -> Iterator[tuple[str, nn.Parameter]]:
        """What is not trained, by names in memory, without a reference's adapters."""
        for name, parameter in self._model.named_parameters():
            if not parameter.requires_grad and f".{_REFERENCE}." not in name:
                yield name, parameter

    @staticmethod
    def plain(named: Mapping[str, Any]) -> dict[str, Any]:
        """The same by the names that tensors in memory have in a model without adapters."""
        return {_WRAPPED.sub("", name): value for name, value in named.items()}

    def samples(self, weights: Mapping[str, Tensor]) -> list[Sample]:
        """What the fingerprint is of, in ``weights`` by plain names."""
        bases = {name: weights[f"{name}.weight"] for name in self._bases if f"{name}.weight" in weights}
        return [(name, tuple(weight.shape), weight.detach()[0, :_SAMPLED].clone()) for name, weight in bases.items()]

    def belong_to(self, samples: Iterable[Sample]) -> None:
        """The base has weights now. Raises: ConfigError: the adapter to begin with is for others."""
        self.fingerprint = fingerprint(samples)
        if self._init is not None:
            _check_fit(self._init, self._model, self.fingerprint)

    def share_frozen(self) -> None:
        """Hold once what is frozen and equal in another policy of this process."""
        once = self.held_once(lambda own: own.data)
        for _, own in self.frozen():
            own.data = once(own)

    def held_once(self, moved: Callable[[Any], Tensor]) -> Callable[[Any], Tensor]:
        """A function that moves parameters, and gives another policy's tensor in place of one equal to it."""
        names = {id(own): name for name, own in self.plain(dict(self.frozen())).items()}

        def once(own: Any) -> Tensor:
            new = moved(own)
            if id(own) not in names:
                return new
            name = names[id(own)]
            key = fingerprint([(name, tuple(new.shape), new.detach().flatten()[:_SAMPLED])]), name
            held = _FROZEN.get(key)
            if held is not None and (held.dtype, held.device) == (new.dtype, new.device) and torch.equal(held, new):
                return held.data
            _FROZEN[key] = own
            return new

        return once

    def state(self) -> dict[str, Tensor]:
        """What is trained, by names in memory. Nothing is copied."""
        named = dict(self._model.named_parameters())
        return {name: named[name].detach() for name in self.trained}

    def merged(self, state: Mapping[str, Tensor]) -> MergedTensors:
        """The weights of a model without adapters; ``state`` has base and adapters by names in memory."""
        return MergedTensors(self._sources, state)

    # The policy that the KL penalty compares with: other adapters on the same weights.

    def reference_parameters(self) -> dict[str, nn.Parameter]:
        """Parameters of the reference, by the names of those that are trained."""
        named = dict(self._model.named_parameters())
        return {name: named[name.replace(f".{_ACTIVE}.", f".{_REFERENCE}.")] for name in self.trained}

    @torch.no_grad()
    def set_reference(self, state: Mapping[str, Tensor]) -> None:
        """Make the reference that of ``state``; its parameters have to be whole."""
        for name, parameter in self.reference_parameters().items():
            parameter.copy_(torch.as_tensor(state[name]))

    @contextlib.contextmanager
    def as_reference(self) -> Iterator[None]:
        self._switch(_REFERENCE)
        try:
            yield
        finally:
            self._switch(_ACTIVE)

    def _switch(self, adapter: str) -> None:
        from peft.functional import set_adapter

        set_adapter(self._model, adapter, inference_mode=adapter != _ACTIVE)

    # Files in PEFT's form.

    def save(self, directory: Path, state: Mapping[str, Tensor]) -> None:
        """Write what ``peft.PeftModel.from_pretrained`` loads. Raises: CheckpointError: it cannot be written."""
        from safetensors.torch import save

        config = dataclasses.replace(self.config, inference_mode=True, base_model_name_or_path=self.model_dir)
        config.target_modules = sorted(config.target_modules)  # A set, whose order no two processes share.
        try:
            directory.mkdir(parents=True, exist_ok=True)
            config.save_pretrained(str(directory))
            tensors = {_in_file(name): state[name].detach().cpu().contiguous() for name in self.trained}
            base = self._model.get_submodule(f"{config.target_modules[0]}.base_layer").weight
            # One entry: the order of several is another one each time.
            about = {"base": f"{self.fingerprint} {str(base.dtype).removeprefix('torch.')}"}
            (directory / WEIGHTS_FILE).write_bytes(save(tensors, about))
        except Exception as error:  # A full disk shows in many ways.
            raise CheckpointError(f"{directory} cannot be written: {first_line(error)}") from error

    @torch.no_grad()
    def _load(self, directory: Path) -> None:
        _check_fit(directory, self._model, self.fingerprint)
        from safetensors.torch import load_file

        tensors = load_file(directory / WEIGHTS_FILE)
        for name, parameter in self.state().items():
            parameter.copy_(tensors[_in_file(name)])


@contextlib.contextmanager
def _standing_in(model: nn.Module) -> Iterator[None]:
    """Inside, weights on the meta device are on the CPU without memory, so that adapters made there have numbers."""
    empty = [parameter for parameter in model.parameters() if parameter.is_meta]
    for parameter in empty:
        make_real(parameter, torch.zeros((), dtype=parameter.dtype).expand(parameter.shape))
    yield
    for parameter in empty:
        make_real(parameter, torch.empty_like(parameter, device="meta"))


def make_real(parameter: nn.Parameter, values: Tensor) -> None:
    """Give a parameter on the meta device ``values``; whoever holds the parameter sees them."""
    torch.utils.swap_tensors(parameter, nn.Parameter(values, parameter.requires_grad))


class Targets(NamedTuple):
    """Names of modules: those that get adapters, and those that are trained whole."""

    adapted: tuple[str, ...]
    saved: tuple[str, ...]


def _inject(model: Any, options: LoraOptions, adapters: Sequence[str]) -> tuple[Any, Targets]:
    """Put adapters into a model; returns PEFT's configuration of them, and where they are.

    PEFT gets the modules one by one: by their names it would take some for experts of earlier versions.

    Raises: ConfigError: no such modules, or not in this kind of model; as :func:`as_begun`; MissingDependencyError.
    """
    begun = as_begun(options)
    from peft import LoraConfig, inject_adapter_in_model

    kinds = {name: module_kind(module) for name, module in model.named_modules() if name}
    names = {module: name for name, module in model.named_modules()}
    ends = [names.get(end, "") for end in (model.get_input_embeddings(), model.get_output_embeddings())]
    tied = getattr(model.config.get_text_config(), "tie_word_embeddings", False)
    with _said_by(options):
        targets = find_targets(kinds, begun, head=ends[1], tied=ends if tied else ())
    config = LoraConfig(
        r=begun.r,
        lora_alpha=begun.alpha,
        lora_dropout=options.dropout,
        modules_to_save=list(begun.modules_to_save) or None,
        use_rslora=begun.use_rslora,
        task_type="CAUSAL_LM",
    )
    without = dataclasses.replace(config, target_modules=[])
    named = dict.fromkeys(f"{name}.lora_A.weight" for name in targets.adapted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for adapter in adapters:
            try:
                inject_adapter_in_model(copy.deepcopy(without), model, adapter, state_dict=named)
            except ValueError as error:
                with _said_by(options):
                    raise ConfigError(f"{KEY}.target_modules", first_line(error)) from error
    return dataclasses.replace(config, target_modules=list(targets.adapted)), targets


@contextlib.contextmanager
def _said_by(options: LoraOptions) -> Iterator[None]:
    """Report errors at the option, or at ``lora.init`` if its file sets the option."""
    try:
        yield
    except ConfigError as error:
        if options.init is None:
            raise
        field = error.path.removeprefix(f"{KEY}.")
        raise ConfigError(f"{KEY}.init", f"{expanded(options.init) / CONFIG_FILE}: {field}: {error.message}") from error


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


LINEAR, OTHER = "linear", "other"


def module_kind(module: nn.Module) -> str:
    return LINEAR if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D" else OTHER


def find_targets(modules: Mapping[str, str], options: LoraOptions, *, head: str, tied: Sequence[str]) -> Targets:
    """Which ``modules`` (name -> :func:`module_kind`) the options mean.

    ``head`` is the output head, ``tied`` are those that share its weights.

    Raises: ConfigError: a name that no module has, or one that adapters cannot stand beside.
    """
    key, linear = f"{KEY}.target_modules", [name for name, kind in modules.items() if kind == LINEAR and name != head]
    if options.target_modules == ALL_LINEAR:
        adapted = linear
        if not adapted:
            raise ConfigError(key, "the model has no linear layers")
    elif isinstance(options.target_modules, str):
        raise ConfigError(key, f"expected {ALL_LINEAR} or a list of names, got {options.target_modules!r}")
    else:
        adapted = _named(modules, options.target_modules, key, linear)
        other = next((name for name in adapted if modules[name] != LINEAR), None)
        if other is not None:
            raise ConfigError(key, f"{other} is no linear layer; {_there(linear)}")
    saved = _named(modules, options.modules_to_save, f"{KEY}.modules_to_save", modules)
    for key, names in (("target_modules", adapted), ("modules_to_save", saved)):
        shared = next((name for name in names if any(within(end, name) for end in tied)), None)
        if shared is not None:
            raise ConfigError(f"{KEY}.{key}", f"{shared} shares its weights with the model's other end; leave it out")
    for whole in saved:
        part = next((name for name in (*adapted, *saved) if name != whole and within(name, whole)), None)
        if part is not None or whole in adapted:
            raise ConfigError(f"{KEY}.modules_to_save", f"{part or whole} would be trained twice, as a part of {whole}")
    return Targets(tuple(adapted), tuple(saved))


def within(name: str, module: str) -> bool:
    """Whether a module's name is, or lies in, that of another ``module``."""
    return f"{name}.".startswith(f"{module}.")


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
    return f"there are {', '.join(sorted(name for name in last_parts(names) if not name.isdigit()))}"


def as_begun(options: LoraOptions) -> LoraOptions:
    """The options with what the files to begin with say.

    Raises: ConfigError: it is damaged, more than ``scale * B A``, or says otherwise than an option;
    MissingDependencyError.
    """
    if importlib.util.find_spec("peft") is None:
        raise MissingDependencyError(f"{KEY}: needs the package peft: pip install 'rllib-lmgame[lora]'")
    if options.init is None:
        return options
    from peft import LoraConfig

    key, file = f"{KEY}.init", expanded(options.init) / CONFIG_FILE
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not file.with_name(name).is_file():
            raise ConfigError(key, f"{options.init} has no {name}; a checkpoint has it in {ADAPTER_DIRECTORY}/")
    plain: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(LoraConfig)}
    try:
        content = {name: plain[name] for name in IN_PEFT} | read_mapping(file, _MAX_CONFIG_BYTES)
    except (OSError, ValueError) as error:
        raise ConfigError(key, f"{file} cannot be read: {first_line(error)}") from error
    if content.get("peft_type") != "LORA":
        raise ConfigError(key, f"{options.init} is an adapter of type {content.get('peft_type')!r}, not LORA")
    for name, value in content.items():
        idle = value in _BEGUN if name == "init_lora_weights" else name in _READ or name in _IDLE
        if not idle and value and value != plain.get(name):
            raise ConfigError(key, f"{options.init} has {name}: {value!r}, which is not known here")
    says = {own: content[name] for name, own in IN_PEFT.items()}
    says |= {"target_modules": content.get("target_modules"), "modules_to_save": content.get("modules_to_save") or []}
    try:
        begun = build(LoraOptions, says)
    except ConfigError as error:
        raise ConfigError(key, f"{file}: {first_line(error)}") from error
    for own in says.keys() & given(options):
        here, there = getattr(options, own), getattr(begun, own)
        if here != there:
            raise ConfigError(f"{KEY}.{own}", f"is {here!r}, but {there!r} in {options.init}; leave it out")
    return begun


SERVED_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM makes room for."""


def served_rank(options: LoraOptions) -> int:
    """The rank that an engine must reserve to serve such adapters.

    Raises: ConfigError: engines cannot hold them so; as :func:`as_begun`; MissingDependencyError.
    """
    begun = as_begun(options)
    with _said_by(options):
        if begun.modules_to_save:
            raise ConfigError(f"{KEY}.modules_to_save", "are trained whole, which inference.adapters does not go with")
        if "lm_head" in last_parts(begun.target_modules):  # vLLM 0.32 then scores no two replies at once.
            raise ConfigError(f"{KEY}.target_modules", "lm_head is no layer that inference.adapters goes with")
        if begun.r > SERVED_RANKS[-1]:
            raise ConfigError(f"{KEY}.r", f"must be at most {SERVED_RANKS[-1]} with inference.adapters, got {begun.r}")
    return next(rank for rank in SERVED_RANKS if rank >= begun.r)


def served_modules(options: LoraOptions, directory: str, *, trust_remote_code: bool = False) -> set[str]:
    """Last parts of the names of the layers that get adapters, in the model of a directory or hub id.

    Raises: ConfigError, MissingDependencyError: as :func:`check_lora`; OSError: there is no such model.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(directory, trust_remote_code=trust_remote_code)
    _, targets = _without_numbers(options, config, trust_remote_code=trust_remote_code)
    return last_parts(targets.adapted)


def last_parts(names: Iterable[str]) -> set[str]:
    """``q_proj`` of ``model.layers.0.self_attn.q_proj``, and so on."""
    return {name.rpartition(".")[2] for name in names}


def check_lora(options: LoraOptions, config: Any | None) -> None:
    """Check adapters for a model of a ``transformers`` configuration, whose weights are not looked at.

    Raises: ConfigError: as :class:`Adapters`, at the option; MissingDependencyError.
    """
    if config is None:
        as_begun(options)
        return
    model, _ = _without_numbers(options, config)
    if options.init is not None:
        _check_fit(expanded(options.init), model, None)


def trained_parameters(options: LoraOptions, config: Any) -> int:
    """Parameters of adapters, and of modules trained whole beside them. Raises: as :func:`check_lora`."""
    from peft.functional import set_adapter

    model, _ = _without_numbers(options, config)
    set_adapter(model, _ACTIVE)
    return sum(parameter.numel() for parameter in _trained(model).values())


def _without_numbers(options: LoraOptions, config: Any, *, trust_remote_code: bool = False) -> tuple[Any, Targets]:
    """A model of a ``transformers`` configuration with adapters, all without numbers. Raises: as :func:`check_lora`."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        try:
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
        except Exception as error:  # A configuration of others fails in many ways.
            raise ConfigError("language_model.model", first_line(error)) from error
        return model, _inject(model, options, (_ACTIVE,))[1]


def _check_fit(directory: Path, model: nn.Module, base: str | None) -> None:
    """Raises: ConfigError: an adapter's file is damaged, or for other adapters or another ``base`` than a model's."""
    trained_on, there, _ = adapter_header(directory)
    own = {_in_file(name): tuple(parameter.shape) for name, parameter in _trained(model).items()}
    other = next((name for name in sorted(own.keys() | there.keys()) if own.get(name) != there.get(name)), None)
    if other is not None:
        shapes = f"{other} is {there.get(other) or 'missing'} in the file, {own.get(other) or 'missing'} here"
        raise ConfigError(f"{KEY}.init", f"{directory} is an adapter for another model: {shapes}")
    if trained_on and base and trained_on != base:
        raise ConfigError(f"{KEY}.init", f"{directory} is an adapter for other weights than language_model.model")


class AdapterHeader(NamedTuple):
    """What an adapter's file says: its base's fingerprint (or ""), shapes of what is trained, and the base's numerics
    (or float32).
    """

    base: str
    shapes: dict[str, tuple[int, ...]]
    dtype: torch.dtype


def adapter_header(directory: Path) -> AdapterHeader:
    """The header of an adapter's file. Raises: ConfigError: damaged."""
    from safetensors import safe_open

    file = directory / WEIGHTS_FILE
    try:
        with safe_open(str(file), framework="np") as tensors:
            names = {*tensors.keys()}
            base_of = {name: name.rpartition(".base_layer.weight")[0] for name in names}
            # PEFT's files have the frozen weights of an adapted head, too.
            frozen = {name for name, base in base_of.items() if base and f"{base}.lora_A.weight" in names}
            shapes = {name: tuple(tensors.get_slice(name).get_shape()) for name in names - frozen}
            base, _, dtype = (tensors.metadata() or {}).get("base", "").partition(" ")
            return AdapterHeader(base, shapes, _DTYPES.get(dtype, torch.float32))
    except Exception as error:
        raise ConfigError(f"{KEY}.init", f"{file} cannot be read: {first_line(error)}") from error


def _in_file(name: str) -> str:
    return _PEFT_PREFIX + name.replace(f".modules_to_save.{_ACTIVE}.", ".").replace(f".{_ACTIVE}.", ".")


def fingerprint(weights: Iterable[Sample]) -> str:
    """15 hexadecimal digits of names, shapes and first numbers of weights, the same in float32 and bfloat16."""
    digest = hashlib.blake2b(digest_size=8)
    for name, shape, numbers in sorted(weights, key=lambda weight: weight[0]):
        rounded = numbers.to(device="cpu", dtype=torch.bfloat16).contiguous().view(torch.int16).numpy()
        digest.update(f"{name} {shape}".encode() + rounded.tobytes())
    return digest.hexdigest()[:15]
