"""Which Ray cluster a program belongs to: one that it joins, or one that it starts for itself."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rllib_lmgame.base.errors import ConfigError

PROBE_S = 5.0
"""Longest wait for the answer of a cluster's head to a first knock; Ray itself tries for minutes."""

START_WAIT_S = 120.0
"""Longest wait for a node that is started here to tell the cluster of itself, unless RAY_raylet_start_wait_time_s says
otherwise. Ray's own :data:`RAY_WAIT_S` are too short on a machine that others keep busy."""

RAY_WAIT_S = 30.0
"""How long Ray waits for it, in any case."""

PATIENCE = "RAY_raylet_start_wait_time_s"


def answers(address: str, timeout_s: float = PROBE_S) -> bool:
    """Whether anything listens at ``host:port``; addresses of another form are taken to, Ray knows better."""
    host, colon, port = address.rpartition(":")
    if not colon or "/" in host or not port.isdigit():
        return True
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
    except (OSError, OverflowError):
        return False
    return True


def shut_down() -> None:
    """``ray.shutdown`` that does not wait for a node which does not answer: what is stopped ends no other way."""
    import ray

    worker = ray._private.worker.global_worker
    client, own = getattr(worker, "gcs_client", None), ray._private.worker._global_node
    try:  # Behind a Ray client there is none.
        alive = client is None or all(client.check_alive([worker.current_node_id], timeout=PROBE_S))
    except ray.exceptions.RpcError:
        alive = False
    if not alive and own is not None:
        own.kill_all_processes(check_alive=False, allow_graceful=False)
    ray.shutdown()


def join(address: str, named_by: str, **arguments: Any) -> None:
    """Join the cluster at ``address``, which ``named_by`` named. Raises: ConfigError: it cannot be joined."""
    if not answers(address):
        raise ConfigError("", f"{named_by}: no Ray cluster answers there (nothing listens at {address})")
    try:
        init_ray(address=address, **arguments)
    except ValueError as error:  # E.g. a port that is no number.
        raise ConfigError("", f"{named_by}: no Ray cluster answers there ({error})") from None
    except (RuntimeError, ConnectionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        hint = "RAY_AUTH_MODE=token sends a token"
        raise ConfigError("", f"{named_by}: the Ray cluster there cannot be joined ({hint}): {reason}") from None


def join_existing(**arguments: Any) -> bool:
    """Join the cluster of RAY_ADDRESS, or of `ray start` on this machine; whether there was one.

    Ray's ``auto`` would also join another program's private cluster, and die with it. Raises: ConfigError: if
    RAY_ADDRESS does not answer.
    """
    from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
    from ray._private.utils import read_ray_address

    named = os.environ.get("RAY_ADDRESS")
    address = named or read_ray_address()
    if not address or address == "local":
        return False
    if not named:
        if not answers(address):  # left behind by a cluster that was killed; Ray would wait for it for minutes
            return False
        # This user's token, as Ray sends it for ``auto`` but not for an address.
        maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    join(address, f"RAY_ADDRESS={named}" if named else f"the Ray cluster of this machine, {address}", **arguments)
    return True


def start_local(**arguments: Any) -> None:
    """Start a private cluster, shielded from signals, that leaves the program its signal handlers.

    Raises: ConfigError: if it does not start in time.
    """
    with own_session(), patience():
        init_ray(address="local", **arguments)


def be_connected(num_cpus: int) -> bool:
    """Join this machine's cluster or start one, quietly; ``False`` if already connected.

    Args:
        num_cpus: CPUs needed; may be more than the cores, since most processes mostly wait.
    """
    import ray

    if ray.is_initialized():
        return False
    log = logging.getLogger("ray")
    level = log.level
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if not join_existing(**quiet):
            start_local(include_dashboard=False, num_cpus=max(os.cpu_count() or 1, num_cpus), **quiet)
    finally:
        log.setLevel(level)
    return True


def init_ray(**arguments: Any) -> None:
    """``ray.init`` without Ray's SIGTERM handlers, one of which prints C++ stacks."""
    import ray

    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**arguments)
    finally:
        if handler not in (signal.SIG_DFL, None) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def be_patient() -> str:
    """Set Ray's patience (s) unless the user has; returns it. Ray reads it at import, so call this before."""
    return os.environ.setdefault(PATIENCE, f"{START_WAIT_S:.0f}")


@contextmanager
def patience() -> Iterator[None]:
    """Nodes started inside have :data:`START_WAIT_S`, or what the user set, to register with the cluster; so has the
    dashboard. Raises: ConfigError: they did not register in time.
    """
    from ray._private import ray_constants, services

    limit_s = float(be_patient())
    plain, plain_s = services.get_node, ray_constants.RAY_DASHBOARD_STARTUP_TIMEOUT_S

    def get_node(*args: Any, **kwargs: Any) -> Any:  # Ray asks again for 30 s, whatever the setting says.
        deadline = time.monotonic() + limit_s
        while True:
            try:
                return plain(*args, **kwargs)
            except RuntimeError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(0.1)

    services.get_node = get_node
    ray_constants.RAY_DASHBOARD_STARTUP_TIMEOUT_S = max(plain_s, limit_s)
    try:
        yield
    except Exception as error:
        if "timed out during startup" not in str(error):
            raise
        waited_s = max(limit_s, RAY_WAIT_S)
        longer = f"{PATIENCE}={2.5 * waited_s:g} waits longer"
        raise ConfigError("", f"Ray did not start within {waited_s:g} s, as on a busy machine; {longer}") from None
    finally:
        services.get_node = plain
        ray_constants.RAY_DASHBOARD_STARTUP_TIMEOUT_S = plain_s


@contextmanager
def own_session() -> Iterator[None]:
    """Ray processes started inside do not get signals to this program's process group.

    Else a scheduler's SIGTERM to all processes would end Ray, and the trials, before anything is saved. They still end
    with this program, however it ends (``PDEATHSIG``).
    """
    from ray._private import services

    plain = services.ConsolePopen

    class Detached(plain):  # type: ignore[valid-type]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, start_new_session=True, **kwargs)

    services.ConsolePopen = Detached
    try:
        yield
    finally:
        services.ConsolePopen = plain
