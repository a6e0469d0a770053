"""MathReasoning: equations, inequalities, percentages and word problems, checked exactly."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import ClassVar

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.base.trust import is_name
from rllib_lmgame.envs.contract.base import TextGameOptions, Variant
from rllib_lmgame.envs.games.mathematics.math_reasoning.problems import (
    HINTS,
    MAKERS,
    MAX_LEVEL,
    MIXED,
    Problem,
    make_problem,
)
from rllib_lmgame.envs.support.replies import AnswerGame

RULES = """You solve problems of mathematics. Reply with the result alone, worked out:
- a number (17, -2.5, 3/4);
- the solutions of an equation (x = 2 or x = -3), of a system (x = 2, y = 5), of an inequality (x < 3; -1 <= x < 4; \
x < 0 or x > 7);
- an expression (2x^2 - 3x + 1).
Powers are written ^, roots sqrt(). You have {tries}. The right result gives 1."""


class MathReasoningOptions(TextGameOptions):
    """``env_config`` of MathReasoning."""

    max_turns: int = option(3, "Tries.", ge=1, le=3)
    difficulty: tuple[int, int] = option((1, 3), "Easiest and hardest level of the problems.", ge=1, le=MAX_LEVEL)
    families: tuple[str, ...] = option(
        (), "Kinds of problems; empty for all but one_step.", choices=tuple(MAKERS), stranger=is_name
    )


class MathReasoning(AnswerGame):
    """Arithmetic, algebra and word problems, checked exactly.

    Observation: the problem; after a miss also a way to check a result, which is the same for all problems of a kind
        and tells nothing of the answer.
    Action: a number, an expression, the solutions of an equation, a system or an inequality, in plain text or simple
        LaTeX. What is compared is the mathematics, exactly: ``1/2`` is ``0.5``, ``2*(x+1)`` is ``2x+2``, ``sqrt(8)`` is
        ``2*sqrt(2)``, ``[1, 3)`` is ``1 <= x < 3``. A restatement of the problem is no answer: numbers must be worked
        out, expressions collected (or factored), unknowns stand alone.
    Reward: 1 for the right result at any try, else 0; -0.1 for a reply that cannot be read.
    Horizon: three tries; the last one ends the game (``terminated``).
    Levels: eight families (arithmetic, linear and quadratic equations, inequalities, systems, percentages, expressions,
        word problems) of five levels of difficulty, made from their solutions, so that each has one. A
        ninth, ``one_step`` (one sum, difference or product), is played where ``families`` names it.
    Solver: knows the answer.
    """

    variants = (Variant("lmgame/MathReasoning-v0", (-0.3, 1.0)),)
    Options: ClassVar[type[TextGameOptions]] = MathReasoningOptions
    rules_text = RULES
    options: MathReasoningOptions

    def __init__(self, render_mode: str | None = None, **env_config: object) -> None:
        super().__init__(render_mode, **env_config)
        low, high = self.options.difficulty
        if low > high:
            raise ConfigError("env_config.difficulty", f"must have the smaller number first, got [{low}, {high}]")

    @property
    def success(self) -> bool:
        return self._solved

    def levels(self, rng: random.Random) -> Iterator[tuple[str, Problem]]:
        families = self.options.families or MIXED
        while True:
            family = rng.choice(families)
            yield family, make_problem(rng, family, rng.randint(*self.options.difficulty))

    def level_key(self, level: tuple[str, Problem]) -> str:
        return f"math {level[1].question}"

    def start(self, level: tuple[str, Problem]) -> None:
        self._family, self._problem = level
        self._solved = self._missed = False

    def board(self) -> str:
        if self._solved:
            return "Correct."
        return (
            f"That is not right. {HINTS[self._family]}\n{self._problem.question}"
            if self._missed
            else self._problem.question
        )

    def read_move(self, text: str) -> bool:
        """Whether the reply is right: what a reply says depends on what is asked for."""
        return self._problem.solution.is_right(text)

    def play_move(self, move: bool) -> float:
        self._solved, self._missed = move, not move
        return 1.0 if move else 0.0

    def solve(self) -> list[str] | None:
        return [self._problem.solution.text]
