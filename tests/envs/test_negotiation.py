"""Negotiation: contexts, actions and words, the two protocols, what each player sees."""

from __future__ import annotations

import random
import re

import pytest

from rllib_lmgame.envs.games.talk.negotiation.contexts import Context, read_contexts
from rllib_lmgame.envs.games.talk.negotiation.expert import read_claim
from rllib_lmgame.envs.games.talk.negotiation.game import Negotiation
from rllib_lmgame.envs.games.talk.negotiation.shares import proposal_text, share_text
from tests.envs.begun import begun

CONTEXT = Context((1, 2, 3), ((1, 3, 1), (2, 1, 2)))
ONE, TWO = "player_0", "player_1"
MEASURES = ("deal", "pareto_efficient", "joint_share", "nash_share")


def table(context: Context = CONTEXT, **config: object) -> Negotiation:
    """A game with a chosen context."""
    game = begun(Negotiation(show_rules=False, **config), level=context)
    game.agent_selection = game.player_to_move()
    return game


def play(game: Negotiation, *replies: str) -> None:
    for reply in replies:
        game.step(reply)


def test_published_files_are_read(tmp_path) -> None:
    path = tmp_path / "selfplay.txt"
    path.write_text("1 1 2 3 3 1\n1 2 2 1 3 2\n\n1 0 1 4 3 2\n1 1 1 0 3 3\n", encoding="utf-8")
    assert read_contexts(str(path)) == (CONTEXT, Context((1, 1, 3), ((0, 4, 2), (1, 0, 3))))
    assert begun(Negotiation(data=str(path), split="all"), seed=1).level in read_contexts(str(path))


@pytest.mark.parametrize(
    "reply",
    [
        "OK. propose: 1 book, 0 hats, 2 balls", "propose: 1 book, 0 hats, 2 balls\nIs that fair?",
        "propose: 1 book, 0 hats, 2 balls\npropose: 1 book, 1 hat, 2 balls", "accept\nno deal", "Fine!\naccept",
        "propose 1 book, 0 hats, 2 balls and see: fine", "propose: 1 book, 0 hats",
        "propose: 1 book, 0 hats, 2 balls, 1 book", "propose: 1 book, 0 hats, 4 balls",
        "propose: 1 book, 0 hats, -1 balls", "propose: 1 book, 0 hats, 99999999999999999999 balls",
        "propose: one book, 0 hats, 2 balls", "propose: 1 book, 0 hats, 2 balls or 1 ball", "propose:", "...", "",
    ],
)  # fmt: skip
def test_what_is_neither_or_both_is_invalid(reply: str) -> None:
    game = table(protocol="open")
    play(game, "propose: 0 books, 0 hats, 1 ball", reply)
    assert game.infos[TWO]["invalid_action"] and game.agent_selection == TWO and not game.finished


def test_sealed_proposals_that_fit_are_a_deal() -> None:
    game = table()
    play(game, "I like hats.", "Take them.", "propose: 0 books, 2 hats, 0 balls", "propose: 1 book, 0 hats, 3 balls")
    assert game.rewards == {ONE: 0.6, TWO: 0.8} and all(game.terminations.values())
    assert game.infos[ONE]["measures"] == dict.fromkeys(MEASURES, 1.0)
    assert game.infos[ONE]["success"] and game.infos[TWO]["success"]
    assert "you get 1 book, 0 hats, 3 balls, worth 8" in game.observe(TWO)


def test_a_sealed_proposal_is_not_seen_and_ends_the_talk() -> None:
    seen = []
    for share in ("0 books, 2 hats, 0 balls", "1 book, 2 hats, 3 balls"):
        game = table()
        play(game, f"propose: {share}")
        seen.append(game.observe(TWO))
        play(game, "What did you propose?")
        assert game.infos[TWO]["invalid_action"] and "the talk is over" in game.observe(TWO)
        assert "no deal" in game.legal_actions(TWO) and not game.legal_actions(ONE)
    assert seen[0] == seen[1]


