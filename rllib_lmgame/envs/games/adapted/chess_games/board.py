"""Chess in text: drawing a board, listing moves, reading them."""

from __future__ import annotations

import re

import chess

from rllib_lmgame.envs.contract.base import InvalidAction

MOVE_NUMBER = re.compile(r"[0-9]{1,3}\s?\.{1,3}\s?")
UCI = re.compile(r"[a-h][1-8]-?[a-h][1-8]=?[nbrqNBRQ]?")
SAN = re.compile(r"(?:[NBRQK]?[a-h]?[1-8]?[x:]?-?[a-h][1-8](?:=?[NBRQ])?|[0O]-[0O](?:-[0O])?)[+#]?[!?]{0,2}")
FILES = "  a b c d e f g h"


def drawing(board: chess.Board) -> str:
    """The board with ranks and files named, White below: capital letters are White, a dot is an empty square."""
    rows = str(board).split("\n")
    return "\n".join([*(f"{8 - i} {row}" for i, row in enumerate(rows)), FILES])


def san_moves(board: chess.Board) -> tuple[str, ...]:
    """Legal moves in algebraic notation, sorted."""
    return tuple(sorted(map(board.san, board.legal_moves)))


def uci_moves(board: chess.Board) -> tuple[str, ...]:
    """Legal moves as the squares they go from and to, sorted."""
    return tuple(sorted(move.uci() for move in board.legal_moves))


def read_chess_move(board: chess.Board, text: str) -> chess.Move:
    """The legal move that ``text`` says: one move, algebraic (``Nf3``, ``exd5``, ``O-O``, ``e8=Q``) or by squares
    (``g1f3``, ``e7e8q``).

    A move number before it, marks like ``!`` after it and a missing ``+`` do no harm.

    Raises: InvalidAction: if it says no legal move, or one that could be two.
    """
    said = text.strip().strip("\"'`").strip()[:40]
    numbered = MOVE_NUMBER.match(said)
    said = said[numbered.end() :] if numbered else said
    said = said[:-1] if said.endswith(".") else said
    try:
        if UCI.fullmatch(said):
            return board.parse_uci(said.replace("-", "").replace("=", "").lower())
        if SAN.fullmatch(said):
            return board.parse_san(said.replace(":", "x").rstrip("!?"))
    except chess.AmbiguousMoveError:
        raise InvalidAction(
            f"{said} could be more than one move; name the square it goes from, for example by squares as e2e4."
        ) from None
    except ValueError:
        raise InvalidAction(f"{said} is not a legal move here.") from None
    raise InvalidAction("reply with one move, such as Nf3, exd5, O-O or e8=Q, or by squares as g1f3 or e7e8q.")
