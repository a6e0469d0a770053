"""Chess against a built-in opponent."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import chess

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract.base import TextGame, TextGameOptions, Variant
from rllib_lmgame.envs.games.adapted.chess_games.board import drawing, read_chess_move, san_moves, uci_moves
from rllib_lmgame.envs.games.adapted.chess_games.opponents import (
    AlphaBetaOpponent,
    EngineOpponent,
    GreedyOpponent,
    Opponent,
    RandomOpponent,
)
from rllib_lmgame.envs.games.adapted.chess_games.search import MATERIAL, best_move, is_drawn

WIN, LOSS, DRAW = 1.0, -1.0, 0.0
EXPERT_DEPTH = OPPONENT_DEPTH = 2

RULES = """You play {game} as {colour} against an opponent. All rules of chess hold; \
the third time in a position and fifty moves without
progress are draws without being claimed.
Reply with one move, {notation}. A win gives 1, a loss -1, a draw 0.{legend}
There are {turns} turns."""
NOTATIONS = {
    "san": "in algebraic notation (Nf3, exd5, O-O, e8=Q)",
    "uci": "as the squares it goes from and to (g1f3, e1g1, e7e8q)",
}
BOARD_LEGEND = (
    "\nOn the board capital letters are White, small letters Black: K king, Q queen, R rook, B bishop, N knight, "
    "P pawn."
)


class ChessGameOptions(TextGameOptions):
    """``env_config`` of all chess games."""

    max_turns: int = option(400, "Replies per episode.", ge=1)
    max_actions_per_turn: int = option(1, "Moves per reply: one, since the opponent answers each.", ge=1, le=1)
    invalid_action_penalty: float = option(-1.0, "Reward of an illegal move.", le=0)
    observation: str = option(
        "both", "The position as a FEN, as a drawn board, or both.", choices=("fen", "board", "both")
    )
    notation: str = option(
        "san",
        "Notation of the opponent's moves and of the legal actions; replies are read in both.",
        choices=("san", "uci"),
    )


class ChessGame(TextGame):
    """What Chess and its endgames share: the board, reading moves, results."""

    Options: ClassVar[type[TextGameOptions]] = ChessGameOptions
    solver_wins = False
    options: ChessGameOptions
    title: ClassVar[str]

    def __init__(self, render_mode: str | None = None, **env_config: Any) -> None:
        super().__init__(render_mode, **env_config)
        self.opponent = self.make_opponent()
        self._board = chess.Board()
        self._colour = chess.WHITE

    @abstractmethod
    def make_opponent(self) -> Opponent:
        """The other side."""

    @property
    def rules(self) -> str:
        return RULES.format(
            game=self.title,
            colour=self.colour_text(),
            notation=NOTATIONS[self.options.notation],
            legend="" if self.options.observation == "fen" else BOARD_LEGEND,
            turns=self.options.max_turns,
        )

    def colour_text(self) -> str:
        """The player's colour, as the rules (which are the same for all seeds) name it."""
        return "White"

    def begin(self, board: chess.Board, colour: chess.Color) -> None:
        """Put a position on the board; the opponent moves if it is its turn."""
        self._board, self._colour = board, colour
        self._answer = ""
        self._refresh()
        if board.turn != colour:
            self._let_opponent_move()

    def board(self) -> str:
        name, moved = ("White", "Black") if self._colour == chess.WHITE else ("Black", "White")
        lines = [f"{moved} played {self._answer}."] if self._answer else []
        if self.options.observation != "board":
            lines.append(f"FEN: {self._board.fen()}")
        if self.options.observation != "fen":
            lines.append(drawing(self._board))
        check = " You are in check." if self._board.turn == self._colour and self._board.is_check() else ""
        return "\n".join([*lines, self._ending() or f"You are {name}, to move.{check}"])

    def legal_actions(self) -> tuple[str, ...]:
        return self._legal

    def read_move(self, text: str) -> chess.Move:
        return read_chess_move(self._board, text)

    def play_move(self, move: chess.Move) -> float:
        self._board.push(move)
        self._answer = ""
        self._refresh()
        if not self._over:
            self._let_opponent_move()
        return self._result()

    @property
    def finished(self) -> bool:
        return self._over

    @property
    def success(self) -> bool:
        return self._board.is_checkmate() and self._board.turn != self._colour

    def close(self) -> None:
        """End the opponent's process, if it has one."""
        self.opponent.close()

    def _let_opponent_move(self) -> None:
        move = self.opponent.move(self._board, self.random)
        self._answer = self._board.san(move) if self.options.notation == "san" else move.uci()
        self._board.push(move)
        self._refresh()

    def _refresh(self) -> None:
        """Whether the game is over, and the player's moves, once per position."""
        self._over = is_drawn(self._board) or not any(self._board.generate_legal_moves())
        list_moves = san_moves if self.options.notation == "san" else uci_moves
        self._legal = list_moves(self._board) if self._board.turn == self._colour and not self._over else ()

    def _result(self) -> float:
        if not self._board.is_checkmate():
            return DRAW
        return LOSS if self._board.turn == self._colour else WIN

    def _ending(self) -> str:
        if not self._over:
            return ""
        if self._board.is_checkmate():
            return "Checkmate. You win." if self.success else "Checkmate. You lose."
        if not any(self._board.generate_legal_moves()):
            return "Stalemate. A draw."
        if self._board.is_insufficient_material():
            return "Neither side has enough pieces to win. A draw."
        return "A draw by repetition or the fifty-move rule."