def test_open_proposals_can_be_accepted_or_answered() -> None:
    game = table(protocol="open")
    play(game, "propose: 1 book, 2 hats, 3 balls", "That is all of it!")
    assert "You propose to take 1 book, 2 hats, 3 balls" in game.observe(ONE)
    play(game, "accept")
    assert game.infos[ONE]["invalid_action"], "one's own proposal is not there to be accepted"
    play(game, "propose: 1 book, 2 hats, 0 balls", "propose: 1 book, 0 hats, 3 balls", "accept")
    assert game.rewards == {ONE: 0.6, TWO: 0.8}


@pytest.mark.parametrize(
    ("text", "claim"),
    [
        ("I would like to take 1 book, 2 hats, 0 balls; the rest is yours.", (1, 2, 0)),
        ("Hello. I'll take 2 hats and 1 ball.", (0, 2, 1)),
        ("You can have 2 hats. I want 1 book.", (1, 0, 0)),
        ("You can have 2 hats", None),
        ("I want 5 hats", None),
        ("I want 1 hat and 2 hats", None),
        ("I want everything", None),
    ],
)
def test_claims(text: str, claim: tuple[int, ...] | None) -> None:
    assert read_claim(text, (1, 2, 3)) == claim


THINGS = re.compile(r"(?:Book|Hat|Basketball): (\d+)")


def numbers_after(words: str, text: str):
    """The numbers of books, hats and balls in the line of OpenSpiel's text that begins with ``words``."""
    (line,) = (line for line in text.splitlines() if line.startswith(words))
    return tuple(map(int, THINGS.findall(line)))


def offers_of(state) -> dict[str, int]:
    """OpenSpiel's legal actions, as our game has them."""
    texts = {action: state.action_to_string(state.current_player(), action) for action in state.legal_actions()}
    return {
        "accept" if text == "Agree" else proposal_text(tuple(map(int, THINGS.findall(text)))): action
        for action, text in texts.items()
    }


@pytest.mark.parametrize("games", [100, pytest.param(10_000, marks=pytest.mark.slow)])
def test_open_proposals_without_words_are_open_spiels_bargaining(games: int) -> None:
    """On its contexts (of which some are none of ours): legal moves, what each player sees, and who gets what are the
    same, but that nobody there walks away or talks, and that ours pays a tenth.
    """
    pyspiel = pytest.importorskip("pyspiel")
    theirs, chance, ends = pyspiel.load_game("bargaining(max_turns=10)"), random.Random(0), set()
    for _ in range(games):
        state = theirs.new_initial_state()
        state.apply_action(chance.choice(state.legal_actions()))
        worth = tuple(numbers_after("My values", state.information_state_string(seat)) for seat in (0, 1))
        game = table(Context(numbers_after("Pool", str(state)), worth), protocol="open", max_turns=5)
        while not state.is_terminal():
            seat, agent = state.current_player(), game.agent_selection
            ours, shown = offers_of(state), game.view(agent)
            assert agent == game.possible_agents[seat] and {*game._actions(agent)} == {*ours, "no deal"}
            known = state.information_state_string(seat)
            assert f"The pool: {share_text(numbers_after('Pool', known))}." in shown
            assert "Worth to you: a book {}, a hat {}, a ball {}.".format(*numbers_after("My values", known)) in shown
            if "accept" in ours:
                last = tuple(map(int, THINGS.findall(known.splitlines()[-1])))
                assert f"The other player proposes to take {share_text(last)};" in shown
            move = "accept" if "accept" in ours and chance.random() < 0.15 else chance.choice([*ours])
            state.apply_action(ours[move])
            game.step(move)
            assert not game.infos[agent]["invalid_action"]
        assert not game.agents or all(game.terminations.values())
        results = [game.infos[player]["result"] for player in game.possible_agents]
        assert [round(10 * result) for result in results] == state.returns()
        ends.add("deal" if game._deal else "no deal")
    assert ends == {"deal", "no deal"}
