"""TicTacToe and Kuhn poker."""

from __future__ import annotations

import random
from collections import Counter

from rllib_lmgame.envs import make_session
from rllib_lmgame.envs.games.duels.kuhn_poker import KuhnPoker, equilibrium
from rllib_lmgame.envs.games.duels.tic_tac_toe import CELLS, best_moves, value
from tests.envs.begun import begun


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
