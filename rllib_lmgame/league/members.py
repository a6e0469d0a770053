"""Members of a league: who there is, and who leaves when there are too many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Files = tuple[tuple[str, int, str], ...]
"""Path below a directory, bytes and hash of its files."""


@dataclass(frozen=True, slots=True)
class Member:
    """A snapshot of a policy, which never changes. Its files are in a directory of its name.

    Attributes:
        name: Unique in the league.
        policy: Whose snapshot it is: its chat format and its options are the member's.
        iteration: PPO iterations the policy had been trained for.
        version: Version of the weights.
        checksum: Of the weights (:func:`~rllib_lmgame.inference.weights.state_checksum`).
        files: What a checkpoint's manifest says of its files, which never change: they are hashed once.
    """

    name: str
    policy: str
    iteration: int
    version: int = 0
    checksum: str = ""
    files: Files = ()


def member_name(policy: str, iteration: int) -> str:
    """Name of the snapshot of ``policy`` at ``iteration``."""
    return f"{policy}-{iteration}"


def member_of(values: Mapping[str, Any]) -> Member:
    """A member as it stands in a league's state, which may have been JSON."""
    return Member(**{**values, "files": files_of(values.get("files", ()))})


def files_of(values: Iterable[Iterable[Any]]) -> Files:
    """The same of files."""
    return tuple((str(name), int(size), str(digest)) for name, size, digest in values)


def leaving(members: Sequence[Member], most: int, rule: str, beaten: Callable[[Member], float]) -> list[Member]:
    """Members that leave, so that at most ``most`` stay.

    Args:
        members: In the order in which they came.
        most: How many may stay, at least one.
        rule: ``oldest``, or ``most_beaten``; of equally beaten ones the oldest.
        beaten: How often a member is beaten by those who learn.
    """
    if len(members) <= most:
        return []
    candidates = list(members[:-1])
    if rule == "most_beaten":
        candidates.sort(key=beaten, reverse=True)
    return candidates[: len(members) - most]
