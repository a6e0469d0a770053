"""Which Ray cluster a program belongs to."""

from __future__ import annotations

import os
from typing import Any

from rllib_lmgame.errors import ConfigError


def join(address: str, named_by: str, **arguments: Any) -> None:
    """Join the cluster at ``address``.

    Args:
        address: Of a cluster.
        named_by: Who named it, for the error.
        arguments: Of ``ray.init``.

    Raises:
        ConfigError: if no cluster answers there.
    """
    import ray

    try:
        ray.init(address=address, **arguments)
    except (ConnectionError, ValueError) as error:  # ValueError: not an address, e.g. a port that is no number
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError("", f"{named_by}: no Ray cluster answers there ({reason})") from None


def join_existing(**arguments: Any) -> bool:
    """Join the cluster named by RAY_ADDRESS, or the one `ray start` made this machine part of; whether there was one.

    Ray's own ``auto`` would also join what another program started for itself, and die with it.

    Args:
        arguments: Of ``ray.init``.

    Raises:
        ConfigError: if no cluster answers at RAY_ADDRESS.
    """
    import ray
    from ray._private.utils import read_ray_address

    named = os.environ.get("RAY_ADDRESS")
    address = named or read_ray_address()
    if not address or address == "local":
        return False
    if named:
        join(named, f"RAY_ADDRESS={named}", **arguments)
        return True
    try:
        ray.init(address=address, **arguments)
    except ConnectionError:
        return False
    return True
