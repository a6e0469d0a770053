"""TicTacToe and Kuhn poker."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import permutations

import pytest

from rllib_lmgame.envs import make_session
from rllib_lmgame.envs.games.duels.kuhn_poker import KuhnPoker, KuhnState, equilibrium
from rllib_lmgame.envs.games.duels.tic_tac_toe import CELLS, TicTacToe, best_moves, value
from tests.envs.begun import begun


def play(game: str, replies: list[str], seed: int = 0, **config: object):
    """The last step of a game of these replies."""
    session = begun(make_session(game, config), seed=seed)
    for reply in replies:
        (agent,) = session.to_act()
        result = session.step({agent: reply})
    return session, result


@pytest.mark.parametrize("reply", ["5", " 5. ", "5 5", '"5"', "(5)"])
def test_one_move_is_understood(reply: str) -> None:
    session, result = play("lmgame/TicTacToe-v0", [reply])
    assert not result.infos["X"]["invalid_action"]
    assert "4 X 6" in session.observe("O").text


def test_numbered_marks_keep_the_number_of_their_cell() -> None:
    session = begun(make_session("lmgame/TicTacToe-v0", {"numbered_marks": True}))
    for agent, cell in (("X", "5"), ("O", "1")):
        session.step({agent: cell})
    assert session.observe("X").text == "You are X.\nO1 2 3\n4 X5 6\n7 8 9"
    assert session.observe("X").legal_actions == ("2", "3", "4", "6", "7", "8", "9")
    assert session.step({"X": "5"}).infos["X"]["invalid_action"]


def test_minimax_knows_the_game_is_a_draw_and_never_loses() -> None:
    assert value(CELLS, "X") == 0
    assert best_moves("XX3OO6789", "X") == [2]
    chance = random.Random(0)
    for seed in range(60):
        session = begun(make_session("lmgame/TicTacToe-v0"), seed=seed)
        expert = "XO"[seed % 2]
        while session.to_act():
            (agent,) = session.to_act()
            action = (
                session.expert_action(agent) if agent == expert else chance.choice(session.observe(agent).legal_actions)
            )
            result = session.step({agent: action or ""})
        assert result.rewards[expert] >= 0


def test_experts_choice_varies_with_the_seed_but_not_otherwise() -> None:
    firsts = []
    for seed in (*range(30), *range(30)):
        firsts.append(begun(TicTacToe(), seed=seed).expert_action("X"))
    assert firsts[:30] == firsts[30:]
    assert len(set(firsts)) > 3


@pytest.mark.parametrize("players", [2, 3])
def test_kuhn_pays_what_every_line_of_play_has_put_into_the_pot(players: int) -> None:
    """All deals and lines, counted chip by chip: an ante each, 1 for a bet, 1 for each call of it."""
    game = KuhnPoker(players=players)
    seats = [f"player_{seat}" for seat in range(players)]

    def play_out(deal: tuple[str, ...], line: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        game.reset(seed=0)
        game.position = KuhnState(players, deal)
        paid, stay = dict.fromkeys(seats, 1), dict(zip(seats, map("JQKA".index, deal), strict=True))
        answers = None  # How many have yet to answer the bet.
        for number, move in enumerate(line):
            seat = seats[number % players]
            assert game.agent_selection == seat
            assert set(game.legal_actions(seat)) == ({"check", "bet"} if answers is None else {"call", "fold"})
            game.step(move)
            paid[seat] += move in ("bet", "call")
            if move == "fold":
                del stay[seat]
            answers = players - 1 if move == "bet" else None if answers is None else answers - 1
        over = answers == 0 or (answers is None and len(line) == players)
        assert game.terminations == dict.fromkeys(seats, over)
        if not over:
            for move in game.legal_actions(game.agent_selection):
                yield from play_out(deal, (*line, move))
            return
        pot, winner = sum(paid.values()), max(stay, key=stay.__getitem__)
        assert game.rewards == {seat: pot * (seat == winner) - paid[seat] for seat in seats}
        assert [seat for seat in seats if game.infos[seat]["success"]] == [winner]
        yield line

    for deal in permutations("JQKA"[: players + 1], players):
        assert len(list(play_out(deal, ()))) == {2: 5, 3: 13}[players]


def test_kuhn_forfeit_of_three_players_is_shared() -> None:
    _, result = play("lmgame/KuhnPoker-v0", ["bet", "x", "x", "x"], players=3)
    assert result.rewards == {"player_0": 0.5, "player_1": pytest.approx(-1.1), "player_2": 0.5}


def test_kuhn_expert_plays_the_equilibrium() -> None:
    bets: Counter[str] = Counter()
    dealt: Counter[str] = Counter()
    game = KuhnPoker()
    for seed in range(1500):
        game.reset(seed=seed)
        dealt[game.position.deal[0]] += 1
        bets[game.position.deal[0]] += game.expert_action("player_0") == "bet"
    assert bets["K"] == dealt["K"] and bets["Q"] == 0
    assert abs(bets["J"] / dealt["J"] - 1 / 3) < 0.08
    assert all(sum(equilibrium(card, ("bet",)).values()) == 1 for card in "JQK")
    assert begun(KuhnPoker(players=3)).expert_action("player_0") is None


def test_a_player_seeded_like_the_game_does_not_play_to_its_deal() -> None:
    """Cards and the choices of a generator made from the same number are independent."""
    bets: Counter[tuple[str, bool]] = Counter()
    game = KuhnPoker()
    for seed in range(1200):
        game.reset(seed=seed)
        bets[game.position.deal[0], random.Random(seed).random() < 0.5] += 1
    assert len(bets) == 6 and all(140 < count < 260 for count in bets.values())
