"""Stories of people, places, ways and things counted.

A story is a generator of up to five steps. Its numbers are drawn so that every division comes out even and every amount
makes sense.
"""

from __future__ import annotations

from collections.abc import Iterator

from rllib_lmgame.envs.games.mathematics.word_problems.teller import Step, Teller, money, step

SMALL_THINGS = ("marbles", "stickers", "shells", "trading cards", "buttons", "coins", "beads", "stamps")
TOWNS = ("Northfield", "Oakham", "Riverton", "Seaford", "Hillcrest", "Lakewood")
PETS = ("dogs", "cats", "rabbits", "ponies", "goats")


def reading(t: Teller) -> Iterator[Step]:
    (who,) = t.people(1)
    pace, days, faster, later = t.number(8, 30), t.number(3, 9), t.number(12, 40), t.number(2, 9)
    pages = pace * days + faster * later
    loan = days + later + t.number(1, 15)
    yield step(
        f"{who.name} reads {pace} pages of a novel on each of {days} days.",
        pace,
        "*",
        days,
        f"{who.name} has read {{sum}} pages.",
        f"How many pages has {who.he} read?",
    )
    yield step(
        f"The novel has {pages} pages.",
        pages,
        "-",
        pace * days,
        "{sum} pages are left.",
        "How many pages are left to read?",
    )
    yield step(
        f"From then on {who.he} reads {faster} pages a day.",
        faster * later,
        "/",
        faster,
        "The rest takes {sum} days.",
        f"How many more days does {who.he} need to finish the novel?",
    )
    yield step(
        f"{who.name} never skips a day until the novel is finished.",
        days,
        "+",
        later,
        "The whole novel takes {sum} days.",
        "How many days does the whole novel take?",
    )
    yield step(
        f"The library lends it for {loan} days, counted from the first day of reading.",
        loan,
        "-",
        days + later,
        "{sum} days of the loan are left.",
        f"How many days of the loan are left when {who.he} finishes?",
    )


