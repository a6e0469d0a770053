"""Hanabi: move for move like OpenSpiel's, and nobody sees its own cards."""

from __future__ import annotations

import random
import re

import pytest

from rllib_lmgame.envs.games.teams.hanabi.game import COLOURS, Hanabi
from rllib_lmgame.envs.games.teams.hanabi.table import Card, Rules, Table
from tests.envs.begun import begun

LETTERS = "RYGWB"
SIZES = [
    {"players": 2, "colours": 2, "ranks": 5, "hand_size": 2, "information_tokens": 3, "life_tokens": 1},
    {"players": 3, "colours": 3, "ranks": 3, "hand_size": 3, "information_tokens": 4, "life_tokens": 2},
    {"players": 5, "colours": 5, "ranks": 5, "hand_size": 4, "information_tokens": 8, "life_tokens": 3},
    {"players": 2, "colours": 1, "ranks": 2, "hand_size": 1, "information_tokens": 1, "life_tokens": 3},
]


def their_game(pyspiel, size: dict[str, int]):
    return pyspiel.load_game(
        "hanabi",
        {
            "players": size["players"],
            "colors": size["colours"],
            "ranks": size["ranks"],
            "hand_size": size["hand_size"],
            "max_information_tokens": size["information_tokens"],
            "max_life_tokens": size["life_tokens"],
        },
    )


def our_text(theirs: str, seat: int, players: int) -> str:
    """``(Reveal player +1 color R)`` and the like, as our game has it."""
    if found := re.fullmatch(r"\((Play|Discard) (\d)\)", theirs):
        return f"{found[1].lower()} {int(found[2]) + 1}"
    found = re.fullmatch(r"\(Reveal player \+(\d) (color|rank) (\w)\)", theirs)
    assert found, theirs
    value = COLOURS[LETTERS.index(found[3])] if found[2] == "color" else found[3]
    return f"tell player_{(seat + int(found[1])) % players} {value}"


def dealt_by_chance(state) -> dict[Card, int]:
    """Their actions that deal each card."""
    texts = {action: state.action_to_string(state.current_player(), action) for action in state.legal_actions()}
    return {(LETTERS.index(text[-3]), int(text[-2]) - 1): action for action, text in texts.items()}


def random_games(size: dict[str, int], games: int) -> set[str]:
    """How they ended, played in both: legal moves, tokens, fireworks and the score are the same. Some players lay what
    fits, others anything.
    """
    pyspiel = pytest.importorskip("pyspiel")
    theirs, chance, ends = their_game(pyspiel, size), random.Random(1), set()
    for number in range(games):
        state, game = theirs.new_initial_state(), Hanabi(**size, split="all")
        game.reset(number)
        deck = iter(game.level)
        while not state.is_terminal():
            if state.is_chance_node():
                state.apply_action(dealt_by_chance(state)[next(deck)])
                continue
            seat, agent, table = state.current_player(), game.agent_selection, game.table
            ours = {our_text(state.action_to_string(seat, a), seat, len(table.hands)): a for a in state.legal_actions()}
            assert agent == f"player_{seat}" and set(game.legal_actions(agent)) == set(ours)
            seen = state.observation_string(seat)
            assert [f"Life tokens: {table.lives}", f"Info tokens: {table.information}"] == seen.splitlines()[:2]
            fireworks = " ".join(f"{LETTERS[c]}{rank}" for c, rank in enumerate(table.fireworks))
            assert f"Fireworks: {fireworks}" in seen and f"Deck size: {len(table.deck)}" in seen
            fitting = [f"play {i + 1}" for i, held in enumerate(table.hands[seat]) if table.fits(held.card)]
            careful = fitting or [text for text in ours if not text.startswith("play")] or list(ours)
            text = chance.choice(careful if number % 4 else list(ours))
            state.apply_action(ours[text])
            game.step(text)
            assert not game.infos[agent]["invalid_action"]
        assert game.finished and game.table.score == state.returns()[0]
        ends.add("complete" if game.table.score == game.size.best else "dead" if not game.table.lives else "no cards")
    return ends


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size['players']}x{size['colours']}x{size['ranks']}")
def test_random_games_agree_with_openspiel(size: dict[str, int]) -> None:
    """Games that lose all lives, complete, or run out of cards."""
    assert len(random_games(size, 10 if size["players"] == 5 else 40)) >= 2


@pytest.mark.slow
def test_ten_thousand_random_games_agree_with_openspiel() -> None:
    assert random_games(SIZES[0], 10_000) == {"complete", "dead", "no cards"}


@pytest.mark.parametrize("players", [2, 3, 4, 5])
def test_hands_are_of_the_rules_size_and_after_the_last_card_each_has_one_turn(players: int) -> None:
    """The full game, in which nobody plays a card."""
    game = begun(Hanabi(players=players, colours=5, hand_size=None, information_tokens=8, life_tokens=3))
    hand = 5 if players < 4 else 4
    assert [len(held) for held in game.table.hands] == [hand] * players
    drawn, after = 50 - players * hand, 0
    while not game.finished:
        assert len(game.table.deck) == drawn and not after > players
        after += drawn == 0
        legal = game.legal_actions(game.agent_selection)
        discards = "discard 1" in legal
        drawn -= discards and drawn > 0
        game.step("discard 1" if discards else next(move for move in legal if move.startswith("tell")))
    assert after == players and all(game.terminations.values()) and game.table.lives == 3
    assert set(game.rewards.values()) == {0.0}


def test_own_cards_are_not_shown() -> None:
    """Two decks that differ in a player's own hand alone look the same to it, until it is told."""
    rules = Rules(2, 2, 5, 2, 3, 1)
    hidden: list[list[Card]] = [[(0, 0), (0, 1)], [(1, 3), (0, 4)]]
    seen = []
    for own in hidden:
        rest = rules.deck()
        for card in [*hidden[0], *hidden[1]]:
            rest.remove(card)
        game = begun(Hanabi())
        game.table = Table(rules, [*own, (1, 0), (1, 1), *(card for card in rest if card not in ((1, 0), (1, 1)))])
        seen.append(game.observe("player_0"))
        assert game.observe("player_1") != seen[-1]
    assert seen[0] == seen[1] and "player_1 holds 1: yellow 1 (any colour any rank), 2: yellow 2" in seen[0]
