"""Formulas as people and language models write them, read into a small tree and worked out; no text is evaluated.

Two formulas are the same if they agree at several points. Numbers are fractions, exact up to :data:`MAX_BITS`, and
beyond these (roots, functions, large powers) complex numbers of :data:`DIGITS` digits. All work is bounded: the length
and depth of a formula, the bits of a fraction, the size of what a function is asked of.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

MAX_TOKENS, MAX_DEPTH, MAX_BITS, DIGITS = 300, 40, 8192, 50
MAX_EXPONENT, MAX_ANGLE, MAX_FACTORIAL = 10**6, 10**12, 1000
POINTS, ENOUGH = 16, 3
"""Points that are tried, and how many of them must lie where both formulas are real numbers."""
CLOSE, ZERO = Fraction(1, 10**30), Fraction(1, 10**44)
"""Share of a number, and number, that rounding may make of nothing."""

GREEK = [
    "alpha",
    "beta",
    "gamma",
    "delta",
    "epsilon",
    "varepsilon",
    "zeta",
    "eta",
    "theta",
    "vartheta",
    "iota",
    "kappa",
    "lambda",
    "mu",
    "nu",
    "xi",
    "rho",
    "varrho",
    "sigma",
    "tau",
    "upsilon",
    "phi",
    "varphi",
    "chi",
    "psi",
    "omega",
    "Gamma",
    "Delta",
    "Theta",
    "Lambda",
    "Xi",
    "Pi",
    "Sigma",
    "Upsilon",
    "Phi",
    "Psi",
    "Omega",
    "hbar",
    "ell",
]
ANGLES = ("sin", "cos", "tan", "cot", "sec", "csc")
INVERSES = tuple(
    prefix + name for name in (*ANGLES, *(angle + "h" for angle in ANGLES)) for prefix in ("arc", "ar", "a")
)
FUNCTIONS = (*INVERSES, *(angle + "h" for angle in ANGLES), *ANGLES, "ln", "lg", "log", "exp", "sqrt", "cbrt", "abs")
WORDS = sorted((*FUNCTIONS, "infinity", "infty", "binom", "frac", "oo", "pi"), key=len, reverse=True)
ACCENTS = ("dot", "ddot", "vec", "hat", "bar", "tilde", "overline", "prime", "mathbf", "boldsymbol")
TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,4}(?![0-9.a-zA-Z^]))?)"
    r"|\\(?P<command>[a-zA-Z]+)|(?P<name>" + "|".join(WORDS) + r"|[a-zA-Z])|(?P<sign>\*\*|[-+*/^_(){}\[\]|!%°']))"
)
CLOSING = {"(": ")", "{": "}", "[": "]", "|": "|"}

Node = tuple[Any, ...]
"""``(operation, part...)``; ``("number", Fraction)``, ``("name", text)`` and ``("constant", text)`` have no parts."""


class UnreadableError(ValueError):
    """A text is no formula, or too large a one."""


@dataclass(frozen=True)
class Formula:
    """A formula with the names of its variables."""

    node: Node
    names: frozenset[str]

    @property
    def is_number(self) -> bool:
        return not self.names


@lru_cache(maxsize=2048)
def read_formula(text: str) -> Formula:
    """The formula ``text`` says, in LaTeX or as it is typed.

    Raises:
        UnreadableError: if it is none, or goes beyond the bounds.
    """
    reader = _Reader(text)
    return Formula(reader.whole(), frozenset(reader.names))


class _Reader:
    """Recursive descent over the tokens of one formula."""

    def __init__(self, text: str) -> None:
        self.tokens = self._split(text)
        self.at = self.depth = 0
        self.names: set[str] = set()

    @staticmethod
    def _split(text: str) -> list[str]:
        """Numbers, names (commands with their backslash) and signs; a space stays before a fraction of digits."""
        at, end = 0, len(text.rstrip())
        tokens: list[str] = []
        while at < end:
            match = TOKEN.match(text, at)
            if match is None or len(tokens) >= MAX_TOKENS:
                raise UnreadableError(f"no formula at {text[at : at + 20]!r}")
            token = match["command"] or match[0].strip()
            tokens.append("^" if token == "**" else f"\\{token}" if match["command"] else token)
            at = match.end()
        return tokens

    def whole(self) -> Node:
        found = self._sum()
        if self.at < len(self.tokens):
            raise UnreadableError(f"something is left over at {self._next()!r}")
        return found

    def _next(self, ahead: int = 0) -> str:
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else ""

    def _take(self, expected: str = "") -> str:
        token = self._next()
        if not token or (expected and token != expected):
            raise UnreadableError(f"expected {expected or 'more'}, got {token!r}")
        self.at += 1
        return token

    def _sum(self) -> Node:
        found = self._product()
        while self._next() in ("+", "-"):
            found = (self._take(), found, self._product())
        return found

    def _product(self) -> Node:
        negative = self._sign()
        found = self._power()
        while True:
            token = self._next()
            if token in ("*", "/"):
                self._take()
                found = (token, found, self._signed())
            elif self._begins(token) and not (token == "|" and self._in_bars):
                found = self._beside(found)
            else:
                return ("neg", found) if negative else found

    _in_bars = 0

    def _beside(self, left: Node) -> Node:
        """What stands right of ``left`` without a sign: ``2 1/2`` and ``2\\frac{1}{2}`` are mixed numbers, all else is
        a product.
        """
        before, begins = self.tokens[self.at - 1], self._next()
        right = self._power()
        whole = left[0] == "number" and left[1].denominator == 1 and before.isdigit()
        if begins == "\\frac" and whole and right[0] == "/" and right[1][0] == right[2][0] == "number":
            return ("mixed", left, right)
        if begins[0].isdigit() and before.isdigit():
            if whole and right[0] == "number" and self._next() == "/" and self._next(1).isdigit():
                self._take()
                return ("mixed", left, ("/", right, self._atom()))
            raise UnreadableError("two numbers side by side")
        return ("*", left, right)

    def _begins(self, token: str) -> bool:
        return bool(token) and (token[0].isalnum() or token[0] in "\\.({[|") and token not in ("\\rfloor", "\\rceil")

    def _sign(self) -> bool:
        negative = False
        while self._next() in ("+", "-"):
            negative ^= self._take() == "-"
        return negative

    def _signed(self) -> Node:
        negative = self._sign()
        found = self._power()
        return ("neg", found) if negative else found

    def _power(self) -> Node:
        base = self._atom()
        while self._next() in ("!", "%", "°", "'"):
            base = ({"!": "factorial", "%": "percent", "°": "degrees", "'": "prime"}[self._take()], base)
        if self._next() != "^":
            return base
        self._take()
        if self._next() == "°" or (self._next() == "{" and self._next(1) == "°" and self._next(2) == "}"):
            self.at += 1 if self._next() == "°" else 3
            return ("degrees", base)
        return ("^", base, self._signed())

    def _argument(self) -> Node:
        """What a LaTeX command takes: a group, or one digit or letter (``\\frac12``)."""
        token = self._next()
        if token.isdigit() and len(token) > 1:
            self.tokens[self.at : self.at + 1] = [token[0], token[1:]]
        return self._atom()

    def _group(self, opening: str) -> Node:
        self._take(opening)
        bars = self._in_bars
        self._in_bars = opening == "|"
        found = self._sum()
        self._in_bars = bars
        self._take(CLOSING[opening])
        return found

    def _atom(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise UnreadableError("too many brackets")
        found = self._one()
        self.depth -= 1
        return found

    def _one(self) -> Node:
        token = self._next()
        if token in ("(", "{", "["):
            return self._group(token)
        if token == "|":
            return ("abs", self._group("|"))
        self._take()
        if token[0].isdigit() or token[0] == ".":
            return ("number", _fraction(token))
        name = token.removeprefix("\\")
        if name == "frac":
            return ("/", self._argument(), self._argument())
        if name == "binom":
            return ("binom", self._argument(), self._argument())
        if name in FUNCTIONS:
            return self._function(name)
        if name in ("pi", "infty", "infinity", "oo"):
            return ("constant", "pi" if name == "pi" else "oo")
        if name in ("lfloor", "lceil"):
            found = self._sum()
            self._take("\\r" + name[1:])
            return (name[1:], found)
        if token[0] == "\\" and name in ACCENTS:
            return self._name(f"{name} {self._plain()}")
        if token[0] == "\\" and name not in GREEK:
            raise UnreadableError(f"unknown command {token}")
        if not name[0].isalpha():
            raise UnreadableError(f"no formula at {token!r}")
        return self._name(name)

    def _plain(self) -> str:
        """The text of an index or of what stands below an accent."""
        if self._next() != "{":
            return self._take().removeprefix("\\")
        self._take()
        parts = []
        while self._next() != "}":
            parts.append(self._take().removeprefix("\\"))
        self._take()
        return "".join(parts)

    def _name(self, name: str) -> Node:
        if self._next() == "_":
            self._take()
            name += f"_{self._plain()}"
        inside = self._next(1)
        if (
            self._next() == "("
            and self._next(2) == ")"
            and (inside.isdigit() or (name in "fghFGHPQ" and inside.isalpha()))
        ):
            self.at += 3
            name += f"({inside})"
        if name in ("e", "i"):
            return ("constant", name)
        self.names.add(name)
        return ("name", name)

    def _function(self, name: str) -> Node:
        base = power = None
        if name == "sqrt":
            if self._next() == "[":
                degree = self._group("[")
                return ("root", self._atom(), degree)
            return ("root", self._atom(), ("number", Fraction(2)))
        if self._next() == "_" and name == "log":
            self._take()
            base = self._argument()
        if self._next() == "^":
            self._take()
            power = self._signed()
        found = self._operand()
        if power == ("neg", ("number", Fraction(1))) and name in ANGLES:
            return (f"arc{name}", found)
        if name == "log" and base is not None:
            found = ("/", ("ln", found), ("ln", base))
        elif name in ("lg",):
            found = ("/", ("ln", found), ("ln", ("number", Fraction(10))))
        elif name == "cbrt":
            found = ("root", found, ("number", Fraction(3)))
        else:
            found = (re.sub(r"^(?:ar|a)(?=(?:sin|cos|tan|cot|sec|csc))", "arc", name), found)
        return found if power is None else ("^", found, power)

    def _operand(self) -> Node:
        """What a function without brackets is taken of: ``2x`` in ``\\sin 2x``."""
        if self._next() in ("(", "{", "[", "|"):
            return self._atom()
        found = self._signed()
        while self._next() and (self._next()[0].isalnum() or self._next()[0] == "\\"):
            name = self._next().removeprefix("\\")
            if name in FUNCTIONS or name in ("rfloor", "rceil"):
                break
            found = ("*", found, self._power())
        return found


def _fraction(token: str) -> Fraction:
    if len(token) > MAX_BITS // 8:
        raise UnreadableError("too long a number")
    return Fraction(token.rstrip(".") if "e" not in token.lower() else token)


# -- working out -------------------------------------------------------------------------------------------------------


class UndefinedError(ArithmeticError):
    """A formula has no value at a point."""


class _At:
    """A formula worked out at one point.

    Attributes:
        real: So far everything was a real number.
    """

    def __init__(self, point: Mapping[str, Fraction]) -> None:
        import mpmath

        self.point, self.real, self.mp = point, True, mpmath

    def value(self, node: Node) -> Any:
        """A ``Fraction`` or a complex number of mpmath; ``UndefinedError`` where there is none."""
        operation, *parts = node
        if operation == "number":
            return self._small(parts[0])
        if operation == "name":
            return self.point[parts[0]]
        if operation == "constant":
            return self._constant(parts[0])
        work = getattr(self, "_" + NAMES.get(operation, "function"))
        return self._small(work(operation, list(map(self.value, parts))))

    def _small(self, value: Any) -> Any:
        if isinstance(value, Fraction):
            size = value.numerator.bit_length() + value.denominator.bit_length()
            return value if size <= MAX_BITS else as_float(value)
        if not self.mp.isfinite(value):
            raise UndefinedError("not finite")
        if isinstance(value, self.mp.mpc) and value.imag != 0:
            self.real = False
        return value

    def _constant(self, name: str) -> Any:
        if name == "i":
            self.real = False
            return self.mp.mpc(0, 1)
        if name == "oo":
            raise UndefinedError("infinite")
        return +(self.mp.pi if name == "pi" else self.mp.e)

    def _add(self, operation: str, parts: list[Any]) -> Any:
        one, other = self._alike(parts)
        return one - other if operation == "-" else one + other

    def _times(self, operation: str, parts: list[Any]) -> Any:
        one, other = self._alike(parts)
        if operation == "*":
            return one * other
        if other == 0:
            raise UndefinedError("division by zero")
        return one / other

    def _alike(self, parts: list[Any]) -> tuple[Any, Any]:
        one, other = parts
        if isinstance(one, Fraction) and isinstance(other, Fraction):
            return one, other
        return as_float(one), as_float(other)

    def _negative(self, operation: str, parts: list[Any]) -> Any:
        return -parts[0]

    def _share(self, operation: str, parts: list[Any]) -> Any:
        if operation == "percent":
            return parts[0] / 100
        return as_float(parts[0]) * self.mp.pi / 180

    def _power(self, operation: str, parts: list[Any]) -> Any:
        base, power = parts
        if base == 0:
            if power == 0 or not self._is_real(power) or self._real(power) < 0:
                raise UndefinedError("zero to no positive power")
            return Fraction(0)
        if isinstance(power, Fraction) and power.denominator == 1 and isinstance(base, Fraction):
            bits = max(base.numerator.bit_length(), base.denominator.bit_length()) * abs(power.numerator)
            if bits <= MAX_BITS:
                return base**power.numerator
        if isinstance(power, Fraction) and power.denominator % 2 and self._is_real(base) and self._real(base) < 0:
            sign = -1 if power.numerator % 2 else 1  # (-8)^(1/3) is -2 for people
            return sign * self._power("^", [-base, power])
        base, power = as_float(base), as_float(power)
        logarithm = self.mp.log(base)
        if abs(power * logarithm) > MAX_EXPONENT:
            raise UnreadableError("too large a power")
        return self.mp.exp(power * logarithm)

    def _root(self, operation: str, parts: list[Any]) -> Any:
        inside, degree = parts
        if not isinstance(degree, Fraction) or degree == 0:
            raise UndefinedError("no such root")
        if isinstance(inside, Fraction) and degree.denominator == 1 and 0 < degree <= 64 and inside >= 0:
            n = int(degree)
            exact = Fraction(_whole_root(inside.numerator, n), _whole_root(inside.denominator, n))
            if exact**n == inside:
                return exact
        return Fraction(0) if inside == 0 and degree > 0 else self._power("^", [inside, 1 / degree])

    def _absolute(self, operation: str, parts: list[Any]) -> Any:
        return abs(parts[0])

    def _steps(self, operation: str, parts: list[Any]) -> Any:
        if not self._is_real(parts[0]) or abs(self._real(parts[0])) > MAX_ANGLE:
            raise UndefinedError("no such floor")
        function: Callable[[Any], Any] = math.floor if operation == "floor" else math.ceil
        value = parts[0] if isinstance(parts[0], Fraction) else self._real(parts[0])
        return Fraction(int(function(value)))

    def _counting(self, operation: str, parts: list[Any]) -> Any:
        if any(not isinstance(part, Fraction) or part.denominator != 1 for part in parts):
            raise UndefinedError("of no whole number")
        numbers = [int(part) for part in parts]
        if min(numbers) < 0 or max(numbers) > MAX_FACTORIAL:
            raise UndefinedError("too large a factorial")
        return Fraction(math.factorial(numbers[0]) if operation == "factorial" else math.comb(*numbers))

    def _function(self, operation: str, parts: list[Any]) -> Any:
        value = as_float(parts[0])
        if operation in ("ln", "log"):
            if value == 0:
                raise UndefinedError("logarithm of zero")
            return self.mp.log(value) if operation == "ln" else self.mp.log(value) / self.mp.log(10)
        if abs(value) > (MAX_EXPONENT if operation in ("exp", *(angle + "h" for angle in ANGLES)) else MAX_ANGLE):
            raise UnreadableError("too large an argument")
        function = getattr(self.mp, operation.replace("arc", "a"), None)
        if function is None:
            raise UnreadableError(f"unknown function {operation}")
        try:
            return function(value)
        except (ValueError, ZeroDivisionError) as error:
            raise UndefinedError(str(error)) from None

    def _is_real(self, value: Any) -> bool:
        return isinstance(value, Fraction) or value.imag == 0

    def _real(self, value: Any) -> Any:
        return value if isinstance(value, Fraction) else value.real


NAMES = {
    "+": "add", "-": "add", "mixed": "add", "*": "times", "/": "times", "neg": "negative", "percent": "share",
    "degrees": "share",
    "^": "power", "root": "root", "abs": "absolute", "floor": "steps", "ceil": "steps", "factorial": "counting",
    "binom": "counting",
}  # fmt: skip


def as_float(value: Any) -> Any:
    """A value as a number of mpmath."""
    import mpmath

    return mpmath.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def _whole_root(number: int, degree: int) -> int:
    """The whole part of a root, by Newton's method from above."""
    if degree == 2:
        return math.isqrt(number)
    if number < 2 or degree == 1:
        return number
    found = 1 << -(-number.bit_length() // degree)
    while (less := ((degree - 1) * found + number // found ** (degree - 1)) // degree) < found:
        found = less
    return found


def value_of(formula: Formula) -> Any:
    """The number a formula without variables is: a ``Fraction`` where it is exact, else one of mpmath.

    Raises:
        UnreadableError: if it has variables, no value, or one that is too large.
    """
    import mpmath

    if formula.names:
        raise UnreadableError("not a number")
    try:
        with mpmath.workdps(DIGITS):
            return _At({}).value(formula.node)
    except UndefinedError as error:
        raise UnreadableError(str(error)) from None


def close(one: Any, other: Any, tolerance: Fraction = Fraction(0)) -> bool:
    """Whether two values are the same number, or differ by no more than ``tolerance`` of the second."""
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return abs(one - other) <= tolerance * abs(other)
    import mpmath

    with mpmath.workdps(DIGITS):
        one, other = as_float(one), as_float(other)
        size = max(abs(one), abs(other))
        return bool(abs(one - other) <= max(size * as_float(max(CLOSE, tolerance)), as_float(ZERO)))


def same_formula(one: Formula, other: Formula, tolerance: Fraction = Fraction(0)) -> bool:
    """Whether two formulas have the same values: at points where both are real, or at any if there are too few.

    Raises:
        UnreadableError: if one grows beyond the bounds, or has no values to compare.
    """
    if one.node == other.node:
        return True
    pairs = list(values_at((one, other)))
    if not pairs:
        raise UnreadableError("no values to compare")
    return all(close(a, b, tolerance) for a, b in pairs)


def values_at(formulas: tuple[Formula, ...]) -> list[tuple[Any, ...]]:
    """Values of several formulas at the same points: where all are real, if there are :data:`ENOUGH`, else at any."""
    import mpmath

    names = sorted(frozenset().union(*(formula.names for formula in formulas)))
    rng = random.Random(20_260_101)
    real, defined = [], []
    with mpmath.workdps(DIGITS):
        for number in range(POINTS if names else 1):
            size = (Fraction(1, 2), Fraction(1), Fraction(3), Fraction(12))[number % 4]
            point = {name: size * Fraction(rng.randint(-9973, 9973), 9973) for name in names}
            if number < POINTS // 2:
                point = {name: abs(value) for name, value in point.items()}
            at = [_At(point) for _ in formulas]
            try:
                values = tuple(place.value(formula.node) for place, formula in zip(at, formulas, strict=True))
            except UndefinedError:
                continue
            defined.append(values)
            if all(place.real for place in at):
                real.append(values)
    return real if len(real) >= (ENOUGH if names else 1) else defined
