"""Units behind a number: known ones are converted, other words count things and say nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from rllib_lmgame.envs.support.mathematics.formulas import FUNCTIONS, WORDS

SIZES: dict[str, tuple[str, Fraction]] = {}
"""Unit -> what it measures, and its size in the first unit of that."""

for measure, sizes in {
    "length": "m 1 meter 1 metre 1 km 1000 kilometer 1000 kilometre 1000 cm 1/100 centimeter 1/100 centimetre 1/100 "
    "mm 1/1000 millimeter 1/1000 inch 127/5000 in 127/5000 "
    "ft 381/1250 foot 381/1250 feet 381/1250 yd 1143/1250 yard 1143/1250 "
    "mile 201168/125 mi 201168/125",
    "mass": "kg 1 kilogram 1 g 1/1000 gram 1/1000 mg 1/1000000 milligram 1/1000000 ton 1000 tonne 1000 "
    "lb 45359237/100000000 pound 45359237/100000000 ounce 45359237/1600000000 oz 45359237/1600000000",
    "time": "s 1 sec 1 second 1 min 60 minute 60 h 3600 hr 3600 hour 3600 day 86400 week 604800 year 31557600",
    "volume": "l 1 liter 1 litre 1 ml 1/1000 milliliter 1/1000 millilitre 1/1000 gallon 1 quart 1/4 pint 1/8 cup 1/16",
    "money": "dollar 1 cent 1/100 usd 1",
    "angle": "degree 1 deg 1 ° 1",
}.items():  # fmt: skip
    words = sizes.split()
    SIZES |= {name: (measure, Fraction(size)) for name, size in zip(words[::2], words[1::2], strict=True)}
SIZES |= {name: ("us volume", size) for name, (_, size) in SIZES.items() if name in ("gallon", "quart", "pint", "cup")}

HALVES_OF_DAY = {"am": "before noon", "pm": "after noon"}

LETTER = re.compile(
    r"(?P<number>[-+0-9.,\s*^{}/\\a-z]*[0-9}])\s(?P<unit>[mgshlLNJWKVA](?:/[smh])?)(?P<power>\s*\^\s*\{?[23]\}?)?"
)
"""A number with a unit of one letter, which might be a variable as well."""
POWERS = {"square": 2, "squared": 2, "sq": 2, "cubic": 3, "cubed": 3, "cu": 3}
WORD = r"[^\W\d_]{2,}\.?"
TAIL = re.compile(
    r"\s*(?:°\s*[CF]?|\"(?P<quoted>[^\"]+)\"|(?P<plain>(?<=[0-9.)}\s])" + WORD + r"(?:[\s/-]+(?:" + WORD + r"|s\b))*))"
    r"(?P<power>\s*\^\s*\{?\s*[-+]?[0-9]\s*\}?)?\s*$"
)
VOWEL = re.compile(r"[aeiouy]", re.IGNORECASE)
NO_UNIT = frozenset(word for word in WORDS if len(word) > 1) | {
    "and",
    "or",
    "if",
    "to",
    "xy",
    "ab",
    "abc",
    "xyz",
    "mod",
}
NUMERIC = re.compile(r"[-+]?\s*[0-9.(\\{]")


@dataclass(frozen=True)
class Unit:
    """A unit, or the name of what is counted."""

    words: tuple[str, ...]
    power: int = 1

    def in_terms_of(self, other: Unit) -> Fraction | None:
        """By what a number of these is multiplied to be one of ``other``; ``None`` if both are known and measure
        different things.
        """
        one, two = (_known(unit) for unit in (self, other))
        if one is None or two is None:
            return Fraction(1)
        return (one[1] / two[1]) ** self.power if one[0] == two[0] and self.power == other.power else None


def _known(unit: Unit) -> tuple[str, Fraction] | None:
    half = HALVES_OF_DAY.get("".join(unit.words).replace(".", "").lower())
    if half is not None:
        return half, Fraction(1)
    return SIZES.get(unit.words[0]) if len(unit.words) == 1 else None


def read_unit(text: str) -> tuple[str, Unit | None]:
    """The text without the unit at its end, and that unit."""
    match = TAIL.search(text)
    if match is None or not NUMERIC.match(text[: match.start()]):
        return text, None
    if any(f"\\{name}" in text for name in FUNCTIONS[:-4]):
        return text, None
    said = match["quoted"] or match["plain"] or "°"
    words = [word.strip(".") for word in re.split(r"[\s/^*-]+", said) if word.strip(".")]
    if not words or any(word.lower() in NO_UNIT for word in words) or (match["plain"] and "\\" in said):
        return text, None
    if match["plain"] and not all(
        _single(word) in SIZES or (len(word) > 2 and VOWEL.search(word)) for word in words[:1]
    ):
        return text, None
    power = int(re.sub(r"[^0-9]", "", match["power"] or "") or re.sub(r"[^0-9]", "", said.partition("^")[2])[:1] or 1)
    names = []
    for word in words:
        if word.lower() in POWERS:
            power = POWERS[word.lower()]
        elif not word.isdigit():
            names.append(_single(word))
    return text[: match.start()].strip(), Unit(tuple(names), power)


def _single(word: str) -> str:
    """A word in the singular; symbols keep their case where it tells them apart."""
    lower = word.lower()
    if word in SIZES or lower in SIZES:
        return word if word in SIZES else lower
    for end, ending in (("ies", "y"), ("es", ""), ("s", ""), ("hes", "h")):
        if lower.endswith(end) and lower[: -len(end)] + ending in SIZES:
            return lower[: -len(end)] + ending
    return lower
