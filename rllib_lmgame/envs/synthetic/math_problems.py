"""Problems made up here, a family for each kind of answer, so that the game is played without a file."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from fractions import Fraction

LETTERS = "ABCDE"
Made = tuple[str, str]
"""Question and answer."""


def _latex(value: Fraction | int) -> str:
    value = Fraction(value)
    if value.denominator == 1:
        return str(value.numerator)
    return f"{'-' if value < 0 else ''}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def _ratio(rng: random.Random) -> Fraction:
    return Fraction(rng.randint(1, 11), rng.randint(2, 12))


def share(rng: random.Random) -> Made:
    """A fraction."""
    one, other = _ratio(rng), _ratio(rng)
    fills = f"One pipe fills ${_latex(one)}$ of a tank in an hour and another ${_latex(other)}$."
    return f"{fills} How many tanks do both fill in an hour?", _latex(one + other)


def diagonal(rng: random.Random) -> Made:
    """A root."""
    a, b = rng.randint(2, 30), rng.randint(2, 30)
    square = a * a + b * b
    outer = max(n for n in range(1, math.isqrt(square) + 1) if square % (n * n) == 0)
    inner = square // outer**2
    root = "" if inner == 1 else f"\\sqrt{{{inner}}}"
    return f"A rectangle has sides of length {a} and {b}. How long is its diagonal?", (
        f"{outer if outer > 1 or not root else ''}{root}"
    )


def roots(rng: random.Random) -> Made:
    """Two numbers, perhaps with a root."""
    p, q = rng.randint(-9, 9), rng.randint(2, 40)
    linear = "" if p == 0 else f" {'-' if p > 0 else '+'} {abs(2 * p)}x"
    constant = p * p - q
    tail = "" if constant == 0 else f" {'-' if constant < 0 else '+'} {abs(constant)}"
    return f"Find all real solutions of $x^2{linear}{tail} = 0$.", f"{p if p else ''} \\pm \\sqrt{{{q}}}".strip()


def inequality(rng: random.Random) -> Made:
    """An interval."""
    centre, width, strict = rng.randint(-20, 20), rng.randint(1, 20), rng.random() < 0.5
    inside = f"x {'-' if centre > 0 else '+'} {abs(centre)}" if centre else "x"
    left, sign, right = ("(", "<", ")") if strict else ("[", "\\le", "]")
    return (
        f"Solve $|{inside}| {sign} {width}$. Give the answer in interval notation.",
        f"{left}{centre - width}, {centre + width}{right}",
    )


def outside(rng: random.Random) -> Made:
    """A union of intervals."""
    low = rng.randint(-20, 19)
    high = rng.randint(low + 1, 25)
    return (
        f"For which real $x$ is $(x - {low})(x - {high}) > 0$?".replace("- -", "+ "),
        f"(-\\infty, {low}) \\cup ({high}, \\infty)",
    )


def midpoint(rng: random.Random) -> Made:
    """A point."""
    a, b, c, d = (rng.randint(-20, 20) for _ in range(4))
    return (
        f"What is the midpoint of the segment from $({a}, {b})$ to $({c}, {d})$?",
        f"\\left( {_latex(Fraction(a + c, 2))}, {_latex(Fraction(b + d, 2))} \\right)",
    )


def divisors(rng: random.Random) -> Made:
    """A set."""
    number = rng.randint(6, 200)
    found = [n for n in range(1, number + 1) if number % n == 0]
    return f"Write the set of all positive divisors of {number}.", "\\{" + ", ".join(map(str, found)) + "\\}"


def product(rng: random.Random) -> Made:
    """A matrix."""
    a, b = ([[rng.randint(-5, 5) for _ in range(2)] for _ in range(2)] for _ in range(2))
    c = [[sum(a[i][k] * b[k][j] for k in range(2)) for j in range(2)] for i in range(2)]
    one, other, result = (
        "\\begin{pmatrix} " + " \\\\ ".join(f"{x} & {y}" for x, y in m) + " \\end{pmatrix}" for m in (a, b, c)
    )
    return f"Let $A = {one}$ and $B = {other}$. Find $AB$.", result


def complex_product(rng: random.Random) -> Made:
    """A complex number."""
    a, b, c, d = (rng.choice([-1, 1]) * rng.randint(1, 9) for _ in range(4))
    one, other = (f"{x} {'-' if y < 0 else '+'} {abs(y)}i" for x, y in ((a, b), (c, d)))
    real, imaginary = a * c - b * d, a * d + b * c
    return (
        f"Let $z = {one}$ and $w = {other}$. Find $zw$ in the form $a + bi$.",
        f"{real} {'-' if imaginary < 0 else '+'} {abs(imaginary)}i",
    )


def other_base(rng: random.Random) -> Made:
    """Digits in another base."""
    number, base = rng.randint(20, 4000), rng.randint(2, 9)
    digits, rest = "", number
    while rest:
        rest, digit = divmod(rest, base)
        digits = str(digit) + digits
    return f"Write {number} in base {base}.", f"{digits}_{{{base}}}"


def area(rng: random.Random) -> Made:
    """A number with a unit."""
    width, height = rng.randint(3, 60), rng.randint(3, 60)
    return (
        f"A triangle has a base of {width} cm and a height of {height} cm. What is its area?",
        f"{_latex(Fraction(width * height, 2))} \\text{{ cm}}^2",
    )


def part(rng: random.Random) -> Made:
    """A percentage."""
    percent, total = rng.randrange(5, 100, 5), rng.randrange(20, 401, 20)
    return f"Of {total} seats {total * percent // 100} are taken. What percent of the seats are taken?", f"{percent}\\%"


def remainder(rng: random.Random) -> Made:
    """A letter."""
    power, base, modulus = rng.randint(5, 60), rng.randint(2, 9), rng.choice([7, 11, 13, 17])
    right = pow(base, power, modulus)
    options = rng.sample(sorted(set(range(modulus)) - {right}), 4)
    options.insert(rng.randrange(5), right)
    listed = "\n".join(f"({letter}) {value}" for letter, value in zip(LETTERS, options, strict=False))
    return (
        f"What is the remainder of ${base}^{{{power}}}$ divided by {modulus}?\n{listed}",
        f"\\text{{({LETTERS[options.index(right)]})}}",
    )


def line(rng: random.Random) -> Made:
    """An equation."""
    slope, through = rng.choice([-1, 1]) * rng.randint(2, 9), rng.randint(-9, 9) or 5
    x = rng.randint(1, 6)
    return (
        f"Find the equation of the line through $(0, {through})$ and $({x}, {slope * x + through})$.",
        f"y = {slope}x {'-' if through < 0 else '+'} {abs(through)}",
    )


FAMILIES: dict[str, Callable[[random.Random], Made]] = {
    maker.__name__: maker
    for maker in (
        share, diagonal, roots, inequality, outside, midpoint, divisors, product, complex_product, other_base, area,
        part, remainder, line,
    )
}  # fmt: skip


def made_problem(rng: random.Random) -> Made:
    """A problem of a family drawn from all."""
    return FAMILIES[rng.choice(tuple(FAMILIES))](rng)
