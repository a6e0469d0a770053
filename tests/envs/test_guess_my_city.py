"""GuessMyCity."""

from __future__ import annotations

from rllib_lmgame.envs.games.words.guessing.cities import TOPICS, city_table
from rllib_lmgame.envs.games.words.guessing.guess_my_city import GuessMyCity
from rllib_lmgame.envs.games.words.guessing.oracle import tells
from tests.envs.begun import begun, played_by_expert

TABLE = city_table()
QUESTIONS = (
    "What is the city called?", "What is its name?", "What letter does it start with?", "Tell me about the city",
    "Which country is it the capital of?", "Which nickname has it got?",
)  # fmt: skip


def thinking_of(name: str, **config: object) -> GuessMyCity:
    """A game with a chosen city."""
    return begun(GuessMyCity(show_rules=False, **config), level=TABLE.cities.index(name))


def ask(name: str, question: str) -> str:
    """The answer to one question."""
    return thinking_of(name).step(question)[0].rpartition("? ")[2]


def test_no_answer_has_the_name_of_the_city() -> None:
    listed = (
        [topic.question for topic in TOPICS]
        + [f"Is it {city}?" for city in TABLE.cities]
        + [f"Is it near {city}?" for city in TABLE.cities]
    )
    assert tells("Good old New-York!", ("New York",)) and not tells("The climate", ("Lima",))
    for question in (*listed, *QUESTIONS):
        reading = TABLE.read(question)
        for city, names in enumerate(TABLE.names):
            assert not tells(TABLE.answer(reading, city), names), (names, question)


def test_every_city_can_be_guessed_by_every_name() -> None:
    for city, names in enumerate(TABLE.names):
        for name in names:
            for form in ("Is it {}?", "{}", "Is your city {}?", "Are you from {}, right?", "I think it is {}."):
                assert TABLE.guess(form.format(name)) == city, form.format(name)


ANSWERS = [
    ("Vienna", "Is it in Europe?", "Yes."),
    ("Vienna", "Is it in Asia?", "No."),
    ("Vienna", "Is it in Asia or Europe?", "Yes."),
    ("Vienna", "Is it in Europe and do they speak French?", "No."),
    ("Vienna", "Isn't it in Austria?", "Yes."),
    ("Vienna", "Does the Danube flow through it?", "Yes."),
    ("Vienna", "What language is spoken in this country?", "People there speak German."),
    ("Vienna", "What is the name of the river?", "The river there is the Danube."),
    ("Vienna", "What are some famous foods?", "People there eat schnitzel and Sachertorte."),
    ("Vienna", "How do you spell it?", "I will not tell you its name."),
    ("Vienna", "Is it Paris or Vienna?", "I don't know."),
    ("Vienna", "Is it Paris?", "No."),
    ("Vienna", "Is it Vienna, Austria?", "Yes."),
    ("Vienna", "Is it made of cheese?", "I don't know."),
    ("Belgrade", "Which river is there?", "The rivers there are the Danube and the Sava."),
    ("Boston", "Is it in the US?", "Yes."),
    ("Boston", "Is it one of us?", "I don't know."),
    ("Edinburgh", "Is it in England?", "No."),
    ("London", "Is it near the sea?", "It does not lie by the sea."),
    ("Istanbul", "Is it in Asia?", "Yes."),
    ("Saint Petersburg", "Is it St. Petersburg?", "Yes."),
    ("Bogota", "Is it Bogot\u00e1?", "Yes."),
    ("Perth", "Is it in the southern hemisphere?", "Yes."),
    ("Athens", "Is it in southern Europe?", "I don't know."),
    ("Naples", "Is it in the south of Italy?", "I don't know."),
    ("Lima", "Is it in South America?", "Yes."),
    ("Lima", "Is it in the United States of America?", "No."),
    ("Kyiv", "Is it the capital?", "It is the capital of its country."),
]


def test_answers() -> None:
    for name, question, answer in ANSWERS:
        assert ask(name, question) == answer, (name, question)


def test_expert_finds_every_city() -> None:
    game = GuessMyCity(split="all")
    for city in range(100):
        game.reset(seed=0)
        game.start(city)
        assert 1 - played_by_expert(game)[0] <= 3
