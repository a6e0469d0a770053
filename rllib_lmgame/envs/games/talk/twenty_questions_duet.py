"""TwentyQuestionsDuet: one player asks, the other one, who knows the object, answers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract import InvalidAction, TextAECOptions, Variant
from rllib_lmgame.envs.games.talk.base import TalkGame, TalkOptions
from rllib_lmgame.envs.games.words.guessing.objects import DEPENDS, NO, YES, object_table
from rllib_lmgame.envs.games.words.guessing.oracle import UNKNOWN
from rllib_lmgame.envs.games.words.guessing.twenty_questions import (
    ANSWERS,
    Exchange,
    TwentyQuestions,
    best_question,
    listed_questions,
    read_question,
    still_possible,
    with_article,
)

ASKER, ANSWERER = "asker", "answerer"
QUESTIONS = 20
REPLIES = {"yes": ANSWERS[YES], "no": ANSWERS[NO], "it depends": ANSWERS[DEPENDS], "I don't know": UNKNOWN}
"""What the answerer may reply, and how the asker reads it."""

SPELLINGS = {"depends": "it depends", "i don't know": "I don't know", "i do not know": "I don't know"}
DEFINITE = {ANSWERS[YES]: NO, ANSWERS[NO]: YES}
"""Answer that is definite -> what the truth is if it is false."""

RULES = """One player, the answerer, knows an object; the other one, the asker, finds it out. \
The first observation says which one you are. It is an animal, a fruit, a vegetable, a vehicle, a piece of clothing or
jewelry, an electronic device, a musical instrument, a piece of furniture, part of the landscape or the sky, a toy, \
or something of the
kitchen, the office, the garden, the toolbox, sports or art.
The asker replies with one yes-or-no question, such as "Is it made of metal?", or a guess, such as "Is it a bridge?", \
which the game answers.
The answerer replies with one of: {answers}.
Both are paid 1 if the object is found, less {cost} for each question and wrong guess before; 0 if it is not found. \
An answer that is false costs the answerer {penalty:g}."""


class TwentyQuestionsDuetOptions(TalkOptions):
    """``env_config`` of TwentyQuestionsDuet."""

    max_turns: int | None = option(
        QUESTIONS, "Questions, guesses included, and as many answers; null is no limit.", ge=1
    )
    false_answer_penalty: float = option(0.1, "What a false answer costs the answerer.", ge=0)


class TwentyQuestionsDuet(TalkGame):
    """Find the object by yes-or-no questions that another player answers.

    Observation: of the asker the answers since its last question; of the answerer the object and the question.
    Action: of the asker a yes-or-no question or a guess, read as in TwentyQuestions; of the answerer ``yes``, ``no``,
        ``it depends`` or ``I don't know``, nothing else, so that it can tell nothing beside. Guesses are answered by
        the game.
    Reward: at the end, for both, ``1 - n / 20`` if the object is found after ``n`` questions and wrong guesses, 0 if it
        is not. (It is the return of TwentyQuestions, which is that of LMRL-Gym, scaled to 0 to 1.) The answerer pays
        0.1 for each false answer: "yes" or "no" where TwentyQuestions' table, as far as it understands the question,
        says the opposite. -0.1 for an invalid reply, to the offender alone; three in a row forfeit: not found. Success,
        of both, is that the object is found.
    Horizon: 20 questions and as many answers; then the game ends (``terminated``).
    Agents: ``asker``, who begins, and ``answerer``; roles of the same names. The game is cooperative.
    Levels: the 158 objects of TwentyQuestions, each in the split it has there.
    Measures: ``questions`` asked; ``false_answer_rate`` and ``evasion_rate`` ("it depends" or "I don't know" where the
        table knows) among the answers the table can check; ``checked_rate``, their share of all answers.
    Expert: the asker is TwentyQuestions' solver, the answerer its table.
    """

    variants = (Variant("lmgame/TwentyQuestionsDuet-v0", (-2.0, 1.0)),)
    Options: ClassVar[type[TextAECOptions]] = TwentyQuestionsDuetOptions
    options: TwentyQuestionsDuetOptions
    cooperative: ClassVar[bool] = True
    seats: ClassVar[Mapping[str, str]] = {ASKER: ASKER, ANSWERER: ANSWERER}
    names: ClassVar[Mapping[str, str]] = {ASKER: "Asker", ANSWERER: "Answerer"}

    def __init__(self, render_mode: str | None = None, **env_config: Any) -> None:
        super().__init__(render_mode, **env_config)
        self._table = object_table()

    @property
    def rules(self) -> str:
        return RULES.format(
            answers=", ".join(REPLIES), cost=f"1/{self._most}", penalty=self.options.false_answer_penalty
        )

    def levels(self, rng: random.Random) -> Iterator[int]:
        while True:
            yield rng.randrange(len(self._table.objects))

    def level_key(self, level: int) -> str:
        return f"{TwentyQuestions.title} {self._table.objects[level]}"

    def start(self) -> None:
        self.start_talk()
        self._meant: int = self.level
        self._exchanges: list[Exchange] = []
        self._question: str | None = None
        self._false = self._evaded = self._checked = 0

    def player_to_move(self) -> str:
        return ASKER if self._question is None else ANSWERER

    def view(self, agent: str) -> str:
        name = self._table.objects[self._meant]
        if agent == ANSWERER:
            state = f"You are the answerer. The object is {with_article(name)}."
        else:
            state = "You are the asker." + ("" if self.talk.events else " No questions yet.")
        over = f"The object was {with_article(name)}." if self._over() else ""
        return "\n".join(part for part in (state, self.heard(agent), over) if part)

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        """For the asker the questions the table answers and all guesses; any other question may be asked too."""
        if self.finished or agent != self.player_to_move():
            return ()
        return listed_questions() if agent == ASKER else tuple(REPLIES)

    def read_move(self, text: str) -> str:
        if self.player_to_move() == ASKER:
            return read_question(self._table, text)
        said = " ".join(text.lower().replace("\u2019", "'").split()).strip(' .!"`')
        reply = SPELLINGS.get(said, said)
        if reply not in REPLIES:
            raise InvalidAction(f"reply with one of {', '.join(REPLIES)}, and nothing else.")
        return reply

    def play_move(self, agent: str, move: str) -> None:
        if agent == ASKER:
            self.talk.say(agent, move.rstrip(" ?.!") + "?")
            guess = self._table.guess(move)
            if guess is None:
                self._question = move
            else:
                self._note(Exchange(move, guess, None, ANSWERS[YES if guess == self._meant else NO]))
        elif self._question is not None:
            asked = self._table.asked(self._question)
            exchange = Exchange(self._question, None, asked, REPLIES[move])
            self._question = None
            self._check(exchange)
            self._note(exchange)
            self.talk.moved(agent)

    def _note(self, exchange: Exchange) -> None:
        self._exchanges.append(exchange)
        what = "the guess" if exchange.guess is not None else "the question"
        self.talk.announce(f"Answer to {what}, number {len(self._exchanges)}: {exchange.answer}")

    def _check(self, exchange: Exchange) -> None:
        """Set the answer against the table."""
        if exchange.asked is None:
            return
        truth = int(exchange.asked.answers(self._table.values)[self._meant])
        self._checked += 1
        if truth == DEPENDS:
            return
        self._false += DEFINITE.get(exchange.answer) == truth
        self._evaded += exchange.answer not in DEFINITE

    @property
    def found(self) -> bool:
        """The last guess was right."""
        return bool(self._exchanges) and self._exchanges[-1].guess == self._meant

    @property
    def finished(self) -> bool:
        return self.found

    def results(self) -> dict[str, float]:
        shared = max(0.0, 1.0 - (len(self._exchanges) - 1) / self._most) if self.found else 0.0
        return {ASKER: shared, ANSWERER: shared - self.options.false_answer_penalty * self._false}

    def cut_results(self) -> dict[str, float]:
        return self.results()

    def forfeit_results(self, agent: str) -> dict[str, float]:
        return self.results()

    def won(self, agent: str, results: Mapping[str, float]) -> bool:
        return self.found

    def measures(self, agent: str) -> dict[str, float]:
        answers = sum(exchange.guess is None for exchange in self._exchanges)
        found = {"questions": float(len(self._exchanges))}
        if answers:
            found["checked_rate"] = self._checked / answers
        if self._checked:
            found["false_answer_rate"] = self._false / self._checked
            found["evasion_rate"] = self._evaded / self._checked
        return found

    def expert_action(self, agent: str) -> str | None:
        if self.finished or agent != self.player_to_move():
            return None
        if agent == ASKER:
            asked = {exchange.asked for exchange in self._exchanges}
            return best_question(self._table, still_possible(self._table, self._exchanges), asked)
        asked_for = self._table.asked(self._question or "")
        if asked_for is None:
            return "I don't know"
        truth = ANSWERS[int(asked_for.answers(self._table.values)[self._meant])]
        return next(reply for reply, answer in REPLIES.items() if answer == truth)

    @property
    def _most(self) -> int:
        return self.options.max_turns or QUESTIONS
