"""Solutions of problems: each reads a reply of its kind and says whether it is right.

What a solution tells a player who cannot be understood never holds a digit, so it cannot hold the answer.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from rllib_lmgame.envs.contract.base import InvalidAction
from rllib_lmgame.envs.games.mathematics.math_reasoning.expressions import (
    MAX_LENGTH,
    Expression,
    equal,
    plain_text,
    read_expression,
)
from rllib_lmgame.envs.support.answers import number_text, read_number
from rllib_lmgame.envs.support.mathematics.results import numbers_of, read_answer

MAX_PARTS = 8
OR = re.compile(r"\s*(?:\bor\b|\band\b|[,;\n|])\s*", re.IGNORECASE)


class Solution(ABC):
    """What is asked for."""

    @property
    @abstractmethod
    def text(self) -> str:
        """The solution as a player would type it."""

    @abstractmethod
    def is_right(self, reply: str) -> bool:
        """Whether ``reply`` gives this solution, in whatever form.

        Raises:
            InvalidAction: if it gives no solution of this kind.
        """


@dataclass(frozen=True)
class Number(Solution):
    """One number."""

    value: Fraction

    @property
    def text(self) -> str:
        return number_text(self.value)

    def is_right(self, reply: str) -> bool:
        return read_number(reply) == self.value


@dataclass(frozen=True)
class Formula(Solution):
    """An expression in variables.

    Attributes:
        formula: The expression asked for.
        variables: Its variables.
        factored: It must be written as a product of factors of the first degree; else as a sum with no more
            terms than ``formula``.
    """

    formula: str
    variables: str = "x"
    factored: bool = False

    @property
    def text(self) -> str:
        return self.formula

    def is_right(self, reply: str) -> bool:
        expected = _expression(self.formula, self.variables)
        given = read_expression(plain_text(reply).rpartition("=")[2], self.variables)
        if self.factored and given.sum_degree > 1:
            raise InvalidAction("the answer is not written as a product of factors.")
        if not self.factored and not (given.multiplied_out and given.terms <= expected.terms):
            raise InvalidAction("the answer is not multiplied out and collected.")
        return equal(given, expected)


@dataclass(frozen=True)
class Roots(Solution):
    """All solutions of an equation in one variable."""

    roots: tuple[str, ...]
    variable: str = "x"

    @property
    def text(self) -> str:
        return " or ".join(f"{self.variable} = {root}" for root in self.roots)

    def is_right(self, reply: str) -> bool:
        given = self._read(reply)
        expected = [_expression(root, "") for root in self.roots]
        return _covers(given, expected) and _covers(expected, given)

    def _read(self, reply: str) -> list[Expression]:
        plain = plain_text(reply)
        listed = re.fullmatch(rf"(?:{self.variable}\s*(?:=|\bin\b)\s*)?\{{([^{{}}]*)\}}", plain)
        parts = [part for part in OR.split(listed[1] if listed else plain) if part]
        if not 0 < len(parts) <= MAX_PARTS:
            raise InvalidAction(f"give all solutions, like {self.variable} = a or {self.variable} = b.")
        return [root for part in parts for root in self._values(part)]

    def _values(self, part: str) -> list[Expression]:
        text = _after_equals(part, self.variable)
        if text.count("±") > 1:
            raise InvalidAction("only one ± per solution is allowed.")
        signs = ("+", "-") if "±" in text else ("",)
        return [read_expression(text.replace("±", sign), "") for sign in signs]


@dataclass(frozen=True)
class Values(Solution):
    """The solution of a system: a value for every variable."""

    values: tuple[tuple[str, Fraction], ...]

    @property
    def text(self) -> str:
        return ", ".join(f"{name} = {number_text(value)}" for name, value in self.values)

    def is_right(self, reply: str) -> bool:
        names = [name for name, _ in self.values]
        plain = re.sub(r"^\(\s*" + r"\s*,\s*".join(names) + r"\s*\)\s*=", "", plain_text(reply))  # (x, y) = (2, 3)
        parts = [part for part in OR.split(plain) if part]
        if len(parts) != len(names):
            raise InvalidAction(f"give a value for each of {', '.join(names)}, like {names[0]} = a, {names[1]} = b.")
        if not any("=" in part for part in parts):
            parts[0], parts[-1] = parts[0].strip().removeprefix("("), parts[-1].strip().removesuffix(")")
            parts = [f"{name} = {part}" for name, part in zip(names, parts, strict=True)]
        given: dict[str, Expression] = {}
        for part in parts:
            name = next((name for name in names if re.search(rf"\b{name}\s*=", part)), "")
            if not name or name in given:
                raise InvalidAction(f"give each of {', '.join(names)} once.")
            given[name] = read_expression(_after_equals(part, name), "")
        return all(equal(given[name], _expression(number_text(value), "")) for name, value in self.values)


@dataclass(frozen=True)
class Range(Solution):
    """The solution of an inequality: a set of numbers, written with comparisons or as intervals."""

    condition: str
    variable: str = "x"

    @property
    def text(self) -> str:
        return self.condition

    def is_right(self, reply: str) -> bool:
        if len(reply) > MAX_LENGTH:
            raise InvalidAction("the answer is too long; give the result alone.")
        plain = re.sub(r"\|+", " or ", re.sub(rf"^\s*{self.variable}\s+in\b", "", reply))
        plain = re.sub(r"\binf(?:inity)?\b", "∞", plain, flags=re.IGNORECASE)
        given = None if re.search(rf"\b(?!{self.variable})[a-zA-Z]\b", plain) else numbers_of(read_answer(plain))
        if given is None:
            raise InvalidAction(f"give the solutions like {self.variable} < a, or a < {self.variable} <= b.")
        return given == numbers_of(read_answer(self.condition))


def _covers(these: list[Expression], those: list[Expression]) -> bool:
    return all(any(equal(one, other) for one in these) for other in those)


@lru_cache(maxsize=1024)
def _expression(text: str, variables: str) -> Expression:
    """An expression of our own."""
    return read_expression(text, variables)


def _after_equals(part: str, variable: str) -> str:
    """The value in ``x = value``, ``x_1 = value`` or a bare ``value``; words may stand before the variable."""
    if "=" not in part:
        return part
    match = re.match(rf"([^=0-9+*/^()]*?)(?<![0-9a-zA-Z]){variable}(?:_?\{{?[0-9]\}}?)?\s*=([^=]*)$", part)
    if match is None:
        raise InvalidAction(f"write {variable} alone on the left and its value on the right.")
    return match[2]
