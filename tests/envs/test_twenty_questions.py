"""TwentyQuestions and the reading of questions."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from rllib_lmgame.envs.games.words.guessing.objects import object_table
from rllib_lmgame.envs.games.words.guessing.twenty_questions import TwentyQuestions, with_article
from tests.envs.begun import begun, played_by_expert

TABLE = object_table()


def thinking_of(name: str, **config: object) -> TwentyQuestions:
    """A game with a chosen object."""
    return begun(TwentyQuestions(show_rules=False, **config), level=TABLE.objects.index(name))


def ask(name: str, question: str) -> str:
    """The answer to one question."""
    return thinking_of(name).step(question)[0].rpartition("? ")[2]


def test_every_object_can_be_guessed() -> None:
    for number, name in enumerate(TABLE.objects):
        for form in ("Is it {}?", "is the object {}", "My guess is {}.", "I think it is {}, right?", "Could it be {}?"):
            assert TABLE.guess(form.format(with_article(name))) == number, form.format(name)


ANSWERS = [
    ("dog", "Is it alive?", "Yes."),
    ("dog", "Is it an animal or a plant?", "Yes."),
    ("dog", "Is it both an animal and a plant?", "No."),
    ("dog", "Is it not alive?", "No."),
    ("dog", "Isn't it alive?", "Yes."),
    ("dog", "Is it something that can't fly?", "Yes."),
    ("dog", "Does it hunt other animals, or eat meat?", "Yes."),
    ("dog", "Is it a puppy?", "Yes."),
    ("dog", "Is it black?", "It depends."),
    ("dog", "Is it black and is it a vehicle?", "No."),
    ("dog", "Is it black or an animal?", "Yes."),
    ("dog", "Is it smaller than a car?", "Yes."),
    ("dog", "Is it made of antimatter?", "I don't know."),
    ("dog", "Is it a unicorn?", "I don't know."),
    ("carrot", "Is it orange?", "Yes."),
    ("carrot", "Is it an orange?", "No."),
    ("fork", "Do you eat with it?", "Yes."),
    ("fork", "Can you eat it?", "No."),
    ("fork", "Do you use it to eat?", "I don't know."),
    ("apple", "Is it something to eat?", "Yes."),
    ("dog", "Can it eat people?", "I don't know."),
    ("dog", "Does it eat meat?", "Yes."),
    ("car", "Is it bigger than a house?", "I don't know."),
    ("fork", "Is it found in the kitchen?", "Yes."),
    ("apple", "Is it a kitchen utensil?", "No."),
    ("bus", "Would you say it's bigger than a person?", "Yes."),
    ("bus", "Is it a bus or a dog or a cat?", "I don't know."),
    ("moon", "Let me think. It glows: Is it in the sky? I hope so", "Yes."),
]


def test_answers() -> None:
    for name, question, answer in ANSWERS:
        assert ask(name, question) == answer, (name, question)


def test_a_game() -> None:
    game = thinking_of("violin")
    assert game.board() == "No questions yet."
    observation, reward, *_ = game.step("Is it a musical instrument?")
    assert (observation, reward) == ("1. Is it a musical instrument? Yes.", -1.0)
    observation, reward, *_ = game.step("Is it a <|im_end|>guitar?")
    assert reward == -1.0 and "<" not in observation and "|" not in observation
    _, reward, terminated, truncated, info = game.step("A violin!")
    assert (reward, terminated, truncated, info["success"]) == (0.0, True, False, True)


def test_expert_finds_every_object() -> None:
    game = TwentyQuestions(split="all")
    questions = []
    for number in range(158):
        game.reset(seed=0)
        game.start(number)
        questions.append(1 - played_by_expert(game)[0])
    # Three answers a question: 158 objects cannot be told apart by fewer than 4 on average.
    assert max(questions) <= 12 and 5 < sum(questions) / 158 < 8


@pytest.fixture()
def oracles(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module with oracles to name in the configuration."""
    module = ModuleType("some_oracles")
    module.asked = []  # type: ignore[attr-defined]
    module.notes = lambda thing, question: module.asked.append((thing, question)) or "Yes, I <b>think</b> so."  # type: ignore[attr-defined]
    module.telltale = lambda thing, question: f"It is a {thing.upper()}!"  # type: ignore[attr-defined]
    module.mute = lambda thing, question: None  # type: ignore[attr-defined]
    module.number = 5  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "some_oracles", module)
    return module


def test_an_oracle_of_ones_own(oracles: ModuleType) -> None:
    game = thinking_of("dog", oracle="some_oracles:notes")
    assert game.step("Does it like music by Bach?")[0] == "1. Does it like music by Bach? Yes, I b think /b so."
    assert game.step("Is it a cat?")[0].endswith("No.")  # Guesses are not for the oracle.
    assert game.step("Is it a dog?")[4]["success"]
    assert oracles.asked == [("dog", "Does it like music by Bach")] and not game.solver_wins


def test_an_oracle_may_not_tell_the_name(oracles: ModuleType) -> None:
    assert (
        thinking_of("dog", oracle="some_oracles:telltale")
        .step("What is it really, is it nice?")[0]
        .endswith("I don't know.")
    )
