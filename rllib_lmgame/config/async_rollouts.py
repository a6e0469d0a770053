"""Options of playing while updates go on. Importing this loads neither Ray nor torch."""

from __future__ import annotations

from rllib_lmgame.base.group import Group, option


class AsyncRolloutOptions(Group):
    """The ``async_rollouts`` section: rollouts and updates at the same time."""

    max_staleness: int = option(
        0,
        "Iterations that are played ahead while one is trained on: no token is older by more updates. 0: playing and "
        "updating take turns.",
        ge=0,
        le=64,
    )
