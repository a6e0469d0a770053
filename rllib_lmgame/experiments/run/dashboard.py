"""Ray's dashboard: whether a cluster that is started here gets one, and how a person gets in."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rllib_lmgame.base.errors import MissingDependencyError


def wants_dashboard(asked: bool | None) -> bool:
    """Whether the dashboard is wanted; unless somebody said so (``asked``), where a person watches: on a terminal."""
    return sys.stdout.isatty() if asked is None else asked


def include_dashboard(asked: bool | None) -> bool | None:
    """Whether a cluster started here gets a dashboard; ``None``: it does, and goes on without one that does not start.

    Raises: MissingDependencyError: asked for, not installed.
    """
    installed = importlib.util.find_spec("aiohttp_cors") is not None
    if asked and not installed:
        raise MissingDependencyError(
            "Ray's dashboard needs ray[default], which is not installed (pip install 'ray[default]')"
        )
    if not (installed and wants_dashboard(asked)):
        return False
    return asked


def dashboard_line(url: str | None) -> str:
    """What to say of the dashboard at ``url`` (host and port; empty without one)."""
    if not url:
        return "Ray dashboard: the cluster runs without it"
    from ray._private.authentication.authentication_utils import is_token_auth_enabled

    token = " (it asks for a token, which this prints: ray get-auth-token)" if is_token_auth_enabled() else ""
    return f"Ray dashboard: http://{url}{token}"


def metrics_line(nodes: Sequence[Mapping[str, Any]]) -> str:
    """Where the nodes (of ``ray.nodes()``) show their Prometheus metrics; empty if nowhere."""
    there = [(node.get("NodeManagerAddress"), node.get("MetricsExportPort")) for node in nodes if node.get("Alive")]
    places = [f"http://{host}:{port}/metrics" for host, port in there if isinstance(port, int) and port > 0]
    return f"Metrics for Prometheus: {', '.join(places)}" if places else ""
