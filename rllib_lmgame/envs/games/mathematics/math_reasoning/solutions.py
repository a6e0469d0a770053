"""Solutions of problems: each reads a reply of its kind and says whether it is right.

What a solution tells a player who cannot be understood never holds a digit, so it cannot hold the answer.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from rllib_lmgame.envs.contract.base import InvalidAction
from rllib_lmgame.envs.support.answers import number_text, read_number
from rllib_lmgame.envs.support.mathematics import formulas
from rllib_lmgame.envs.support.mathematics.reading import final_answer
from rllib_lmgame.envs.support.mathematics.results import Items, Quantity, Relation, numbers_of, read_answer
from rllib_lmgame.envs.support.mathematics.shape import shape_of

MAX_LENGTH, MAX_PARTS = 300, 8


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
    """A polynomial.

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
        expected = formulas.read_formula(self.formula)
        for (result,) in _readings(reply, self.variables, most=1):
            given = result.sides[-1] if isinstance(result, Relation) else getattr(result, "formula", None)
            if given is None or not given.names <= set(self.variables):
                continue
            try:
                shape, same = shape_of(given.node), formulas.same_formula(given, expected)
            except formulas.UnreadableError:
                continue
            if self.factored and shape.sum_degree > 1:
                raise InvalidAction("the answer is not written as a product of factors.")
            if not self.factored and not (shape.multiplied_out and shape.terms <= shape_of(expected.node).terms):
                raise InvalidAction("the answer is not multiplied out and collected.")
            return same
        raise InvalidAction(f"give an expression in {self.variables}, worked out.")


@dataclass(frozen=True)
class Roots(Solution):
    """All solutions of an equation in one variable."""

    roots: tuple[str, ...]
    variable: str = "x"

    @property
    def text(self) -> str:
        return " or ".join(f"{self.variable} = {root}" for root in self.roots)

    def is_right(self, reply: str) -> bool:
        expected = [formulas.value_of(formulas.read_formula(root)) for root in self.roots]
        for results in _readings(reply, self.variable):
            values = [value for result in results for _, value in _value(result, self.variable)]
            if len(values) == len(results):
                return _covers(values, expected) and _covers(expected, values)
        raise InvalidAction(f"give all solutions, like {self.variable} = a or {self.variable} = b.")


@dataclass(frozen=True)
class Values(Solution):
    """The solution of a system: a value for every variable."""

    values: tuple[tuple[str, Fraction], ...]

    @property
    def text(self) -> str:
        return ", ".join(f"{name} = {number_text(value)}" for name, value in self.values)

    def is_right(self, reply: str) -> bool:
        names = [name for name, _ in self.values]
        for results in _readings(reply, "".join(names)):
            pairs = [pair for result in results for pair in _value(result, *names)]
            if not any(name for name, _ in pairs):
                pairs = list(zip(names, (value for _, value in pairs), strict=False))
            given = dict(pairs)
            if len(given) == len(results) == len(names) and "" not in given:
                return all(formulas.close(given[name], value) for name, value in self.values)
        raise InvalidAction(f"give each of {', '.join(names)} once, like {names[0]} = a, {names[1]} = b.")


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


def _readings(reply: str, variables: str, most: int = MAX_PARTS) -> Iterator[tuple[Any, ...]]:
    """The results of a reply, in each way that it can be read; lines and commas part them. Words before the first
    ``x =`` are passed over.
    """
    said = final_answer(reply)
    if len(said) > MAX_LENGTH:
        raise InvalidAction("the answer is too long; give the result alone.")
    said = re.sub(r"\s*\n\s*", ", ", said.strip())
    said = re.sub(rf"^[a-zA-Z ,:]*?\b(?=[{variables}](?:_\{{?[0-9]\}}?)?\s*=)", "", said)
    for reading in read_answer(said).readings:
        results = reading.items if isinstance(reading, Items) else (reading,)
        if 0 < len(results) <= most:
            yield results


def _value(result: Any, *names: str) -> Iterator[tuple[str, Any]]:
    """The number in ``x = 2`` or ``x_1 = 2``, with its name, or in ``2``; nothing if the result is none of these."""
    name, formula = "", None
    if isinstance(result, Relation) and result.signs == ("=",) and result.sides[0].node[0] == "name":
        name, formula = result.sides[0].node[1].partition("_")[0], result.sides[1]
    elif isinstance(result, Quantity) and result.unit is None and not result.percent:
        formula = result.formula
    if formula is not None and formula.is_number and name in ("", *names):
        try:
            yield name, formulas.value_of(formula)
        except formulas.UnreadableError:
            return


def _covers(these: list[Any], those: list[Any]) -> bool:
    return all(any(formulas.close(one, other) for one in these) for other in those)
