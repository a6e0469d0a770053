"""Chess: reading moves, results, opponents, an engine over UCI, and the endgame tables."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter

import pytest

chess = pytest.importorskip("chess")

from rllib_lmgame.envs.contract.base import GameError, InvalidAction  # noqa: E402
from rllib_lmgame.envs.games.adapted.chess_games.board import read_chess_move  # noqa: E402
from rllib_lmgame.envs.games.adapted.chess_games.endgames import ChessEndgames, Squares, canonical, position  # noqa: E402
from rllib_lmgame.envs.games.adapted.chess_games.game import Chess  # noqa: E402
from rllib_lmgame.envs.games.adapted.chess_games.search import MATE, best_move, evaluate  # noqa: E402
from rllib_lmgame.envs.games.adapted.chess_games.tablebase import NO_MATE, table  # noqa: E402
from tests.envs.begun import begun, played_by_expert  # noqa: E402

FAKE_ENGINE = """#!{python}
import sys
import chess

board = chess.Board()
for line in sys.stdin:
    words = line.split()
    if words[0] == "uci":
        print("id name Fake\\noption name Skill Level type spin default 20 min 0 max 20\\nuciok", flush=True)
    elif words[0] == "isready":
        print("readyok", flush=True)
    elif words[0] == "position":
        start = words.index("moves") if "moves" in words else len(words)
        board = chess.Board() if words[1] == "startpos" else chess.Board(" ".join(words[2:start]))
        for move in words[start + 1 :]:
            board.push_uci(move)
    elif words[0] == "go":
        {on_go}
    elif words[0] == "quit":
        break
