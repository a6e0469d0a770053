"""Made-up word problems with worked solutions.

A problem is a story told up to a number of calculations: every step of a story adds one fact and one calculation, and
could be the last one asked for. What is told stands in ``data/word_problems.txt``; the numbers are drawn here, so that
every division comes out even and every amount makes sense.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

from rllib_lmgame.envs.support.answers import TAIL, number_text
from rllib_lmgame.envs.support.datasets import package_lines

MAX_STEPS = 5
WOMEN = "Ada Amina Beatriz Chloe Dalia Elif Freya Hana Ines Jana Keiko Leila Mei Nadia Olga Priya"
MEN = "Ahmed Boris Carlos Daniel Emeka Felix Gustav Hugo Ivan Jonas Kofi Luca Marek Nils Omar Pavel"
BAKED = ("muffins", "rolls", "cookies", "scones", "pretzels", "cupcakes", "buns", "pies")
STATIONERY = ("pens", "notebooks", "erasers", "rulers", "folders", "markers", "sketch pads", "staplers")
CROPS = ("tulips", "lettuces", "bean plants", "strawberry plants", "tomato plants", "daisies")
GOODS = ("bulbs", "bottles", "bolts", "batteries", "cups", "bricks", "pencils", "tiles")
CLOTHES = ("jacket", "backpack", "lamp", "pair of boots", "blanket", "chair", "suitcase")
PRIZES = ("bicycle", "guitar", "tent", "telescope", "skateboard", "camera")
SMALL_THINGS = ("marbles", "stickers", "shells", "trading cards", "buttons", "coins", "beads", "stamps")
TOWNS = ("Northfield", "Oakham", "Riverton", "Seaford", "Hillcrest", "Lakewood")
PETS = ("dogs", "cats", "rabbits", "ponies", "goats")

Drawn = Mapping[str, Any]
"""What a story is told with, by the names in its text."""


@dataclass(frozen=True)
class WordProblem:
    """A question with its answer.

    Attributes:
        question: What the player reads.
        solution: The calculations, one a line, then ``#### answer``.
        answer: The number asked for.
    """

    question: str
    solution: str
    answer: Fraction


def word_problem(rng: random.Random, family: str, steps: int) -> WordProblem:
    """A problem of ``family`` that takes ``steps`` calculations (1 to ``MAX_STEPS``)."""
    drawn, prose = FAMILIES[family](Teller(rng)), _Prose()
    facts, working, answer, question = [], [], Fraction(0), ""
    for fact, calculation, so, asked in _stories()[family][:steps]:
        left, sign, right = calculation.split()
        a, b = (Fraction(drawn.get(name, name)) for name in (left, right))
        answer = {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else a}[sign]
        told = f"{number_text(a)} {sign} {number_text(b)} = {number_text(answer)}"
        facts.append(prose.vformat(fact, (), drawn))
        working.append(prose.vformat(so, (), {**drawn, "sum": told}))
        question = prose.vformat(asked, (), drawn)
    return WordProblem(" ".join((*facts, question)), "\n".join((*working, f"{TAIL} {number_text(answer)}")), answer)


@cache
def _stories() -> dict[str, list[list[str]]]:
    """The steps of every story: fact, calculation, its sentence, question."""
    found: dict[str, list[list[str]]] = {}
    steps: list[list[str]] = []
    for line in package_lines("word_problems.txt"):
        if line.startswith("["):
            steps = found[line[1:-1]] = []
        else:
            steps.append(line.split(" | "))
    return found


class _Prose(string.Formatter):
    def convert_field(self, value: Any, conversion: str | None) -> Any:
        if conversion == "c":
            return value.capitalize()
        return money(value) if conversion == "m" else value


def money(amount: Fraction | int) -> str:
    """``$12`` or ``$12.50``."""
    amount = Fraction(amount)
    return f"${int(amount):,}" if amount.denominator == 1 else f"${float(amount):,.2f}"


class Person(NamedTuple):
    """Somebody in a story."""

    name: str
    he: str
    his: str


class Teller:
    """Draws the people, things and numbers of a story."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def people(self, count: int) -> list[Person]:
        """Different people."""
        cast = [Person(name, "she", "her") for name in WOMEN.split()]
        return self.rng.sample([*cast, *(Person(name, "he", "his") for name in MEN.split())], count)

    def pick(self, choices: tuple[str, ...]) -> str:
        return self.rng.choice(choices)

    def number(self, low: int, high: int, step: int = 1) -> int:
        """A number from ``low`` to ``high`` in steps."""
        return self.rng.randrange(low, high + 1, step)

    def cents(self, low: int, high: int) -> Fraction:
        """An amount of money between ``low`` and ``high``, a multiple of 5 cents."""
        return Fraction(self.rng.randint(20 * low, 20 * high), 20)

    def leaving(self, total: Fraction | int, divisor: int, most: int) -> int:
        """A number up to about ``most`` that, taken away from ``total``, leaves a positive multiple of ``divisor``."""
        first = int(total) % divisor or divisor
        last = max(first, min(most, int(total) - divisor))
        return self.rng.randrange(first, last + 1, divisor)


