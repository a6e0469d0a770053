"""Stories of things made, sold and bought.

A story is a generator of up to five steps. Its numbers are drawn so that every division comes out even and every amount
makes sense.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from rllib_lmgame.envs.games.mathematics.word_problems.teller import Step, Teller, money, step

BAKED = ("muffins", "rolls", "cookies", "scones", "pretzels", "cupcakes", "buns", "pies")
STATIONERY = ("pens", "notebooks", "erasers", "rulers", "folders", "markers", "sketch pads", "staplers")
CROPS = ("tulips", "lettuces", "bean plants", "strawberry plants", "tomato plants", "daisies")
GOODS = ("bulbs", "bottles", "bolts", "batteries", "cups", "bricks", "pencils", "tiles")
CLOTHES = ("jacket", "backpack", "lamp", "pair of boots", "blanket", "chair", "suitcase")
PRIZES = ("bicycle", "guitar", "tent", "telescope", "skateboard", "camera")


def bakery(t: Teller) -> Iterator[Step]:
    (who,) = t.people(1)
    thing, trays, each, box = t.pick(BAKED), t.number(6, 20), t.number(8, 24), t.number(3, 8)
    baked = trays * each
    burnt = t.leaving(baked, box, 20)
    boxes, price = (baked - burnt) // box, t.number(4, 15)
    cost = t.number(5, boxes * price - 1)
    yield step(
        f"{who.name} bakes {trays} trays of {each} {thing}.",
        trays,
        "*",
        each,
        f"{{sum}} {thing} are baked.",
        f"How many {thing} does {who.name} bake?",
    )
    yield step(
        f"{burnt} of them get burnt and are thrown away.",
        baked,
        "-",
        burnt,
        f"{{sum}} {thing} are good.",
        f"How many good {thing} are left?",
    )
    yield step(
        f"The good ones are packed in boxes of {box}.",
        baked - burnt,
        "/",
        box,
        "That makes {sum} boxes.",
        "How many boxes are filled?",
    )
    yield step(
        f"Every box is sold for {money(price)}.",
        boxes,
        "*",
        price,
        "The boxes bring {sum} dollars.",
        "How many dollars do all the boxes bring?",
    )
    yield step(
        f"The ingredients cost {money(cost)}.",
        boxes * price,
        "-",
        cost,
        "The profit is {sum} dollars.",
        f"How many dollars does {who.name} earn once the ingredients are paid?",
    )


def eggs(t: Teller) -> Iterator[Step]:
    (who,) = t.people(1)
    hens, days, carton, price = t.number(9, 40), t.number(3, 7), t.pick(("6", "10", "12")), t.cents(2, 6)
    size, laid = int(carton), hens * days
    used = t.leaving(laid, size, 30)
    cartons = (laid - used) // size
    feed = t.number(1, max(1, int(cartons * price) - 1))
    keeps = f"{who.name} keeps {hens} hens, and each lays one egg a day."
    yield step(
        f"{keeps} {who.he.capitalize()} collects the eggs of {days} days.",
        hens,
        "*",
        days,
        "The hens lay {sum} eggs.",
        f"How many eggs does {who.name} collect?",
    )
    yield step(
        f"{who.his.capitalize()} family eats {used} of them.",
        laid,
        "-",
        used,
        "{sum} eggs remain.",
        "How many eggs remain?",
    )
    yield step(
        f"The rest goes into cartons of {size}.",
        laid - used,
        "/",
        size,
        "They fill {sum} cartons.",
        "How many cartons are filled?",
    )
    yield step(
        f"A carton sells for {money(price)}.",
        cartons,
        "*",
        price,
        "The cartons sell for {sum} dollars.",
        "How many dollars do all the cartons sell for?",
    )
    yield step(
        f"Feeding the hens in that time costs {money(feed)}.",
        cartons * price,
        "-",
        feed,
        "{sum} dollars are earned.",
        f"How many dollars does {who.name} keep after paying for the feed?",
    )


def savings(t: Teller) -> Iterator[Step]:
    (who,) = t.people(1)
    weekly, weeks, gift, prize = t.cents(4, 15), t.number(4, 20), t.number(10, 60), t.pick(PRIZES)
    saved = weekly * weeks
    later = t.number(3, 12)
    price = saved + gift + weekly * later
    yield step(
        f"{who.name} puts {money(weekly)} in a money box every week for {weeks} weeks.",
        weekly,
        "*",
        weeks,
        f"{who.name} saves {{sum}} dollars.",
        f"How many dollars does {who.he} save?",
    )
    yield step(
        f"{who.his.capitalize()} aunt adds {money(gift)}.",
        saved,
        "+",
        gift,
        "With the gift there are {sum} dollars.",
        "How many dollars are in the box now?",
    )
    yield step(
        f"{who.name} wants a {prize} that costs {money(price)}.",
        price,
        "-",
        saved + gift,
        "{sum} dollars are missing.",
        f"How many dollars does {who.he} still need for the {prize}?",
    )
    yield step(
        f"{who.he.capitalize()} goes on saving the same amount each week.",
        weekly * later,
        "/",
        weekly,
        "That takes {sum} weeks.",
        f"In how many more weeks can {who.he} buy the {prize}?",
    )
    yield step(
        f"{who.name} never misses a week.",
        weeks,
        "+",
        later,
        "Together that is {sum} weeks.",
        f"How many weeks does {who.he} save in all?",
    )


def shopping(t: Teller) -> Iterator[Step]:
    (who,) = t.people(1)
    thing, count, price, extra = t.pick(STATIONERY), t.number(2, 9), t.cents(1, 8), t.cents(3, 12)
    total = count * price + extra
    coupon = t.number(1, max(1, int(total) - 1))
    delivery = t.cents(2, 6)
    bill = total - coupon + delivery
    note = next(note for note in (20, 50, 100, 200) if note > bill)
    yield step(
        f"{who.name} buys {count} {thing} at {money(price)} each.",
        count,
        "*",
        price,
        f"The {thing} cost {{sum}} dollars.",
        f"How many dollars do the {thing} cost?",
    )
    yield step(
        f"{who.he.capitalize()} also takes a calendar for {money(extra)}.",
        count * price,
        "+",
        extra,
        "Together that is {sum} dollars.",
        "How many dollars does everything cost?",
    )
    yield step(
        f"A coupon takes {money(coupon)} off.",
        total,
        "-",
        coupon,
        "With the coupon it is {sum} dollars.",
        "How many dollars are due after the coupon?",
    )
    yield step(
        f"Delivery is {money(delivery)} more.",
        total - coupon,
        "+",
        delivery,
        "With delivery it is {sum} dollars.",
        f"How many dollars does {who.name} pay with delivery?",
    )
    yield step(
        f"{who.he.capitalize()} pays with {money(note)}.",
        note,
        "-",
        bill,
        "The change is {sum} dollars.",
        f"How many dollars does {who.he} get back?",
    )


def garden(t: Teller) -> Iterator[Step]:
    (who,) = t.people(1)
    crop, length, width, tray = t.pick(CROPS), t.number(6, 18), t.number(4, 12), t.number(2, 6)
    pond = t.leaving(length * width, tray, 20)
    bed, dense, price = length * width - pond, t.number(2, 9), t.number(2, 8)
    yield step(
        f"{who.name} has a rectangular garden, {length} metres long and {width} metres wide.",
        length,
        "*",
        width,
        "The garden has {sum} square metres.",
        "How many square metres is the garden?",
    )
    yield step(
        f"A pond covers {pond} square metres of it.",
        length * width,
        "-",
        pond,
        "{sum} square metres are land.",
        "How many square metres are left for plants?",
    )
    yield step(
        f"On every square metre of land {who.he} sets {dense} {crop}.",
        bed,
        "*",
        dense,
        f"{{sum}} {crop} are needed.",
        f"How many {crop} does {who.name} need?",
    )
    yield step(
        f"They are sold in trays of {tray}.",
        bed * dense,
        "/",
        tray,
        "That is {sum} trays.",
        "How many trays must be bought?",
    )
    yield step(
        f"A tray costs {money(price)}.",
        bed * dense // tray,
        "*",
        price,
        "The trays cost {sum} dollars.",
        "How many dollars do the trays cost?",
    )


def factory(t: Teller) -> Iterator[Step]:
    thing, rate, hours = t.pick(GOODS), t.number(120, 900, 10), t.number(6, 16)
    days, crate = t.number(3, 14), t.pick(("20", "24", "48", "50", "100"))
    daily, size = rate * hours, int(crate)
    made = daily * days
    faulty = t.leaving(made, size, 900)
    weight = t.number(4, 30)
    yield step(
        f"A factory makes {rate} {thing} an hour and runs {hours} hours a day.",
        rate,
        "*",
        hours,
        f"A day gives {{sum}} {thing}.",
        f"How many {thing} does it make in a day?",
    )
    yield step(
        f"An order keeps it busy for {days} days.",
        daily,
        "*",
        days,
        f"The order is {{sum}} {thing}.",
        f"How many {thing} does it make in these days?",
    )
    yield step(
        f"{faulty:,} of the {thing} are faulty and sorted out.",
        made,
        "-",
        faulty,
        f"{{sum}} {thing} pass.",
        f"How many {thing} pass the check?",
    )
    yield step(
        f"Those that pass are packed in crates of {size}.",
        made - faulty,
        "/",
        size,
        "They fill {sum} crates.",
        "How many crates are filled?",
    )
    yield step(
        f"A full crate weighs {weight} kilograms.",
        (made - faulty) // size,
        "*",
        weight,
        "The crates weigh {sum} kilograms.",
        "How many kilograms do the crates weigh together?",
    )


def painting(t: Teller) -> Iterator[Step]:
    (who,) = t.people(1)
    walls, area, cover = t.number(3, 8), t.number(10, 24), t.number(3, 8)
    windows = t.leaving(walls * area, cover, 18)
    litres, price, brush = (walls * area - windows) // cover, t.cents(5, 14), t.cents(3, 9)
    yield step(
        f"{who.name} paints {walls} walls of {area} square metres each.",
        walls,
        "*",
        area,
        "The walls have {sum} square metres.",
        "How many square metres are the walls together?",
    )
    yield step(
        f"Windows and doors take {windows} square metres of that and stay as they are.",
        walls * area,
        "-",
        windows,
        "{sum} square metres are painted.",
        "How many square metres are painted?",
    )
    yield step(
        f"One litre of paint covers {cover} square metres.",
        walls * area - windows,
        "/",
        cover,
        "That takes {sum} litres.",
        f"How many litres of paint does {who.he} need?",
    )
    yield step(
        f"A litre costs {money(price)}.",
        litres,
        "*",
        price,
        "The paint costs {sum} dollars.",
        "How many dollars does the paint cost?",
    )
    yield step(
        f"A brush for {money(brush)} is needed as well.",
        litres * price,
        "+",
        brush,
        "With the brush it is {sum} dollars.",
        "How many dollars do paint and brush cost together?",
    )


def theatre(t: Teller) -> Iterator[Step]:
    rows, seats, price, actors = t.number(10, 30), t.number(12, 40), t.number(6, 25), t.number(4, 12)
    empty = t.number(5, rows * seats // 2)
    income = (rows * seats - empty) * price
    rent = t.leaving(income, actors, income // 2)
    yield step(
        f"A theatre has {rows} rows of {seats} seats.",
        rows,
        "*",
        seats,
        "There are {sum} seats.",
        "How many seats does it have?",
    )
    yield step(
        f"At a play {empty} seats stay empty.",
        rows * seats,
        "-",
        empty,
        "{sum} seats are taken.",
        "How many people watch the play if one sits in each seat taken?",
    )
    yield step(
        f"Everybody who sits there paid {money(price)}.",
        rows * seats - empty,
        "*",
        price,
        "The tickets bring {sum} dollars.",
        "How many dollars do the tickets bring?",
    )
    yield step(
        f"Renting the hall costs {money(rent)}.",
        income,
        "-",
        rent,
        "{sum} dollars are left.",
        "How many dollars are left after the rent?",
    )
    yield step(
        f"The {actors} actors share what is left equally.",
        income - rent,
        "/",
        actors,
        "Each gets {sum} dollars.",
        "How many dollars does each actor get?",
    )


def sale(t: Teller) -> Iterator[Step]:
    (who,) = t.people(1)
    thing, price, percent = t.pick(CLOTHES), t.number(20, 160, 4), t.number(5, 60, 5)
    count, parcel = t.number(2, 6), t.cents(3, 9)
    off = Fraction(price * percent, 100)
    total = (price - off) * count
    note = 50 * (int(total + parcel) // 50 + 1)
    yield step(
        f"A {thing} costs {money(price)}. In a sale it is {percent} percent cheaper.",
        price,
        "*",
        Fraction(percent, 100),
        "The discount is {sum} dollars.",
        f"By how many dollars does the price of the {thing} fall?",
    )
    yield step(
        "That is taken off the price at the till.",
        price,
        "-",
        off,
        "The new price is {sum} dollars.",
        f"How many dollars does the {thing} cost in the sale?",
    )
    yield step(
        f"{who.name} orders {count} of them in the sale.",
        price - off,
        "*",
        count,
        "The order is {sum} dollars.",
        "How many dollars does the order cost?",
    )
    yield step(
        f"Sending the parcel costs {money(parcel)}.",
        total,
        "+",
        parcel,
        "With the parcel it is {sum} dollars.",
        "How many dollars does everything cost, with the parcel?",
    )
    yield step(
        f"{who.name} has {money(note)} to spend.",
        note,
        "-",
        total + parcel,
        "{sum} dollars are left.",
        f"How many dollars does {who.he} have left afterwards?",
    )
