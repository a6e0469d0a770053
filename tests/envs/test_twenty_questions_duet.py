"""TwentyQuestionsDuet: who sees and says what, rewards of both, false answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllib_lmgame.envs.games.talk.twenty_questions_duet import REPLIES, TwentyQuestionsDuet
from rllib_lmgame.envs.games.words.guessing.objects import DEPENDS, NO, YES, object_table
from tests.envs.begun import begun

ASKER, ANSWERER = "asker", "answerer"
DOG = object_table().objects.index("dog")


def asked(*replies: str, **config: object) -> TwentyQuestionsDuet:
    """A game about a dog in which ``replies`` were given, the asker's first."""
    return begun(TwentyQuestionsDuet(show_rules=False, **config), *replies, level=DOG)


def test_a_true_game_pays_both_the_same() -> None:
    game = asked("Is it an animal?", "yes", "Is it a cat?", "Does it have fur?", "Yes.", "Is it a dog?")
    assert game.rewards == {ASKER: pytest.approx(1 - 3 / 20), ANSWERER: pytest.approx(1 - 3 / 20)}
    assert game.infos[ASKER]["success"] and game.infos[ANSWERER]["success"] and all(game.terminations.values())
    assert game.infos[ASKER]["measures"] == {
        "questions": 4.0,
        "checked_rate": 1.0,
        "false_answer_rate": 0.0,
        "evasion_rate": 0.0,
    }


def test_false_answers_cost_the_answerer_alone_and_are_counted() -> None:
    replies = (
        "Is it an animal?", "no", "Is it alive?", "i don't know", "Is it zorgish?", "no", "Does it have fur?",
        "yes",
    )  # fmt: skip
    game = asked(*replies, "Is it a dog?", false_answer_penalty=0.5)
    assert game.rewards == {ASKER: pytest.approx(0.8), ANSWERER: pytest.approx(0.3)}
    measures = game.infos[ANSWERER]["measures"]
    assert measures["checked_rate"] == 3 / 4, "the table does not understand one question"
    assert measures["false_answer_rate"] == measures["evasion_rate"] == 1 / 3


@given(st.integers(0, 123), st.integers(0, 157), st.sampled_from(list(REPLIES)))
def test_what_is_false_is_what_the_table_contradicts(attribute: int, thing: int, reply: str) -> None:
    table = object_table()
    game = asked()
    game.level = thing
    game.start()
    game.step(table.questions[attribute])
    game.step(reply)
    truth = table.values[attribute, thing]
    assert game._false == ((truth == YES and reply == "no") or (truth == NO and reply == "yes"))
    assert game._evaded == (truth != DEPENDS and reply in ("it depends", "I don't know"))


def test_the_asker_does_not_see_the_object_and_the_answerer_does() -> None:
    game = asked("Is it an animal?", "yes", "Is it a cat?")
    assert "dog" not in game.observe(ASKER) and "The object is a dog." in game.observe(ANSWERER)
    assert game.agent_selection == ASKER and "Answer to the guess, number 2: No." in game.observe(ASKER)
    game.step("Is it alive?")
    assert "[Asker] Is it a cat?\nAnswer to the guess, number 2: No.\n[Asker] Is it alive?" in game.observe(ANSWERER)
    with_history = asked("Is it an animal?", "yes", history=True)
    assert "[You] Is it an animal?\nAnswer to the question, number 1: Yes." in with_history.observe(ASKER)


def test_the_end_without_an_answer_found() -> None:
    game = asked("Is it alive?", "yes", "Is it a cat?", max_turns=2)
    assert all(game.terminations.values()) and game.rewards == {ASKER: 0.0, ANSWERER: 0.0}
    assert not game.infos[ASKER]["success"] and "The object was a dog." in game.observe(ASKER)
    game = asked("Is it alive?", "no", "x", "x", "x")
    assert game.infos[ASKER]["forfeit"] and game.infos[ANSWERER]["result"] == -0.1
