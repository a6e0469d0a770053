"""Where a model's configuration, tokenizer and initial weights come from, on any node.

A hub id or a directory that every node sees is used as it is. A model known by name is converted once per machine
(:mod:`.gguf_files`). A tiny model built on the spot travels in the algorithm's configuration as bytes and
is unpacked once per machine, so no shared file system is needed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.json_files import read_mapping
from rllib_lmgame.base.storage import expanded
from rllib_lmgame.base.text import first_line, one_line
from rllib_lmgame.downloads import hub
from rllib_lmgame.policies.chat.reply_formats import reply_format
from rllib_lmgame.policies.chat.special_token_sanitizer import spelling_problem
from rllib_lmgame.policies.model.gguf_files import PRETRAINED, cache_directory, check_name, hugging_face_directory
from rllib_lmgame.policies.options import LanguageModelOptions

MAX_SHIPPED_BYTES = 64 * 2**20
UNPACKED_S = 30 * 24 * 3600.0
"""How long carried files stay on a machine after a process has last begun with them."""
MAX_JSON_BYTES = 64 * 2**20
"""Most of a configuration or an index of weights that is read."""
INDEX_FILE = "model.safetensors.index.json"
HF_DIRECTORY = "hf"
"""Of the Hugging Face files in a checkpoint: the files themselves, or a directory per policy."""
ADAPTER_DIRECTORY = "adapter"
"""Directory of adapters in a checkpoint, in PEFT's format."""
ADAPTER_FILE = "adapter_config.json"
"""Where Transformers finds it, it puts an adapter on a model, or loads another base."""
ADAPTER_FILES = (ADAPTER_FILE, "adapter_model.safetensors")

VOCABULARY_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
TOKENIZER_FILES = (*VOCABULARY_FILES, "tokenizer_config.json")
"""A directory with a tokenizer has one of these."""
DATA_ENDINGS = (".safetensors", ".json", ".jinja", ".txt", ".model", ".md")
"""Endings of the files a Hugging Face directory needs. None is run or unpickled by those who read it."""


@dataclass(frozen=True)
class ModelFiles:
    """A model: a hub id or directory (``source``), or carried files (name -> content) with their hash.

    ``made_of``: the known model that ``source`` was converted from; a machine without it makes its own.
    """

    source: str
    files: tuple[tuple[str, bytes], ...] = ()
    digest: str = ""
    made_of: str | None = None

    @classmethod
    def ship(cls, directory: str | Path) -> ModelFiles:
        """Carry the files of ``directory``. Raises: ConfigError: if they are too large to be carried."""
        paths = sorted(path for path in Path(directory).iterdir() if path.is_file())
        size = sum(path.stat().st_size for path in paths)
        if size > MAX_SHIPPED_BYTES:
            raise ConfigError(
                "config.language_model.model", f"{directory} has {size >> 20} MiB; put it where every node can read it"
            )
        files = tuple((path.name, path.read_bytes()) for path in paths)
        parts = (part for name, content in files for part in (name.encode(), b"%d" % len(content), content))
        digest = hashlib.blake2b(b"\0".join(parts), digest_size=12).hexdigest()
        return cls(str(directory), files, digest)

    def directory(self) -> str:
        """A hub id, or a directory on this machine; carried files are unpacked on first use."""
        if self.made_of is not None and not os.path.isdir(self.source):
            return model_directory(self.made_of)
        if not self.files:
            return self.source
        return str(_unpacked(self.files, self.digest))


def _unpacked(files: Sequence[tuple[str, bytes]], name: str) -> Path:
    """Directory ``name`` of this user's temporary files with these; those that nobody has used for long are removed.

    Raises: PermissionError: the directory is another user's.
    """
    parent = Path(tempfile.gettempdir()) / f"rllib_lmgame-{os.getuid()}"
    parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if parent.stat().st_uid != os.getuid():
        raise PermissionError(f"{parent} belongs to another user, who could replace its files; set TMPDIR")
    target = parent / name
    target.mkdir(exist_ok=True)
    for file, content in files:
        path = target / file
        if not path.is_file() or path.stat().st_size != len(content):
            with tempfile.NamedTemporaryFile(dir=parent, delete=False) as scratch:
                scratch.write(content)
            os.replace(scratch.name, path)  # Whole or missing, also for who reads the directory just now.
    os.utime(target)
    now = target.stat().st_mtime
    for other in parent.iterdir():
        with suppress(OSError):  # Another process removes it.
            if now - other.stat().st_mtime > UNPACKED_S:
                shutil.rmtree(other)
    return target


