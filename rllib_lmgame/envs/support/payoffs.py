"""What players make of a game in which all decide at once: cooperation and welfare."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def cooperation_rate(actions: Sequence[Hashable], cooperative: Hashable) -> float:
    """Share of ``actions`` that are the ``cooperative`` one. Raises: ValueError: if there are no actions."""
    if not actions:
        raise ValueError("no actions, so no cooperation rate")
    return sum(action == cooperative for action in actions) / len(actions)


def social_welfare(returns: Sequence[float], best: float) -> float:
    """Sum of the players' returns relative to the largest sum they could have had.

    Args:
        returns: One per player.
        best: That sum, more than 0.

    Raises: ValueError: if ``best`` is not positive: a share of it says nothing then.
    """
    if not best > 0:
        raise ValueError(f"the best sum of returns is {best}; it must be positive")
    return sum(returns) / best
