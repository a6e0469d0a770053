"""Members of a league, and which of them leave if there are too many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Files = tuple[tuple[str, int, str], ...]
"""Path in a directory, bytes and hash of each file."""


@dataclass(frozen=True, slots=True)
class Member:
    """A snapshot of a policy, which never changes; ``name`` is unique in the league, and its directory's.

    Attributes:
        policy: The policy of the snapshot, whose chat format and options it shares.
        iteration: Iterations that the policy had been trained for.
        checksum: Of the weights (:func:`~rllib_lmgame.inference.weights.state_checksum`).
        files: Entries of a checkpoint's manifest; the files are hashed once.
    """

    name: str
    policy: str
    iteration: int
    version: int = 0
    checksum: str = ""
    files: Files = ()


def member_name(policy: str, iteration: int) -> str:
    return f"{policy}-{iteration}"


def member_of(values: Mapping[str, Any]) -> Member:
    """A member from a league's state, which may have been JSON."""
    return Member(**{**values, "files": files_of(values.get("files", ()))})


def policies_of(state: Mapping[str, Any]) -> dict[str, str]:
    """Members in a league's state, which may have been JSON: name -> policy."""
    return {str(member["name"]): str(member["policy"]) for member in state["members"]}


def files_of(values: Iterable[Iterable[Any]]) -> Files:
    return tuple((str(name), int(size), str(digest)) for name, size, digest in values)


def leaving(members: Sequence[Member], most: int, rule: str, beaten: Callable[[Member], float]) -> list[Member]:
    """Members (given oldest first) that leave, so that at most ``most`` stay.

    ``rule`` is ``oldest``, or ``most_beaten`` by the rate ``beaten`` (the oldest among equals).
    """
    if len(members) <= most:
        return []
    candidates = list(members[:-1])
    if rule == "most_beaten":
        candidates.sort(key=beaten, reverse=True)
    return candidates[: len(members) - most]