def bus(t: Teller) -> Iterator[Step]:
    town, other = t.rng.sample(TOWNS, 2)
    seats = t.number(60, 90)
    start = t.number(20, 50)
    off = t.number(3, start - 8)
    on = t.number(2, 20)
    aboard = start - off + on
    group = t.number(2, max(2, aboard // 2))
    fare = t.number(2, 6)
    yield step(
        f"A bus leaves with {start} passengers. In {town} {off} of them get off.",
        start,
        "-",
        off,
        "{sum} passengers stay.",
        f"How many of the passengers are still on the bus after {town}?",
    )
    yield step(
        f"Then {on} people get on.",
        start - off,
        "+",
        on,
        "{sum} passengers are aboard.",
        "How many passengers are on the bus now?",
    )
    yield step(
        f"In {other} a group of {group} leaves the bus.",
        aboard,
        "-",
        group,
        "{sum} passengers remain.",
        f"How many passengers does the bus carry when it leaves {other}?",
    )
    yield step(
        f"The bus has {seats} seats.",
        seats,
        "-",
        aboard - group,
        "{sum} seats are empty.",
        f"How many seats are empty when it leaves {other}?",
    )
    yield step(
        f"At the last stop somebody takes every empty seat, and each of these pays {money(fare)}.",
        seats - aboard + group,
        "*",
        fare,
        "They pay {sum} dollars.",
        "How many dollars do the people of the last stop pay together?",
    )


def road_trip(t: Teller) -> Iterator[Step]:
    (who,) = t.people(1)
    town = t.pick(TOWNS)
    speed, hours, slow, later = t.number(60, 110, 5), t.number(2, 6), t.number(30, 55, 5), t.number(1, 5)
    trip = speed * hours + slow * later
    rest = t.number(1, 4)
    yield step(
        f"{who.name} drives for {hours} hours at {speed} kilometres an hour.",
        speed,
        "*",
        hours,
        "The drive so far is {sum} kilometres.",
        f"How many kilometres does {who.he} drive in that time?",
    )
    yield step(
        f"The way to {town} is {trip} kilometres.",
        trip,
        "-",
        speed * hours,
        "{sum} kilometres are left.",
        f"How many kilometres are left to {town}?",
    )
    yield step(
        f"The rest is a mountain road that allows {slow} kilometres an hour.",
        slow * later,
        "/",
        slow,
        "The mountain road takes {sum} hours.",
        "How many hours does the mountain road take?",
    )
    yield step(
        "There is no stop before the mountain road.",
        hours,
        "+",
        later,
        "Driving takes {sum} hours.",
        "How many hours of driving is the whole way?",
    )
    yield step(
        f"At the end of the way {who.he} rests for {rest} {'hour' if rest == 1 else 'hours'}.",
        hours + later,
        "+",
        rest,
        "With the rest it is {sum} hours.",
        f"How many hours pass from the start to the end of {who.his} rest?",
    )


def collections(t: Teller) -> Iterator[Step]:
    a, b, c = t.people(3)
    thing, first, times, share = t.pick(SMALL_THINGS), t.number(8, 40), t.number(2, 5), t.number(2, 6)
    second = first * times
    fewer = t.leaving(first + 2 * second, share, min(second - 1, 30))
    third = second - fewer
    total = first + second + third
    yield step(
        f"{a.name} has {first} {thing}. {b.name} has {times} times as many.",
        first,
        "*",
        times,
        f"{b.name} has {{sum}} {thing}.",
        f"How many {thing} does {b.name} have?",
    )
    yield step(
        f"{c.name} has {fewer} fewer than {b.name}.",
        second,
        "-",
        fewer,
        f"{c.name} has {{sum}} {thing}.",
        f"How many {thing} does {c.name} have?",
    )
    yield step(
        f"{b.name} and {c.name} pour theirs into one jar.",
        second,
        "+",
        third,
        f"The jar holds {{sum}} {thing}.",
        f"How many {thing} are in the jar?",
    )
    yield step(
        f"Then {a.name} adds all of {a.his} {thing}.",
        second + third,
        "+",
        first,
        f"Now it holds {{sum}} {thing}.",
        f"How many {thing} are in the jar at the end?",
    )
    yield step(
        f"They pour all of them out again and lay them in {share} equal rows.",
        total,
        "/",
        share,
        f"A row has {{sum}} {thing}.",
        f"How many {thing} lie in each row?",
    )


def temperature(t: Teller) -> Iterator[Step]:
    town, other = t.rng.sample(TOWNS, 2)
    start, fall, rise, night = t.number(-6, 15), t.number(4, 20), t.number(2, 9), t.number(3, 16)
    gap, frost = t.number(2, 12), t.number(2, 12)
    low = start - fall
    dawn = low + rise - night
    yield step(
        f"At noon it is {start} degrees in {town}. By the evening the temperature falls by {fall} degrees.",
        start,
        "-",
        fall,
        "In the evening it is {sum} degrees.",
        f"How many degrees is it in {town} in the evening?",
    )
    yield step(
        f"Then a warm wind raises it by {rise} degrees.",
        low,
        "+",
        rise,
        "With the wind it is {sum} degrees.",
        "How many degrees is it then?",
    )
    yield step(
        f"During the night it falls by {night} degrees.",
        low + rise,
        "-",
        night,
        "At dawn it is {sum} degrees.",
        f"How many degrees is it in {town} at dawn?",
    )
    yield step(
        f"At dawn it is {gap} degrees warmer in {other}.",
        dawn,
        "+",
        gap,
        f"In {other} it is {{sum}} degrees.",
        f"How many degrees is it in {other} at dawn?",
    )
    yield step(
        f"By noon it gets {frost} degrees colder in {other}.",
        dawn + gap,
        "-",
        frost,
        f"At noon it is {{sum}} degrees in {other}.",
        f"How many degrees is it in {other} at noon?",
    )


def ages(t: Teller) -> Iterator[Step]:
    a, b, c = t.people(3)
    age, older, later, younger = t.number(3, 9), t.number(2, 7), t.number(2, 12), t.number(1, 6)
    second, third = age + older, 2 * (age + older)
    yield step(
        f"{a.name} is {age} years old. {b.name} is {older} years older.",
        age,
        "+",
        older,
        f"{b.name} is {{sum}} years old.",
        f"How old is {b.name}?",
    )
    yield step(
        f"{c.name} is twice as old as {b.name}.",
        second,
        "*",
        2,
        f"{c.name} is {{sum}} years old.",
        f"How old is {c.name}?",
    )
    yield step(
        f"Now think of the day {later} years from now.",
        third,
        "+",
        later,
        f"Then {c.name} will be {{sum}} years old.",
        f"How old will {c.name} be then?",
    )
    yield step(
        f"On that day {c.name}'s neighbour will be {younger} years younger than {c.name}.",
        third + later,
        "-",
        younger,
        "The neighbour will be {sum} years old.",
        "How old will the neighbour be on that day?",
    )
    yield step(
        "The neighbour's father will be twice as old as the neighbour.",
        third + later - younger,
        "*",
        2,
        "The father will be {sum} years old.",
        "How old will the neighbour's father be on that day?",
    )


def tank(t: Teller) -> Iterator[Step]:
    rate, minutes, second, more = t.number(12, 45), t.number(8, 40), t.number(10, 60), t.number(4, 30)
    leak = t.number(5, rate * minutes // 3)
    held = rate * minutes - leak
    size = held + second * more
    yield step(
        f"A pump fills an empty tank with {rate} litres a minute for {minutes} minutes.",
        rate,
        "*",
        minutes,
        "It pumps {sum} litres.",
        "How many litres does it pump?",
    )
    yield step(
        f"In that time {leak} litres leak away.",
        rate * minutes,
        "-",
        leak,
        "The tank holds {sum} litres.",
        "How many litres does the tank hold now?",
    )
    yield step(
        f"The leak is closed. The tank can take {size:,} litres in all.",
        size,
        "-",
        held,
        "There is room for {sum} litres.",
        "How many litres are missing until it is full?",
    )
    yield step(
        f"Another pump fills the rest with {second} litres a minute.",
        second * more,
        "/",
        second,
        "The second pump takes {sum} minutes.",
        "How many minutes does the second pump need?",
    )
    yield step(
        "It starts as soon as the first one stops.",
        minutes,
        "+",
        more,
        "Both together take {sum} minutes.",
        "How many minutes does it take from the start until the tank is full?",
    )


def match(t: Teller) -> Iterator[Step]:
    home, away = t.rng.sample(TOWNS, 2)
    throws, points, free, quarters = t.number(12, 30), t.pick(("2", "3")), t.number(5, 18), 4
    first = throws * int(points)
    score = first + free
    behind = t.leaving(2 * score, quarters, 20)
    yield step(
        f"In a match the team of {home} lands {throws} throws worth {points} points each.",
        throws,
        "*",
        int(points),
        "The throws make {sum} points.",
        "How many points are that?",
    )
    yield step(
        f"It also lands {free} free throws worth one point each and nothing else.",
        first,
        "+",
        free,
        f"{home} scores {{sum}} points.",
        f"How many points does {home} score?",
    )
    yield step(
        f"{away} scores {behind} points fewer.",
        score,
        "-",
        behind,
        f"{away} scores {{sum}} points.",
        f"How many points does {away} score?",
    )
    yield step(
        "The scores of both teams are added up.",
        score,
        "+",
        score - behind,
        "Both score {sum} points.",
        "How many points are scored in the match?",
    )
    yield step(
        f"The match has {quarters} quarters, and as many points fall in each of them.",
        2 * score - behind,
        "/",
        quarters,
        "A quarter has {sum} points.",
        "How many points fall in each quarter?",
    )


def shelter(t: Teller) -> Iterator[Step]:
    kind, animals, grams, days = t.pick(PETS), t.number(6, 40), t.number(150, 950, 50), t.number(3, 14)
    daily = animals * grams
    stock = daily * days + t.number(1, 40) * 1000
    bag = t.pick(("500", "1000", "250"))
    yield step(
        f"A shelter has {animals} {kind}, and each of them eats {grams} grams of food a day.",
        animals,
        "*",
        grams,
        "A day takes {sum} grams.",
        f"How many grams of food do the {kind} eat in a day?",
    )
    yield step(
        f"The shelter plans for {days} days.",
        daily,
        "*",
        days,
        "The plan takes {sum} grams.",
        "How many grams are eaten in these days?",
    )
    yield step(
        f"There are {stock:,} grams of food in the store at the start.",
        stock,
        "-",
        daily * days,
        "{sum} grams remain.",
        "How many grams remain at the end?",
    )
    yield step(
        f"What remains is filled into bags of {bag} grams.",
        stock - daily * days,
        "/",
        int(bag),
        "That makes {sum} bags.",
        "How many bags does that make?",
    )
    yield step(
        "Every bag is sold for $3 at the open day.",
        (stock - daily * days) // int(bag),
        "*",
        3,
        "The bags bring {sum} dollars.",
        "How many dollars do the bags bring?",
    )
