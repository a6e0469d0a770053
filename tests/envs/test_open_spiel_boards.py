"""Our boards on which all is seen, chess, and our matrix games, move for move, against OpenSpiel's."""

from __future__ import annotations

import random
import re

import pytest

pyspiel = pytest.importorskip("pyspiel")

from rllib_lmgame.envs.registry import make_game  # noqa: E402

BOARDS = [
    ("TicTacToe", {}, "tic_tac_toe", {}),
    ("ConnectFour", {}, "connect_four", {}),
    ("ConnectFour", {"rows": 4, "columns": 5, "connect": 3}, "connect_four", {"rows": 4, "columns": 5, "x_in_row": 3}),
]
"""Games in which all is seen: ours and OpenSpiel's, with their options. Ours call action ``n`` there ``n + 1``."""


@pytest.mark.parametrize("games", [150, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("ours", "options", "theirs", "parameters"), BOARDS)
def test_boards_over_random_games(ours: str, options: dict, theirs: str, parameters: dict, games: int) -> None:
    decided = {(1.0, -1.0), (-1.0, 1.0)}
    results = {random_board_game(ours, options, theirs, parameters, seed) for seed in range(games)}
    assert decided <= results if games == 150 else results == {*decided, (0.0, 0.0)}


def random_board_game(ours: str, options: dict, theirs: str, parameters: dict, seed: int) -> tuple[float, ...]:
    """Play both side by side, illegal replies in between; the result, which is the same."""
    chance = random.Random(seed)
    state = pyspiel.load_game(theirs, parameters).new_initial_state()
    game = make_game(f"lmgame/{ours}-v0", options)
    game.reset(seed=seed)
    everything = set(range(state.num_distinct_actions()))
    while not state.is_terminal():
        agent = game.agent_selection
        assert agent == "XO"[state.current_player()]
        assert [int(action) - 1 for action in game.legal_actions(agent)] == state.legal_actions()
        board = state.observation_string(state.current_player()).strip()
        rows = len(board.splitlines())
        assert squares(game.view(agent), rows) == squares(board, rows)
        for illegal in sorted(everything - set(state.legal_actions()))[:1]:
            game.step(str(illegal + 1))
            assert game.infos[agent]["invalid_action"] and game.agent_selection == agent
        action = chance.choice(state.legal_actions())
        game.step(str(action + 1))
        state.apply_action(action)
    assert game.terminations == {"X": True, "O": True}
    assert list(game.results().values()) == state.returns()
    return tuple(state.returns())


def squares(board: str, rows: int) -> list[str]:
    """What stands on the squares of a board, its last ``rows`` lines."""
    return [re.sub("[^xo]", ".", line.replace(" ", "").lower()) for line in board.splitlines()[-rows:]]


@pytest.mark.parametrize("games", [2, pytest.param(1_000, marks=pytest.mark.slow)])
def test_chess_over_random_games(games: int) -> None:
    """Against the opponent `random`: moves in algebraic notation, the board, who wins. OpenSpiel's games do not end for
    want of pieces.
    """
    pytest.importorskip("chess")
    game, chance = make_game("lmgame/Chess-v0", {"colour": "random", "observation": "fen"}), random.Random(0)
    theirs, ends = pyspiel.load_game("chess"), set()
    for seed in range(games):
        game.reset(seed=seed)
        state, known = theirs.new_initial_state(), 0
        while True:
            for move in game._board.move_stack[known:]:
                state.apply_action(state.parse_move_to_action(move.uci()))
            known = len(game._board.move_stack)
            board = re.search(r"FEN: (\S+ \S+ \S+) ", game.board())
            assert board and state.observation_string(0).startswith(board[1])
            if game.finished:
                break
            assert {*game.legal_actions()} == {state.action_to_string(action) for action in state.legal_actions()}
            *_, info = game.step(chance.choice(game.legal_actions()))
            assert not info["invalid_action"]
        assert state.is_terminal() or "enough pieces" in game.board()
        result = game._result() * (1 if game._colour else -1)
        assert state.returns() == [-result, result], "Black is player 0"
        ends.add(result)
    assert games < 10 or ends == {1.0, 0.0, -1.0}


MATRIX_GAMES = [
    ("RockPaperScissors", {}, "matrix_rps"),
    ("IteratedPrisonersDilemma", {"temptation": 10, "reward": 5, "punishment": 1, "sucker": 0}, "matrix_pd"),
    ("StagHunt", {"stag": 2, "hare": 1, "alone": 0}, "matrix_sh"),
]
"""Ours with OpenSpiel's pay-offs, and its game of one round. Those of our defaults are no affine map of its."""


@pytest.mark.parametrize("games", [100, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "payoffs", "stage"), MATRIX_GAMES)
def test_matrix_games_over_random_games(name: str, payoffs: dict, stage: str, games: int) -> None:
    """Five rounds; each seat is told after every round what both played, and OpenSpiel's pay-offs, and nothing else."""
    ours, chance = make_game(f"lmgame/{name}-v0", {"rounds": 5, **payoffs}), random.Random(0)
    theirs = pyspiel.load_game(f"repeated_game(stage_game={stage}(),num_repetitions=5,recall=5)")
    totals = set()
    for seed in range(games):
        ours.reset(seed=seed)
        state, paid, heard = theirs.new_initial_state(), [0.0, 0.0], ["", ""]
        while not state.is_terminal():
            words = [[state.action_to_string(seat, n).lower() for n in state.legal_actions(seat)] for seat in (0, 1)]
            assert [list(ours.legal_actions(agent)) for agent in ours.agents] == words
            choices = [chance.choice(state.legal_actions(seat)) for seat in (0, 1)]
            actions = {f"player_{seat}": words[seat][choice] for seat, choice in enumerate(choices)}
            views, rewards, *_ = ours.step(actions)
            state.apply_actions(choices)
            assert list(rewards.values()) == state.rewards()
            paid = [total + reward for total, reward in zip(paid, rewards.values(), strict=True)]
            assert paid == state.returns()
            for seat, view in enumerate(views.values()):
                told, now = view.splitlines()
                found = re.fullmatch(
                    r"Round \d: you played (\w+) and got (\S+), player_\d played (\w+) and got (\S+)\.", told
                )
                assert found
                assert [float(found[2]), float(found[4])] == [state.rewards()[seat], state.rewards()[1 - seat]]
                heard[seat] += "{} {} ;".format(*((found[1], found[3]) if seat == 0 else (found[3], found[1])))
                assert heard[seat] == state.information_state_string(seat).lower()
                assert f"Points so far: you {paid[seat]:g}, player_{1 - seat}: {paid[1 - seat]:g}." in now
        assert not ours.agents
        totals.add(paid[0])
    assert len(totals) > 6
