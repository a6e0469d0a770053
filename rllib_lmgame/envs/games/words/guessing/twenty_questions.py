"""TwentyQuestions: find out by yes-or-no questions which object is meant."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract.base import InvalidAction, TextGameOptions, Variant
from rllib_lmgame.envs.games.words.guessing.game import QUESTION_REWARD, GuessingGame, GuessingOptions
from rllib_lmgame.envs.games.words.guessing.objects import DEPENDS, NO, YES, Asked, ObjectTable, object_table
from rllib_lmgame.envs.games.words.guessing.oracle import TABLE, UNKNOWN
from rllib_lmgame.envs.games.words.guessing.questions import YES_NO_OPENERS, is_question, the_question

ANSWERS = {NO: "No.", YES: "Yes.", DEPENDS: "It depends."}

RULES = """You find out which object I am thinking of. It is an animal, a fruit, a vegetable, a vehicle, \
a piece of clothing or
jewelry, an electronic device, a musical instrument, a piece of furniture, part of the landscape or the sky, a toy, \
or something of the
kitchen, the office, the garden, the toolbox, sports or art.
Reply with one yes-or-no question, such as "Is it made of metal?", or a guess, such as "Is it a bridge?".
The answers are "Yes.", "No.", "It depends." (on which one it is), \
or "I don't know." if I do not understand the question.
There are {turns} questions, guesses included. Each costs 1; the guess that is right costs nothing and wins."""


class Exchange(NamedTuple):
    """A question, what it was taken for (a guess's object, an attribute question, or neither) and the answer."""

    question: str
    guess: int | None
    asked: Asked | None
    answer: str


class TwentyQuestionsOptions(GuessingOptions):
    """``env_config`` of TwentyQuestions."""

    oracle: str = option(
        TABLE,
        "Who answers: `table` (attributes of every object), a language model (`openai:MODEL@URL`), "
        "or `package.module:function` of name and question.",
    )


class TwentyQuestions(GuessingGame):
    """Find one of 158 objects by yes-or-no questions.

    Observation: all questions so far with their answers.
    Action: a yes-or-no question, or a guess ("Is it a dog?"). What stands before the question's sentence or after its
        question mark is left out.
    Reward: -1 for each question, also one that is not understood and one that is no question; 0 for the guess that is
        right (LMRL-Gym).
    Horizon: 20 questions, the last of which ends the game (``terminated``).
    Levels: 158 objects in 17 categories, split by hash.
    Solver: the question that divides the objects still possible most evenly (largest entropy), from the answers seen.

    The oracle looks the question's words up in a list of phrases for each of its 124 attributes, for and against,
    joined by "and" or "or", and answers "I don't know." if a word of the question is left over. An oracle of your own
    (option ``oracle``) must give the same answer to the same question if seeds are to be reproducible; an answer that
    has the object's name in it is withheld.
    """

    variants = (Variant("lmgame/TwentyQuestions-v0", (-20.0, 0.0)),)
    Options: ClassVar[type[TextGameOptions]] = TwentyQuestionsOptions
    rules_text = RULES
    options: TwentyQuestionsOptions
    title = "twenty questions"
    reveal = "It was:"

    def __init__(self, render_mode: str | None = None, **env_config: object) -> None:
        super().__init__(render_mode, **env_config)
        self._table = object_table()

    @property
    def names(self) -> tuple[str, ...]:
        return self._table.objects

    @property
    def success(self) -> bool:
        return bool(self._exchanges) and self._exchanges[-1].guess == self._meant

    def legal_actions(self) -> tuple[str, ...]:
        """The questions the table answers and all guesses; any other question may be asked too."""
        return listed_questions()

    def read_move(self, text: str) -> str:
        return read_question(self._table, text)

    def play_move(self, move: str) -> float:
        guess = self._table.guess(move)
        asked = self._table.asked(move) if guess is None else None
        self._exchanges.append(Exchange(move, guess, asked, self._answer(move, guess, asked)))
        return 0.0 if self.success else QUESTION_REWARD

    def expert_action(self) -> str:
        """A guess where one object is left, else the question that tells most about which one it is."""
        return best_question(
            self._table, still_possible(self._table, self._exchanges), {said.asked for said in self._exchanges}
        )

    def _answer(self, question: str, guess: int | None, asked: Asked | None) -> str:
        if guess is not None:
            return ANSWERS[YES if guess == self._meant else NO]
        if self._own_oracle is not None:
            name = self._table.objects[self._meant]
            return self._own_oracle.answer(name, question, (name,))
        return UNKNOWN if asked is None else ANSWERS[int(asked.answers(self._table.values)[self._meant])]


def read_question(table: ObjectTable, text: str) -> str:
    """The yes-or-no question, or the guess, of a reply. Raises: InvalidAction: if there is none, or several."""
    question = the_question(text)
    if not is_question(question, YES_NO_OPENERS) and table.guess(question) is None:
        raise InvalidAction('reply with a yes-or-no question, such as "Is it an animal?".')
    return question


def still_possible(table: ObjectTable, exchanges: Iterable[Exchange]) -> NDArray[np.int64]:
    """Objects that agree with the answers seen; all that were not guessed if none does."""
    unguessed = np.ones(len(table.objects), dtype=bool)
    agreeing = unguessed.copy()
    for said in exchanges:
        if said.guess is not None:
            unguessed[said.guess] = False
        value = next(
            (value for value, answer in ANSWERS.items() if said.answer.lower().startswith(answer.lower().rstrip("."))),
            None,
        )
        if said.asked is not None and value is not None:
            agreeing &= said.asked.answers(table.values) == value
    both = np.flatnonzero(agreeing & unguessed)
    return both if len(both) else np.flatnonzero(unguessed)


def with_article(name: str) -> str:
    """The name as it stands in a guess."""
    article = "the" if name in ("sun", "moon") else "an" if name[0] in "aeiou" else "a"
    return f"{article} {name}"


@cache
def listed_questions() -> tuple[str, ...]:
    """The question of every attribute, then a guess of every object in alphabetical order."""
    table = object_table()
    return (*table.questions, *(f"Is it {with_article(name)}?" for name in sorted(table.objects)))


def best_question(table: ObjectTable, possible: NDArray[np.int64], asked: set[Asked | None]) -> str:
    """The question of largest entropy about which of the ``possible`` objects it is, or a guess if there
    is no such question.
    """
    guess = f"Is it {with_article(table.objects[possible[0]])}?" if len(possible) else table.questions[0]
    if len(possible) <= 2:
        return guess
    values = table.values[:, possible]
    counts = np.stack([(values == value).sum(axis=1) for value in ANSWERS], axis=1)
    uncertainty = (counts * np.log(np.maximum(counts, 1))).sum(axis=1)
    for number in range(len(table.attributes)):
        if Asked(((number, True),)) in asked:
            uncertainty[number] = np.inf
    best = int(np.argmin(uncertainty))
    informative = uncertainty[best] < len(possible) * np.log(len(possible)) - 1e-9
    return table.questions[best] if informative else guess
