"""Where a model's configuration, tokenizer and initial weights come from, on any node.

A hub id or a directory that every node sees is used as it is. A tiny model built on the spot is carried along in the
algorithm's configuration as bytes and unpacked once per machine, so nothing depends on a shared file system.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.policies.unpacked import unpack

MAX_CARRIED_BYTES = 64 * 2**20


@dataclass(frozen=True)
class ModelFiles:
    """A model: a hub id or directory, or files carried along.

    Attributes:
        source: Hub id or directory, or a name for the carried files.
        files: File name -> content; empty if ``source`` is to be read.
        digest: Hash of ``files``.
    """

    source: str
    files: tuple[tuple[str, bytes], ...] = ()
    digest: str = ""

    @classmethod
    def carry(cls, directory: str | Path) -> ModelFiles:
        """Carry the files of ``directory``.

        Raises:
            ConfigError: if they are too large to be carried.
        """
        paths = sorted(path for path in Path(directory).iterdir() if path.is_file())
        size = sum(path.stat().st_size for path in paths)
        if size > MAX_CARRIED_BYTES:
            raise ConfigError("config.language_model.model", f"{directory} has {size >> 20} MiB; put it where every node can read it")
        files = tuple((path.name, path.read_bytes()) for path in paths)
        parts = (part for name, content in files for part in (name.encode(), b"%d" % len(content), content))
        digest = hashlib.blake2b(b"\0".join(parts), digest_size=12).hexdigest()
        return cls(str(directory), files, digest)

    def directory(self) -> str:
        """A hub id, or a directory on this machine; carried files are unpacked on first use."""
        if not self.files:
            return self.source
        return str(unpack(self.files, self.digest))


def check_model(source: str, key: str = "config.language_model.model") -> None:
    """Raise if ``source`` looks like a directory that is missing or incomplete.

    Raises:
        ConfigError: naming the directory or the missing file.
    """
    path = Path(source).expanduser()
    looks_local = source.startswith((".", "/", "~")) or path.exists() or source.count("/") > 1
    if not looks_local:
        return
    if not path.is_dir():
        raise ConfigError(key, f"no such model directory: {source}")
    if not (path / "config.json").is_file():
        raise ConfigError(key, f"{source} has no config.json; a Hugging Face model directory is needed")
    if not any(path.glob("*.safetensors")):
        raise ConfigError(key, f"{source} has no *.safetensors weights")
