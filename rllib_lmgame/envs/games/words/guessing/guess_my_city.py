"""GuessMyCity: find out by questions of any form which city is meant."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import ClassVar, NamedTuple

from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract.base import InvalidAction, TextGameOptions, Variant
from rllib_lmgame.envs.games.words.guessing.cities import TOPICS, CityTable, Reading, city_table
from rllib_lmgame.envs.games.words.guessing.game import QUESTION_REWARD, GuessingGame, GuessingOptions
from rllib_lmgame.envs.games.words.guessing.oracle import TABLE
from rllib_lmgame.envs.games.words.guessing.questions import is_question, the_question

RULES = """You find out which city I am thinking of. It is one of {cities} well-known cities all over the world.
Reply with one question about it, such as "What language do people speak there?" or "Is it in Europe?", or a guess, \
such as "Is it Atlantis?".
I answer what I know of it and never say its name.
There are {turns} questions, guesses included. Each costs 1; the guess that is right costs nothing and wins."""


class Exchange(NamedTuple):
    """A question, what it was taken for and the answer."""

    question: str
    reading: Reading
    answer: str


class GuessMyCityOptions(GuessingOptions):
    """``env_config`` of GuessMyCity."""

    oracle: str = option(
        TABLE,
        "Who answers: `table` (facts about every city), a language model (`openai:MODEL@URL`), "
        "or `package.module:function` of name and question.",
    )


class GuessMyCity(GuessingGame):
    """Find one of 100 cities by open questions.

    Observation: all questions so far with their answers.
    Action: a question of any form, or a guess ("Is it Paris?"). What stands before the question's sentence or after its
        question mark is left out.
    Reward: -1 for each question, also one that is not understood and one that is no question; 0 for the guess that is
        right (LMRL-Gym).
    Horizon: 20 questions, the last of which ends the game (``terminated``).
    Levels: 100 cities, split by hash.
    Solver: the topic whose answers divide the cities still possible most finely (largest entropy), from the answers
        seen.

    The oracle has 13 facts about each city. It answers an open question about the first topic it names, and a yes-or-no
    question that names a country, sea, language ... by yes or no. Answers never have the city's name in them. For an
    oracle of your own (option ``oracle``) the same holds as in TwentyQuestions.
    """

    variants = (Variant("lmgame/GuessMyCity-v0", (-20.0, 0.0)),)
    Options: ClassVar[type[TextGameOptions]] = GuessMyCityOptions
    options: GuessMyCityOptions
    title = "guess my city"
    reveal = "It was"

    def __init__(self, render_mode: str | None = None, **env_config: object) -> None:
        super().__init__(render_mode, **env_config)
        self._table = city_table()

    @property
    def rules(self) -> str:
        return RULES.format(cities=len(self._table.cities), turns=self.options.max_turns)

    @property
    def names(self) -> tuple[str, ...]:
        return self._table.cities

    @property
    def success(self) -> bool:
        return bool(self._exchanges) and self._exchanges[-1].reading.guess == self._meant

    def legal_actions(self) -> tuple[str, ...]:
        """A question about every topic and all guesses; any other question may be asked too."""
        return listed_questions()

    def read_move(self, text: str) -> str:
        question = the_question(text)
        if not is_question(question) and self._table.guess(question) is None:
            raise InvalidAction('reply with a question, such as "What country is it in?".')
        return question

    def play_move(self, move: str) -> float:
        reading = self._table.read(move)
        if self._own_oracle is not None and reading.guess is None:
            answer = self._own_oracle.answer(self._table.cities[self._meant], move, self._table.names[self._meant])
        else:
            answer = self._table.answer(reading, self._meant)
        self._exchanges.append(Exchange(move, reading, answer))
        return 0.0 if self.success else QUESTION_REWARD

    def expert_action(self) -> str:
        """A guess where one city is left, else the question that tells most about which one it is."""
        cities = range(len(self._table.cities))
        guessed = {said.reading.guess for said in self._exchanges}
        open_ = [city for city in cities if city not in guessed]
        agreeing = [
            city
            for city in open_
            if all(self._table.answer(said.reading, city) == said.answer for said in self._exchanges)
        ]
        asked = {said.reading.topic for said in self._exchanges}
        return best_question(
            self._table, agreeing or open_, [topic for topic in range(len(TOPICS)) if topic not in asked]
        )


@cache
def listed_questions() -> tuple[str, ...]:
    """The question about each topic, then a guess of every city in alphabetical order."""
    return (*(topic.question for topic in TOPICS), *(f"Is it {city}?" for city in sorted(city_table().cities)))


def best_question(table: CityTable, possible: Sequence[int], topics: Sequence[int]) -> str:
    """The question of largest entropy about which of the ``possible`` cities it is, or a guess if there
    is no such question.
    """
    if not possible:
        return TOPICS[0].question
    if len(possible) > 2 and topics:
        uncertainty = {
            topic: sum(n * math.log(n) for n in Counter(table.answers[topic][city] for city in possible).values())
            for topic in topics
        }
        best = min(topics, key=lambda topic: (uncertainty[topic], topic))
        if uncertainty[best] < len(possible) * math.log(len(possible)) - 1e-9:
            return TOPICS[best].question
    return f"Is it {table.cities[possible[0]]}?"
