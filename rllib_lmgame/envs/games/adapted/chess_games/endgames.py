"""Chess endgames: mate with king and queen or king and rook."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from typing import Any, ClassVar, NamedTuple

import chess
import numpy as np

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract.base import TextGameOptions, Variant
from rllib_lmgame.envs.games.adapted.chess_games.game import ChessGame, ChessGameOptions
from rllib_lmgame.envs.games.adapted.chess_games.opponents import Opponent, RandomOpponent
from rllib_lmgame.envs.games.adapted.chess_games.tablebase import NO_MATE, table

PIECES = {"queen": chess.QUEEN, "rook": chess.ROOK}
LONGEST_MATE = {"queen": 10, "rook": 16}
"""Moves to mate in the hardest position."""


class Squares(NamedTuple):
    """A position: the piece's kind, and the squares of white king, piece and black king."""

    piece: str
    king: int
    square: int
    other: int


class ChessEndgamesOptions(ChessGameOptions):
    """``env_config`` of ChessEndgames."""

    piece: str = option(
        "both", "What White has beside its king; `both` lets the seed decide.", choices=("queen", "rook", "both")
    )
    min_mate: int = option(1, "Moves the shortest mate has at least.", ge=1, le=16)
    max_mate: int = option(
        16, "Moves the shortest mate has at most (10 is the longest with the queen, 16 with the rook).", ge=1, le=16
    )
    defender: str = option(
        "perfect", "The lone king resists as long as it can, or moves at random.", choices=("perfect", "random")
    )


class TableDefender(Opponent):
    """The lone king: takes the piece if it can, otherwise delays the mate as long as possible; chance
    decides between equals.
    """

    def move(self, board: chess.Board, rng: random.Random) -> chess.Move:
        values: dict[chess.Move, int] = {}
        for move in board.legal_moves:
            board.push(move)
            values[move] = plies_to_mate(board)
            board.pop()
        longest = max(values.values())
        return rng.choice([move for move, value in values.items() if value == longest])


class ChessEndgames(ChessGame):
    """Mate a lone king with queen or rook against perfect defence.

    Observation: as in Chess. The player is White and moves first.
    Action: as in Chess.
    Reward: +1 for mate, 0 for a draw (stalemate, a lost piece, fifty moves, the third time in a position); -1 for an
        illegal move (LMRL-Gym).
    Horizon: 400 replies, of which the fifty-move rule leaves 50 for legal moves.
    Opponent: plays perfectly by a table made by retrograde analysis, or at random.
    Levels: any position that is won, the piece and the length of the mate as the options say. Positions that are mirror
        images of each other are one level, so none of them is in two splits.
    Solver: the table's; the longest mates take 10 moves with the queen and 16 with the rook.
    """

    variants = (Variant("lmgame/ChessEndgames-v0", (-267.0, 1.0)),)
    extra = "chess"
    Options: ClassVar[type[TextGameOptions]] = ChessEndgamesOptions
    options: ChessEndgamesOptions
    title: ClassVar[str] = "an endgame of chess, to mate a lone king with king and queen or king and rook,"

    def __init__(self, render_mode: str | None = None, **env_config: Any) -> None:
        super().__init__(render_mode, **env_config)
        chosen = self.options
        self._pieces = tuple(PIECES) if chosen.piece == "both" else (chosen.piece,)
        longest = max(LONGEST_MATE[piece] for piece in self._pieces)
        if chosen.min_mate > min(longest, chosen.max_mate):
            raise ConfigError(
                "env_config.min_mate",
                f"is {chosen.min_mate}; it can be at most {min(longest, chosen.max_mate)} with the other options",
            )
        self._pieces = tuple(piece for piece in self._pieces if chosen.min_mate <= LONGEST_MATE[piece])

    def make_opponent(self) -> Opponent:
        return TableDefender() if self.options.defender == "perfect" else RandomOpponent()

    @property
    def solver_wins(self) -> bool:
        return self.options.max_turns >= self.options.max_mate

    def levels(self, rng: random.Random) -> Iterator[Squares]:
        while True:
            piece = rng.choice(self._pieces)
            found = won_positions(piece, self.options.min_mate, self.options.max_mate)
            yield Squares(
                piece, *(int(square) for square in np.unravel_index(found[rng.randrange(len(found))], (64, 64, 64)))
            )

    def level_key(self, level: Squares) -> str:
        return f"chess_endgames {level.piece} {canonical(level.king, level.square, level.other)}"

    def start(self, level: Squares) -> None:
        self.begin(position(level), chess.WHITE)

    def expert_action(self) -> str | None:
        """A move of the shortest mate; any legal one if the win is gone."""
        if self.finished:
            return None
        best, fewest = next(iter(self._board.legal_moves)), NO_MATE
        for move in self._board.legal_moves:
            self._board.push(move)
            plies = plies_to_mate(self._board)
            self._board.pop()
            if plies < fewest:
                best, fewest = move, plies
        return self._board.san(best)


def position(squares: Squares, turn: chess.Color = chess.WHITE) -> chess.Board:
    """The board of a position."""
    board = chess.Board(None)
    board.set_piece_at(squares.king, chess.Piece(chess.KING, chess.WHITE))
    board.set_piece_at(squares.square, chess.Piece(PIECES[squares.piece], chess.WHITE))
    board.set_piece_at(squares.other, chess.Piece(chess.KING, chess.BLACK))
    board.turn = turn
    return board


def plies_to_mate(board: chess.Board) -> int:
    """Plies until White mates under best play, ``NO_MATE`` if it cannot."""
    piece = "queen" if board.queens else "rook"
    king, other = board.king(chess.WHITE), board.king(chess.BLACK)
    squares = list(chess.scan_forward(board.queens | board.rooks))
    if not squares or king is None or other is None:
        return NO_MATE
    entries = table(piece).white if board.turn == chess.WHITE else table(piece).black
    return int(entries[king, squares[0], other])


@cache
def won_positions(piece: str, shortest: int, longest: int) -> np.ndarray:
    """Flat indices of the positions, White to move, in which the mate takes ``shortest`` to ``longest`` moves."""
    plies = table(piece).white
    return np.flatnonzero((plies != NO_MATE) & (plies >= 2 * shortest - 1) & (plies <= 2 * longest - 1))


def canonical(*squares: int) -> tuple[int, ...]:
    """The smallest of the eight mirror images and turns of some squares: the same for positions that are alike."""
    images = []
    for turned in (squares, tuple(8 * (s % 8) + s // 8 for s in squares)):
        for flip in (0, 7, 56, 63):
            images.append(tuple(s ^ flip for s in turned))
    return min(images)