def check_model(source: str, key: str = "config.language_model.model") -> None:
    """Refuse a ``source`` that is no whole model directory. Raises: ConfigError: naming it or the missing file."""
    path = expanded(model_directory(source, key))
    if not os.path.exists(path):  # Unlike Path's: False for a name that is too long.
        check_name(source, key)
        if source.count("/") <= 1 and len(source) < 256 and not source.startswith((".", "/", "~")):
            return  # An id of the hub.
    if not os.path.isdir(path):
        raise ConfigError(key, f"no such model directory: {source}")
    if not os.access(path, os.R_OK | os.X_OK):
        raise ConfigError(key, f"{source} cannot be read: no permission")
    if (path / ADAPTER_FILE).exists() and not (path / "config.json").exists():
        problem: str | None = f"{source} is an adapter, and no model; language_model.lora.init takes adapters"
    elif not (path / "config.json").is_file():
        problem = f"{source} has no config.json: it is no Hugging Face model directory or checkpoint"
    elif not any(path.glob("*.safetensors")):
        problem = f"{source} has no *.safetensors weights"
    else:
        problem = model_problem(path)
    if problem is not None:
        cure = f"; remove {path}, and it is converted again" if path.parent == cache_directory() else ""
        raise ConfigError(key, f"{problem}{cure}")


def model_directory(source: str, key: str = "config.language_model.model") -> str:
    """A model's directory: a checkpoint's ``hf/``, what a known model was converted to, else ``source``.

    Everything that opens a model or its tokenizer asks here.
    Raises: ConfigError: a checkpoint of several, or a known model that cannot be converted.
    """
    path = expanded(source)
    if not os.path.isdir(path):  # Unlike Path's: False for a name that is too long.
        return str(hugging_face_directory(source, key)) if source in PRETRAINED else source
    exported = path / HF_DIRECTORY
    if (path / "config.json").is_file() or not exported.is_dir():
        return str(path)
    if (exported / "config.json").is_file():
        return str(exported)
    policies = sorted(f"{path.name}/{file.parent.relative_to(path)}" for file in exported.glob("*/config.json"))
    raise ConfigError(
        key, f"{source} is a checkpoint of several policies; name the directory of one: {', '.join(policies) or 'none'}"
    )


def vocabulary_problem(model: str, tokenizer: str) -> str | None:
    """Why a tokenizer does not suit a model (directories or hub ids), as far as local files tell, or ``None``.

    It gives ids that the model does not know, or that mean other texts to it. Added tokens may differ.
    """
    files = expanded(tokenizer)
    if not files.is_dir():
        return None
    if not any((files / name).is_file() for name in TOKENIZER_FILES):
        return f"there is no tokenizer in {files}; name one in language_model.tokenizer"
    known, given = expanded(model) / "config.json", files / "tokenizer.json"
    if not (known.is_file() and given.is_file()):
        return None
    content = read_mapping(known, MAX_JSON_BYTES)
    size = (content if "vocab_size" in content else content.get("text_config") or {}).get("vocab_size")
    texts, most = _vocabulary(given, given.stat().st_mtime_ns)
    if isinstance(size, int) and most >= size:
        return f"the tokenizer in {files} gives ids up to {most}, but the model in {known.parent} knows {size} only"
    own = known.parent / given.name
    own_texts = _vocabulary(own, own.stat().st_mtime_ns)[0] if own.is_file() else texts
    differing = [token for token, text in texts.items() if own_texts.get(token, text) != text]
    if not differing:
        return None
    here, there = texts[min(differing)], own_texts[min(differing)]
    return (
        f"token {min(differing)} of the tokenizer in {files} is {here!r}, but {there!r} to the model in {known.parent}"
    )


