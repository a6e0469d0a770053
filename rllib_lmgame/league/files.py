"""Members on disk: one directory each, which never changes.

It holds a Hugging Face model, or with ``language_model.lora`` an adapter in PEFT's format.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rllib_lmgame.base.errors import CheckpointError
from rllib_lmgame.base.json_files import read_mapping
from rllib_lmgame.inference.weights import AdapterBundle, Base, WeightBundle, pack_state
from rllib_lmgame.league.matchmaking import Member
from rllib_lmgame.policies.model.files import ADAPTER_FILES, MAX_JSON_BYTES, weight_files

DIRECTORY = "league"
"""Directory of members in a trial's directory and in a checkpoint."""

LIST_FILE = "league.json"
"""Members and pay-offs, for users and to check a checkpoint's league; a resumed run reads the algorithm's state."""


def is_adapter(directory: Path) -> bool:
    """Whether a member's directory holds an adapter, not a model."""
    return any((directory / name).is_file() for name in ADAPTER_FILES)


def read_bundle(directory: Path, version: int, base: Base | None = None) -> WeightBundle | AdapterBundle:
    """The weights in a member's directory, packed; for an adapter its files and ``base``.

    Raises: CheckpointError: names the missing or damaged file.
    """
    from safetensors.torch import load_file

    state: dict[str, Any] = {}
    path = directory
    try:
        if base is not None and is_adapter(directory):
            return AdapterBundle.read(directory, base, version)
        for path in weight_files(directory):
            state |= load_file(path)
    except FileNotFoundError as error:
        raise CheckpointError(f"{error.filename or path}, a league member's file, is missing") from None
    except Exception as error:  # a damaged file fails in many ways
        raise CheckpointError(f"{path}, a league member's file, cannot be read: {error}") from error
    return pack_state(state, version)


def read_member(league: Path, member: Member, base: Base | None = None) -> WeightBundle | AdapterBundle:
    """A member's weights. Raises: CheckpointError: the directory is missing, damaged or not the snapshot's."""
    bundle = read_bundle(league / member.name, member.version, base)
    if bundle.checksum != member.checksum:
        raise CheckpointError(
            f"{league / member.name} does not hold the weights of the league's member any more (checksum "
            f"{bundle.checksum} instead of {member.checksum})"
        )
    return bundle


def members_of(checkpoint: Path) -> dict[str, str]:
    """Members of a checkpoint's league, if it has one: name -> policy. Raises: CheckpointError: it is damaged."""
    file = checkpoint / DIRECTORY / LIST_FILE
    if not file.is_file():
        return {}
    try:
        listed = read_mapping(file, MAX_JSON_BYTES)["members"]
        members = {str(member["name"]): str(member["policy"]) for member in listed}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{file} is damaged: it holds no league") from error
    missing = members.keys() - {path.name for path in file.parent.iterdir() if path.is_dir()}
    if missing:
        raise CheckpointError(f"{file} names {min(missing)!r}, and no directory beside it has that name")
    return members


def copy_members(source: Path, target: Path, members: Iterable[Member]) -> None:
    """Copy members from ``source`` to ``target``, as links if possible. Raises: CheckpointError: one is missing."""
    for member in members:
        copy_directory(source / member.name, target / member.name)


def copy_directory(source: Path, target: Path) -> None:
    """Copy a directory, its files as links if possible; ``target`` is whole or not there. Raises: CheckpointError."""
    if not source.is_dir():
        raise CheckpointError(f"{source} is missing")
    if target.exists() and source.samefile(target):
        return
    scratch = target.parent / f".copying-{target.name}"
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(source, scratch, copy_function=_link_or_copy)
    move_directory(scratch, target)


def move_directory(scratch: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(scratch, target)


def remove_members(league: Path, members: Iterable[Member]) -> None:
    """Remove the files of former members; checkpoints keep theirs."""
    for member in members:
        shutil.rmtree(league / member.name, ignore_errors=True)


def _link_or_copy(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target
