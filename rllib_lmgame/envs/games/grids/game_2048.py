"""2048: slide equal tiles into each other."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import ClassVar

from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract.base import SEPARATOR, InvalidAction, TextGame, TextGameOptions, Variant
from rllib_lmgame.envs.games.grids.game_2048_search import MOVES, best_move

Board = tuple[int, ...]
"""The 16 cells row by row, 0 where there is no tile."""

Level = tuple[Board, int]
"""The first board, and the number that seeds the tiles to come."""

SIDE = 4
LETTER_OF = {0: "_", **{2**power: chr(ord("A") + power - 1) for power in range(1, 18)}}
FOUR_PROBABILITY = 0.1
STILL_REWARD = -0.1
LOG_SCALE = 0.1

RULES = """You play 2048 on a board of 4 rows and 4 columns; _ is an empty cell.{cells}
A move slides all tiles as far as they go. Two equal tiles that meet merge into one of twice the number, each tile \
once per move. Then a new tile appears in an empty cell: a 2, or one time in ten a 4.
Moves: Up, Right, Down, Left. {moves}
There are {turns} turns{total}. {reward}, a move that changes nothing costs 0.1. \
You win with a tile of {goal}; you lose when nothing can move."""
NUMBERED = " Tiles are letters, A is 2, B is 4 and so on, and each cell shows its number."
REWARDS = {
    "log": "A move gives a tenth of log2(1 + the sum of the tiles that merged)",
    "score": "A move gives the sum of the tiles that merged",
}


def line_cells(move: str) -> tuple[tuple[int, ...], ...]:
    """The cells of each row or column that a move slides, beginning where its tiles go to."""
    across = move in ("Left", "Right")
    lines = [[SIDE * i + j if across else SIDE * j + i for j in range(SIDE)] for i in range(SIDE)]
    return tuple(tuple(line if move in ("Left", "Up") else line[::-1]) for line in lines)


LINES = {move: line_cells(move) for move in MOVES}


@lru_cache(maxsize=65_536)
def slid(line: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """A row or column after its tiles slid to its beginning, and the sum of the tiles that came of merging."""
    after: list[int] = []
    merged, fresh = 0, False
    for tile in filter(None, line):
        if fresh and after[-1] == tile:
            after[-1] = 2 * tile
            merged += 2 * tile
            fresh = False
        else:
            after.append(tile)
            fresh = True
    return (*after, *[0] * (len(line) - len(after))), merged


def moved(board: Board, move: str) -> tuple[Board, int]:
    """The board after a move, before a tile appears, and the sum of the tiles that came of merging."""
    after, total = list(board), 0
    for cells in LINES[move]:
        line, merged = slid(tuple(board[cell] for cell in cells))
        total += merged
        for cell, tile in zip(cells, line, strict=True):
            after[cell] = tile
    return tuple(after), total


def spawned(board: Board, chance: random.Random) -> Board:
    """The board with a new tile in one of its empty cells."""
    cell = chance.choice([cell for cell, tile in enumerate(board) if not tile])
    return (*board[:cell], 4 if chance.random() < FOUR_PROBABILITY else 2, *board[cell + 1 :])


class Game2048Options(TextGameOptions):
    """``env_config`` of 2048."""

    max_turns: int = option(1_200, "Replies per episode.", ge=1)
    goal: int = option(2_048, "The tile that wins.", choices=tuple(2**power for power in range(3, 16)))
    reward: str = option(
        "log",
        "What a move earns: a tenth of log2(1 + the sum of the tiles that merged), or that sum itself (`score`).",
        choices=tuple(REWARDS),
    )
    numbered_cells: bool = option(
        False,
        "Show tiles as letters (`A` is 2, `B` 4), each cell with its number (`A1 _2`). To a tiny model with room for "
        "them (`vocab_size` 640) most cells are one token.",
    )


class Game2048(TextGame):
    """Merge tiles on a 4x4 board until one shows 2048.

    Observation: the rows of the board, numbers between spaces, ``_`` for an empty cell; ``numbered_cells`` shows
        letters instead, each with its cell's number.
    Action: ``Up``, ``Right``, ``Down`` or ``Left``. A move that changes nothing is accepted, costs 0.1 and brings no
        tile; the legal actions listed are those that change something.
    Reward: a tenth of log2(1 + the sum of the tiles that a move's merging made), as in SCOUT (arXiv 2601.21754): an
        early merge counts nearly as much as a late one, and the return of a game that is won is about 250. ``reward:
        score`` pays the sum itself, the score that players know. -0.1 for a move that changes nothing or a reply that
        cannot be read.
    Success: a tile of ``goal`` (2048), which ends the episode. The game is lost when nothing can move.
    Horizon: 1,200 replies. A move adds 2.2 to the sum of all tiles on average, so that 2048 takes some 950 moves and
        1024 some 480. SCOUT plays ``max_turns: 700``, in which nobody reaches 2048: compare ``largest_tile``, or set
        ``goal: 1024``.
    Measures: ``largest_tile`` and ``score``, the sum of all tiles that came of merging.
    Levels: two tiles, and a number from which all later ones follow. A player sees the board alone, so that what a
        level holds cannot be learnt by heart.
    Solver: expectimax over the next one or two tiles (``game_2048_search.py``), which does not know what comes. Of 100
        games it reached 1024 in 98 and 2048 in 89, at 2,000 moves a second.
    """

    variants = (Variant("lmgame/2048-v0", (-120.0, 490.0), "Merge tiles on a 4x4 board until one shows 2048."),)
    Options: ClassVar[type[TextGameOptions]] = Game2048Options
    options: Game2048Options

    @property
    def rules(self) -> str:
        chosen = self.options
        return RULES.format(
            cells=NUMBERED * chosen.numbered_cells,
            moves=self.moves_rule(("Up", "Left")),
            turns=chosen.max_turns,
            total=self.total_rule(),
            reward=REWARDS[chosen.reward],
            goal=chosen.goal,
        )

    @property
    def success(self) -> bool:
        return max(self._board) >= self.options.goal

    @property
    def finished(self) -> bool:
        return self.success or not self._legal

    @property
    def solver_wins(self) -> bool:
        return False

    def levels(self, rng: random.Random) -> Iterator[Level]:
        while True:
            yield spawned(spawned((0,) * SIDE**2, rng), rng), rng.getrandbits(32)

    def level_key(self, level: Level) -> str:
        return f"2048 {' '.join(map(str, level[0]))} {level[1]}"

    def start(self, level: Level) -> None:
        self._board, number = level
        self._chance = random.Random(number)
        self._score = 0
        self._legal = self._possible()

    def board(self) -> str:
        cells = [str(tile or "_") for tile in self._board]
        if self.options.numbered_cells:
            cells = [f"{LETTER_OF[tile]}{number}" for number, tile in enumerate(self._board, 1)]
        return "\n".join(" ".join(cells[i : i + SIDE]) for i in range(0, SIDE**2, SIDE))

    def legal_actions(self) -> tuple[str, ...]:
        return self._legal

    def read_move(self, text: str) -> str:
        move = text.rstrip(".").capitalize()
        if move not in MOVES:
            raise InvalidAction(f"each move must be Up, Right, Down or Left; several are joined by {SEPARATOR}.")
        return move

    def play_move(self, move: str) -> float:
        if move not in self._legal:
            return STILL_REWARD
        after, merged = moved(self._board, move)
        self._board = spawned(after, self._chance)
        self._score += merged
        self._legal = self._possible()
        return float(merged) if self.options.reward == "score" else LOG_SCALE * math.log2(1 + merged)

    def expert_action(self) -> str:
        """The move with the best prospects by expectimax."""
        return best_move(self._board)

    def measures(self) -> Mapping[str, float]:
        return {"largest_tile": float(max(self._board)), "score": float(self._score)}

    def _possible(self) -> tuple[str, ...]:
        return tuple(move for move in MOVES if moved(self._board, move)[0] != self._board)
