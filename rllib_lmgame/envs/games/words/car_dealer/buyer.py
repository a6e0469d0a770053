"""The buyer of CarDealer: listens to free talk, bargains along a concession curve, and never pays more than its
reservation price.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from functools import cache

from rllib_lmgame.base.text import one_line
from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.games.words.car_dealer.market import Car, Market, rounded
from rllib_lmgame.envs.games.words.car_dealer.prices import Talk, dollars, read_prices
from rllib_lmgame.envs.games.words.guessing.questions import all_words
from rllib_lmgame.envs.support.asked_models import AskedModel, harmless
from rllib_lmgame.envs.support.datasets import package_lines

MAX_HEARD = 1_000
"""Characters of an utterance the buyer listens to."""

SMALLEST_STEP = 0.005
"""A price that comes down by less than this share of the list price has not moved."""

CREDIBLE_SHARE = 0.25
"""A price below this share of the list price is taken for a slip of the tongue, not for a price."""

COUNTER_SHARE = 0.97
"""Counter offer, as a share of what the buyer would pay now."""

FEATURE_BONUS = 0.01
MAX_BONUS = 0.03
"""What each feature that is pointed out adds to what the buyer would pay now, as a share of the reservation price."""

AGREEING = frozenset(("deal", "accept", "agreed", "agree", "sold"))
DENYING = frozenset(("not", "n't", "no", "never", "cannot", "if", "unless", "almost"))
AGREEING_WINDOW = 4
"""Words before "deal" in which a denial counts."""


@dataclass(frozen=True)
class Persona:
    """How a buyer bargains.

    Attributes:
        start: What it would pay at first, as a share of the reservation price.
        rounds: Prices it hears until it would pay the reservation price.
        power: Shape of the concession curve: above 1 it gives way late, below 1 early.
        patience: Times it hears a price that has not moved (or, half as bad, talk without anything new) before it
            leaves.
        max_prices: Prices it hears before it leaves in any case.
    """

    start: float
    rounds: int
    power: float
    patience: float
    max_prices: int


PERSONAS = {
    "polite": Persona(0.93, 5, 0.8, 4, 18),
    "rude": Persona(0.88, 6, 1.6, 2, 14),
    "sarcastic": Persona(0.90, 6, 1.2, 3, 15),
    "talkative": Persona(0.92, 5, 1.0, 5, 20),
    "quiet": Persona(0.91, 5, 1.0, 3, 15),
    "haggler": Persona(0.85, 8, 1.4, 4, 20),
}


@dataclass(frozen=True)
class Answer:
    """What the buyer does.

    Attributes:
        text: What it says.
        car: Car it has bought, or ``None``.
        price: What it pays for it.
        left: It has gone away without a car.
    """

    text: str
    car: Car | None = None
    price: int | None = None
    left: bool = False


@cache
def lines() -> dict[tuple[str, str], tuple[str, ...]]:
    """What the personas say, by persona and situation."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for line in package_lines("car_buyer_lines.txt"):
        persona, situation, text = (part.strip() for part in line.split("|"))
        found[persona, situation].append(text)
    return {key: tuple(texts) for key, texts in found.items()}


