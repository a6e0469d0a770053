"""TicTacToe for two."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import ClassVar

from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract import InvalidAction, TextAECGame, TextAECOptions, Variant, read_word

CELLS = "123456789"
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))

RULES = """You play TicTacToe. X begins; X and O take turns to mark an empty cell.
Three marks of one player in a row, a column or a diagonal win; a full board is a draw.
An empty cell shows its number, 1 to 9; reply with the number of the cell you mark."""


class TicTacToeOptions(TextAECOptions):
    """``env_config`` of TicTacToe."""

    numbered_marks: bool = option(
        False, "Show each mark with the number of its cell (`X5`), which is one token to a tiny model."
    )


class TicTacToe(TextAECGame):
    """Three in a row.

    Observation: who one is, and the board, an empty cell as its digit (so that legality is a matter of copying), a
        marked one as its mark, or as mark and digit.
    Action: the digit of an empty cell. Two different digits in one reply are invalid.
    Reward: +1 for a win, -1 for a loss, 0 for a draw, at the end. -0.1 for an invalid reply, to the offender alone;
        three in a row forfeit (-1, the other +1).
    Horizon: at most 9 moves (5 of X, 4 of O), invalid replies aside.
    Agents: ``X`` (role ``first``) and ``O`` (role ``second``). There are no levels: every seed begins with the empty
        board and only the expert's choice among equally good moves depends on it; ``split`` changes nothing.
    Expert: minimax, a random one of the best moves.
    """

    variants = (Variant("lmgame/TicTacToe-v0", (-2.1, 1.0)),)
    Options: ClassVar[type[TextAECOptions]] = TicTacToeOptions
    options: TicTacToeOptions
    seats: ClassVar[Mapping[str, str]] = {"X": "first", "O": "second"}

    @property
    def rules(self) -> str:
        return RULES

    def start(self) -> None:
        self._cells = CELLS

    def player_to_move(self) -> str:
        return to_move(self._cells)

    def view(self, agent: str) -> str:
        return board_text(self._cells, agent, self.options.numbered_marks)

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        if self.finished or agent != self.player_to_move():
            return ()
        return empty_cells(self._cells)

    def read_move(self, text: str) -> int:
        cell = read_word(text, CELLS, "cell")
        if cell not in self._cells:
            raise InvalidAction(f"cell {cell} is taken.")
        return int(cell) - 1

    def play_move(self, agent: str, move: int) -> None:
        self._cells = marked(self._cells, move, agent)

    @property
    def finished(self) -> bool:
        return winner(self._cells) is not None or full(self._cells)

    def results(self) -> dict[str, float]:
        won = winner(self._cells)
        return {agent: 0.0 if won is None else 1.0 if agent == won else -1.0 for agent in self.seats}

    def forfeit_results(self, agent: str) -> dict[str, float]:
        return self.lost_by(agent)

    def expert_action(self, agent: str) -> str | None:
        moves = best_moves(self._cells, agent)
        return str(self.expert_random.choice(moves) + 1) if moves else None


def to_move(cells: str) -> str:
    """``X`` or ``O``."""
    return "XO"[len(CELLS) - len(empty_cells(cells)) & 1]


def empty_cells(cells: str) -> tuple[str, ...]:
    """The numbers of the cells that are not marked."""
    return tuple(cell for cell in cells if cell not in "XO")


def board_text(cells: str, agent: str, numbered_marks: bool = False) -> str:
    """What a player sees."""
    shown = [c + n if numbered_marks and c in "XO" else c for c, n in zip(cells, CELLS, strict=True)]
    return "\n".join([f"You are {agent}.", *(" ".join(shown[i : i + 3]) for i in (0, 3, 6))])


def marked(cells: str, cell: int, mark: str) -> str:
    """The board after a move."""
    return cells[:cell] + mark + cells[cell + 1 :]


def winner(cells: str) -> str | None:
    """``X`` or ``O`` with three in a row."""
    return next((cells[a] for a, b, c in LINES if cells[a] == cells[b] == cells[c]), None)


def full(cells: str) -> bool:
    """No empty cell is left."""
    return not empty_cells(cells)


@cache
def value(cells: str, mark: str) -> int:
    """Result under best play for ``mark``, who is to move: 1, 0 or -1."""
    if winner(cells) is not None:
        return -1
    if full(cells):
        return 0
    other = "O" if mark == "X" else "X"
    return max(-value(marked(cells, i, mark), other) for i, cell in enumerate(cells) if cell not in "XO")


def best_moves(cells: str, mark: str) -> list[int]:
    """All cells that keep the best result for ``mark``, who is to move; none when the game is over."""
    if winner(cells) is not None:
        return []
    other = "O" if mark == "X" else "X"
    values = {i: -value(marked(cells, i, mark), other) for i, cell in enumerate(cells) if cell not in "XO"}
    return [i for i, v in values.items() if v == max(values.values())]