def other_vocabulary(one: str, other: str) -> str | None:
    """How the vocabularies of two model directories differ, or ``None``: not, or not as far as local files tell."""
    files = [expanded(each) / "tokenizer.json" for each in (one, other)]
    if not all(file.is_file() for file in files):
        return None
    first, second = (_vocabulary(file, file.stat().st_mtime_ns)[0] for file in files)
    differing = [token for token in first.keys() | second.keys() if first.get(token) != second.get(token)]
    if not differing:
        return None
    shown = [repr(texts.get(min(differing))) for texts in (first, second)]
    return f"token {min(differing)} is {shown[0]} in {one}, and {shown[1]} in {other}"


def fetched(source: str, key: str, needed: Sequence[str] = ("config.json",)) -> str:
    """Directory of a model's configuration and tokenizer: its own, or where the hub's lie once they have been fetched.

    It has one of the files ``needed``.

    Raises: ConfigError: the hub has no such model, or cannot be asked.
    """
    directory = model_directory(source, key)
    if os.path.isdir(directory):
        return directory
    from transformers.utils import cached_file

    found: str | None = None
    silent = hub.silence(directory)
    problem = f"it has no {' or '.join(needed)} there"
    for name in needed:
        try:  # None where the hub has the model, and no configuration.
            found = found or cached_file(directory, name, local_files_only=silent is not None)
        except (OSError, ValueError) as error:
            problem = first_line(error)
    if found is None:
        raise ConfigError(key, f"{source!r} is no directory here, and the hub does not give it: {silent or problem}")
    with suppress(OSError, ValueError):  # Some models have other files of their vocabulary.
        cached_file(directory, "tokenizer.json", local_files_only=silent is not None)
    return str(Path(found).parent)


@lru_cache(maxsize=8)
def _vocabulary(tokenizer: Path, changed_ns: int) -> tuple[dict[int, str], int]:
    """Id -> text of a ``tokenizer.json`` without added tokens, and the largest id with them; nothing, -1 if damaged."""
    from tokenizers import Tokenizer

    try:
        found = Tokenizer.from_file(str(tokenizer))
    except Exception:  # Who loads the tokenizer says what is wrong.
        return {}, -1
    texts = {token: text for text, token in found.get_vocab(with_added_tokens=False).items()}
    return texts, max(found.get_vocab().values(), default=-1)


def read_config(directory: str) -> tuple[Any | None, str | None]:
    """A local model's configuration by Transformers, and why it cannot be read; nothing of either if there is none."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False), None
    except Exception as error:  # A damaged file fails in many ways; the second line says more of some.
        why = one_line(" ".join(str(error).splitlines()[:2])) or type(error).__name__
        return None, why if os.path.isfile(os.path.join(directory, "config.json")) else None


def local_config(directory: str) -> Any | None:
    """A local model's configuration by Transformers; ``None`` if missing, with its own code, or unreadable."""
    return read_config(directory)[0]


def meta_model(config: Any) -> Any:
    """The model of a configuration on the meta device: no memory, no download, and no code that comes with it."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        # In its own numerics, which would for a moment be those of all threads.
        dtype = torch.get_default_dtype()
        return AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)


def parameter_count(directory: str) -> int:
    """Weights of a model by its configuration on this machine, tied ones once; 0 if :func:`local_config` has none."""
    with suppress(Exception):  # A configuration of others fails in many ways.
        return sum(parameter.numel() for parameter in meta_model(local_config(directory)).parameters())
    return 0


def tokenizer_source(options: LanguageModelOptions, directory: str) -> str:
    """Directory or hub id of a policy's tokenizer; ``directory``: of its model."""
    return model_directory(options.tokenizer or directory, "config.language_model.tokenizer")


