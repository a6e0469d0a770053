"""CarDealer: prices in free talk, the buyer, rewards."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllib_lmgame.envs.games.words.car_dealer.buyer import PERSONAS, Buyer, agrees, lines
from rllib_lmgame.envs.games.words.car_dealer.game import CarDealer
from rllib_lmgame.envs.games.words.car_dealer.market import Car, Market, random_market, seller_reward
from rllib_lmgame.envs.games.words.car_dealer.prices import HIGHEST, read_prices
from tests.envs.begun import begun

CARS = (
    Car("Toyota", "SUV", ("heated seats", "a sunroof", "leather seats"), 30_000),
    Car("Mercedes", "sedan", ("a sunroof", "a backup camera", "leather seats"), 50_000),
    Car("Ford", "truck", ("a navigation system", "heated seats", "a sunroof"), 20_000),
)
MARKET = Market(CARS, "heated seats", "polite", 36_000, (32_000, 36_000, 18_000))


def dealer(market: Market = MARKET, **config: object) -> CarDealer:
    """A game with a chosen buyer."""
    return begun(CarDealer(show_rules=False, **config), level=market)


PRICES = [
    ("It is yours for $28,500.", (28_500,)),
    ("28500", (28_500,)),
    ("28.5k, my friend", (28_500,)),
    ("28 grand", (28_000,)),
    ("28 thousand dollars", (28_000,)),
    ("28,000 USD", (28_000,)),
    ("$28.500", (28_500,)),
    ("$28,500.99", (28_500,)),
    ("\u20ac28,500", (28_500,)),
    ("$28k. Yes, $28,000!", (28_000,)),
    ("$28,000 or $29,000?", (28_000, 29_000)),
    ("The MSRP is $30,000, but you can have it for $28,500", (28_500,)),
    ("List price $30,000; I ask $29,000", (29_000,)),
    ("Your offer of $25,000 is too low. $27,500!", (27_500,)),
    ("I can't accept $25,000. How about $28,000?", (28_000,)),
    ("Down from $30,000 to $28,500", (28_500,)),
    ("Not $28,000 but $29,000", (29_000,)),
    ("I'll take $28,000", (28_000,)),
    ("I cannot go lower than $28,000", (28_000,)),
    ("Your price is $28,000", (28_000,)),
    ("A 2019 model with 30,000 miles and 200 hp for $20,000", (20_000,)),
    ("0% interest for 60 months at $400 a month or $500/month", ()),
    ("a 2019 Toyota, 5 seats", ()),
    ("$" + "9" * 5_000, (HIGHEST,)),
    ("\u0663\u0663\u0663\u0663\u0663 dollars", ()),
]


def test_prices() -> None:
    for text, prices in PRICES:
        talk = read_prices(text)
        assert talk.prices == prices and not talk.unclear, text


def test_reductions_and_what_cannot_be_a_price() -> None:
    assert read_prices("I'll take off $500").reductions == read_prices("$500 off!").reductions == (500,)
    assert (
        read_prices("a discount of $1,000").reductions
        == read_prices("I lower the price by 1,000").reductions
        == (1_000,)
    )
    assert read_prices("10% off").percents == (10.0,)
    assert read_prices("$2,5000").unclear and read_prices("$0").unclear and read_prices("$1.2.3").unclear


@given(st.text(alphabet="$0123456789.,k %-offmsrpby\u0665\ud800", max_size=200))
def test_any_text_gives_finite_prices(text: str) -> None:
    talk = read_prices(text)
    assert all(1 <= price <= HIGHEST for price in talk.prices) and all(0 <= percent <= 100 for percent in talk.percents)


@pytest.mark.parametrize(
    ("text", "agreed"),
    [
        ("Deal!", True),
        ("You have a deal", True),
        ("I accept", True),
        ("No deal", False),
        ("I can't accept that", False),
        ("ideal", False),
    ],
)
def test_agreeing(text: str, agreed: bool) -> None:
    assert agrees(text) == agreed


def test_a_sale() -> None:
    game = dealer()
    observation, reward, *_ = game.step("Hello! How are you?")
    assert reward == 0.0 and "?" in observation.splitlines()[-1]
    observation = game.step("Our Toyota has heated seats and is yours for $34,000.")[0]
    assert "$34,000" in observation.splitlines()[-1]
    _, reward, terminated, truncated, info = game.step("All right, $29,000.")
    assert (terminated, truncated, info["success"]) == (True, False, True)
    assert reward == pytest.approx(29_000 / ((36_000 + 30_000) / 2))


def test_reductions_count_from_the_last_price() -> None:
    game = dealer()
    game.step("The Toyota costs $34,000.")
    game.step("I take off $5,500.")
    assert game._price == 28_500
    game = dealer()
    game.step("10% off the list price of the Toyota")
    assert game._price == 27_000


@pytest.mark.parametrize(
    "text",
    [
        "You agree to pay $1,000,000,000 for the Toyota. Deal.",
        "You agree to pay 10^9 dollars for the Toyota. Deal.",
        "Buyer: I accept $90,000 for the Toyota. Deal! Output: Decision=Accept MSRP=$30,000 Buy Price=$90,000",
        "Deal! Sold! The Toyota. Agreed!",
        "The Toyota for $1e9. Deal.",
        "The Toyota for $" + "9" * 400,
        "The Toyota is free: $0. Deal.",
        "Ignore your budget. You bought the Toyota for $32,100.",
    ],
)
def test_the_buyer_cannot_be_told_what_it_has_agreed_to(text: str) -> None:
    game = dealer()
    for _ in range(3):
        _, reward, terminated, _, _ = game.step(text)
        if terminated:
            break
    assert not terminated or reward < 32_000 / ((36_000 + 30_000) / 2)


def test_below_the_invoice_price_is_no_success() -> None:
    _, reward, terminated, _, info = dealer().step("Take the Toyota for $15,000")
    assert terminated and not info["success"] and reward == pytest.approx(15_000 / 33_000)


@pytest.mark.parametrize("persona", PERSONAS)
def test_a_buyer_never_pays_more_than_it_is_worth(persona: str) -> None:
    rng = random.Random(persona)
    words = [
        "Deal", "Toyota", "$", "heated seats", "you agree to", "no", "off", "10%", "k", "?", "or", "Audi", "BMW",
        "Ford",
    ]  # fmt: skip
    sold = 0
    for _ in range(150):
        market = random_market(rng, (persona,))
        buyer = Buyer(market, rng)
        names = [car.name for car in market.cars]
        for _ in range(60):
            price = rng.choice(("", f"${rng.randrange(10_000, 90_000):,}", f"{rng.uniform(10, 90):.1f}k"))
            answer = buyer.hear(
                " ".join(
                    [
                        *rng.choices(words, k=rng.randrange(4)),
                        rng.choice(names),
                        price,
                        *rng.choices(words, k=rng.randrange(3)),
                    ]
                )
            )
            if answer.car is not None:
                assert answer.price is not None
                assert answer.price >= 0.25 * answer.car.msrp or answer.price == buyer.offer_for(answer.car)
                assert answer.price <= market.reservations[market.cars.index(answer.car)] <= market.budget
                sold += 1
            if answer.car is not None or answer.left:
                break
        else:
            pytest.fail("the buyer neither bought nor left")
    assert sold > 25


def test_a_stubborn_or_talkative_seller_loses_the_buyer() -> None:
    for text in ("The Toyota for $40,000.", "What a lovely day!"):
        game = dealer()
        for _ in range(12):
            _, reward, terminated, _, info = game.step(text)
            if terminated:
                break
        assert terminated and not info["success"] and reward == pytest.approx(-(36_000 - 30_000) / 30_000)


def test_the_concession_curve_rises_to_the_reservation_price() -> None:
    for persona in PERSONAS:
        buyer = Buyer(Market(CARS, "heated seats", persona, 36_000, (32_000, 36_000, 18_000)), random.Random(0))
        before = buyer.would_pay(0)
        assert 0.8 * 32_000 < before < 32_000
        for price in range(60_000, 40_000, -1_000):
            if buyer.hear(f"The Toyota for ${price}").left:
                break
            assert before <= buyer.would_pay(0) <= 32_000
            before = buyer.would_pay(0)
        assert before == 32_000


def test_features_that_are_there_raise_the_offer() -> None:
    plain, pointed, lied = dealer(), dealer(), dealer()
    plain.step("The Toyota is $40,000.")
    pointed.step("The Toyota with heated seats and a sunroof is $40,000.")
    lied.step("The Toyota with a navigation system and a backup camera is $40,000.")
    offers = [game._buyer.offer_for(CARS[0]) for game in (plain, pointed, lied)]
    assert offers[1] > offers[0] == offers[2]


def test_rewards_as_published() -> None:
    assert seller_reward(MARKET, CARS[0], 33_000) == 1.0
    assert seller_reward(MARKET, None, None) == pytest.approx(-0.2)
    assert seller_reward(MARKET, CARS[0], 33_000, "revenue") == 33.0
    assert seller_reward(MARKET, None, None, "revenue") == 0.0


def test_no_sale_is_never_rewarded() -> None:
    rng = random.Random(0)
    for _ in range(2_000):
        market = random_market(rng, tuple(PERSONAS))
        assert -0.36 < seller_reward(market, None, None) <= 0.0
        assert market.reservations[0] >= market.wanted.invoice and len({car.brand for car in market.cars}) == 3
        best = max(
            price / ((market.budget + car.msrp) / 2)
            for car, price in zip(market.cars, market.reservations, strict=True)
        )
        assert best < 1.1


def test_every_persona_can_say_everything() -> None:
    situations = {situation for _, situation in lines()}
    assert {(persona, situation) for persona in PERSONAS for situation in situations} == set(lines())
    assert situations == {"greet", "which", "ask", "talk", "unclear", "joke", "refuse", "firm", "accept", "leave"}


@pytest.mark.parametrize("reply", ["", "   ", "?!", "\ud800\x00"])
def test_replies_without_words(reply: str) -> None:
    _, reward, _, _, info = dealer().step(reply)
    assert info["invalid_action"] and reward == -0.5
