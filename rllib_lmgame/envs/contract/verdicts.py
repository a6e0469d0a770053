"""Who won: the verdicts of a game for several players.

A game says ``info["success"]`` per player (its :meth:`~rllib_lmgame.envs.contract.turns.TextAECGame.won`) and may say
``info["result"]``, what the player got at the end without penalties. A game of another author may say neither; then
returns decide.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping

TOLERANCE = 1e-9
"""Relative and absolute difference below which two results are the same."""


class Outcome(enum.StrEnum):
    """How a game against others ended for one player."""

    WIN = "win"
    DRAW = "draw"
    LOSS = "loss"


def outcomes(verdicts: Mapping[str, bool | None], results: Mapping[str, float]) -> dict[str, Outcome]:
    """Win, draw or loss of every player of a game for several.

    A player wins if the game says so, or, where it says nothing of that player, if nobody's result is as good. A player
    who has not won loses if another one has, or has a better result. All others draw. So several may win (two of three
    share the chips of the third), and all may draw; in a game that ranks its players the first wins. Results that
    differ by rounding alone are equal: returns are sums.

    Args:
        verdicts: The game's own word per player, ``None`` where it gives none.
        results: What each player got; the players are its keys.
    """
    best = max(results.values(), default=0.0)
    first = [
        agent for agent, result in results.items() if math.isclose(result, best, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    ]
    won = {agent for agent in results if (first == [agent] if verdicts.get(agent) is None else verdicts[agent])}
    return {agent: _outcome(agent in won, bool(won) or agent not in first) for agent in results}


def _outcome(won: bool, beaten: bool) -> Outcome:
    return Outcome.WIN if won else Outcome.LOSS if beaten else Outcome.DRAW
