"""A small chess player: material and squares, searched with alpha-beta to a fixed depth."""

from __future__ import annotations

import chess

MATE = 100_000
"""Value of a mate now; one that is ``n`` plies away is worth ``MATE - n``."""

MATERIAL = {chess.PAWN: 100, chess.KNIGHT: 310, chess.BISHOP: 325, chess.ROOK: 500, chess.QUEEN: 950, chess.KING: 0}
ENDGAME_MATERIAL = 1_300
"""At or below this material of the opponent (kings and pawns aside) a king belongs in the centre."""


def _centrality(square: int) -> int:
    """0 at the rim to 3 on the four central squares."""
    file, rank = chess.square_file(square), chess.square_rank(square)
    return min(file, 7 - file, rank, 7 - rank)


def _square_value(piece: int, square: int) -> int:
    """What a white piece gains by its square, in hundredths of a pawn."""
    rank, centre = chess.square_rank(square), _centrality(square)
    if piece == chess.PAWN:
        return 4 * (rank - 1) + (10 if centre == 3 else 0) + (30 if rank == 6 else 0)
    if piece == chess.ROOK:
        return 20 if rank == 6 else 0
    if piece == chess.KING:
        return (-12 * rank if rank else 10) - 5 * centre
    return {chess.KNIGHT: 12, chess.BISHOP: 6, chess.QUEEN: 2}[piece] * centre


WHITE_VALUES = {
    piece: tuple(MATERIAL[piece] + _square_value(piece, square) for square in chess.SQUARES)
    for piece in chess.PIECE_TYPES
}
BLACK_VALUES = {
    piece: tuple(values[chess.square_mirror(square)] for square in chess.SQUARES)
    for piece, values in WHITE_VALUES.items()
}


def evaluate(board: chess.Board) -> int:
    """Value of a position for the side to move, in hundredths of a pawn, without looking ahead."""
    value = 0
    for piece, mask in _masks(board):
        white, black = WHITE_VALUES[piece], BLACK_VALUES[piece]
        for square in chess.scan_forward(mask & board.occupied_co[chess.WHITE]):
            value += white[square]
        for square in chess.scan_forward(mask & board.occupied_co[chess.BLACK]):
            value -= black[square]
    for side, sign in ((chess.WHITE, 1), (chess.BLACK, -1)):
        if _pieces_value(board, not side) <= ENDGAME_MATERIAL:
            value += sign * _hunt(board, side)
    return value if board.turn == chess.WHITE else -value


def _masks(board: chess.Board) -> tuple[tuple[int, int], ...]:
    return (
        (chess.PAWN, board.pawns),
        (chess.KNIGHT, board.knights),
        (chess.BISHOP, board.bishops),
        (chess.ROOK, board.rooks),
        (chess.QUEEN, board.queens),
        (chess.KING, board.kings),
    )


def _pieces_value(board: chess.Board, side: chess.Color) -> int:
    own = board.occupied_co[side]
    return sum(MATERIAL[piece] * (mask & own).bit_count() for piece, mask in _masks(board)[1:5])


def _hunt(board: chess.Board, side: chess.Color) -> int:
    """Late in the game: one's king in the centre, and (a rook or more ahead) the other's at the rim with one's own
    close to it.
    """
    own, other = board.king(side), board.king(not side)
    if own is None or other is None:
        return 0
    value = 10 * _centrality(own)
    if _pieces_value(board, side) - _pieces_value(board, not side) >= MATERIAL[chess.ROOK]:
        value += 15 * (3 - _centrality(other)) + 6 * (7 - chess.square_distance(own, other))
    return value


def ordered_moves(board: chess.Board) -> list[chess.Move]:
    """Legal moves, promotions and the best captures first; the order depends on the position alone."""

    def rank(move: chess.Move) -> tuple[int, int, int]:
        victim, attacker = board.piece_type_at(move.to_square), board.piece_type_at(move.from_square)
        gain = 10 * MATERIAL[victim] - MATERIAL[attacker or chess.KING] if victim else 0
        return (-gain - (MATERIAL[move.promotion] if move.promotion else 0), move.from_square, move.to_square)

    return sorted(board.legal_moves, key=rank)


def is_drawn(board: chess.Board) -> bool:
    """Drawn with moves left to play: too little material, fifty moves without progress, or the third
    time in this position.
    """
    return board.is_insufficient_material() or board.halfmove_clock >= 100 or board.is_repetition(3)


def best_move(board: chess.Board, depth: int) -> chess.Move:
    """The move alpha-beta finds best, looking ``depth`` plies ahead; the same one whenever the position (with its past)
    is the same.

    Raises: ValueError: if there is no legal move.
    """
    best, highest = None, -2 * MATE
    for move in ordered_moves(board):
        board.push(move)
        value = -_search(board, depth - 1, 1, -2 * MATE, -highest)
        board.pop()
        if value > highest:
            best, highest = move, value
    if best is None:
        raise ValueError("there is no legal move")
    return best


def _search(board: chess.Board, depth: int, ply: int, low: int, high: int) -> int:
    """Value for the side to move within (low, high)."""
    if is_drawn(board) or board.is_repetition(2):
        return 0
    if depth == 0:
        if any(board.generate_legal_moves()):
            return evaluate(board)
        return ply - MATE if board.is_check() else 0
    best = -2 * MATE
    for move in ordered_moves(board):
        board.push(move)
        best = max(best, -_search(board, depth - 1, ply + 1, -high, -low))
        board.pop()
        low = max(low, best)
        if low >= high:
            break
    if best == -2 * MATE:
        return ply - MATE if board.is_check() else 0
    return best
