"""Which Ray cluster a program belongs to."""

from __future__ import annotations

import os
from typing import Any

from rllib_lmgame.errors import ConfigError


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
    try:
        ray.init(address=address, **arguments)
    except ConnectionError as error:
        if named:
            raise ConfigError("", f"RAY_ADDRESS={named}: no Ray cluster answers there ({str(error).splitlines()[0]})") from None
        return False
    return True
