"""How a formula is written: its degree, how many terms it has, and whether anything is left to multiply out."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from rllib_lmgame.envs.support.mathematics.formulas import Node, UnreadableError

MAX_DEGREE, MAX_TERMS, MAX_BITS = 12, 128, 1024


@dataclass(frozen=True)
class Shape:
    """What is known of a polynomial by how it is written.

    Attributes:
        degree: Bound on its degree in all variables together.
        terms: Bound on its terms once multiplied out.
        bits: Bound on the size of its numbers.
        multiplied_out: It holds no product or power of sums.
        sum_degree: Largest degree of a sum in it.
    """

    degree: int = 0
    terms: int = 1
    bits: int = 1
    multiplied_out: bool = True
    sum_degree: int = 0


def shape_of(node: Node) -> Shape:
    """The shape of a polynomial in any number of variables, with rational coefficients.

    Raises:
        UnreadableError: if it is none, or goes beyond the bounds.
    """
    shape = _shape(node)
    if shape.degree > MAX_DEGREE or shape.terms > MAX_TERMS or shape.bits > MAX_BITS:
        raise UnreadableError("too large a polynomial")
    return shape


def _shape(node: Node) -> Shape:
    operation, *parts = node
    if operation in ("name", "constant"):
        return Shape(degree=1)
    if operation == "number":
        return Shape(bits=max(parts[0].numerator.bit_length(), parts[0].denominator.bit_length()))
    if operation == "neg":
        return shape_of(parts[0])
    if operation == "^":
        return _power(shape_of(parts[0]), parts[1])
    if operation not in ("+", "-", "mixed", "*", "/"):
        raise UnreadableError(f"a polynomial has no {operation}")
    one, other = map(shape_of, parts)
    out, sums = one.multiplied_out and other.multiplied_out, max(one.sum_degree, other.sum_degree)
    if operation in ("+", "-"):
        degree = max(one.degree, other.degree)
        return Shape(degree, one.terms + other.terms, max(one.bits, other.bits) + 1, out, max(degree, sums))
    if operation == "/" and other.degree:
        raise UnreadableError("division by a variable")
    out = out and not (one.terms > 1 and other.terms > 1)
    return Shape(one.degree + other.degree, one.terms * other.terms, one.bits + other.bits, out, sums)


def _power(base: Shape, exponent: Node) -> Shape:
    negative = exponent[0] == "neg"
    operation, *parts = exponent[1] if negative else exponent
    power = parts[0] if operation == "number" else Fraction(1, 2)
    if power.denominator > 1 or power > MAX_DEGREE or (negative and base.degree):
        raise UnreadableError("no small whole exponent")
    times = int(power)
    out = base.multiplied_out and (base.terms == 1 or times < 2)
    return Shape(base.degree * times, base.terms**times, base.bits * max(1, times), out, base.sum_degree)
