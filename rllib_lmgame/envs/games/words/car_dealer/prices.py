"""Prices in free talk: what a seller asks for.

Reading takes time proportional to the length of the text; numbers of any size and form may stand in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rllib_lmgame.envs.games.words.guessing.questions import word_set

HIGHEST = 10**9
"""Prices above are read as this one."""

LOWEST_BARE = 1_000
"""A number without a currency or "k" is a price from here on."""

NUMBER = re.compile(r"([$€£]?)\s?([0-9][0-9.,]*)\s?(?:-\s?)?([a-z%]*)")
WINDOW = 40
"""Characters before and after a number that say what it is."""

THOUSANDS = frozenset(("k", "thousand", "grand"))
CURRENCIES = frozenset(("dollar", "dollars", "bucks", "usd", "euro", "euros"))
UNITS = word_set(
    """
    miles mile mi km kilometers kilometres hp horsepower mpg mph rpm cc months month years year days hours percent
    pounds lbs kg watts kwh
    """
)
NOT_ASKED = re.compile(
    r"(?:msrp|list(?: price)?|sticker(?: price)?|invoice(?: price)?|retail|worth|normally|usually|originally|"
    r"instead of|from|over|more than|your (?:offer|budget)(?: of)?|you (?:said|offered|offer|want)|budget|"
    r"cost me|costs me|paid|was|save|saves|saving|savings of|rebate of|"
    r"can't (?:do|accept|take|sell it for|go (?:down )?to)|cannot (?:do|accept|take|sell it for|go (?:down )?to)|"
    r"won't (?:do|accept|take)|not (?:do|accept|take|for|at)?|no)"
    r"\s*(?:is|was|of|at|only|just|about|a|the|for)?\s*[:=]?\s*$"
)
REDUCTION_BEFORE = re.compile(
    r"(?:discount|reduction|rebate) of\s*$|(?:knock|take|cut) off\s*$|(?:knock|cut|drop)(?: by)?\s*$|\bby\s*$"
)
REDUCTION_AFTER = re.compile(r"^\s*(?:dollars |bucks )?(?:off|discount|less|cheaper|reduction|rebate|below|under)\b")
RATE_AFTER = re.compile(
    r"^\s*(?:dollars |bucks )?(?:/|per |a |each |every )\s?(?:mo|month|year|week|day)|"
    r"^\s*(?:monthly|weekly|down\b|interest|apr\b)"
)


@dataclass(frozen=True)
class Talk:
    """What a text says of prices.

    Attributes:
        prices: Different prices asked for, in whole dollars, in order.
        reductions: Amounts to be taken off.
        percents: Percentages to be taken off.
        unclear: A number was meant as a price but cannot be one ("$0", "$2,5000").
    """

    prices: tuple[int, ...] = ()
    reductions: tuple[int, ...] = ()
    percents: tuple[float, ...] = ()
    unclear: bool = False


def read_prices(text: str) -> Talk:
    """Prices in a text. Figures that are mentioned, not asked for (list price, the other's offer, mileage,
    instalments), are left out.
    """
    text = text.lower().replace("\u2019", "'")
    prices: list[int] = []
    reductions: list[int] = []
    percents: list[float] = []
    unclear = False
    for match in NUMBER.finditer(text):
        before, after = text[max(0, match.start() - WINDOW) : match.start()], text[match.end() : match.end() + WINDOW]
        sign, digits, unit = match[1], match[2], match[3]
        rest = f"{unit}{after}" if unit not in THOUSANDS | CURRENCIES | {"%"} else after
        if unit in ("%", "percent"):
            if REDUCTION_AFTER.match(after) or REDUCTION_BEFORE.search(before):
                percents.append(min(amount(digits) or 0.0, 100.0))
            continue
        marked = bool(sign) or unit in THOUSANDS | CURRENCIES
        value = amount(digits, thousands_dot=marked)
        if unit in UNITS or RATE_AFTER.match(rest):
            continue
        if REDUCTION_AFTER.match(rest) or (REDUCTION_BEFORE.search(before) and not before.rstrip().endswith("to")):
            if value is not None and (marked or value >= 50):
                reductions.append(whole(value * (1_000 if unit in THOUSANDS else 1)))
            continue
        if NOT_ASKED.search(before):
            continue
        if value is None:
            unclear = unclear or marked
            continue
        value *= 1_000 if unit in THOUSANDS else 1
        bare_year = not marked and digits.rstrip(".,").isdigit() and 1900 <= value <= 2099
        if not marked and (value < LOWEST_BARE or bare_year):
            continue
        if value < 1:
            unclear = True
        elif whole(value) not in prices:
            prices.append(whole(value))
    return Talk(tuple(prices), tuple(reductions), tuple(percents), unclear)


def amount(digits: str, thousands_dot: bool = True) -> float | None:
    """Value of digits with commas and dots ("28,500.00", "28.500", "28.5"), or ``None`` if they are no number in good
    form.

    Args:
        digits: ASCII digits, commas and dots, a digit first.
        thousands_dot: "28.500" is 28500; otherwise 28.5.
    """
    digits = digits.rstrip(".,")
    if len(digits) > 15:
        return float(HIGHEST) if digits.replace(",", "").isdigit() else None
    if re.fullmatch(r"[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]{1,2})?", digits):
        return float(digits.replace(",", ""))
    if thousands_dot and re.fullmatch(r"[1-9][0-9]{0,2}(?:\.[0-9]{3})+", digits):
        return float(digits.replace(".", ""))
    return float(digits) if re.fullmatch(r"[0-9]+(?:\.[0-9]+)?", digits) else None


def whole(value: float) -> int:
    """Whole dollars, :data:`HIGHEST` at most."""
    return int(min(value, HIGHEST))


def dollars(price: int) -> str:
    """The price as text."""
    return f"${price:,}"
