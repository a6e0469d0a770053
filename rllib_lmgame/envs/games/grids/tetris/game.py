"""Tetris: steer falling pieces so that they fill rows."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import ClassVar

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract.base import SEPARATOR, InvalidAction, TextGame, TextGameOptions, Variant
from rllib_lmgame.envs.games.grids.tetris.board import (
    DOWN,
    LEFT,
    RIGHT,
    ROTATE,
    SHAPES,
    Board,
    Piece,
    Rules,
    after_move,
    fits,
    locked,
    moved,
    wide,
)
from rllib_lmgame.envs.games.grids.tetris.search import best_drop, first_line

Spawn = tuple[int, int]
"""Number of the piece in its set, and the column of its left edge when it appears."""

STEP_REWARD, LINE_REWARD = -0.1, 10.0
MAX_CELLS_SEARCHED = 24
"""Boards up to this size are searched for the shortest solution; on larger ones the expert judges
boards one piece ahead.
"""

PIECES_OF_LARGE_LEVELS = 20
MAX_SEQUENCES_TRIED = 30
LONGEST_PIECE = {"singles": 1, "dominoes": 2, "tetrominoes": 4}

RULES = """You play Tetris on a board of {rows} rows and {columns} columns. Fill whole rows: \
a full row disappears and what is above it moves down.
_ empty, # locked cell, X falling piece. {pieces}
A new piece appears at the top in any column. Once it rests on the floor or on a locked cell after a move, \
it is locked and the next one appears.
Moves: {moves}. {gravity}
{per_reply}
There are {turns} turns{total}. Each move costs 0.1, each cleared row gives 10. You win by clearing {goal}; \
you lose when a new piece has no room."""
PIECES_SAID = {
    "singles": "Each piece is a single cell.",
    "dominoes": "Each piece is two cells, lying or standing.",
    "tetrominoes": "The pieces are the seven tetrominoes (four cells each).",
}


class TetrisOptions(TextGameOptions):
    """``env_config`` of Tetris."""

    max_turns: int = option(11, "Replies per episode.", ge=1)
    max_actions_per_turn: int = option(5, "Moves per reply, joined by `||`; what goes beyond is not played.", ge=1)
    max_actions: int | None = option(40, "Moves per episode; null is no limit.", ge=1)
    rows: int = option(4, "Rows of the board.", ge=2, le=30)
    columns: int = option(4, "Columns of the board.", ge=2, le=20)
    pieces: str = option("singles", "Pieces of one, two or four cells.", choices=tuple(SHAPES))
    allow_rotation: bool = option(False, "Add the move Rotate (a quarter clockwise).")
    gravity: bool = option(False, "The piece falls by one row after every move that is not Down.")
    goal_lines: int = option(1, "Rows to clear.", ge=1)


class Tetris(TextGame):
    """Fill rows with falling pieces.

    Observation: the rows of the board, ``_`` empty, ``#`` locked, ``X`` the falling piece.
    Action: ``Left``, ``Right``, ``Down`` and, with ``allow_rotation``, ``Rotate``; several joined by ``||``. A move
        without room is accepted, costs a step and changes nothing; the legal actions listed are those that change
        something. A piece is locked when it rests on something after a move, also one to the side.
    Reward: -0.1 a move, +10 for each row cleared; -0.1 for a reply that cannot be read; a forfeit costs as much as the
        moves left.
    Success: ``goal_lines`` rows have been cleared (one by default), which ends the episode. It is lost when a new piece
        has no room.
    Horizon: 11 replies of up to 5 moves, 40 moves in all. Board, symbols, rewards and budgets of the small boards are
        those of GRL (4x4 with single cells; dominoes that do not turn), as is the end at the first row. Option
        ``gravity`` is GRL's game before it took the falling out.
    Levels: which pieces appear, and in which column. A level is the shortest sequence with which a row can be cleared,
        so no level is the beginning of another one; what appears after it follows from it. On boards of more than 24
        cells, and with tetrominoes, a level is its first 20 pieces. A player sees the first piece alone: every test
        level begins like a training level, and some (three of ``TetrisDominoes3x3``) are played to the end alike.
    Solver: on small boards a search for the fewest pieces and then the fewest moves (every level drawn can be solved
        within its budget). On others a player that judges every place one piece can go to by heights, holes and
        evenness, which sees no more than a person would.
    """

    variants = (
        Variant("lmgame/Tetris-v0", (-4.3, 8.8), "Fill a row of a 4x4 board with single cells."),
        Variant(
            "lmgame/TetrisDominoes3x3-v0",
            (-4.3, 19.7),
            "Tetris 3x3 with dominoes.",
            {"rows": 3, "columns": 3, "pieces": "dominoes"},
        ),
        Variant("lmgame/TetrisDominoes-v0", (-4.3, 19.2), "Tetris 4x4 with dominoes.", {"pieces": "dominoes"}),
        Variant(
            "lmgame/TetrisFull-v0",
            (-160.0, 78.0),
            "Tetris 10x20 with the seven tetrominoes, five rows to clear.",
            {
                "rows": 20,
                "columns": 10,
                "pieces": "tetrominoes",
                "allow_rotation": True,
                "goal_lines": 5,
                "max_turns": 40,
                "max_actions_per_turn": 40,
                "max_actions": None,
            },
        ),
    )
    Options: ClassVar[type[TextGameOptions]] = TetrisOptions
    move_cost = -STEP_REWARD
    options: TetrisOptions
    _piece: Piece

    def __init__(self, render_mode: str | None = None, **env_config: object) -> None:
        super().__init__(render_mode, **env_config)
        chosen = self.options
        for key in ("rows", "columns"):
            if getattr(chosen, key) < LONGEST_PIECE[chosen.pieces]:
                raise ConfigError(
                    f"env_config.{key}",
                    f"{chosen.pieces} need {LONGEST_PIECE[chosen.pieces]} at least, got {getattr(chosen, key)}",
                )
        moves = (LEFT, RIGHT, DOWN, ROTATE) if chosen.allow_rotation else (LEFT, RIGHT, DOWN)
        self._rules = Rules(chosen.columns, chosen.gravity, moves)
        self._by_name = {move.lower(): move for move in moves}
        self._shapes = SHAPES[chosen.pieces]
        self._searched = chosen.rows * chosen.columns <= MAX_CELLS_SEARCHED and chosen.pieces != "tetrominoes"

    @property
    def rules(self) -> str:
        chosen = self.options
        return RULES.format(
            rows=chosen.rows,
            columns=chosen.columns,
            pieces=PIECES_SAID[chosen.pieces],
            moves=", ".join(self._rules.moves) + (" (a quarter clockwise)" if chosen.allow_rotation else ""),
            gravity="After every move but Down the piece falls by one row."
            if chosen.gravity
            else "The piece falls only when you say Down.",
            per_reply=self.moves_rule(("Left", "Down", "Down")),
            turns=chosen.max_turns,
            total=self.total_rule(),
            goal="a row" if chosen.goal_lines == 1 else f"{chosen.goal_lines} rows",
        )

    @property
    def success(self) -> bool:
        return self._lines >= self.options.goal_lines

    @property
    def finished(self) -> bool:
        return self.success or self._blocked

    @property
    def solver_wins(self) -> bool:
        return self._searched and self.options.goal_lines == 1

    def levels(self, rng: random.Random) -> Iterator[tuple[Spawn, ...]]:
        failed = 0
        while failed < MAX_SEQUENCES_TRIED:
            level = self._drawn(rng)
            failed = 0 if level else failed + 1
            if level:
                yield level
        raise ConfigError(
            "env_config.max_actions",
            f"found no pieces that clear a row of this board in {self.moves_in_all} moves; raise it, or take "
            "fewer columns",
        )

    def level_key(self, level: tuple[Spawn, ...]) -> str:
        chosen = self.options
        spawns = " ".join(f"{number}.{column}" for number, column in level)
        rules = (
            f"{chosen.rows}x{chosen.columns} "
            f"{chosen.pieces}{' rotation' * chosen.allow_rotation}{' gravity' * chosen.gravity}"
        )
        return f"tetris {rules} {spawns}"

    def start(self, level: tuple[Spawn, ...]) -> None:
        self._spawns = [*level]
        self._later = random.Random(self.level_key(level))
        self._locked: Board = (0,) * self.options.rows
        self._lines = self._used = 0
        self._appear()

    def board(self) -> str:
        columns = self.options.columns
        shown = [["#" if row >> column & 1 else "_" for column in range(columns)] for row in self._locked]
        if not self.finished:
            for i, cells in enumerate(self._piece.shape):
                for column in range(cells.bit_length()):
                    if cells >> column & 1:
                        shown[self._piece.row + i][self._piece.column + column] = "X"
        return "\n".join("".join(row) for row in shown)

    def legal_actions(self) -> tuple[str, ...]:
        return tuple(
            move
            for move in self._rules.moves
            if move == DOWN or moved(self._locked, self._rules, self._piece, move) != self._piece
        )

    def read_move(self, text: str) -> str:
        move = self._by_name.get(text.rstrip(".").lower())
        if move is None:
            raise InvalidAction(
                f"each move must be one of {', '.join(self._rules.moves)}; several are joined by {SEPARATOR}."
            )
        return move

    def play_move(self, move: str) -> float:
        self._piece, landed = after_move(self._locked, self._rules, self._piece, move)
        if not landed:
            return STEP_REWARD
        self._locked, lines = locked(self._locked, self.options.columns, self._piece)
        self._lines += lines
        self._appear()
        return STEP_REWARD + LINE_REWARD * lines

    def solve(self) -> list[str] | None:
        """Moves that clear the next row (on a large board: moves of the falling piece), or ``None`` if
        it cannot be done.
        """
        if not self._searched:
            return best_drop(self._locked, self._rules, self._piece)
        left = self.options.rows * self.options.columns // self._cells() + 1
        coming = [self._spawned(self._spawn(self._used + i)) for i in range(left)]
        found = first_line(self._locked, self._rules, [self._piece, *coming])
        return found[0] if found else None

    def _appear(self) -> None:
        """Let the next piece appear at the top."""
        self._piece = self._spawned(self._spawn(self._used))
        self._used += 1
        self._blocked = not fits(self._locked, self.options.columns, self._piece)

    def _spawn(self, index: int) -> Spawn:
        """The piece that appears as number ``index``: of the level, or drawn from a generator that the level seeds."""
        while index >= len(self._spawns):
            self._spawns.append(self._random_spawn(self._later))
        return self._spawns[index]

    def _spawned(self, spawn: Spawn) -> Piece:
        return Piece(self._shapes[spawn[0]], 0, spawn[1])

    def _random_spawn(self, rng: random.Random) -> Spawn:
        number = rng.randrange(len(self._shapes))
        return number, rng.randrange(self.options.columns - wide(self._shapes[number]) + 1)

    def _cells(self) -> int:
        """Cells of a piece."""
        return LONGEST_PIECE[self.options.pieces]

    def _drawn(self, rng: random.Random) -> tuple[Spawn, ...] | None:
        """A level, or ``None`` if no row can be cleared with the pieces drawn."""
        if not self._searched:
            return tuple(self._random_spawn(rng) for _ in range(PIECES_OF_LARGE_LEVELS))
        capacity = self.options.rows * self.options.columns // self._cells()
        spawns = tuple(itertools.starmap(self._random_spawn, itertools.repeat((rng,), capacity)))
        found = first_line((0,) * self.options.rows, self._rules, [self._spawned(spawn) for spawn in spawns])
        if found is None or len(found[0]) > self.moves_in_all:
            return None
        return spawns[: found[1]]
