"""OpenSpiel's games through one adapter: played by their texts, they are OpenSpiel's games."""

from __future__ import annotations

import random
from typing import Any

import pytest

pyspiel = pytest.importorskip("pyspiel")

from open_spiel.python import policy as spiel_policy  # noqa: E402
from open_spiel.python.algorithms import exploitability as spiel_exploitability  # noqa: E402

from rllib_lmgame.base.errors import ConfigError  # noqa: E402
from rllib_lmgame.envs import make_session  # noqa: E402
from rllib_lmgame.envs.checking.checker import check_game  # noqa: E402
from rllib_lmgame.envs.games.adapted.open_spiel.game import OpenSpielGame  # noqa: E402
from rllib_lmgame.envs.games.adapted.open_spiel.loading import load_game  # noqa: E402
from rllib_lmgame.measures.exploitability import nash_conv, odds_of, uniform_policy  # noqa: E402
from rllib_lmgame.measures.game_tree import game_tree  # noqa: E402
from tests.envs.begun import begun  # noqa: E402

GAME = "lmgame/OpenSpiel-v0"
IN_TURNS = [
    *("amazons", "backgammon", "banqi", "bargaining", "blackjack", "breakthrough", "catch", "checkers", "clobber"),
    *("connect_four", "dark_hex", "dots_and_boxes", "euchre", "go(board_size=5)", "go_fish", "hanabi", "havannah"),
    *("hearts", "hex(board_size=5)", "kuhn_poker(players=3)", "leduc_poker", "liars_dice", "mancala", "nim"),
    *("oh_hell", "othello", "pentago", "phantom_ttt", "pig", "sheriff", "skat", "spades", "tic_tac_toe"),
    *("tiny_bridge_4p", "tiny_hanabi", "trade_comm", "ultimate_tic_tac_toe", "universal_poker", "y(board_size=5)"),
]
AT_ONCE = [
    *("blotto", "coop_box_pushing", "goofspiel", "markov_soccer", "matching_pennies_3p", "matrix_pd", "matrix_rps"),
    *("oshi_zumo", "pathfinding(players=2,horizon=20)", "snake"),
    "repeated_game(stage_game=matrix_pd(),num_repetitions=3)",
]


def play(name: str, seed: int) -> OpenSpielGame:
    """A random game by its texts, with an invalid reply in front of every tenth move; it is over."""
    session = begun(make_session(GAME, {"game": name}), seed=seed)
    chance, totals, moves = random.Random(seed), dict.fromkeys(session.agent_ids, 0.0), 0
    while session.to_act():
        (agent,) = session.to_act()
        legal = session.observe(agent).legal_actions
        assert len(set(legal)) == len(legal) > 0
        reply = "no such action" if moves % 10 == 9 and not session.env.referee.note(agent) else chance.choice(legal)
        result = session.step({agent: reply})
        assert result.infos[agent]["invalid_action"] == (reply not in legal)
        moves += 1
        for other, reward in result.rewards.items():
            totals[other] += reward - result.infos[other].get("penalty", 0.0)
    assert result.terminated
    assert list(totals.values()) == pytest.approx(session.env.position.spiel.returns())
    return session.env


@pytest.mark.parametrize("name", [*IN_TURNS, *AT_ONCE])
def test_a_random_game_is_open_spiels(name: str) -> None:
    """Its history, followed in a state of OpenSpiel's own, is legal, has the same actions and texts, and pays the
    same.
    """
    env = play(name, seed=1)
    state, mine = load_game(name, {}).new_initial_state(), env.first_state()
    for step in env.position.spiel.full_history():
        if state.is_chance_node():
            assert step.action in dict(mine.outcomes) and dict(mine.outcomes) == dict(state.chance_outcomes())
        else:
            assert mine.seat == step.player == state.current_player()
            assert list(mine.numbers.values()) == state.legal_actions()
            shown = [getattr(state, text)(step.player).strip() for text in env._first.texts]
            assert all(text in mine.view(step.player) for text in shown) and shown
        state.apply_action(step.action)
        mine = mine.child(step.action)
    assert mine.finished and state.is_terminal() and list(mine.payoffs) == state.returns()


def kuhn(env: OpenSpielGame, bets: int) -> list[float]:
    """Who has the higher card wins the other's chips: the ante, and what was bet."""
    first, second = env.position.spiel.history()[:2]
    return [1.0 + bets, -1.0 - bets] if first > second else [-1.0 - bets, 1.0 + bets]


FIRST_WINS, SECOND_WINS = [1.0, -1.0], [-1.0, 1.0]
KNOWN: dict[str, tuple[str, str, Any]] = {
    "three in a row": ("tic_tac_toe", "x(0,0) o(1,0) x(0,1) o(1,1) x(0,2)", FIRST_WINS),
    "who takes the last loses": ("nim", "pile:4, take:7;|pile:3, take:5;|pile:2, take:3;|pile:1, take:1;", FIRST_WINS),
    "the fool's mate, by black": ("chess", "f3 e5 g4 Qh4#", FIRST_WINS),
    "a dilemma": ("matrix_pd", "Defect Cooperate", [10.0, 0.0]),
    "a showdown for the antes": ("kuhn_poker", "Pass Pass", lambda env: kuhn(env, 0)),
    "a showdown with bets": ("kuhn_poker", "Bet Bet", lambda env: kuhn(env, 1)),
    "the second's bet, not taken": ("kuhn_poker", "Pass Bet Pass", SECOND_WINS),
    "the shortest way along the cliff": ("cliff_walking", "UP " + "RIGHT " * 7 + "DOWN", [-9.0]),
    "down the cliff": ("cliff_walking", "RIGHT", [-100.0]),
}
"""What happens: the game, the moves, and what the rules say that it pays, or what computes it of the chance."""
GOALS = {"the shortest way along the cliff"}
"""Those that are won though the return is negative."""