"""

KRK_BLACK_TO_MOVE = [27, 78, 246, 81, 198, 471, 592, 683, 1433, 1712, 1985, 2854, 3597, 4194, 4553, 2166, 390]
"""Positions lost in 0, 1, ... 16 moves in the data set "Chess (King-Rook vs. King)"; 2796 more are drawn."""


def at(fen: str, **config: object) -> Chess:
    """A game at a position in which the player is to move."""
    game = begun(Chess(show_rules=False, opening_plies=0, split="all", **config))
    board = chess.Board(fen)
    game.begin(board, board.turn)
    return game


def fake_engine(
    tmp_path, on_go: str = 'print("bestmove", sorted(m.uci() for m in board.legal_moves)[0], flush=True)'
) -> str:
    """A program that speaks UCI."""
    program = tmp_path / "fakefish"
    program.write_text(FAKE_ENGINE.format(python=sys.executable, on_go=on_go))
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize("said", ["Nf3", "g1f3", "1. Nf3", "Nf3!", " Ng1f3 ", "`Nf3`", "g1-f3", "Nf3."])
def test_ways_to_say_a_move(said: str) -> None:
    assert read_chess_move(chess.Board(), said) == chess.Move.from_uci("g1f3")


@pytest.mark.parametrize(
    ("fen", "said", "move"),
    [
        ("4k3/P7/8/8/8/8/8/R3K2R w KQ - 0 1", "a8=Q+", "a7a8q"),
        ("4k3/P7/8/8/8/8/8/R3K2R w KQ - 0 1", "a8N", "a7a8n"),
        ("4k3/P7/8/8/8/8/8/R3K2R w KQ - 0 1", "a7a8R", "a7a8r"),
        ("4k3/P7/8/8/8/8/8/R3K2R w KQ - 0 1", "O-O-O", "e1c1"),
        ("4k3/P7/8/8/8/8/8/R3K2R w KQ - 0 1", "0-0", "e1g1"),
        ("4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 2", "exd6", "e5d6"),
    ],
)
def test_special_moves(fen: str, said: str, move: str) -> None:
    assert read_chess_move(chess.Board(fen), said).uci() == move


@pytest.mark.parametrize(
    "said",
    [
        "", "--", "Z0", "0000", "@@@@", "e4 e5", "Nf3 or Nc3", "Ke2", "nf3", "e9", "P@e4", "e2e5", "1.", "\ud800",
        "e٤", "(" * 9999, "1" * 9999,
    ],
)  # fmt: skip
def test_what_is_no_legal_move_is_refused(said: str) -> None:
    with pytest.raises(InvalidAction):
        read_chess_move(chess.Board(), said)


@pytest.mark.parametrize(
    ("fen", "move", "reward", "success", "said"),
    [
        ("6k1/5ppp/8/8/8/8/8/R3K3 w - - 0 1", "Ra8#", 1.0, True, "You win"),
        ("7k/8/5K2/8/8/8/8/6Q1 w - - 0 1", "Qg6", 0.0, False, "Stalemate"),
        ("8/8/8/8/8/1k6/1p6/1K6 w - - 0 1", None, 0.0, False, "Stalemate"),
        ("7k/8/8/8/8/8/6p1/6K1 w - - 0 1", "Kxg2", 0.0, False, "enough pieces"),
        ("7k/8/8/8/8/8/R7/6K1 w - - 99 80", "Ra3", 0.0, False, "fifty"),
    ],
)
def test_ends_of_games(fen: str, move: str | None, reward: float, success: bool, said: str) -> None:
    game = at(fen)
    if move is None:
        assert game.finished and said in game.board()
        return
    observation, paid, terminated, truncated, info = game.step(move)
    assert (paid, terminated, truncated, info["success"], info["legal_actions"]) == (reward, True, False, success, ())
    assert said in observation


@pytest.mark.parametrize(
    "fen", ["r1b1k2r/pp1p1ppp/2n2n2/2b1p1q1/2B1P3/3P1N2/PPP2PPP/RNBQ1RK1 w kq - 4 8", "8/8/8/4k3/8/3QK3/8/8 w - - 0 1"]
)
@pytest.mark.parametrize("depth", [1, 2])
def test_alpha_beta_finds_a_move_as_good_as_plain_minimax(fen: str, depth: int) -> None:
    def minimax(board: chess.Board, left: int, ply: int) -> int:
        if board.is_checkmate():
            return ply - MATE
        if board.is_stalemate() or board.is_insufficient_material() or board.is_repetition(2):
            return 0
        if left == 0:
            return evaluate(board)
        values = []
        for move in list(board.legal_moves):
            board.push(move)
            values.append(-minimax(board, left - 1, ply + 1))
            board.pop()
        return max(values)

    board = chess.Board(fen)
    found = best_move(board, depth)
    best = minimax(board, depth, 0)
    board.push(found)
    assert -minimax(board, depth - 1, 1) == best


def test_a_stronger_player_beats_a_weaker_one() -> None:
    results = Counter()
    for seed in range(4):
        game = begun(Chess(opponent="random" if seed < 2 else "greedy", colour="random", split="all"), seed=seed)
        done = cut = False
        while not (done or cut):
            _, reward, done, cut, info = game.step(game.expert_action() or "")
            assert not info["invalid_action"]
        results[reward] += 1
    assert results[1.0] >= 3 and results[-1.0] == 0


def test_an_engine_plays_and_ends_with_the_game(tmp_path) -> None:
    game = Chess(opponent="stockfish", engine_path=fake_engine(tmp_path), engine_skill=3, opening_plies=0, split="all")
    game.reset(seed=0)
    assert "Black played a5." in game.step("e4")[0]
    pid = game.opponent._finalizer.peek()[2][0].get_pid()
    os.kill(pid, 0)
    game.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_process_that_leaves_its_engine_open_ends_and_so_does_the_engine(tmp_path) -> None:
    code = (
        "import sys; from rllib_lmgame.envs.games.adapted.chess_games.game import Chess\ngame = "
        "Chess(opponent='stockfish', engine_path=sys.argv[1], opening_plies=0, split='all'); game.reset(seed=0); "
        "game.step('e4')\nprint(game.opponent._finalizer.peek()[2][0].get_pid())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, fake_engine(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


def test_an_engine_that_dies_or_cheats_is_named(tmp_path) -> None:
    for on_go in ("sys.exit(3)", 'print("bestmove a1a8", flush=True)'):
        game = Chess(opponent="stockfish", engine_path=fake_engine(tmp_path, on_go), opening_plies=0, split="all")
        game.reset(seed=0)
        with pytest.raises(GameError, match="fakefish failed"):
            game.step("e4")
        game.close()


@pytest.mark.slow
def test_the_rook_table_has_the_published_number_of_positions_of_each_depth() -> None:
    found = table("rook")
    orbits = {
        canonical(*map(int, squares)): int(found.black[squares])
        for squares in zip(*found.legal_black.nonzero(), strict=True)
    }
    counts = Counter(orbits.values())
    assert len(orbits) == 28056 and counts[NO_MATE] == 2796
    assert [counts[2 * moves] for moves in range(17)] == KRK_BLACK_TO_MOVE


@pytest.mark.parametrize("piece", ["queen", "rook"])
def test_tables_agree_with_the_rules_of_chess(piece: str) -> None:
    """Every entry is one more than the best entry a legal move leads to."""
    found = table(piece)
    chance = random.Random(0)
    for _ in range(400):
        squares = Squares(piece, chance.randrange(64), chance.randrange(64), chance.randrange(64))
        if len(set(squares)) < 4:
            continue
        for turn, legal, plies in (
            (chess.WHITE, found.legal_white, found.white),
            (chess.BLACK, found.legal_black, found.black),
        ):
            board = position(squares, turn)
            assert bool(legal[squares[1:]]) == board.is_valid()
            if not board.is_valid():
                continue
            values = []
            for move in board.legal_moves:
                board.push(move)
                other = found.black if turn == chess.WHITE else found.white
                values.append(int(other[_squares(board)]) if board.queens | board.rooks else NO_MATE)
                board.pop()
            if not values:
                expected = 0 if board.is_checkmate() else NO_MATE
            else:
                best = min(values) if turn == chess.WHITE else max(values)
                expected = NO_MATE if best == NO_MATE else best + 1
            assert plies[squares[1:]] == expected


def _squares(board: chess.Board) -> tuple[int, int, int]:
    (piece,) = chess.scan_forward(board.queens | board.rooks)
    return board.king(chess.WHITE), piece, board.king(chess.BLACK)


@pytest.mark.parametrize(
    "seeds", [range(100), pytest.param(range(100, 1000), marks=pytest.mark.slow)], ids=["first", "rest"]
)
def test_the_solver_mates_in_the_fewest_moves(seeds: range) -> None:
    game = ChessEndgames()
    for seed in seeds:
        game.reset(seed=seed)
        expected = (table(_kind(game)).white[_squares(game._board)] + 1) // 2
        reward, info = played_by_expert(game)
        assert info["success"] and reward == 1.0 and info["actions_taken"] == expected


def _kind(game: ChessEndgames) -> str:
    return "queen" if game._board.queens else "rook"


def test_mirrored_positions_are_one_level() -> None:
    game = ChessEndgames()
    one = Squares("rook", chess.A1, chess.C7, chess.H8)
    assert (
        game.level_key(one)
        == game.level_key(Squares("rook", chess.H1, chess.F7, chess.A8))
        == game.level_key(Squares("rook", chess.A1, chess.G3, chess.H8))
    )
    assert game.level_key(one) != game.level_key(Squares("rook", chess.A1, chess.C6, chess.H8))
