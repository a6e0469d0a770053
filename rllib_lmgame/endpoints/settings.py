"""Options of endpoints."""

from __future__ import annotations

from typing import Any

from rllib_lmgame.base.group import Group, option


class EndpointOptions(Group):
    """The ``endpoint`` section of ``--config``."""

    attempts: int = option(5, "Attempts of one request before its game is given up.", ge=1, le=100)
    first_wait_s: float = option(
        0.5, "Wait before the second attempt; it doubles each time, unless the server names another.", ge=0
    )
    longest_wait_s: float = option(30.0, "Longest wait between two attempts, whatever the server asks for.", ge=0)
    max_answer_bytes: int = option(262_144, "Largest answer that is read.", ge=1024)
    request: dict[str, Any] = option(
        {}, "Further fields of the request; null leaves one out: `{max_tokens: null, max_completion_tokens: 512}`."
    )
