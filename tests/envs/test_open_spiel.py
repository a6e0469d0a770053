"""Our TicTacToe and Kuhn poker, move for move and figure for figure, against OpenSpiel's."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

pyspiel = pytest.importorskip("pyspiel")

from open_spiel.python import policy as spiel_policy  # noqa: E402
from open_spiel.python.algorithms import best_response, expected_game_score  # noqa: E402
from open_spiel.python.algorithms import exploitability as spiel_exploitability  # noqa: E402

from rllib_lmgame.envs.games.duels.kuhn_poker import (  # noqa: E402
    RANKS,
    KuhnPoker,
    choices,
    equilibrium,
    information_text,
    is_over,
    payoffs,
    to_move,
)
from rllib_lmgame.envs.games.duels.tic_tac_toe import TicTacToe  # noqa: E402
from rllib_lmgame.measures.exploitability import (  # noqa: E402
    InformationSet,
    best_response_values,
    exploitability,
    game_values,
    kuhn_information_sets,
    nash_conv,
    uniform_policy,
)

PASS, BET = 0, 1
NUMBER = {"check": PASS, "fold": PASS, "bet": BET, "call": BET}


def kuhn(players: int):
    """OpenSpiel's game."""
    return pyspiel.load_game("kuhn_poker", {"players": players})


def dealt(players: int, deal: tuple[str, ...]):
    """OpenSpiel's state after the deal."""
    state = kuhn(players).new_initial_state()
    for card in deal:
        state.apply_action(RANKS.index(card))
    return state


def histories(players: int, history: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """All histories, unfinished and finished."""
    yield history
    if not is_over(history, players):
        for action in choices(history):
            yield from histories(players, (*history, action))


def random_odds(information_set: InformationSet) -> dict[str, float]:
    """Some policy, a function of the information set alone."""
    bold = random.Random(f"{information_set.card} {information_set.history}").random()
    first, second = information_set.legal_actions
    return {first: 1 - bold, second: bold}


def as_spiel_policy(players: int, ours):
    """Our policy in the form of OpenSpiel."""
    table = spiel_policy.TabularPolicy(kuhn(players))
    for information_set in kuhn_information_sets({"players": players}):
        moves = "".join("pb"[NUMBER[action]] for action in information_set.history)
        row = table.policy_for_key(f"{RANKS.index(information_set.card)}{moves}")
        for action, odds in ours(information_set).items():
            row[NUMBER[action]] = odds
    return table


def test_tic_tac_toe_over_random_games() -> None:
    chance = random.Random(0)
    results = set()
    for _ in range(300):
        state = pyspiel.load_game("tic_tac_toe").new_initial_state()
        game = TicTacToe()
        game.reset(seed=0)
        while not state.is_terminal():
            agent = game.agent_selection
            assert agent == "XO"[state.current_player()]
            assert [int(cell) - 1 for cell in game.legal_actions(agent)] == state.legal_actions()
            cell = chance.choice(state.legal_actions())
            taken = sorted(set(range(9)) - set(state.legal_actions()))
            if taken:
                game.step(str(taken[0] + 1))
                assert game.infos[agent]["invalid_action"] and game.agent_selection == agent
            game.step(str(cell + 1))
            state.apply_action(cell)
        assert game.terminations == {"X": True, "O": True}
        assert list(game.results().values()) == state.returns()
        results.add(tuple(state.returns()))
    assert len(results) == 3


@pytest.mark.parametrize(("players", "leaves"), [(2, 5), (3, 13)])
def test_kuhn_tree_legality_and_payoffs(players: int, leaves: int) -> None:
    finished = 0
    for deal in itertools.permutations(RANKS[: players + 1], players):
        for history in histories(players):
            state = dealt(players, deal)
            for action in history:
                state.apply_action(NUMBER[action])
            assert state.is_terminal() == is_over(history, players)
            if state.is_terminal():
                finished += 1
                assert payoffs(deal, history) == state.returns()
            else:
                assert state.current_player() == to_move(history, players)
                assert state.legal_actions() == sorted(NUMBER[action] for action in choices(history))
    deals = len(list(itertools.permutations(range(players + 1), players)))
    assert finished == leaves * deals


@pytest.mark.parametrize("players", [2, 3])
def test_kuhn_information_sets_are_the_same(players: int) -> None:
    """Two situations look alike to a player here exactly if they do there."""
    pairs = set()
    for deal in itertools.permutations(RANKS[: players + 1], players):
        for history in histories(players):
            if not is_over(history, players):
                state = dealt(players, deal)
                for action in history:
                    state.apply_action(NUMBER[action])
                pairs.add(
                    (information_text(deal[to_move(history, players)], history), state.information_state_string())
                )
    assert (
        len(pairs)
        == len({ours for ours, _ in pairs})
        == len({theirs for _, theirs in pairs})
        == len(kuhn_information_sets({"players": players}))
    )


@pytest.mark.parametrize("players", [2, 3])
def test_played_kuhn_games_pay_what_open_spiel_pays(players: int) -> None:
    chance = random.Random(1)
    for seed in range(100):
        game = KuhnPoker(players=players)
        game.reset(seed=seed)
        state = dealt(players, game.position.deal)
        while not state.is_terminal():
            action = chance.choice(game.legal_actions(game.agent_selection))
            game.step(action)
            state.apply_action(NUMBER[action])
        assert list(game.results().values()) == state.returns() and all(game.terminations.values())


@pytest.mark.parametrize("players", [2, 3])
@pytest.mark.parametrize("ours", [uniform_policy, random_odds])
def test_exploitability_is_open_spiels(players: int, ours) -> None:
    config, game, theirs = {"players": players}, kuhn(players), as_spiel_policy(players, ours)
    assert nash_conv(ours, config) == pytest.approx(spiel_exploitability.nash_conv(game, theirs), abs=1e-9)
    values = expected_game_score.policy_value(game.new_initial_state(), [theirs] * players)
    assert game_values(ours, config) == pytest.approx(list(values), abs=1e-9)
    responses = [
        best_response.BestResponsePolicy(game, seat, theirs).value(game.new_initial_state()) for seat in range(players)
    ]
    assert best_response_values(ours, config) == pytest.approx(responses, abs=1e-9)


def test_published_figures_of_uniform_play() -> None:
    assert exploitability(uniform_policy) == pytest.approx(0.458333, abs=1e-6)
    assert nash_conv(uniform_policy, {"players": 3}) == pytest.approx(2.0625)
    assert spiel_exploitability.exploitability(kuhn(2), as_spiel_policy(2, uniform_policy)) == pytest.approx(
        0.458333, abs=1e-6
    )


def test_the_experts_equilibrium_is_one_for_open_spiel_too() -> None:
    for alpha in (0.0, 0.2, 1 / 3):
        table = as_spiel_policy(
            2, lambda information_set, a=alpha: equilibrium(information_set.card, information_set.history, a)
        )
        assert spiel_exploitability.nash_conv(kuhn(2), table) == pytest.approx(0.0, abs=1e-9)
        assert expected_game_score.policy_value(kuhn(2).new_initial_state(), [table] * 2)[0] == pytest.approx(-1 / 18)
