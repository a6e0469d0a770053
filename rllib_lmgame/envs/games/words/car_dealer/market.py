"""Cars, buyers and what a sale is worth: the part of CarDealer that does not depend on who plays whom."""

from __future__ import annotations

import random
from dataclasses import dataclass

from rllib_lmgame.envs.games.words.car_dealer.prices import dollars

BRANDS = (
    "Toyota", "Honda", "Ford", "Mazda", "Hyundai", "Subaru", "Volkswagen", "Audi", "BMW", "Lexus", "Mercedes",
    "Porsche", "Tesla",
)  # fmt: skip
PREMIUM = frozenset(("Audi", "BMW", "Lexus", "Mercedes", "Porsche", "Tesla"))
KINDS = {"sedan": 27_000, "SUV": 36_000, "truck": 41_000, "convertible": 44_000, "minivan": 33_000, "hatchback": 22_000}
"""Kinds of car with a typical list price of a brand that is not a premium one."""

FEATURES = (
    "a backup camera", "a navigation system", "heated seats", "leather seats", "a third row of seats",
    "blind spot monitoring", "a sunroof",
)  # fmt: skip
PREMIUM_FACTOR = 1.7
INVOICE_SHARE = 0.9
"""What the dealer paid for a car, as a share of its list price."""

STEP = 100
"""Prices of cars and budgets are multiples of this."""

STOCK = 3
FEATURES_PER_CAR = 3
MATCH_WORTH = (0.95, 1.1)
OTHER_WORTH = (0.85, 0.95)
"""What a car is worth to the buyer at most, as a share of its list price: the one that suits, and any other one."""

BUDGET_FACTOR = (1.0, 1.35)
"""Budget, as a multiple of the list price of the car that suits."""

REWARDS = ("lmrl", "revenue")
REVENUE_UNIT = 1_000.0


@dataclass(frozen=True)
class Car:
    """A car in stock; prices in dollars."""

    brand: str
    kind: str
    features: tuple[str, ...]
    msrp: int

    @property
    def name(self) -> str:
        """Brand and kind; brands differ within a stock."""
        return f"{self.brand} {self.kind}"

    @property
    def invoice(self) -> int:
        """What the dealer paid for it."""
        return rounded(self.msrp * INVOICE_SHARE)

    @property
    def label(self) -> str:
        """What anybody may read of it."""
        return f"{self.name} with {', '.join(self.features)}: list price {dollars(self.msrp)}"

    def describe(self) -> str:
        """The line of the dealer's sheet."""
        return f"{self.label}, invoice price {dollars(self.invoice)}"


@dataclass(frozen=True)
class Market:
    """A dealer's stock and one buyer.

    Attributes:
        cars: The stock; the first one has the brand, kind and feature the buyer wants. Show it by :meth:`stock`.
        feature: Feature the buyer wants.
        persona: How the buyer talks and bargains.
        budget: What the buyer can pay, never below the list price of the first car.
        reservations: What the buyer would pay for each car at most.
    """

    cars: tuple[Car, ...]
    feature: str
    persona: str
    budget: int
    reservations: tuple[int, ...]

    @property
    def wanted(self) -> Car:
        """The car that suits the buyer."""
        return self.cars[0]

    @property
    def wish(self) -> str:
        """What the buyer says to be looking for."""
        article = "an" if self.wanted.brand[0] in "AEIOU" else "a"
        return f"{article} {self.wanted.name} with {self.feature}"

    def stock(self) -> list[Car]:
        """The cars by price, an order that does not tell which one suits."""
        return sorted(self.cars, key=lambda car: (car.msrp, car.name))


def rounded(price: float) -> int:
    """The price, down to a multiple of :data:`STEP`."""
    return int(price // STEP * STEP)


def random_market(rng: random.Random, personas: tuple[str, ...]) -> Market:
    """A stock and a buyer."""
    cars = []
    for brand in rng.sample(BRANDS, STOCK):
        kind = rng.choice(tuple(KINDS))
        typical = KINDS[kind] * (PREMIUM_FACTOR if brand in PREMIUM else 1.0)
        cars.append(
            Car(brand, kind, tuple(rng.sample(FEATURES, FEATURES_PER_CAR)), rounded(typical * rng.uniform(0.85, 1.25)))
        )
    wanted = cars[0]
    budget = rounded(wanted.msrp * rng.uniform(*BUDGET_FACTOR))
    budget = max(budget, wanted.msrp)
    worths = [rng.uniform(*(MATCH_WORTH if car is wanted else OTHER_WORTH)) for car in cars]
    reservations = tuple(rounded(min(budget, car.msrp * worth)) for car, worth in zip(cars, worths, strict=True))
    return Market(tuple(cars), rng.choice(wanted.features), rng.choice(personas), budget, reservations)


def seller_reward(market: Market, car: Car | None, price: int | None, kind: str = "lmrl") -> float:
    """What a sale is worth to the seller (LMRL-Gym).

    ``lmrl``: ``price / ((budget + msrp) / 2)`` for a sale, ``-(budget - msrp) / msrp`` without one. ``revenue``: the
    price in thousands of dollars, 0 without a sale. ``msrp`` is that of the car sold, and without a sale that of the
    car that suits the buyer, whichever car was talked about last. So no dear one can be held up to make the loss look
    small.

    Args:
        market: Stock and buyer.
        car: Car sold, or ``None``.
        price: Price, or ``None``.
        kind: One of :data:`REWARDS`.
    """
    if car is None or price is None:
        return 0.0 if kind == "revenue" else sale_value(None, market.wanted.msrp, market.budget)
    return price / REVENUE_UNIT if kind == "revenue" else sale_value(price, car.msrp, market.budget)


def sale_value(price: float | None, msrp: float, budget: float) -> float:
    """LMRL-Gym's reward of a sale at ``price``, or of none."""
    return -(budget - msrp) / msrp if price is None else price / ((budget + msrp) / 2)