class ChessOptions(ChessGameOptions):
    """``env_config`` of Chess."""

    opponent: str = option(
        "random",
        "Who plays the other side: any legal move; the best move without looking at the answer; alpha-beta; the "
        "program Stockfish.",
        choices=("random", "greedy", "alpha_beta", "stockfish"),
    )
    opponent_depth: int | None = option(None, "Plies that `alpha_beta` looks ahead; null is 2.", ge=1, le=4)
    engine_path: str = option(
        "stockfish",
        "Program of the opponent `stockfish`: a name on PATH or in /usr/games, or a path; it must speak UCI.",
        path=True,
    )
    engine_nodes: int = option(10_000, "Positions that `stockfish` may look at per move.", ge=1)
    engine_skill: int | None = option(None, "`Skill Level` of `stockfish`; null is full strength.", ge=0, le=20)
    engine_elo: int | None = option(None, "Elo that `stockfish` limits itself to, from 1350; null is no limit.")
    colour: str = option(
        "white", "Side of the player; `random` lets the seed decide.", choices=("white", "black", "random")
    )
    opening_plies: int = option(
        4, "Random half-moves before play begins, so that games differ; 0 is the usual start.", ge=0, le=20
    )


class ChessLevel(NamedTuple):
    """Opening moves, and the player's colour."""

    opening: tuple[str, ...]
    colour: chess.Color


class Chess(ChessGame):
    """Chess against random, greedy, alpha-beta or Stockfish.

    Observation: the opponent's last move and the position, as a FEN, as a drawn board, or both.
    Action: one move, in algebraic notation or by its squares (``Nf3`` or ``g1f3``).
    Reward: +1 for a win, -1 for a loss, 0 for a draw, at the end; -1 for an illegal move (LMRL-Gym).
    Horizon: 400 replies. Mate, stalemate, too little material, the third time in a position and fifty moves without
        progress end it.
    Opponent: ``random``; ``greedy``, one ply; ``alpha_beta`` to a fixed depth; ``stockfish``, any UCI engine, limited
        by nodes, by ``engine_skill`` or by ``engine_elo`` (engines take 1350 at least). Only the moves of an engine
        weakened by its own chance do not follow the seed.
    Levels: a random opening of four half-moves that loses no piece, and the player's colour; the position decides the
        split. With ``opening_plies: 0`` there is one level, in all splits.
    Expert: alpha-beta, two plies.
    """

    variants = (Variant("lmgame/Chess-v0", (-267.0, 1.0)),)
    extra = "chess"
    Options: ClassVar[type[TextGameOptions]] = ChessOptions
    options: ChessOptions
    title: ClassVar[str] = "chess"

    def __init__(self, render_mode: str | None = None, **env_config: Any) -> None:
        super().__init__(render_mode, **env_config)
        self.has_levels = self.options.opening_plies > 0
        self.slow_calls = self.options.opponent == "stockfish" or (self.options.opponent_depth or 0) > 2

    def make_opponent(self) -> Opponent:
        chosen = self.options
        for key, opponent in (
            ("engine_skill", "stockfish"),
            ("engine_elo", "stockfish"),
            ("opponent_depth", "alpha_beta"),
        ):
            if chosen.opponent != opponent and getattr(chosen, key) is not None:
                raise ConfigError(
                    f"env_config.{key}", f"is for opponent {opponent!r}, but env_config.opponent is {chosen.opponent!r}"
                )
        if chosen.opponent == "stockfish":
            return EngineOpponent(chosen.engine_path, chosen.engine_nodes, chosen.engine_skill, chosen.engine_elo)
        if chosen.opponent == "alpha_beta":
            return AlphaBetaOpponent(chosen.opponent_depth or OPPONENT_DEPTH)
        return GreedyOpponent() if chosen.opponent == "greedy" else RandomOpponent()

    def colour_text(self) -> str:
        return {"white": "White", "black": "Black", "random": "the colour named below"}[self.options.colour]

    def levels(self, rng: random.Random) -> Iterator[ChessLevel]:
        while True:
            colour = {"white": chess.WHITE, "black": chess.BLACK}.get(self.options.colour)
            drawn = rng.random() < 0.5
            opening = random_opening(rng, self.options.opening_plies)
            if opening is not None:
                yield ChessLevel(opening, drawn if colour is None else colour)

    def level_key(self, level: ChessLevel) -> str:
        return f"chess {'white' if level.colour else 'black'} {opened_board(level.opening).fen()}"

    def split_of_level(self, digest: str, level: ChessLevel) -> str:
        return super().split_of_level(digest, level) if self.options.opening_plies else self.options.split

    def start(self, level: ChessLevel) -> None:
        self.begin(opened_board(level.opening), level.colour)

    def expert_action(self) -> str | None:
        """The move alpha-beta finds best."""
        return None if self.finished else self._board.san(best_move(self._board, EXPERT_DEPTH))


def opened_board(opening: tuple[str, ...]) -> chess.Board:
    """The board after some moves from the usual start."""
    board = chess.Board()
    for move in opening:
        board.push_uci(move)
    return board


def random_opening(rng: random.Random, plies: int) -> tuple[str, ...] | None:
    """Random moves from the usual start, or ``None`` if they end the game or leave one side with more than the
    other.
    """
    board = chess.Board()
    moves = []
    for _ in range(plies):
        legal = list(board.legal_moves)
        if not legal:
            return None
        moves.append(rng.choice(legal))
        board.push(moves[-1])
    balance = sum(MATERIAL[p.piece_type] * (1 if p.color else -1) for p in board.piece_map().values())
    return tuple(move.uci() for move in moves) if balance == 0 and any(board.legal_moves) else None
