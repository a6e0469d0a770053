"""MathProblems: published sets of problems of mathematics, or problems made up here."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import ClassVar

from rllib_lmgame.base.group import option
from rllib_lmgame.base.trust import is_data_set
from rllib_lmgame.envs.contract.base import InvalidAction, TextGameOptions, Variant
from rllib_lmgame.envs.games.mathematics.gsm8k import MISS
from rllib_lmgame.envs.games.mathematics.math_problems.loader import MathProblem, load_problems
from rllib_lmgame.envs.support.answers import TAIL
from rllib_lmgame.envs.support.mathematics.results import Answer, is_worked_out, read_answer, same_answer
from rllib_lmgame.envs.support.published import PublishedLevels
from rllib_lmgame.envs.support.replies import AnswerGame
from rllib_lmgame.envs.synthetic.math_problems import made_problem

RULES = """You solve problems of mathematics. Think, then reply with the final answer alone, worked out, in plain text \
or LaTeX: a number, an expression, a point, a set, an interval, a matrix, an equation, or the letter of a choice.
You have {tries}. The right answer gives 1."""


class MathProblemsOptions(TextGameOptions):
    """``env_config`` of MathProblems."""

    max_turns: int = option(1, "Tries.", ge=1)
    data: str | None = option(
        None,
        "File of problems, or `data:math500`, `data:amc23`, `data:aime24`, `data:aime25`, `data:minerva`, "
        "`data:gsm8k`; null plays problems made up here.",
        path=True,
        stranger=is_data_set,
    )
    tolerance: float = option(
        0.0, "Relative error that a number may have; 0 compares exactly (`minerva` is scored with 0.01).", ge=0, le=0.1
    )
    worked_out: bool = option(
        True, "Where the answer is a plain number, a reply that leaves sums, products or powers to be done is invalid."
    )


class MathProblems(PublishedLevels, AnswerGame):
    """Problems of mathematics with answers of any kind, made up or from a published set.

    Observation: the problem; after a miss ``Incorrect. Please think again.``
    Action: the answer, in plain text or LaTeX; of a longer reply, what stands in its last ``\\boxed{}``, behind
        ``####`` or *the answer is*. What is compared is the mathematics, exactly: numbers, fractions, roots,
        expressions, tuples, sets, intervals and conditions, matrices, equations, units (converted where both name one),
        percent, bases, letters A-J, words.
    Reward: 1 for the right answer at any try, else 0; -0.1 for a reply that holds none.
    Horizon: one try by default; the last one ends the game (``terminated``).
    Levels: 14 families made up here, one for each kind of answer. With ``data``, the problems of a file (JSON or
        Parquet): ``problem`` or ``question``, ``answer`` or ``solution`` (with ``\\boxed{}``), perhaps ``options``. The
        publisher's split is kept. In a file without one the hash of the question decides; ``split: all`` plays it all.
    Solver: knows the answer; what it thinks is the data set's worked solution.
    """

    variants = (Variant("lmgame/MathProblems-v0", (-0.1, 1.0)),)
    Options: ClassVar[type[TextGameOptions]] = MathProblemsOptions
    rules_text = RULES
    options: MathProblemsOptions

    def __init__(self, render_mode: str | None = None, **env_config: object) -> None:
        super().__init__(render_mode, **env_config)
        self._file = tuple(problem for file in self.published.files for problem in load_problems(file))
        self._tolerance = Fraction(self.options.tolerance)
        self.check_split()

    @property
    def success(self) -> bool:
        return self._solved

    @property
    def solution(self) -> str:
        """The worked solution of this level, where its data set has one."""
        return self._problem.solution

    @property
    def listed(self) -> Sequence[MathProblem]:
        return self._file

    def made_up(self, rng: random.Random) -> Iterator[MathProblem]:
        while True:
            question, answer = made_problem(rng)
            yield MathProblem(question, read_answer(answer), answer)

    def level_key(self, level: MathProblem) -> str:
        return f"math_problems {level.question}"

    def category(self, level: MathProblem) -> str:
        return level.subject

    def start(self, level: MathProblem) -> None:
        self._problem = level
        self._solved = self._missed = False

    def board(self) -> str:
        if self._solved:
            return "Correct."
        return MISS if self._missed else self._problem.question

    def read_move(self, text: str) -> Answer:
        answer = read_answer(text)
        asked = self.options.worked_out and is_worked_out(self._problem.gold)
        if asked and not is_worked_out(answer, concluded=True):
            raise InvalidAction("the answer is not worked out; give the result.")
        return answer

    def play_move(self, move: Answer) -> float:
        gold, choice = self._problem.gold, self._problem.choice
        self._solved = same_answer(move, gold, self._tolerance) or (
            choice is not None and same_answer(move, choice, self._tolerance)
        )
        self._missed = not self._solved
        return 1.0 if self._solved else 0.0

    def expert_thought(self) -> str | None:
        return self.solution.rsplit(TAIL, 1)[0].strip() or None

    def solve(self) -> list[str] | None:
        return [self._problem.answer]
