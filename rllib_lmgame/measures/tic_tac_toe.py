"""Exactly how often a policy wins, draws and loses at TicTacToe, against perfect and against random play.

The policy must depend on the board alone, as a model's does that sees the present observation. Its probabilities on the
4,520 boards with somebody to move say all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from rllib_lmgame.envs.games.duels.tic_tac_toe import (
    CELLS,
    TicTacToe,
    best_moves,
    empty_cells,
    full,
    marked,
    to_move,
    winner,
)
from rllib_lmgame.measures.game_tree import InformationSet

Odds = Mapping[str, float]

Player = Callable[[str], Odds]
"""What is played on a board (:data:`~rllib_lmgame.envs.games.duels.tic_tac_toe.CELLS`, with marks)."""


class Chances(NamedTuple):
    """Probabilities of how a game ends for one of its players."""

    win: float
    draw: float
    loss: float


@cache
def boards() -> tuple[str, ...]:
    """All boards on which a player is to move, those with fewer marks first."""
    level, found = [CELLS], []
    while level:
        found += level
        after = [marked(cells, int(cell) - 1, to_move(cells)) for cells in level for cell in empty_cells(cells)]
        level = [cells for cells in dict.fromkeys(after) if not _over(cells)]
    return tuple(found)


def decisions(env_config: Mapping[str, Any] | None = None) -> list[InformationSet]:
    """What a policy is asked: every board of :func:`boards` as the player to move is shown it, without the past."""
    game = TicTacToe(**{"show_rules": False, **(env_config or {})})
    return [
        InformationSet(
            mark,
            "XO".index(mark),
            (game.shown(cells),),
            (),
            empty_cells(cells),
            game.instructions,
            role=game.roles[mark],
        )
        for cells in boards()
        if (mark := to_move(cells))
    ]


def player_of(odds: Sequence[Odds]) -> Player:
    return dict(zip(boards(), odds, strict=True)).__getitem__


def uniform_player(cells: str) -> Odds:
    return _alike(empty_cells(cells))


def minimax_player(cells: str) -> Odds:
    """Any of the cells that keep the best result."""
    return _alike([str(cell + 1) for cell in best_moves(cells, to_move(cells))])


def chances(player: Player, opponent: Player, mark: str) -> Chances:
    """How the game ends for ``player``, who plays ``mark`` (``X`` begins), against ``opponent``."""

    @cache
    def from_here(cells: str) -> Chances:
        if _over(cells):
            won = winner(cells)
            return Chances(float(won == mark), float(won is None), float(won is not None and won != mark))
        mover = to_move(cells)
        odds = (player if mover == mark else opponent)(cells)
        below = [(p, from_here(marked(cells, int(cell) - 1, mover))) for cell, p in odds.items() if p]
        return Chances(*(sum(p * end[i] for p, end in below) for i in range(3)))

    return from_here(CELLS)


def _alike(cells: Sequence[str]) -> Odds:
    return dict.fromkeys(cells, 1 / len(cells))


def _over(cells: str) -> bool:
    return winner(cells) is not None or full(cells)
