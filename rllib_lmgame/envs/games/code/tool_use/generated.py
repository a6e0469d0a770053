"""Tasks of ToolUse: arithmetic, facts about invented towns, files to be read and written, and programs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rllib_lmgame.envs.games.code.tool_use.calculator import calculate
from rllib_lmgame.envs.games.code.tool_use.calls import ToolCall
from rllib_lmgame.envs.games.code.tool_use.tasks import Task, calculator, python, read_file, search, submit

TOWNS_PER_WORLD = 12
FIRST = ("Ash", "Brim", "Cald", "Dun", "Elder", "Fal", "Grim", "Hazel", "Iron", "Kell")
LAST = ("ford", "wick", "moor", "haven", "ridge", "mouth")
FESTIVALS = ("Lantern", "Kite", "Barrel", "Apple", "Drum", "Candle", "Snow", "River", "Wool", "Bread")
RIVERS = ("Arn", "Bex", "Cole", "Dorn", "Esk", "Flint")
GOODS = ("bolts", "gloves", "lamps", "nails", "pipes", "ropes", "saws", "tiles")
WORDS = ("amber", "basalt", "copper", "feldspar", "granite", "jasper", "marble", "onyx", "quartz", "slate")


def generated_tasks(rng: random.Random) -> Iterator[Task]:
    """Endless tasks, every family equally often."""
    while True:
        yield rng.choice(FAMILIES)(rng)


@dataclass(frozen=True)
class Town:
    """A town that does not exist."""

    name: str
    population: int
    founded: int
    river: str
    festival: str

    def texts(self) -> tuple[str, str]:
        """What can be read about it."""
        return (
            (
                f"{self.name} is a town on the river {self.river}. It was founded in {self.founded} and has "
                f"{self.population} inhabitants."
            ),
            f"The {self.festival} Festival is held every year in {self.name}, and people come from far away to see it.",
        )


def _towns(rng: random.Random) -> tuple[list[Town], tuple[str, ...]]:
    """Towns and the texts about them, in no order."""
    names = rng.sample([one + two for one in FIRST for two in LAST], TOWNS_PER_WORLD)
    festivals = rng.sample(FESTIVALS, len(FESTIVALS))
    towns = [
        Town(name, rng.randint(800, 90_000), rng.randint(1050, 1890), rng.choice(RIVERS), festival)
        for name, festival in zip(names, festivals + [f"{name} Town" for name in names[len(festivals) :]], strict=True)
    ]
    texts = [text for town in towns for text in town.texts()]
    rng.shuffle(texts)
    return towns, tuple(texts)


def _arithmetic(rng: random.Random) -> Task:
    a, b, c, d = rng.randint(1000, 99_999), rng.randint(100, 9999), rng.randint(10, 99_999), rng.randint(3, 97)
    expression = rng.choice(
        (f"({a} * {b} - {c}) % {d}", f"{a} * {b} + {c} * {d}", f"({a} + {b}) * {c} // {d}", f"{a} ** 2 - {b} * {c}")
    )
    answer = calculate(expression)
    return Task(
        f"What is {expression}? (// is whole division, % the remainder.)",
        (calculator(expression), submit(answer)),
        answer,
    )


def _difference(rng: random.Random) -> Task:
    towns, texts = _towns(rng)
    one, two = rng.sample(towns, 2)
    by_population = rng.random() < 0.5
    if by_population:
        high, low = sorted((one.population, two.population), reverse=True)
        question = f"What is the difference between the numbers of inhabitants of {one.name} and {two.name}?"
    else:
        high, low = sorted((one.founded, two.founded), reverse=True)
        question = f"How many years lie between the foundations of {one.name} and {two.name}?"
    plan = (search(one.name), search(two.name), calculator(f"{high} - {low}"), submit(str(high - low)))
    return Task(question, plan, str(high - low), texts, subjects=(one.name, two.name))


def _two_steps(rng: random.Random) -> Task:
    towns, texts = _towns(rng)
    town = rng.choice(towns)
    place = f"the town in which the {town.festival} Festival is held"
    answer, question = rng.choice(
        (
            (str(town.population), f"How many inhabitants has {place}?"),
            (town.river, f"On which river lies {place}?"),
            (str(town.founded), f"In which year was {place} founded?"),
        )
    )
    festival = f"{town.festival} Festival"
    return Task(question, (search(festival), search(town.name), submit(answer)), answer, texts, subjects=(festival,))


def _stock(rng: random.Random) -> Task:
    goods = rng.sample(GOODS, 6)
    rows = [(name, rng.randint(2, 400), rng.randint(1, 60)) for name in goods]
    chosen = rng.sample(rows, 3)
    answer = sum(count * price for _, count, price in chosen)
    content = "item,count,price\n" + "".join(f"{name},{count},{price}\n" for name, count, price in rows)
    path = rng.choice(("stock.csv", "shop/stock.csv", "data/items.csv"))
    names = ", ".join(name for name, _, _ in chosen)
    expression = " + ".join(f"{count} * {price}" for _, count, price in chosen)
    return Task(
        f"The file {path} lists items with count and price. What are all the items of these kinds worth together: "
        f"{names}?",
        (read_file(path), calculator(expression), submit(str(answer))),
        str(answer),
        files=((path, content), ("readme.txt", "Counts are checked every Monday.\n")),
    )


def _find_file(rng: random.Random) -> Task:
    words = rng.sample(WORDS, 4)
    files = tuple(
        (
            f"notes/{rng.choice('abcdefgh')}{i}.txt",
            f"Sample {rng.randint(100, 999)}: {word}, {rng.randint(2, 90)} grams.\n",
        )
        for i, word in enumerate(words)
    )
    path, content = rng.choice(files)
    word, mass = content.split(": ")[1].split(", ")
    others = sorted(name for name, _ in files if name < path)
    plan = (ToolCall("list_files", {}), *(read_file(name) for name in others), read_file(path), submit(mass.split()[0]))
    return Task(
        f"One of the files in notes/ is about a sample of {word}. How many grams does it weigh?",
        plan,
        mass.split()[0],
        files=files,
    )


def _write_sum(rng: random.Random) -> Task:
    names = rng.sample(("north.txt", "south.txt", "east.txt", "west.txt"), 2)
    columns = [[rng.randint(10, 5000) for _ in range(rng.randint(3, 6))] for _ in names]
    files = tuple(
        (name, "".join(f"{number}\n" for number in column)) for name, column in zip(names, columns, strict=True)
    )
    total = sum(map(sum, columns))
    expression = " + ".join(str(number) for column in columns for number in column)
    target = rng.choice(("total.txt", "out/total.txt", "result.txt"))
    write = ToolCall("write_file", {"path": target, "content": str(total)})
    return Task(
        f"Add up all the numbers in {names[0]} and {names[1]}, write the sum (nothing else) to the file {target}, "
        "then submit the word done.",
        (read_file(names[0]), read_file(names[1]), calculator(expression), write, submit("done")),
        "done",
        files=files,
        written=(target, str(total)),
    )


def _number_search(rng: random.Random) -> Task:
    low, span, k = rng.randint(100, 9_000), rng.randint(50, 900), rng.randint(3, 19)
    numbers, both = range(low, low + span + 1), f"{low} to {low + span} (both included)"
    kind = rng.randrange(3)
    if kind == 0:
        question = f"How many numbers from {both} have a sum of digits that is divisible by {k}?"
        condition = f"sum(map(int, str(n))) % {k} == 0"
        answer = sum(sum(map(int, str(n))) % k == 0 for n in numbers)
    elif kind == 1:
        question = f"How many numbers from {both} read the same backwards or are divisible by {k}?"
        condition = f"str(n) == str(n)[::-1] or n % {k} == 0"
        answer = sum(str(n) == str(n)[::-1] or n % k == 0 for n in numbers)
    else:
        question = f"How many prime numbers lie between {low} and {low + span} (both included)?"
        condition = "all(n % d for d in range(2, int(n ** 0.5) + 1))"
        answer = sum(all(n % d for d in range(2, int(n**0.5) + 1)) for n in numbers)
    code = f"print(sum(1 for n in range({low}, {low + span + 1}) if {condition}))"
    return Task(question, (python(code), submit(str(answer))), str(answer))


def _sequence(rng: random.Random) -> Task:
    start, factor, add = rng.randint(1, 99), rng.randint(2, 40), rng.randint(1, 99)
    modulus, steps = rng.randint(1000, 9999), rng.randint(50, 5000)
    value = start
    for _ in range(steps):
        value = (factor * value + add) % modulus
    code = f"x = {start}\nfor _ in range({steps}):\n    x = ({factor} * x + {add}) % {modulus}\nprint(x)"
    question = (
        f"Start with x = {start} and replace x by ({factor} * x + {add}) % {modulus}, {steps} times. What is x then?"
    )
    return Task(question, (python(code), submit(str(value))), str(value))


FAMILIES: tuple[Callable[[random.Random], Task], ...] = (
    _arithmetic, _difference, _two_steps, _stock, _find_file, _write_sum, _number_search, _sequence,
)  # fmt: skip
"""One tool, two searches, a chain of searches, a table in a file, a search among files, a file to be written, programs.
"""