def bakery(t: Teller) -> Drawn:
    (who,) = t.people(1)
    thing, trays, each, box = t.pick(BAKED), t.number(6, 20), t.number(8, 24), t.number(3, 8)
    baked = trays * each
    burnt = t.leaving(baked, box, 20)
    good = baked - burnt
    boxes, price = good // box, t.number(4, 15)
    income = boxes * price
    cost = t.number(5, income - 1)
    return locals()


def eggs(t: Teller) -> Drawn:
    (who,) = t.people(1)
    hens, days, carton, price = t.number(9, 40), t.number(3, 7), t.pick(("6", "10", "12")), t.cents(2, 6)
    size, laid = int(carton), hens * days
    used = t.leaving(laid, size, 30)
    left = laid - used
    cartons = left // size
    income = cartons * price
    feed = t.number(1, max(1, int(income) - 1))
    keeps = f"{who.name} keeps {hens} hens, and each lays one egg a day."
    return locals()


def savings(t: Teller) -> Drawn:
    (who,) = t.people(1)
    weekly, weeks, gift, prize = t.cents(4, 15), t.number(4, 20), t.number(10, 60), t.pick(PRIZES)
    saved = weekly * weeks
    later = t.number(3, 12)
    held, missing = saved + gift, weekly * later
    price = held + missing
    return locals()


def shopping(t: Teller) -> Drawn:
    (who,) = t.people(1)
    thing, count, price, extra = t.pick(STATIONERY), t.number(2, 9), t.cents(1, 8), t.cents(3, 12)
    cost = count * price
    total = cost + extra
    coupon = t.number(1, max(1, int(total) - 1))
    delivery = t.cents(2, 6)
    due = total - coupon
    bill = due + delivery
    note = next(note for note in (20, 50, 100, 200) if note > bill)
    return locals()


def garden(t: Teller) -> Drawn:
    (who,) = t.people(1)
    crop, length, width, tray = t.pick(CROPS), t.number(6, 18), t.number(4, 12), t.number(2, 6)
    square = length * width
    pond = t.leaving(square, tray, 20)
    bed, dense, price = square - pond, t.number(2, 9), t.number(2, 8)
    plants = bed * dense
    trays = plants // tray
    return locals()


def factory(t: Teller) -> Drawn:
    thing, rate, hours = t.pick(GOODS), t.number(120, 900, 10), t.number(6, 16)
    days, crate = t.number(3, 14), t.pick(("20", "24", "48", "50", "100"))
    daily, size = rate * hours, int(crate)
    made = daily * days
    faulty = t.leaving(made, size, 900)
    good = made - faulty
    crates, weight = good // size, t.number(4, 30)
    return locals()


def painting(t: Teller) -> Drawn:
    (who,) = t.people(1)
    walls, area, cover = t.number(3, 8), t.number(10, 24), t.number(3, 8)
    square = walls * area
    windows = t.leaving(square, cover, 18)
    painted = square - windows
    litres, price, brush = painted // cover, t.cents(5, 14), t.cents(3, 9)
    paint = litres * price
    return locals()


