"""Problems of nine families and five levels of difficulty, each made from its solution."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from rllib_lmgame.envs.games.mathematics.math_reasoning.solutions import Formula, Number, Range, Roots, Solution, Values
from rllib_lmgame.envs.support.answers import number_text
from rllib_lmgame.envs.synthetic.word_problems import FAMILIES as STORIES
from rllib_lmgame.envs.synthetic.word_problems import word_problem

MAX_LEVEL = 5
ONE_STEP = ((30, 9), (99, 12), (999, 30), (9999, 99), (99999, 999))
"""By level: largest number of a sum or difference, and of a product, in one step."""


@dataclass(frozen=True)
class Problem:
    """A question with its solution.

    Attributes:
        question: What the player reads.
        solution: What is asked for.
    """

    question: str
    solution: Solution


def make_problem(rng: random.Random, family: str, level: int) -> Problem:
    """A problem of ``family`` at ``level`` (1 to ``MAX_LEVEL``)."""
    return MAKERS[family](rng, level)


def polynomial(coefficients: list[int], variable: str = "x") -> str:
    """A polynomial as text, e.g. ``[2, -1, 5]`` as ``2x^2 - x + 5``."""
    text = ""
    for power, factor in zip(range(len(coefficients) - 1, -1, -1), coefficients, strict=True):
        if factor:
            size = abs(factor)
            number = "" if power and size == 1 else str(size)
            unknown = f"{variable}^{power}" if power > 1 else variable if power else ""
            body = number + unknown
            sign = "-" if factor < 0 else "+"
            text += f" {sign} {body}" if text else ("-" if factor < 0 else "") + body
    return text or "0"


def nonzero(rng: random.Random, size: int) -> int:
    """A whole number from ``-size`` to ``size``, never 0."""
    return rng.choice((-1, 1)) * rng.randint(1, size)


def arithmetic(rng: random.Random, level: int) -> Problem:
    """Sums, products and brackets of whole numbers; from level 3 on also fractions."""
    if level >= 3 and rng.random() < 0.4:
        parts = [Fraction(nonzero(rng, 9), rng.choice((2, 3, 4, 5, 6, 8, 10))) for _ in range(level - 1)]
        text = " + ".join(f"({part})" if part < 0 else str(part) for part in parts)
        return Problem(f"Calculate {text}.", Number(sum(parts, Fraction(0))))
    text, value, _ = _tree(rng, level)
    return Problem(f"Calculate {text}.", Number(Fraction(value)))


def _tree(rng: random.Random, signs: int) -> tuple[str, int, int]:
    """An expression with so many signs: its text, value, and how tightly its last sign binds."""
    if not signs:
        number = rng.randint(2, 30)
        return str(number), number, 3
    sign = rng.choice("+-*")
    binding = 2 if sign == "*" else 1
    before = rng.randint(0, signs - 1)
    (left, a, tight), (right, b, loose) = _tree(rng, before), _tree(rng, signs - 1 - before)
    left = f"({left})" if tight < binding else left
    right = f"({right})" if loose < binding or (sign == "-" and loose == 1) else right
    return f"{left} {sign} {right}", {"+": a + b, "-": a - b, "*": a * b}[sign], binding


def one_step(rng: random.Random, level: int) -> Problem:
    """A sum or difference of two numbers, or a product of two smaller ones; at level 1 up to 30 and 9."""
    sign = rng.choice("+-*")
    most = ONE_STEP[level - 1][sign == "*"]
    a, b = rng.randint(2, most), rng.randint(2, most)
    return Problem(f"Calculate {a} {sign} {b}.", Number(Fraction({"+": a + b, "-": a - b, "*": a * b}[sign])))


def linear(rng: random.Random, level: int) -> Problem:
    """An equation of the first degree in x."""
    x, a, b = nonzero(rng, 12), rng.randint(2, 9), nonzero(rng, 20)
    if level == 1:
        left, right = polynomial([1, b]), str(x + b)
    elif level == 2:
        left, right = polynomial([a, b]), str(a * x + b)
    elif level == 3:
        c = a + nonzero(rng, 4)
        left, right = polynomial([a, b]), polynomial([c, a * x + b - c * x])
    elif level == 4:
        c = -rng.randint(1, 6)
        left, right = f"{a}({polynomial([1, b])})", polynomial([c, a * (x + b) - c * x])
    else:
        solution = Fraction(nonzero(rng, 15), rng.choice((2, 3, 4, 5)))
        c = rng.randint(2, 9)
        left, right = f"({polynomial([a, b])})/{c}", str((a * solution + b) / c)
        return Problem(f"Solve {left} = {right} for x.", Roots((number_text(solution),)))
    return Problem(f"Solve {left} = {right} for x.", Roots((str(x),)))


def quadratic(rng: random.Random, level: int) -> Problem:
    """An equation of the second degree in x; all solutions are asked for."""
    p, q = nonzero(rng, 12), nonzero(rng, 12)
    if level == 1:
        return Problem(f"Find all solutions of x^2 = {p * p}.", _roots(p, -p))
    if level == 2:
        return Problem(f"Find all solutions of {polynomial([1, -p - q, p * q])} = 0.", _roots(p, q))
    if level == 3:
        shift = nonzero(rng, 9)
        return Problem(
            f"Find all solutions of {polynomial([1, shift - p - q, 0])} = {polynomial([shift, -p * q])}.", _roots(p, q)
        )
    if level == 4:
        a = rng.randint(2, 5)
        root = Fraction(nonzero(rng, 9), a)
        return Problem(
            f"Find all solutions of {polynomial([a, -a * p - int(a * root), p * int(a * root)])} = 0.", _roots(p, root)
        )
    inside = rng.choice([n for n in range(2, 30) if math.isqrt(n) ** 2 != n])
    middle = rng.randint(1, 9) * rng.choice((-1, 1))
    question = (
        f"Find all solutions of {polynomial([1, -2 * middle, middle * middle - inside])} = 0. Write roots like sqrt(n)."
    )
    return Problem(question, Roots((f"{middle} + sqrt({inside})", f"{middle} - sqrt({inside})")))


def _roots(*values: Fraction | int) -> Roots:
    return Roots(tuple(number_text(value) for value in sorted(set(values))))


def inequality(rng: random.Random, level: int) -> Problem:
    """An inequality in x."""
    relation = rng.choice(("<", "<=", ">", ">="))
    flipped = relation.translate(str.maketrans("<>", "><"))
    x, a, b = nonzero(rng, 15), rng.randint(2, 9), nonzero(rng, 20)
    if level == 1:
        return Problem(f"Solve {polynomial([1, b])} {relation} {x + b} for x.", Range(f"x {relation} {x}"))
    if level == 2:
        return Problem(f"Solve {polynomial([a, b])} {relation} {a * x + b} for x.", Range(f"x {relation} {x}"))
    if level == 3:
        return Problem(f"Solve {polynomial([-a, b])} {relation} {b - a * x} for x.", Range(f"x {flipped} {x}"))
    width = rng.randint(1, 12)
    if level == 4:
        low = rng.choice(("<", "<="))
        question = f"Solve {a * x + b} {low} {polynomial([a, b])} {low} {a * (x + width) + b} for x."
        return Problem(question, Range(f"{x} {low} x {low} {x + width}"))
    y, equals = x + width, relation[1:]
    inside = Range(f"{x} <{equals} x <{equals} {y}")
    outside = Range(f"x <{equals} {x} or x >{equals} {y}")
    return Problem(
        f"Solve {polynomial([1, -x - y, x * y])} {relation} 0 for x.", inside if "<" in relation else outside
    )


def system(rng: random.Random, level: int) -> Problem:
    """Linear equations in two variables; in three at level 5."""
    names = "xyz" if level == 5 else "xy"
    size = (8, 10, 10, 20, 6)[level - 1]
    values = [nonzero(rng, size) for _ in names]
    if level == 1:
        rows = [[1, 1], [1, -1]]
    elif level == 2:
        rows = [[rng.randint(2, 5), -1], [1, 1]]
    else:
        rows = _independent(rng, len(names), 9 if level == 4 else 4)
    equations = [
        f"{_combination(row, names)} = {sum(a * value for a, value in zip(row, values, strict=True))}" for row in rows
    ]
    solution = Values(tuple((name, Fraction(value)) for name, value in zip(names, values, strict=True)))
    return Problem("Solve the system of equations:\n" + "\n".join(equations), solution)


def _independent(rng: random.Random, count: int, size: int) -> list[list[int]]:
    """Rows of coefficients, none 0, whose determinant is not 0; one in hundreds of draws has none."""
    while True:
        rows = [[nonzero(rng, size) for _ in range(count)] for _ in range(count)]
        if _determinant(rows):
            return rows


def _determinant(rows: list[list[int]]) -> int:
    if len(rows) == 1:
        return rows[0][0]
    return sum(
        (-1) ** i * head * _determinant([row[:i] + row[i + 1 :] for row in rows[1:]]) for i, head in enumerate(rows[0])
    )


def _combination(row: list[int], names: str) -> str:
    text = ""
    for factor, name in zip(row, names, strict=True):
        term = polynomial([abs(factor), 0], name)
        text += f" {'-' if factor < 0 else '+'} {term}" if text else ("-" if factor < 0 else "") + term
    return text


def percentage(rng: random.Random, level: int) -> Problem:
    """Shares, changes and their reverse, in percent."""
    percent, base = rng.randrange(5, 96, 5), rng.randrange(20, 801, 20)
    share = Fraction(base * percent, 100)
    up = rng.random() < 0.5
    changed = base + share if up else base - share
    if level == 1:
        return Problem(f"What is {percent}% of {base}?", Number(share))
    if level == 2:
        return Problem(
            f"A price of ${base} {'rises' if up else 'falls'} by {percent}%. What is the new price in dollars?",
            Number(changed),
        )
    if level == 3:
        return Problem(f"{number_text(share)} is what percent of {base}?", Number(Fraction(percent)))
    if level == 4:
        after = f"After {'a rise' if up else 'a discount'} of {percent}% something costs ${number_text(changed)}."
        return Problem(f"{after} How many dollars did it cost before?", Number(Fraction(base)))
    second = rng.randrange(10, 60, 10)
    value = changed * (100 - second) / 100
    question = (
        f"A shop has {base} kilograms of rice. The stock {'grows' if up else 'shrinks'} by {percent}%, then {second}% "
        "of it is sold."
    )
    return Problem(f"{question} How many kilograms are left?", Number(value))


def expression(rng: random.Random, level: int) -> Problem:
    """Collecting, multiplying out and factoring."""
    a, b, c, d = rng.randint(2, 9), nonzero(rng, 12), nonzero(rng, 9), nonzero(rng, 12)
    if level == 1:
        c += c == -a
        question = (
            f"Simplify {polynomial([a, b])} {'+' if c > 0 else '-'} {polynomial([abs(c), 0])} {'+' if d > 0 else '-'} "
            f"{abs(d)}."
        )
        return Problem(question, Formula(polynomial([a + c, b + d])))
    if level == 2:
        c += c == -a
        question = (
            f"Multiply out and collect: {a}({polynomial([1, b])}) {'+' if c > 0 else '-'} {polynomial([abs(c), 0])}"
        )
        return Problem(question, Formula(polynomial([a + c, a * b])))
    if level == 3:
        return Problem(
            f"Multiply out: ({polynomial([1, b])})({polynomial([1, d])})", Formula(polynomial([1, b + d, b * d]))
        )
    if level == 4:
        factors = f"({polynomial([1, b])})({polynomial([1, d])})"
        return Problem(
            f"Write {polynomial([1, b + d, b * d])} as a product of two factors.", Formula(factors, factored=True)
        )
    question = f"Multiply out: ({polynomial([a, b])})({polynomial([1, c, d])})"
    return Problem(question, Formula(polynomial([a, a * c + b, a * d + b * c, b * d])))


def word(rng: random.Random, level: int) -> Problem:
    """A story that takes ``level`` calculations."""
    told = word_problem(rng, rng.choice(tuple(STORIES)), level)
    return Problem(told.question, Number(told.answer))


MAKERS: dict[str, Callable[[random.Random, int], Problem]] = {
    maker.__name__: maker
    for maker in (arithmetic, linear, quadratic, inequality, system, percentage, expression, word, one_step)
}
"""Families by name."""
MIXED = tuple(MAKERS)[:-1]
"""Those that are played where none is named: levels made before there was ``one_step`` stay what they were."""

HINTS = {
    "one_step": "Go from the last digit to the first, and mind the sign.",
    "arithmetic": "Do brackets first, then products, then sums, and mind the signs.",
    "linear": "Put your value into both sides of the equation and compare them.",
    "quadratic": "Put each of your values into the equation, and see whether one is missing.",
    "inequality": "Try a number from your range and one from outside, and look at the bounds themselves.",
    "system": "Put your values into every equation.",
    "percentage": "Ask first what the whole is that the percentage is taken of.",
    "expression": "Put a number for the variable into the question and into your result and compare.",
    "word": "Go through the story again, one sentence at a time.",
}
"""What a player reads after a miss, by family: how to check a result, nothing of the result itself."""