@pytest.mark.parametrize("what", KNOWN)
def test_known_episodes_pay_what_the_rules_say(what: str) -> None:
    name, moves, results = KNOWN[what]
    for seed in range(8 if callable(results) else 1):
        session = begun(make_session(GAME, {"game": name}), seed=seed)
        totals = dict.fromkeys(session.agent_ids, 0.0)
        for move in moves.split("|" if "|" in moves else None):
            (agent,) = session.to_act()
            result = session.step({agent: move})
            assert not result.infos[agent]["invalid_action"], move
            for other, reward in result.rewards.items():
                totals[other] += reward
        paid = results(session.env) if callable(results) else results
        assert result.terminated and not session.to_act() and list(totals.values()) == paid
        best = [own > 0 and (sum(paid) == 0 or own == max(paid) > min(paid, default=0)) for own in paid]
        won = [result.infos[agent]["success"] for agent in session.agent_ids]
        assert won == ([True] if what in GOALS or (len(paid) == 1 and paid[0] > 0) else best)


def test_about_a_hundred_games_are_taken() -> None:
    taken = []
    for kind in pyspiel.registered_games():
        if kind.default_loadable:
            try:
                taken.append(load_game(kind.short_name, {}))
            except ConfigError as refused:
                assert "cannot be played: " in str(refused)
    assert len(taken) >= 95 and len({game.get_type().short_name for game in taken}) > 60


@pytest.mark.parametrize("name", ["goofspiel", "matrix_pd", "matching_pennies_3p", "oshi_zumo"])
def test_choices_made_at_once_are_hidden_till_all_have_chosen(name: str) -> None:
    seen = set()
    for choice in range(2):
        env = begun(OpenSpielGame(game=name))
        assert "at the same time" in env.instructions and env.agent_selection == "player_0"
        env.step(env.legal_actions("player_0")[choice])
        assert env.agent_selection == "player_1"
        seen.add(env.observe("player_1"))
    assert len(seen) == 1


@pytest.mark.parametrize(
    "name", ["leduc_poker", "liars_dice", "phantom_ttt", "euchre", "bargaining", "goofspiel", "sheriff"]
)
def test_a_seat_sees_nothing_beyond_its_own_information_state(name: str) -> None:
    """Whatever the others hold: the whole observation follows from what OpenSpiel lets the seat know."""
    seen: dict[tuple[int, str], str] = {}
    chance = random.Random(0)
    env = OpenSpielGame(game=name, show_rules=False)
    met = 0
    for seed in range(40):
        env.reset(seed=seed)
        while env.agents and not any(env.terminations.values()):
            agent = env.agent_selection
            seat = env.seat_of(agent)
            known = (seat, env.position.spiel.information_state_string(seat))
            met += known in seen
            assert seen.setdefault(known, env.observe(agent)) == env.observe(agent)
            env.step(chance.choice(env.legal_actions(agent)))
    assert met > 5 or name in ("euchre", "goofspiel", "bargaining")  # of these few games hardly two are alike


@pytest.mark.parametrize(
    "name",
    [
        "kuhn_poker", "kuhn_poker(players=3)", "leduc_poker", "liars_dice(dice_sides=4)", "tiny_hanabi",
        "matrix_rps", "goofspiel(num_cards=3,players=2)", "first_sealed_auction(max_value=4)", "coordinated_mp",
        "lewis_signaling",
    ],
)  # fmt: skip
def test_exploitability_of_uniform_play_is_open_spiels(name: str) -> None:
    tree = game_tree(GAME, {"game": name, "observation": "information_state"})
    game = load_game(name, {})
    expected = spiel_exploitability.nash_conv(game, spiel_policy.UniformRandomPolicy(game))
    assert nash_conv(tree, odds_of(uniform_policy, tree)) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "results"),
    [
        ("leduc_poker", (-13.0, 13.0)),
        ("kuhn_poker(players=3)", (-2.0, 1.0, 1.0)),
        ("tiny_hanabi", (0.0, 0.0)),
        ("hearts", (0.0, 0.0, 0.0, 0.0)),
        ("cliff_walking", (-199.0,)),
    ],
)
def test_a_forfeit_costs_the_least_utility(name: str, results: tuple[float, ...]) -> None:
    env = begun(OpenSpielGame(game=name))
    for _ in range(3):
        env.step("I give up")
    assert tuple(env.infos[agent]["result"] for agent in env.possible_agents) == results
    assert not env.infos["player_0"]["success"] and env.infos["player_0"]["forfeit"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [*IN_TURNS, *AT_ONCE])
def test_the_contract_is_kept_by_all(name: str) -> None:
    assert check_game(GAME, {"game": name}) == []