def theatre(t: Teller) -> Drawn:
    rows, seats, price, actors = t.number(10, 30), t.number(12, 40), t.number(6, 25), t.number(4, 12)
    places = rows * seats
    empty = t.number(5, places // 2)
    taken = places - empty
    income = taken * price
    rent = t.leaving(income, actors, income // 2)
    left = income - rent
    return locals()


def sale(t: Teller) -> Drawn:
    (who,) = t.people(1)
    thing, price, percent = t.pick(CLOTHES), t.number(20, 160, 4), t.number(5, 60, 5)
    count, parcel = t.number(2, 6), t.cents(3, 9)
    share = Fraction(percent, 100)
    off = price * share
    reduced = price - off
    total = reduced * count
    bill = total + parcel
    note = 50 * (int(bill) // 50 + 1)
    return locals()


def reading(t: Teller) -> Drawn:
    (who,) = t.people(1)
    pace, days, faster, later = t.number(8, 30), t.number(3, 9), t.number(12, 40), t.number(2, 9)
    read, rest, whole = pace * days, faster * later, days + later
    pages, loan = read + rest, whole + t.number(1, 15)
    return locals()


def bus(t: Teller) -> Drawn:
    town, other = t.rng.sample(TOWNS, 2)
    seats = t.number(60, 90)
    start = t.number(20, 50)
    off = t.number(3, start - 8)
    on = t.number(2, 20)
    stayed = start - off
    aboard = stayed + on
    group = t.number(2, max(2, aboard // 2))
    fare = t.number(2, 6)
    remain = aboard - group
    free = seats - remain
    return locals()


def road_trip(t: Teller) -> Drawn:
    (who,) = t.people(1)
    town = t.pick(TOWNS)
    speed, hours, slow, later = t.number(60, 110, 5), t.number(2, 6), t.number(30, 55, 5), t.number(1, 5)
    driven, mountain, driving = speed * hours, slow * later, hours + later
    trip, rest = driven + mountain, t.number(1, 4)
    pause = f"{rest} {'hour' if rest == 1 else 'hours'}"
    return locals()


def collections(t: Teller) -> Drawn:
    a, b, c = t.people(3)
    thing, first, times, share = t.pick(SMALL_THINGS), t.number(8, 40), t.number(2, 5), t.number(2, 6)
    second = first * times
    fewer = t.leaving(first + 2 * second, share, min(second - 1, 30))
    third = second - fewer
    jar, total = second + third, first + second + third
    return locals()


def temperature(t: Teller) -> Drawn:
    town, other = t.rng.sample(TOWNS, 2)
    start, fall, rise, night = t.number(-6, 15), t.number(4, 20), t.number(2, 9), t.number(3, 16)
    gap, frost = t.number(2, 12), t.number(2, 12)
    low = start - fall
    windy = low + rise
    dawn = windy - night
    there = dawn + gap
    return locals()


def ages(t: Teller) -> Drawn:
    a, b, c = t.people(3)
    age, older, later, younger = t.number(3, 9), t.number(2, 7), t.number(2, 12), t.number(1, 6)
    second, third = age + older, 2 * (age + older)
    then = third + later
    neighbour = then - younger
    return locals()


def tank(t: Teller) -> Drawn:
    rate, minutes, second, more = t.number(12, 45), t.number(8, 40), t.number(10, 60), t.number(4, 30)
    pumped, room = rate * minutes, second * more
    leak = t.number(5, pumped // 3)
    held = pumped - leak
    size = held + room
    return locals()


def match(t: Teller) -> Drawn:
    home, away = t.rng.sample(TOWNS, 2)
    throws, points, free, quarters = t.number(12, 30), t.pick(("2", "3")), t.number(5, 18), 4
    first = throws * int(points)
    score = first + free
    behind = t.leaving(2 * score, quarters, 20)
    lower, both = score - behind, 2 * score - behind
    return locals()


def shelter(t: Teller) -> Drawn:
    kind, animals, grams, days = t.pick(PETS), t.number(6, 40), t.number(150, 950, 50), t.number(3, 14)
    daily = animals * grams
    eaten = daily * days
    remains = t.number(1, 40) * 1000
    stock, bag = eaten + remains, t.pick(("500", "1000", "250"))
    bags = remains // int(bag)
    return locals()


SELLING = (bakery, eggs, savings, shopping, garden, factory, painting, theatre, sale)
COUNTING = (reading, bus, road_trip, collections, temperature, ages, tank, match, shelter)
FAMILIES: dict[str, Callable[[Teller], Drawn]] = {story.__name__: story for story in (*SELLING, *COUNTING)}
"""Stories by name."""
