"""Our games move for move, and their exact measures figure for figure, against OpenSpiel's."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

pyspiel = pytest.importorskip("pyspiel")

from open_spiel.python import policy as spiel_policy  # noqa: E402
from open_spiel.python.algorithms import best_response, expected_game_score  # noqa: E402

from rllib_lmgame.envs.contract import GameState, TextTreeGame  # noqa: E402
from rllib_lmgame.envs.contract.sequence_form import GameTree, InformationSet, walked  # noqa: E402
from rllib_lmgame.envs.games.duels.kuhn_poker import RANKS, KuhnPoker  # noqa: E402
from rllib_lmgame.envs.games.duels.leduc_poker import CARDS, LeducPoker  # noqa: E402
from rllib_lmgame.envs.games.duels.liars_dice import LIAR, LiarsDice, bids  # noqa: E402
from rllib_lmgame.measures.exploitability import game_values, nash_conv  # noqa: E402


@dataclass(frozen=True)
class Pair:
    """A game of ours and OpenSpiel's name of it.

    Attributes:
        ours: The game.
        theirs: Its name, with parameters.
        number: OpenSpiel's number of one of our actions.
        dealt: OpenSpiel's numbers of all that chance has decided in a state of ours.
    """

    ours: TextTreeGame
    theirs: str
    number: Callable[[str], int]
    dealt: Callable[[Any], list[int]]

    def start(self) -> Any:
        """OpenSpiel's first state."""
        return pyspiel.load_game(self.theirs).new_initial_state()

    def follow(self, theirs: Any, before: GameState | None, after: GameState, action: str | None = None) -> None:
        """Do in OpenSpiel's state what led from one of our states to the next."""
        if action is not None:
            theirs.apply_action(self.number(action))
        for outcome in self.dealt(after)[len(self.dealt(before)) if before else 0 :]:
            assert theirs.is_chance_node()
            theirs.apply_action(outcome)


KUHN_NUMBERS = {"check": 0, "fold": 0, "bet": 1, "call": 1}
LEDUC_NUMBERS = {"fold": 0, "check": 1, "call": 1, "raise": 2}


def dice(dice: int, sides: int) -> Pair:
    """Liar's Dice."""
    actions = (*bids(dice, sides), LIAR)
    return Pair(
        LiarsDice(dice=dice, sides=sides, show_rules=False),
        f"liars_dice(numdice={dice},dice_sides={sides})",
        actions.index,
        lambda state: [face - 1 for roll in state.rolls for face in roll],
    )


def kuhn(players: int) -> Pair:
    """Kuhn poker."""
    return Pair(
        KuhnPoker(players=players, show_rules=False),
        f"kuhn_poker(players={players})",
        KUHN_NUMBERS.__getitem__,
        lambda state: [RANKS.index(card) for card in state.deal],
    )


PAIRS = {
    "kuhn": kuhn(2),
    "kuhn for three": kuhn(3),
    "leduc": Pair(
        LeducPoker(show_rules=False),
        "leduc_poker",
        LEDUC_NUMBERS.__getitem__,
        lambda state: [CARDS.index(card) for card in state.cards],
    ),
    "dice": dice(1, 4),
    "more dice": dice(2, 3),
}


def playouts(pair: Pair, games: int) -> None:
    """Random games in both: legal moves, who moves, what is paid, and that players can tell apart the same things."""
    chance = random.Random(0)
    texts: dict[str, str] = {}
    states: dict[str, str] = {}
    game = pair.ours
    for seed in range(games):
        game.reset(seed=seed)
        theirs = pair.start()
        pair.follow(theirs, None, game.position)
        while not game.position.finished:
            position = game.position
            assert theirs.current_player() == position.seat
            assert theirs.legal_actions() == sorted(map(pair.number, position.actions))
            for seat in range(len(game.possible_agents)):
                text, state = f"{seat} {position.view(seat)}", f"{seat} {theirs.information_state_string(seat)}"
                assert texts.setdefault(text, state) == state and states.setdefault(state, text) == text
            action = chance.choice(position.actions)
            game.step(action)
            pair.follow(theirs, position, game.position, action)
        assert theirs.is_terminal() and theirs.returns() == list(game.position.payoffs) == list(game.results().values())
        assert all(game.terminations.values())


@pytest.mark.parametrize("games", [150, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", PAIRS)
def test_random_games(name: str, games: int) -> None:
    playouts(PAIRS[name], games)


def both_trees(name: str) -> tuple[GameTree, dict[InformationSet, str]]:
    """Our tree, and OpenSpiel's name of each of our information sets, found by walking through both at once."""
    pair = PAIRS[name]
    tree = walked(pair.ours)
    sets = {(s.seat, s.observation): s for s in tree.information_sets}
    assert len(sets) == len(tree.information_sets)
    names: dict[InformationSet, str] = {}

    def walk(state: GameState, theirs: Any) -> None:
        for _, after in state.chance:
            child = theirs.clone()
            pair.follow(child, state, after)
            walk(after, child)
        if state.finished:
            assert theirs.is_terminal() and theirs.returns() == list(state.payoffs)
        elif not state.chance:
            known = theirs.information_state_string()
            assert theirs.legal_actions() == sorted(map(pair.number, state.actions))
            assert names.setdefault(sets[state.seat, pair.ours.shown(state, first=False)], known) == known
            for action in state.actions:
                after, child = state.after(action), theirs.clone()
                pair.follow(child, state, after, action)
                walk(after, child)

    walk(pair.ours.first_state(), pair.start())
    assert len(names) == len(set(names.values())) == len(tree.information_sets)
    return tree, names


def drawn(at: InformationSet):
    """Some policy, a function of the information set alone."""
    chance = random.Random(f"{at.seat} {at.observation}")
    weights = [chance.random() ** 3 for _ in at.legal_actions]
    return {action: weight / sum(weights) for action, weight in zip(at.legal_actions, weights, strict=True)}


@pytest.mark.parametrize("name", ["kuhn", "kuhn for three", "leduc", "dice"])
def test_exact_measures_are_open_spiels(name: str) -> None:
    """The whole tree: payments, legal moves, what is known; then values and best responses."""
    tree, names = both_trees(name)
    game = pyspiel.load_game(PAIRS[name].theirs)
    odds = [drawn(at) for at in tree.information_sets]
    theirs = spiel_policy.TabularPolicy(game)
    for at, there in zip(tree.information_sets, odds, strict=True):
        row = theirs.policy_for_key(names[at])
        for action, p in there.items():
            row[PAIRS[name].number(action)] = p
    root, seats = game.new_initial_state(), range(game.num_players())
    values = expected_game_score.policy_value(root, [theirs] * len(seats))
    assert game_values(tree, odds) == pytest.approx(list(values), abs=1e-9)
    responses = [best_response.BestResponsePolicy(game, seat, theirs).value(root) for seat in seats]
    assert nash_conv(tree, odds) == pytest.approx(sum(responses) - sum(values), abs=1e-9)
