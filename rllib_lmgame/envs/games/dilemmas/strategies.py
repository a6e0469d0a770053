"""Known strategies of a game with a cooperative action and another one: what to play after what has been played."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Strategy = Callable[[Sequence[bool], Sequence[bool]], bool]
"""(own past, the other's past) -> cooperate now; true is cooperation."""


def tit_for_tat(own: Sequence[bool], other: Sequence[bool]) -> bool:
    """Cooperate, then do what the other did (A. Rapoport, in R. Axelrod 1984)."""
    return other[-1] if other else True


def grim_trigger(own: Sequence[bool], other: Sequence[bool]) -> bool:
    """Cooperate until the other has not."""
    return all(other)


def win_stay_lose_shift(own: Sequence[bool], other: Sequence[bool]) -> bool:
    """Cooperate, then stay with what one did if the other cooperated, else change (Pavlov; M. Nowak and K. Sigmund,
    Nature 364, 1993).
    """
    return own[-1] == other[-1] if own else True


def always_cooperate(own: Sequence[bool], other: Sequence[bool]) -> bool:
    """Cooperate."""
    return True


def always_defect(own: Sequence[bool], other: Sequence[bool]) -> bool:
    """Never cooperate."""
    return False


STRATEGIES: dict[str, Strategy] = {
    "tit_for_tat": tit_for_tat,
    "grim_trigger": grim_trigger,
    "win_stay_lose_shift": win_stay_lose_shift,
    "always_cooperate": always_cooperate,
    "always_defect": always_defect,
}
"""Strategies by name."""
