"""What stories are made of: people, things, numbers and steps of one calculation each."""

from __future__ import annotations

import random
from dataclasses import dataclass
from fractions import Fraction

from rllib_lmgame.envs.support.answers import number_text

WOMEN = (
    "Ada",
    "Amina",
    "Beatriz",
    "Chloe",
    "Dalia",
    "Elif",
    "Freya",
    "Hana",
    "Ines",
    "Jana",
    "Keiko",
    "Leila",
    "Mei",
    "Nadia",
    "Olga",
    "Priya",
)
MEN = (
    "Ahmed",
    "Boris",
    "Carlos",
    "Daniel",
    "Emeka",
    "Felix",
    "Gustav",
    "Hugo",
    "Ivan",
    "Jonas",
    "Kofi",
    "Luca",
    "Marek",
    "Nils",
    "Omar",
    "Pavel",
)


@dataclass(frozen=True)
class Step:
    """One fact of a story and the calculation it allows.

    Attributes:
        fact: Sentence(s) that give the numbers.
        working: The calculation as a sentence.
        value: Its result.
        question: What to ask if the story ends here.
    """

    fact: str
    working: str
    value: Fraction
    question: str


@dataclass(frozen=True)
class Person:
    """Somebody in a story."""

    name: str
    he: str
    his: str


class Teller:
    """Draws the people, things and numbers of a story."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def people(self, count: int) -> list[Person]:
        """Different people."""
        cast = [Person(name, "she", "her") for name in WOMEN] + [Person(name, "he", "his") for name in MEN]
        return self.rng.sample(cast, count)

    def pick(self, choices: tuple[str, ...]) -> str:
        return self.rng.choice(choices)

    def number(self, low: int, high: int, step: int = 1) -> int:
        """A number from ``low`` to ``high`` in steps."""
        return self.rng.randrange(low, high + 1, step)

    def cents(self, low: int, high: int) -> Fraction:
        """An amount of money between ``low`` and ``high``, a multiple of 5 cents."""
        return Fraction(self.rng.randint(20 * low, 20 * high), 20)

    def leaving(self, total: Fraction | int, divisor: int, most: int) -> int:
        """A number up to about ``most`` that, taken away from ``total``, leaves a positive multiple of ``divisor``."""
        first = int(total) % divisor or divisor
        last = max(first, min(most, int(total) - divisor))
        return self.rng.randrange(first, last + 1, divisor)


def step(fact: str, left: Fraction | int, sign: str, right: Fraction | int, so: str, question: str) -> Step:
    """A step whose calculation is ``left sign right``; ``so`` is the sentence around it, with ``{sum}`` in its
    place.
    """
    a, b = Fraction(left), Fraction(right)
    value = {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else a}[sign]
    return Step(
        fact, so.format(sum=f"{number_text(a)} {sign} {number_text(b)} = {number_text(value)}"), value, question
    )


def money(amount: Fraction | int) -> str:
    """``$12`` or ``$12.50``."""
    amount = Fraction(amount)
    return f"${int(amount):,}" if amount.denominator == 1 else f"${float(amount):,.2f}"