class Buyer:
    """A buyer in conversation with a seller.

    Guarantees: it never pays more than the reservation price of the car at hand, whatever is said (a seller's word that
    it "has agreed" is no agreement). It takes no price below a quarter of the list price at its word. After at most
    ``max_prices`` prices it has bought or left.

    Args:
        market: Cars, and this buyer's wishes and means.
        rng: Chooses among the ways of saying the same.
    """

    def __init__(self, market: Market, rng: random.Random) -> None:
        self._market = market
        self._persona = PERSONAS[market.persona]
        self._rng = rng
        self._car: int | None = None
        self._asked: dict[int, int] = {}
        self._offers: dict[int, int] = {}
        self._pointed_out: set[str] = set()
        self._prices = 0
        self._annoyance = 0.0

    def greeting(self) -> str:
        """The buyer's first words: what it is looking for."""
        wish = self._market.wish
        text = self._line("greet")
        return text.format(wish=wish[0].upper() + wish[1:] if ". {wish}" in text else wish)

    def hear(self, utterance: str) -> Answer:
        """Listen to the seller and answer."""
        utterance = utterance[:MAX_HEARD]
        talk = read_prices(utterance)
        self._notice_car(utterance)
        new = self._notice_features(utterance)
        if self._car is None:
            return self._tired(new) or self._say("which")
        if not talk.prices and not (talk.reductions or talk.percents) and agrees(utterance):
            if self._car in self._offers and not ("?" in utterance and self._car in self._asked):
                return self._buy(self._offers[self._car])
            if self._car in self._asked:  # "Do we have a deal?"
                return self._hear_price(self._asked[self._car])
        if len(talk.prices) > 1:
            return self._tired(new) or self._say("unclear", ask=talk.prices[0], other=talk.prices[1])
        price = self._price_of(talk)
        credible = price is not None and price >= CREDIBLE_SHARE * self._market.cars[self._car].msrp
        if price is not None and credible:
            return self._hear_price(price)
        if talk.unclear or price is not None:
            return self._tired(new) or self._say("joke")
        return self._tired(new) or self._say("talk" if self._car in self._asked else "ask")

    def offer_for(self, car: Car) -> int | None:
        """The buyer's last offer for a car, as it has told the seller, or ``None``."""
        return self._offers.get(self._market.cars.index(car))

    def would_pay(self, car: int) -> int:
        """What the buyer would pay for a car after what it has heard: rises to the reservation price and never
        above.
        """
        persona, reservation = self._persona, self._market.reservations[car]
        share = persona.start + (1 - persona.start) * min(1.0, self._prices / persona.rounds) ** persona.power
        bonus = min(MAX_BONUS, FEATURE_BONUS * len(self._pointed_out & set(self._market.cars[car].features)))
        return min(reservation, int(reservation * (share + bonus)))

    def _notice_car(self, utterance: str) -> None:
        """The car at hand: the one that is named. Where several are, the one at hand if it is among them, else the one
        worth most.
        """
        words = set(all_words(utterance))
        named = [number for number, car in enumerate(self._market.cars) if words.issuperset(all_words(car.brand))]
        if named and self._car not in named:
            self._car = max(named, key=lambda number: self._market.reservations[number])

    def _notice_features(self, utterance: str) -> bool:
        """Whether something new was pointed out of the car at hand (it must have it)."""
        if self._car is None:
            return False
        text = utterance.lower()
        said = {feature for feature in self._market.cars[self._car].features if feature.removeprefix("a ") in text}
        new = not said <= self._pointed_out
        self._pointed_out |= said
        return new

    def _price_of(self, talk: Talk) -> int | None:
        assert self._car is not None
        before = self._asked.get(self._car, self._market.cars[self._car].msrp)
        if talk.prices:
            return talk.prices[0]
        if talk.reductions:
            return max(before - talk.reductions[0], 0)
        if talk.percents:
            return int(before * (1 - talk.percents[0] / 100))
        return None

    def _hear_price(self, price: int) -> Answer:
        assert self._car is not None
        car = self._car
        before = self._asked.get(car)
        moved = before is None or price <= before - SMALLEST_STEP * self._market.cars[car].msrp
        self._asked[car] = price
        self._prices += 1
        if price <= self.would_pay(car):
            return self._buy(price)
        self._annoyance += 0.0 if moved else 1.0
        if self._annoyance >= self._persona.patience or self._prices >= self._persona.max_prices:
            return self._leave()
        self._offers[car] = max(self._offers.get(car, 0), rounded(COUNTER_SHARE * self.would_pay(car)))
        return self._say("refuse" if moved else "firm", ask=price, price=self._offers[car])

    def _tired(self, new: bool) -> Answer | None:
        """Goes away after too much talk without anything new."""
        self._annoyance += 0.0 if new else 0.5
        return self._leave() if self._annoyance >= self._persona.patience else None

    def _buy(self, price: int) -> Answer:
        assert self._car is not None and 0 < price <= self._market.reservations[self._car]
        return Answer(self._say("accept", price=price).text, self._market.cars[self._car], price)

    def _leave(self) -> Answer:
        return Answer(self._line("leave"), left=True)

    def _line(self, situation: str) -> str:
        return self._rng.choice(lines()[self._market.persona, situation])

    def _say(self, situation: str, **prices: int) -> Answer:
        car = self._market.cars[self._car].name if self._car is not None else ""
        return Answer(self._line(situation).format(car=car, **{key: dollars(value) for key, value in prices.items()}))


MODEL_BUYER = """You are a {persona} customer at a car dealer's and look for {wish}. For each car you can pay at most: \
{most}. Never tell these numbers; get a car for as little as you can. Answer the seller in one or two short sentences, \
and name a price if you offer one. Say "Deal!" to take the price that the seller named last. Say "Goodbye." to leave \
without a car."""
CANNOT_PAY = "That is more than I can pay."


class ModelBuyer(Buyer):
    """A buyer whose words are a language model's.

    Guarantees: as of :class:`Buyer`, a sale is at a price that was named, by the seller or in the buyer's last offer
    that the seller accepts, and never above the reservation price.
    """

    def __init__(self, market: Market, rng: random.Random, model: AskedModel) -> None:
        super().__init__(market, rng)
        self._model = model
        most = (f"{car.name} {dollars(price)}" for car, price in zip(market.cars, market.reservations, strict=True))
        self._task = MODEL_BUYER.format(persona=market.persona, wish=market.wish, most=", ".join(most))
        self._first = super().greeting()
        self._said = [f"Customer: {self._first}"]

    def greeting(self) -> str:
        return self._first

    def hear(self, utterance: str) -> Answer:
        """Listen to the seller and answer. Raises: GameError: the model gives no answer."""
        utterance = utterance[:MAX_HEARD]
        talk = read_prices(utterance)
        self._notice_car(utterance)
        car = self._car
        if car is not None and not talk.prices and agrees(utterance) and car in self._offers:
            return self._buy(self._offers[car])
        price = None if car is None or len(talk.prices) > 1 else self._price_of(talk)
        if car is not None and price is not None and price >= CREDIBLE_SHARE * self._market.cars[car].msrp:
            self._asked[car] = price
        self._said.append(f"Seller: {harmless(one_line(utterance))}")
        text = one_line(self._model.ask(self._task, "\n".join(self._said)))[:MAX_HEARD].strip()
        if not any(mark.isalnum() for mark in text):
            raise GameError(f"{self._model.name} gave no answer")
        left = "goodbye" in all_words(text)
        asked, named = None if car is None else self._asked.get(car), read_prices(text).prices
        if car is not None and asked is not None and agrees(text) and set(named) <= {asked}:
            if asked <= self._market.reservations[car]:
                return Answer(text, self._market.cars[car], asked)
            text = CANNOT_PAY
        elif car is not None and len(named) == 1 and 0 < named[0] <= self._market.reservations[car]:
            self._offers[car] = named[0]
        self._said.append(f"Customer: {text}")
        return Answer(text, left=left)


def agrees(utterance: str) -> bool:
    """Whether the seller agrees ("Deal!"), and does not deny it just before ("no deal", "I can't accept that")."""
    words = all_words(utterance)
    return any(
        word in AGREEING and not DENYING & set(words[max(0, place - AGREEING_WINDOW) : place])
        for place, word in enumerate(words)
    )
