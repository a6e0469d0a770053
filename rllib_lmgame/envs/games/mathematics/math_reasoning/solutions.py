"""Solutions of problems: each reads a reply of its kind and says whether it is right.

What a solution tells a player who cannot be understood never holds a digit, so it cannot hold the answer.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from rllib_lmgame.envs.contract.base import InvalidAction
from rllib_lmgame.envs.games.mathematics.math_reasoning.expressions import (
    Expression,
    equal,
    plain_text,
    read_expression,
    sympy_module,
)
from rllib_lmgame.envs.support.answers import number_text, read_number

MAX_PARTS = 8
OR = re.compile(r"\s*(?:\bor\b|\band\b|[,;\n|])\s*", re.IGNORECASE)
RELATION = re.compile(r"(<=|>=|=<|=>|<|>)")


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
        return bool(_numbers_that(plain_text(reply), self.variable) == _numbers_that(self.condition, self.variable))


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


def _numbers_that(text: str, variable: str) -> Any:
    """The set of real numbers that a condition or a union of intervals describes, as a sympy set."""
    sympy = sympy_module()
    parts = [
        part
        for part in re.split(r"\bor\b|\|", re.sub(rf"^\s*{variable}\s+in\b", "", text), flags=re.IGNORECASE)
        if part.strip()
    ]
    if not 0 < len(parts) <= MAX_PARTS:
        raise InvalidAction(f"give the solutions like {variable} < a, or a < {variable} <= b.")
    intervals = [_interval(part, variable) for part in parts]
    return sympy.Union(
        *(
            _condition(part, variable) if interval is None else interval
            for part, interval in zip(parts, intervals, strict=True)
        )
    )


def _interval(text: str, variable: str) -> Any:
    """The interval that ``text`` is, or ``None`` if it is written in another way."""
    text = re.sub(rf"^\s*{variable}\s+in\b", "", text).strip()
    if text[:1] not in ("(", "[") or text[-1:] not in (")", "]") or RELATION.search(text):
        return None
    ends = re.split("[,;]", text[1:-1])
    if len(ends) != 2:
        raise InvalidAction("an interval has two ends.")
    low, high = (_end(end) for end in ends)
    return sympy_module().Interval(low, high, left_open=text[0] == "(", right_open=text[-1] == ")")


def _end(text: str) -> Any:
    sympy = sympy_module()
    name = text.strip().lower().removeprefix("+")
    if name.lstrip("-") in ("oo", "inf", "infinity"):
        return -sympy.oo if name.startswith("-") else sympy.oo
    return _bound(text)


def _bound(text: str) -> Any:
    """A rational number."""
    value = read_expression(text, "").value
    if not value.is_Rational:
        raise InvalidAction("a bound must be a whole number, a decimal or a fraction.")
    return value


def _condition(text: str, variable: str) -> Any:
    """Numbers that meet all comparisons joined by ``and`` or commas; each is ``x < a`` or a chain ``a < x <= b``."""
    sympy = sympy_module()
    found = sympy.S.Reals
    parts = re.split(r"\band\b|,|;", text, flags=re.IGNORECASE)
    if len(parts) > MAX_PARTS:
        raise InvalidAction("there are too many conditions.")
    for part in parts:
        sides = RELATION.split(part)
        if len(sides) not in (3, 5):
            raise InvalidAction(f"give the solutions like {variable} < a, or a < {variable} <= b.")
        for left, relation, right in zip(sides[::2], sides[1::2], sides[2::2], strict=False):
            found = found.intersect(_half_line(left.strip(), relation, right.strip(), variable))
    return found


def _half_line(left: str, relation: str, right: str, variable: str) -> Any:
    """Numbers on one side of a bound."""
    sympy = sympy_module()
    if (left == variable) == (right == variable):
        raise InvalidAction(f"write {variable} alone on one side of each comparison.")
    below = ("<" in relation) == (left == variable)
    bound = _bound(right if left == variable else left)
    strict = "=" not in relation
    return (
        sympy.Interval(-sympy.oo, bound, right_open=strict)
        if below
        else sympy.Interval(bound, sympy.oo, left_open=strict)
    )
