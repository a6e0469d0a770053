"""ConnectFour for two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import model_validator

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract import InvalidAction, TextAECGame, TextAECOptions, Variant, read_word
from rllib_lmgame.envs.games.duels.connect_four_search import Grid, best_columns

FAST_DEPTH = 6
"""A search this deep answers within a tenth of a second or so on the usual board."""

RULES = """You play ConnectFour on a board of {columns} columns and {rows} rows. X begins; X and O take turns to drop \
a stone into a column, where it falls to the lowest empty square.
{connect} stones of one player in a row, a column or a diagonal win; a full board is a draw.
{shown}; reply with the number of your column."""
AS_BOARD = "Above each column that is not full stands its number"
AS_SQUARES = (
    "First all stones are named, yours (Y) and the other player's (T), then the empty squares (_) on which a stone can "
    "come to rest, each with the number of its column and that of its row, from below"
)


class ConnectFourOptions(TextAECOptions):
    """``env_config`` of ConnectFour."""

    rows: int = option(6, "Rows.", ge=1, le=12)
    columns: int = option(7, "Columns.", ge=1, le=9)
    connect: int = option(4, "Stones in a line that win.", ge=2)
    expert_depth: int = option(
        4, "Moves the expert (`solver`, `minimax`) looks ahead, its own next one included.", ge=1, le=42
    )
    numbered_marks: bool = option(
        False,
        "In place of the board, name one's own stones, the other player's and the squares to drop one on by column and "
        "row (`Y41 T42`, `_43`), each of which is one token to a tiny model.",
    )

    @model_validator(mode="after")
    def _lines_fit(self) -> Self:
        if self.connect > max(self.rows, self.columns):
            raise ConfigError(
                "env_config.connect",
                f"is {self.connect}, and no line is so long on {self.columns} columns and {self.rows} rows",
            )
        return self


class ConnectFour(TextAECGame):
    """Four in a row, of stones that fall.

    Observation: who one is, the numbers of the columns that are not full (so that legality is a matter of copying), and
        the board below them, an empty square as a dot. With ``numbered_marks`` two rows: the stones, one's own and the
        other player's, and the squares on which the next can come to rest, column by column. What is learnt in one seat
        then holds in the other.
    Action: the number of a column that is not full, from 1, the left one. Two different numbers in one reply are
        invalid.
    Reward: +1 for a win, -1 for a loss, 0 for a draw, at the end. -0.1 for an invalid reply, to the offender alone;
        three in a row forfeit (-1, the other +1).
    Horizon: a reply per square (21 each on the usual board), invalid replies aside. Rules as in OpenSpiel and
        PettingZoo (Hasbro 1974); X wins under perfect play on 7 columns and 6 rows (J. Allen 1988, V. Allis 1988).
    Agents: ``X`` (role ``first``) and ``O`` (role ``second``). There are no levels: every seed begins with the empty
        board and only the expert's choice among equally good moves depends on it; ``split`` changes nothing.
    Expert: alpha-beta search of ``expert_depth`` moves, a random one of the best: it wins as soon and loses as late as
        it can within them, and takes all else to be equal. With a depth of 2 it wins at once where it can and lets
        nobody win at once whom it can stop.
    """

    variants = (Variant("lmgame/ConnectFour-v0", (-5.3, 1.0)),)
    Options: ClassVar[type[TextAECOptions]] = ConnectFourOptions
    options: ConnectFourOptions
    seats: ClassVar[Mapping[str, str]] = {"X": "first", "O": "second"}

    def __init__(self, render_mode: str | None = None, **env_config: Any) -> None:
        super().__init__(render_mode, **env_config)
        chosen = self.options
        self.grid = Grid(chosen.rows, chosen.columns, chosen.connect)
        self.slow_calls = chosen.expert_depth > FAST_DEPTH

    @property
    def rules(self) -> str:
        grid, shown = self.grid, AS_SQUARES if self.options.numbered_marks else AS_BOARD
        return RULES.format(rows=grid.rows, columns=grid.columns, connect=grid.connect, shown=shown)

    def start(self) -> None:
        self._stones = {"X": 0, "O": 0}
        self._moves = 0

    def player_to_move(self) -> str:
        return "XO"[self._moves % 2]

    def view(self, agent: str) -> str:
        if self.options.numbered_marks:
            return "\n".join([f"You are {agent}.", *filter(None, map(" ".join, self._named_squares(agent)))])
        columns, rows = range(self.grid.columns), reversed(range(self.grid.rows))
        numbers = [str(column + 1) if self.grid.square(self._all, column) else "-" for column in columns]
        lines = [numbers, *([self._mark(row, column) for column in columns] for row in rows)]
        return "\n".join([f"You are {agent}.", *(" ".join(line) for line in lines)])

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        if self.finished or agent != self.player_to_move():
            return ()
        return tuple(str(column + 1) for column in range(self.grid.columns) if self.grid.square(self._all, column))

    def read_move(self, text: str) -> int:
        column = int(read_word(text, [str(column + 1) for column in range(self.grid.columns)], "column")) - 1
        square = self.grid.square(self._all, column)
        if not square:
            raise InvalidAction(f"column {column + 1} is full.")
        return square

    def play_move(self, agent: str, move: int) -> None:
        self._stones[agent] |= move
        self._moves += 1

    @property
    def finished(self) -> bool:
        return self._winner is not None or self._all == self.grid.full

    def results(self) -> dict[str, float]:
        won = self._winner
        return {agent: 0.0 if won is None else 1.0 if agent == won else -1.0 for agent in self.seats}

    def forfeit_results(self, agent: str) -> dict[str, float]:
        return self.lost_by(agent)

    def expert_action(self, agent: str) -> str | None:
        if not self.legal_actions(agent):
            return None
        own, other = self._stones[agent], self._stones["O" if agent == "X" else "X"]
        return str(self.expert_random.choice(best_columns(self.grid, own, other, self.options.expert_depth)) + 1)

    @property
    def _all(self) -> int:
        return self._stones["X"] | self._stones["O"]

    @property
    def _winner(self) -> str | None:
        return next((agent for agent, stones in self._stones.items() if self.grid.has_line(stones)), None)

    def _named_squares(self, agent: str) -> tuple[list[str], list[str]]:
        """The stones, and the squares on which the next can come to rest, both by column and then by row."""
        names: tuple[list[str], list[str]] = [], []
        shown = {"X": "T", "O": "T", agent: "Y", ".": "_"}
        for column in range(self.grid.columns):
            for row in range(self.grid.rows):
                mark = self._mark(row, column)
                names[mark == "."].append(f"{shown[mark]}{column + 1}{row + 1}")
                if mark == ".":
                    break
        return names

    def _mark(self, row: int, column: int) -> str:
        square = self.grid.feet << row & self.grid.files[column]
        return next((agent for agent, stones in self._stones.items() if stones & square), ".")
