"""Expressions a player typed, read into sympy without ever evaluating text.

Sympy's own readers run Python's ``eval``. This one knows numbers, single-letter variables, ``+ - * / ^``, ``sqrt`` and
brackets, the common LaTeX spellings of these, and nothing else. What it builds is bounded in length, depth, digits,
degree and number of terms, so that comparing takes bounded time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from rllib_lmgame.envs.contract.base import InvalidAction

MAX_LENGTH = 300
MAX_DEPTH = 16
MAX_DIGITS = 12
MAX_EXPONENT = 12
MAX_TERMS = 128
"""Terms after multiplying out."""
MAX_BITS = 1024
"""Bits of the largest number that can come out."""

TOKEN = re.compile(
    r"\s*(?:(?P<number>[0-9]+(?:\.[0-9]+)?|\.[0-9]+)|(?P<name>\\?(?:sqrt|d?frac)|[a-zA-Z])|(?P<sign>\*\*|[-+*/^(){}]))"
)
SYMBOLS = {
    "−": "-", "–": "-", "·": "*", "×": "*", "÷": "/", "⁄": "/", "∕": "/", "√": " sqrt ", "²": "^2", "³": "^3",
    "½": "(1/2)", "¼": "(1/4)", "¾": "(3/4)",
    "≤": "<=", "≥": ">=", "∞": "oo", "∪": "|", "∨": " or ", "∧": " and ", "∈": " in ",
    "\u00a0": " ", "$": " ", "`": " ",
}  # fmt: skip
LATEX = {
    r"\cdot": "*", r"\times": "*", r"\div": "/", r"\left": "", r"\right": "", r"\pm": "±",
    r"\leq": "<=", r"\geq": ">=", r"\le": "<=", r"\ge": ">=", r"\lt": "<", r"\gt": ">", r"\infty": "oo",
    r"\cup": "|", r"\lor": " or ", r"\land": " and ", r"\vee": " or ", r"\wedge": " and ", r"\in": " in ",
    r"\{": "{", r"\}": "}",
    r"\(": " ", r"\)": " ", r"\[": " ", r"\]": " ", r"\,": " ", r"\;": " ", r"\quad": " ", r"\ ": " ",
}  # fmt: skip
SYMBOL = re.compile("|".join(map(re.escape, SYMBOLS)))
LATEX_TEXT = re.compile(r"\\(?:text|mathrm)\s?\{([^{}]*)\}")
LATEX_WORD = re.compile(r"\\(?:[a-zA-Z]+|.)")


@dataclass(frozen=True)
class Expression:
    """A sympy expression with what is known of how it was written.

    Attributes:
        value: The sympy expression.
        degree: Bound on its degree in all variables together.
        terms: Bound on its terms once multiplied out.
        bits: Bound on the size of its numbers.
        multiplied_out: It holds no product or power of sums.
        sum_degree: Largest degree of a sum in it.
    """

    value: Any
    degree: int = 0
    terms: int = 1
    bits: int = 1
    multiplied_out: bool = True
    sum_degree: int = 0


@cache
def sympy_module() -> Any:
    """Sympy, imported when it is first needed (0.3 s)."""
    import sympy

    return sympy


def plain_text(text: str) -> str:
    """``text`` with LaTeX and special characters spelled in ASCII.

    Raises:
        InvalidAction: if it is too long to be an answer.
    """
    if len(text) > MAX_LENGTH:
        raise InvalidAction("the answer is too long; give the result alone.")
    plain = SYMBOL.sub(lambda match: SYMBOLS[match[0]], LATEX_TEXT.sub(r"\1", text))
    plain = LATEX_WORD.sub(lambda match: LATEX.get(match[0], match[0]), plain)
    return plain.strip().rstrip(".").strip()


def read_expression(text: str, variables: str = "") -> Expression:
    """The expression ``text`` (from :func:`plain_text`) says, in these single-letter variables.

    Raises:
        InvalidAction: if it cannot be read, names another variable, divides by zero or would grow beyond the bounds.
    """
    return _Reader(text, variables).whole()


def equal(one: Expression, other: Expression) -> bool:
    """Whether two expressions are the same function: by expanding the difference, and for roots in
    denominators by 40 digits.
    """
    sympy = sympy_module()
    difference = sympy.expand(one.value - other.value)
    if difference.is_Rational:
        return bool(difference == 0)
    symbols = sorted(difference.free_symbols, key=str)
    coefficients = sympy.Poly(difference, *symbols).coeffs() if symbols else [difference]
    return all(_is_zero(coefficient) for coefficient in coefficients)


def _is_zero(number: Any) -> bool:
    if number.is_Rational:
        return bool(number == 0)
    size = abs(number.evalf(40))
    return bool(size.is_number and size.is_finite and size < sympy_module().Rational(1, 10**30))


def _checked(expression: Expression) -> Expression:
    if expression.degree > MAX_EXPONENT or expression.terms > MAX_TERMS or expression.bits > MAX_BITS:
        raise InvalidAction("the answer is too large an expression; give the result, worked out.")
    return expression


def _add(a: Expression, b: Expression, sign: int) -> Expression:
    degree = max(a.degree, b.degree)
    bits, out = max(a.bits, b.bits) + 1, a.multiplied_out and b.multiplied_out
    summed = Expression(
        a.value + sign * b.value, degree, a.terms + b.terms, bits, out, max(degree, a.sum_degree, b.sum_degree)
    )
    return _checked(summed)


def _product(a: Expression, b: Expression) -> Expression:
    out = a.multiplied_out and b.multiplied_out and not (a.terms > 1 and b.terms > 1)
    sizes = _checked(
        Expression(None, a.degree + b.degree, a.terms * b.terms, a.bits + b.bits, out, max(a.sum_degree, b.sum_degree))
    )
    return Expression(a.value * b.value, sizes.degree, sizes.terms, sizes.bits, out, sizes.sum_degree)


def _quotient(a: Expression, b: Expression) -> Expression:
    if b.degree:
        raise InvalidAction("the answer divides by a variable; give it without.")
    if b.value == 0:
        raise InvalidAction("the answer divides by zero.")
    return _product(a, Expression(1 / b.value, 0, b.terms, b.bits))


def _power(base: Expression, exponent: Expression) -> Expression:
    power = exponent.value
    if power == sympy_module().Rational(1, 2):
        return _root(base)
    if exponent.degree or not power.is_Integer or abs(power) > MAX_EXPONENT:
        raise InvalidAction("the answer has an exponent that is no small whole number.")
    count = abs(int(power))
    _checked(Expression(None, base.degree * count, base.terms**count, base.bits * max(1, count)))
    out = base.multiplied_out and (base.terms == 1 or count < 2)
    raised = Expression(
        base.value**count, base.degree * count, base.terms**count, base.bits * max(1, count), out, base.sum_degree
    )
    return raised if power >= 0 else _quotient(Expression(sympy_module().Integer(1)), raised)


def _root(inside: Expression) -> Expression:
    if not inside.value.is_Rational or inside.value < 0 or inside.bits > 64:
        raise InvalidAction("the answer has a root of something that is no small positive number.")
    return Expression(sympy_module().sqrt(inside.value), bits=inside.bits)


def _shown(token: str) -> str:
    """A token as a message may show it: never a number, which might be the answer."""
    return repr(token) if token.isascii() and not any(map(str.isdigit, token)) else "a number or sign"


class _Reader:
    """Recursive descent over the tokens of one expression."""

    def __init__(self, text: str, variables: str) -> None:
        self.variables = variables
        self.tokens = self._split(text)
        self.position = 0
        self.depth = 0

    def whole(self) -> Expression:
        if not self.tokens:
            raise InvalidAction("the answer is empty.")
        found = self._sum()
        if self.position < len(self.tokens):
            raise InvalidAction(f"the answer cannot be read at {_shown(self._next())}.")
        return found

    def _split(self, text: str) -> list[str]:
        tokens, position, end = [], 0, len(text.rstrip())
        while position < end:
            match = TOKEN.match(text, position)
            if match is None:
                raise InvalidAction(f"the answer cannot be read at {_shown(text[position:].strip()[:1])}.")
            token = match[0].strip().lstrip("\\")
            tokens.append("^" if token == "**" else token)
            position = match.end()
        return tokens

    def _next(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def _take(self) -> str:
        token = self._next()
        self.position += 1
        return token

    def _sum(self) -> Expression:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise InvalidAction("the answer has too many brackets.")
        found = self._products()
        while self._next() in ("+", "-"):
            sign = 1 if self._take() == "+" else -1
            found = _add(found, self._products(), sign)
        self.depth -= 1
        return found

    def _products(self) -> Expression:
        found = self._signed()
        while True:
            token = self._next()
            if token in ("*", "/"):
                self._take()
                right = self._signed()
                found = _product(found, right) if token == "*" else _quotient(found, right)
            elif token and (token in "({" or token.isalpha()):
                found = _product(found, self._powers())
            else:
                return found

    def _signed(self) -> Expression:
        sign = 1
        while self._next() in ("+", "-"):
            sign *= 1 if self._take() == "+" else -1
        found = self._powers()
        return (
            found
            if sign > 0
            else Expression(-found.value, found.degree, found.terms, found.bits, found.multiplied_out, found.sum_degree)
        )

    def _powers(self) -> Expression:
        base = self._atom()
        if self._next() != "^":
            return base
        self._take()
        negative = self._next() == "-"
        if negative:
            self._take()
        exponent = self._atom()
        if self._next() == "^":
            raise InvalidAction("the answer has a power of a power; use brackets.")
        return _power(base, Expression(-exponent.value, exponent.degree) if negative else exponent)

    def _atom(self) -> Expression:
        token = self._take()
        if token in ("(", "{"):
            found = self._sum()
            if self._take() != {"(": ")", "{": "}"}[token]:
                raise InvalidAction("the answer has a bracket that is not closed.")
            return found
        if token == "sqrt":
            return _root(self._atom())
        if token in ("frac", "dfrac"):
            return _quotient(self._atom(), self._atom())
        if token and token in self.variables:
            return Expression(sympy_module().Symbol(token), degree=1)
        if token[:1].isdigit() or token[:1] == ".":
            return self._number(token)
        raise InvalidAction(f"the answer cannot be read at {_shown(token)}." if token else "the answer breaks off.")

    def _number(self, token: str) -> Expression:
        if len(token) > MAX_DIGITS:
            raise InvalidAction("the answer has a number that is too long.")
        value = sympy_module().Rational(token)
        return Expression(value, bits=max(int(value.p).bit_length(), int(value.q).bit_length()))