def load_tokenizer(directory: str, options: LanguageModelOptions, *, local_files_only: bool = False) -> Any:
    """The tokenizer of a policy whose model is in ``directory``; ``local_files_only``: from this machine alone.

    Raises: ConfigError: there is none, it is damaged, or it cannot spell what is said in a game.
    """
    from transformers import AutoTokenizer

    key, source = "config.language_model.tokenizer", tokenizer_source(options, directory)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            source, trust_remote_code=options.trust_remote_code, local_files_only=local_files_only
        )
    except Exception as error:  # a damaged file fails in many ways
        raise ConfigError(key, f"no tokenizer at {source!r}: {first_line(error)}") from error
    problem = spelling_problem(tokenizer, reply_format(options).write(None, "up"))
    if problem is not None:
        bare = os.path.isdir(source) and not any((Path(source) / name).is_file() for name in VOCABULARY_FILES)
        lacking = f" (it has none of {', '.join(VOCABULARY_FILES)})" if bare else ""
        raise ConfigError(key, f"no tokenizer that can be used at {source!r}: {problem}{lacking}")
    return tokenizer


def model_problem(directory: Path) -> str | None:
    """What is wrong with a Hugging Face directory as far as headers of its files tell, or ``None``."""
    from safetensors import SafetensorError, safe_open

    if (directory / ADAPTER_FILE).exists():
        return f"{directory / ADAPTER_FILE} would put an adapter on the model; language_model.lora.init takes adapters"
    try:
        read_mapping(directory / "config.json", MAX_JSON_BYTES)
        for file in weight_files(directory):
            if file.exists() and not file.is_file():
                return f"{file} is no file"
            file.open("rb").close()  # To safetensors a file that must not be read is none.
            with safe_open(str(file), framework="np") as tensors:
                if not tensors.keys():
                    return f"{file} holds no weights"
    except SafetensorError as error:
        return f"{file} is no safetensors file: {error}"
    except FileNotFoundError as error:
        return f"{error.filename or file} is missing"
    except OSError as error:
        return f"{error.filename or file} cannot be read: {error.strerror or error}"
    except ValueError as error:
        return str(error)
    return None


def weight_files(directory: Path) -> list[Path]:
    """A model's files of weights, by the index if there is one. Raises: ValueError: it is damaged, or names others."""
    if not (directory / INDEX_FILE).is_file():
        whole = directory / "model.safetensors"
        return [whole] if whole.is_file() else sorted(directory.glob("*.safetensors")) or [whole]
    table = read_mapping(directory / INDEX_FILE, MAX_JSON_BYTES).get("weight_map")
    if not isinstance(table, dict) or not table:
        raise ValueError(f"{directory / INDEX_FILE} is damaged: it has no weight_map")
    for name in table.values():
        if not isinstance(name, str) or not name.endswith(".safetensors") or Path(name).name != name:
            raise ValueError(f"{directory / INDEX_FILE} is damaged: {name!r} is no safetensors file beside it")
    return [directory / name for name in sorted(set(table.values()))]


def code_problem(directory: Path) -> str | None:
    """What in a Hugging Face directory could run code when a model is loaded from it, or ``None``.

    Loaders unpickle weights that are no safetensors, and fetch attention functions that ``config.json`` names from a
    hub. vLLM loads the model that ``speculators_config`` names.
    """
    for path in sorted(directory.rglob("*")):
        is_data = path.is_dir() or (path.is_file() and path.suffix in DATA_ENDINGS)
        if path.is_symlink() or not is_data:
            return f"{path} is no data file ({', '.join(DATA_ENDINGS)})"
        if path.name.endswith(".index.json") and path.name != INDEX_FILE:
            return f"{path} names weights that are no safetensors"
    for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
        if (directory / name).is_file():
            try:
                entries = list(_entries(read_mapping(directory / name, MAX_JSON_BYTES)))
            except (OSError, ValueError, RecursionError) as error:
                return f"{directory / name} cannot be looked at: {error}"
            for key, value in entries:
                word = value is None or (isinstance(value, str) and value.isidentifier())
                if key == "auto_map" or (key.endswith("_implementation") and not word):
                    return f"{directory / name} names code to run ({key!r})"
                if key == "speculators_config":
                    return f"{directory / name} names another model to load ({key!r})"
    return None


def _entries(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield str(key), item
            yield from _entries(item)
    elif isinstance(value, list):
        for item in value:
            yield from _entries(item)
