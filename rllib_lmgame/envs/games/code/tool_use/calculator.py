"""A calculator for texts: exact arithmetic with its own parser, bounded in length, depth and size of numbers."""

from __future__ import annotations

import re
from fractions import Fraction

MAX_LENGTH = 300
MAX_DEPTH = 30
MAX_BITS = 2_000
MAX_EXPONENT = 512
TOKEN = re.compile(r"\s*(?:(\d{1,60}(?:\.\d{1,30})?)|(\*\*|//|[-+*/%()]))", re.ASCII)


class CalculatorError(Exception):
    """What is wrong with an expression."""


def calculate(expression: str) -> str:
    """Value of an expression of numbers, ``+ - * / // % **`` and parentheses, with Python's precedence; whole numbers
    exactly, others to twelve significant digits.

    Raises: CalculatorError: for anything else, division by zero, and numbers beyond all reason.
    """
    if len(expression) > MAX_LENGTH:
        raise CalculatorError(f"the expression is longer than {MAX_LENGTH} characters")
    parser = _Parser(_tokens(expression))
    value = parser.sum(0)
    if parser.ahead is not None:
        raise CalculatorError(f"unexpected {parser.ahead!r}")
    if value.denominator == 1:
        return str(value.numerator)
    try:
        return f"{float(value):.12g}"
    except OverflowError as error:
        raise CalculatorError("the number is too large") from error


def _tokens(expression: str) -> list[str]:
    tokens, place = [], 0
    expression = expression.rstrip()
    while place < len(expression):
        match = TOKEN.match(expression, place)
        if match is None:
            raise CalculatorError(
                f"cannot read {expression[place : place + 10].strip()!r}; use numbers, + - * / // % ** and parentheses"
            )
        tokens.append(match[1] or match[2])
        place = match.end()
    return tokens


class _Parser:
    """Recursive descent, one method per level of precedence."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._place = 0

    @property
    def ahead(self) -> str | None:
        return self._tokens[self._place] if self._place < len(self._tokens) else None

    def take(self) -> str:
        token = self.ahead
        if token is None:
            raise CalculatorError("the expression ends too early")
        self._place += 1
        return token

    def sum(self, depth: int) -> Fraction:
        value = self.product(depth)
        while self.ahead in ("+", "-"):
            sign = 1 if self.take() == "+" else -1
            value = _bounded(value + sign * self.product(depth))
        return value

    def product(self, depth: int) -> Fraction:
        value = self.signed(depth)
        while self.ahead in ("*", "/", "//", "%"):
            value = _bounded(_divide_or_multiply(self.take(), value, self.signed(depth)))
        return value

    def signed(self, depth: int) -> Fraction:
        if depth > MAX_DEPTH:
            raise CalculatorError("too many parentheses or signs")
        if self.ahead in ("+", "-"):
            return self.signed(depth + 1) if self.take() == "+" else -self.signed(depth + 1)
        return self.power(depth)

    def power(self, depth: int) -> Fraction:
        base = self.atom(depth)
        if self.ahead != "**":
            return base
        self.take()
        return _power(base, self.signed(depth + 1))

    def atom(self, depth: int) -> Fraction:
        token = self.take()
        if token == "(":
            value = self.sum(depth + 1)
            if self.ahead != ")":
                raise CalculatorError("a parenthesis is not closed")
            self.take()
            return value
        if not token[0].isdigit():
            raise CalculatorError(f"unexpected {token!r}")
        return Fraction(token)


def _divide_or_multiply(operator: str, one: Fraction, other: Fraction) -> Fraction:
    if operator == "*":
        return one * other
    if other == 0:
        raise CalculatorError("division by zero")
    if operator == "/":
        return one / other
    return Fraction(one // other) if operator == "//" else one % other


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or abs(exponent) > MAX_EXPONENT:
        raise CalculatorError(f"the exponent must be a whole number up to {MAX_EXPONENT}")
    if base == 0 and exponent < 0:
        raise CalculatorError("division by zero")
    size = max(base.numerator.bit_length(), base.denominator.bit_length())
    if size * abs(exponent) > MAX_BITS:
        raise CalculatorError("the number is too large")
    return base ** int(exponent)


def _bounded(value: Fraction) -> Fraction:
    if value.numerator.bit_length() > MAX_BITS or value.denominator.bit_length() > MAX_BITS:
        raise CalculatorError("the number is too large")
    return value
