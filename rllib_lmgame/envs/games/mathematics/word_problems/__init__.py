"""Made-up word problems with worked solutions.

A problem is a story told up to a number of calculations: every step of a story adds one fact and one calculation, and
could be the last one asked for.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice

from rllib_lmgame.envs.games.mathematics.word_problems.counting import (
    ages,
    bus,
    collections,
    match,
    reading,
    road_trip,
    shelter,
    tank,
    temperature,
)
from rllib_lmgame.envs.games.mathematics.word_problems.selling import (
    bakery,
    eggs,
    factory,
    garden,
    painting,
    sale,
    savings,
    shopping,
    theatre,
)
from rllib_lmgame.envs.games.mathematics.word_problems.teller import Step, Teller
from rllib_lmgame.envs.support.answers import TAIL, number_text

MAX_STEPS = 5

SELLING = (bakery, eggs, savings, shopping, garden, factory, painting, theatre, sale)
COUNTING = (reading, bus, road_trip, collections, temperature, ages, tank, match, shelter)
FAMILIES: dict[str, Callable[[Teller], Iterator[Step]]] = {story.__name__: story for story in (*SELLING, *COUNTING)}
"""Stories by name."""


@dataclass(frozen=True)
class WordProblem:
    """A question with its answer.

    Attributes:
        question: What the player reads.
        solution: The calculations, one a line, then ``#### answer``.
        answer: The number asked for.
    """

    question: str
    solution: str
    answer: Fraction


def word_problem(rng: random.Random, family: str, steps: int) -> WordProblem:
    """A problem of ``family`` that takes ``steps`` calculations (1 to ``MAX_STEPS``)."""
    told = list(islice(FAMILIES[family](Teller(rng)), steps))
    answer = told[-1].value
    lines = [*(step.working for step in told), f"{TAIL} {number_text(answer)}"]
    return WordProblem(" ".join([*(step.fact for step in told), told[-1].question]), "\n".join(lines), answer)
