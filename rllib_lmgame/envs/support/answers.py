"""The one number an answer gives, read as a person would: commas, signs, currency, units and fractions."""

from __future__ import annotations

import re
from fractions import Fraction

from rllib_lmgame.envs.contract.base import InvalidAction

MAX_DIGITS = 30
"""Digits of a number that is still read."""

MAX_ANSWER = 500
"""Characters of an answer that are compared."""

TAIL = "####"
"""Marks the final answer in the solutions of GSM8K."""

PLAIN = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
NUMBER = re.compile(
    r"(?<![\w.])"  # neither `x2` nor the end of another number
    rf"(?P<whole>{PLAIN})"
    rf"(?:[ ]?/[ ]?(?P<under>{PLAIN})|[ ](?P<over>[0-9]+)/(?P<part>[0-9]+)|[eE](?P<power>[+-]?[0-9]{{1,2}})(?!\w))?"
    r"(?!\.?[\d²³])"
)
SIGN = re.compile(r"(?:^|[\s(\[{=:$€£¥])(?P<sign>[-+]|minus|negative)\s?[$€£¥]?\s?$", re.IGNORECASE)
SIGNED = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)")
BOXED = re.compile(r"\\boxed\s?\{([^{}]*)\}")
FRACTION = re.compile(r"\\[dt]?frac\s?\{\s?([-+]?[0-9.]+)\s?\}\s?\{\s?([0-9.]+)\s?\}")
HALVES = {"½": " 1/2", "¼": " 1/4", "¾": " 3/4"}
SPELLINGS = str.maketrans({"−": "-", "–": "-", "⁄": "/", **dict.fromkeys("\u00a0\u2009\u202f*`\\~", " "), **HALVES})


def read_number(text: str) -> Fraction:
    """The number ``text`` gives as its answer, exactly.

    Read are ``42``, ``-3``, ``1,234.50``, ``$5``, ``42 apples``, ``25%`` (as 25), ``1/2``, ``1 1/2``, ``4.2e3``,
    ``\\frac{1}{2}``. The text may hold other numbers only if it marks its answer by ``#### 42``, ``\\boxed{42}`` or
    ``<answer>42</answer>``. Linear time.

    Raises:
        InvalidAction: if there is no number, or there are several different ones.
    """
    found = {number for part in _marked(text) for number in _numbers(part)}
    if not found:
        raise InvalidAction("the answer must be one number, written with digits.")
    if len(found) > 1:
        raise InvalidAction("the answer holds several different numbers; give the final one alone.")
    return found.pop()


def number_text(value: Fraction | int) -> str:
    """A number as a person types it: whole, decimal where that is exact, else a fraction."""
    value = Fraction(value)
    if value.denominator == 1:
        return str(value.numerator)
    places = next((n for n in range(1, 10) if 10**n % value.denominator == 0), None)
    if places is None:
        return f"{value.numerator}/{value.denominator}"
    scaled = abs(value.numerator) * 10**places // value.denominator
    return f"{'-' if value < 0 else ''}{scaled // 10**places}.{scaled % 10**places:0{places}d}"


def same_answer(given: str, expected: str) -> bool:
    """Whether two answers are one number, or the same words but for case, white space, quotation marks, a dollar sign
    and a full stop at the end.
    """
    one, other = _plain(given), _plain(expected)
    if SIGNED.fullmatch(one) and SIGNED.fullmatch(other):
        return _digits(one) == _digits(other)
    return one == other


def _plain(answer: str) -> str:
    text = " ".join(answer[:MAX_ANSWER].casefold().split()).rstrip(".").strip(" \"'$")
    bare = text.replace(",", "")
    return bare if SIGNED.fullmatch(bare) else text


def _digits(text: str) -> tuple[str, str, str]:
    """Sign, digits before and after the point without zeros that say nothing."""
    sign = "-" if text.startswith("-") else ""
    whole, _, rest = text.lstrip("+-").partition(".")
    whole, rest = whole.lstrip("0"), rest.rstrip("0")
    return (sign if whole or rest else ""), whole, rest


def _marked(text: str) -> list[str]:
    """The parts of the text that are marked as its answer, or the whole text."""
    tagged = text.lower().split("<answer>")[1:]
    if tagged:
        return [part for inside in tagged for part in _marked(inside.split("</answer>")[0])]
    if TAIL in text:
        return [part.lstrip().split("\n", 1)[0] for part in text.split(TAIL)[1:]]
    return BOXED.findall(text) or [text]


def _numbers(text: str) -> list[Fraction]:
    plain = FRACTION.sub(r" \1/\2 ", text.replace("{,}", ",")).translate(SPELLINGS)
    found = []
    for match in NUMBER.finditer(plain):
        if sum(map(str.isdigit, match[0])) > MAX_DIGITS:
            raise InvalidAction("the number is too long.")
        sign = SIGN.search(plain, max(0, match.start() - 14), match.start())
        value = _value(match)
        found.append(-value if sign and sign["sign"].lower() != "+" else value)
    return found


def _value(match: re.Match[str]) -> Fraction:
    value = Fraction(match["whole"].replace(",", ""))
    if match["power"]:
        return value * Fraction(10) ** int(match["power"])
    below = match["under"] or match["part"]
    if not below:
        return value
    divisor = Fraction(below.replace(",", ""))
    if not divisor:
        raise InvalidAction("the answer divides by zero.")
    return value + Fraction(match["over"]) / divisor if match["over"] else value / divisor
