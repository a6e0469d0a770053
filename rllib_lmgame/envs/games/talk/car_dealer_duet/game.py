"""CarDealerDuet: a seller and a buyer, both of them players, bargain over a car."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import ClassVar

from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract import InvalidAction, TextAECOptions, Variant
from rllib_lmgame.envs.games.talk.actions import the_action
from rllib_lmgame.envs.games.talk.base import HEARD, TalkGame, TalkOptions
from rllib_lmgame.envs.games.talk.car_dealer_duet.experts import buyer_reply, seller_reply
from rllib_lmgame.envs.games.talk.car_dealer_duet.offers import ACCEPT, LEAVE, OFFER, Offer, offer_text, read_offer
from rllib_lmgame.envs.games.words.car_dealer.buyer import PERSONAS
from rllib_lmgame.envs.games.words.car_dealer.market import Car, Market, random_market, seller_reward
from rllib_lmgame.envs.games.words.car_dealer.prices import dollars
from rllib_lmgame.envs.support.bargaining import joint_share

SELLER, BUYER = "seller", "buyer"
LMRL, SURPLUS = "lmrl", "surplus"

RULES = """A seller and a buyer of cars bargain; the first observation says which one you are. \
Only the seller knows what the dealer paid for the cars (the invoice price), \
only the buyer knows its budget and what each car is worth to it.
Reply with a message to the other player, or with one action, which must be all of the reply. {heard}
`offer: Toyota SUV for $28,500` offers a car at a price (the seller sells, the buyer buys); it holds until somebody \
makes another offer. `accept` takes the other player's offer, and the car is sold. \
`walk away` ends the game without a sale. The buyer cannot pay more than its budget.
{reward}"""
REWARD_RULES = {
    LMRL: "The seller is paid the price in relation to the mean of list price and budget, and less than nothing "
    "without a sale; the buyer what the car is worth to it less the price, in the same relation, and nothing without "
    "a sale.",
    SURPLUS: "The seller is paid the price less the invoice price, the buyer what the car is worth to it less the "
    "price, both in relation to the list price; without a sale nobody is paid.",
}


class CarDealerDuetOptions(TalkOptions):
    """``env_config`` of CarDealerDuet."""

    max_turns: int | None = option(15, "Replies per player, after which there is no sale; null is no limit.", ge=2)
    reward: str = option(
        LMRL,
        "`lmrl`: after LMRL-Gym, whose seller is paid for a high price and punished for no sale. `surplus`: what each "
        "gains by the sale over the invoice price, or over what the car is worth to it.",
        choices=(LMRL, SURPLUS),
    )


class CarDealerDuet(TalkGame):
    """A seller and a buyer, both players, bargain over a car.

    It is CarDealer with a player on each side.

    Observation: of the seller the stock with list and invoice prices. Of the buyer the stock with list prices, what
        each car is worth to it, what it is looking for and its budget. For both what was said since one's last move and
        the offer on the table.
    Action: a message in free words; or, as all of the reply, ``offer: Toyota SUV for $28,500``, ``accept`` or
        ``walk away``. An action among other words is invalid, and so is a price beyond the buyer's budget if the buyer
        names or accepts it.
    Reward: at the end. ``reward: lmrl``: the seller gets ``price / ((budget + msrp) / 2)`` for a sale and ``-(budget -
        msrp) / msrp`` without one (LMRL-Gym, as in CarDealer), the buyer ``(worth - price) / ((budget + msrp) / 2)``
        and 0. ``reward: surplus``: ``(price - invoice) / msrp`` and ``(worth - price) / msrp``, 0 for both without a
        sale. ``msrp`` is the list price of the car sold, without a sale that of the car that suits the buyer. The game
        is not zero-sum. -0.1 for an invalid reply, to the offender alone; three in a row forfeit: no sale. Success is,
        for the seller, a sale at the invoice price (90 % of the list price) or above, for the buyer one at what the car
        is worth or below.
    Horizon: 15 replies per player; then there is no sale (``terminated``).
    Agents: ``buyer``, who begins, and ``seller``; roles of the same names.
    Levels: the markets of CarDealer, each in the split it has there: three cars, one of which suits the buyer, a budget
        and what each car is worth to the buyer.
    Measures: ``sale``. Of sales ``price_share`` (the price over the mean of list price and budget) and
        ``seller_surplus_share`` (the seller's part of the worth less the invoice price, where that is positive).
        ``joint_share`` (worth less invoice price of the car sold, relative to the best car; 0 without a sale).
    Expert: the seller begins 12 % above the list price of the car asked for and comes down by 2 % a time; the buyer is
        CarDealer's, with the market's persona.
    """

    variants = (Variant("lmgame/CarDealerDuet-v0", (-2.6, 1.75)),)
    Options: ClassVar[type[TextAECOptions]] = CarDealerDuetOptions
    options: CarDealerDuetOptions
    seats: ClassVar[Mapping[str, str]] = {BUYER: BUYER, SELLER: SELLER}
    names: ClassVar[Mapping[str, str]] = {BUYER: "Buyer", SELLER: "Seller"}

    @property
    def rules(self) -> str:
        return RULES.format(heard=HEARD, reward=REWARD_RULES[self.options.reward])

    def levels(self, rng: random.Random) -> Iterator[Market]:
        while True:
            yield random_market(rng, tuple(PERSONAS))

    def level_key(self, level: Market) -> str:
        return f"car dealer {level}"

    def start(self) -> None:
        self.start_talk()
        self._market: Market = self.level
        self._to_move = BUYER
        self._offers: list[Offer] = []
        self._utterances: list[str] = []
        self._sold: Offer | None = None
        self._walked = False

    def player_to_move(self) -> str:
        return self._to_move

    def view(self, agent: str) -> str:
        sheet = self._seller_sheet() if agent == SELLER else self._buyer_sheet()
        return "\n".join(part for part in (*sheet, self.heard(agent), self._state(agent)) if part)

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        """None are listed: anything may be said."""
        return ()

    def random_action(self, agent: str, rng: random.Random) -> str:
        """An offer around a list price, mostly."""
        if self._offer_of(self.other(agent)) and rng.random() < 0.3 and self._affordable(agent, self._offers[-1].price):
            return ACCEPT
        car = rng.choice(self._market.cars)
        price = int(car.msrp * rng.uniform(0.8, 1.2))
        return offer_text(car, min(price, self._market.budget) if agent == BUYER else price)

    def read_move(self, text: str) -> str | Offer:
        agent = self._to_move
        action = the_action(text, (OFFER,), (ACCEPT, LEAVE))
        if action is None:
            return text
        if action == LEAVE:
            return LEAVE
        if action == ACCEPT:
            offer = self._offer_of(self.other(agent))
            if offer is None:
                raise InvalidAction("there is no offer of the other player to accept.")
        else:
            offer = read_offer(action.partition(":")[2], agent, self._market.cars)
        if not self._affordable(agent, offer.price):
            raise InvalidAction(
                f"you cannot pay {dollars(offer.price)}; your budget is {dollars(self._market.budget)}."
            )
        return offer

    def play_move(self, agent: str, move: str | Offer) -> None:
        if move == LEAVE:
            self._walked = True
        elif isinstance(move, str):
            self.talk.say(agent, move)
            self._said(agent, move)
        elif move.agent == agent:
            self._offers.append(move)
            self._said(agent, f"The {self._market.cars[move.car].name} for {dollars(move.price)}.")
        else:
            self._sold = move
        self.talk.moved(agent)
        self._to_move = self.other(agent)

    @property
    def finished(self) -> bool:
        return self._sold is not None or self._walked

    def results(self) -> dict[str, float]:
        market, sold, surplus = self._market, self._sold, self.options.reward == SURPLUS
        if sold is None:
            return {BUYER: 0.0, SELLER: 0.0 if surplus else seller_reward(market, None, None)}
        car, gain = market.cars[sold.car], market.reservations[sold.car] - sold.price
        if surplus:
            return {BUYER: gain / car.msrp, SELLER: (sold.price - car.invoice) / car.msrp}
        return {BUYER: gain / ((market.budget + car.msrp) / 2), SELLER: seller_reward(market, car, sold.price)}

    def cut_results(self) -> dict[str, float]:
        return self.results()

    def forfeit_results(self, agent: str) -> dict[str, float]:
        return self.results()

    def won(self, agent: str, results: Mapping[str, float]) -> bool:
        if self._sold is None:
            return False
        if agent == SELLER:
            return self._sold.price >= self._market.cars[self._sold.car].invoice
        return self._sold.price <= self._market.reservations[self._sold.car]

    def measures(self, agent: str) -> dict[str, float]:
        market, sold = self._market, self._sold
        zones = [worth - car.invoice for car, worth in zip(market.cars, market.reservations, strict=True)]
        if sold is None:
            return {"sale": 0.0, "joint_share": 0.0}
        car, zone = market.cars[sold.car], zones[sold.car]
        found = {
            "sale": 1.0,
            "joint_share": joint_share([zone], [[other] for other in zones]),
            "price_share": seller_reward(market, car, sold.price),
        }
        if zone > 0:
            found["seller_surplus_share"] = (sold.price - car.invoice) / zone
        return found

    def expert_action(self, agent: str) -> str | None:
        if self.finished or agent != self._to_move:
            return None
        own = [offer for offer in self._offers if offer.agent == agent]
        standing = self._offer_of(self.other(agent))
        if agent == BUYER:
            return buyer_reply(self._market, self._utterances, standing, own)
        return seller_reply(self._market.cars, self.talk.said_by(BUYER), own, standing)

    def _said(self, agent: str, text: str) -> None:
        if agent == SELLER:
            self._utterances.append(text)

    def _affordable(self, agent: str, price: int) -> bool:
        return agent == SELLER or price <= self._market.budget

    def _offer_of(self, agent: str) -> Offer | None:
        """The offer on the table, if it is one of ``agent``."""
        return self._offers[-1] if self._offers and self._offers[-1].agent == agent else None

    def _seller_sheet(self) -> list[str]:
        return ["You are the seller. Your cars:", *(f"- {car.describe()}" for car in self._market.stock())]

    def _buyer_sheet(self) -> list[str]:
        wish = f"You are the buyer. You are looking for {self._market.wish}. "
        wish += f"Your budget is {dollars(self._market.budget)}. The dealer's cars:"
        return [wish, *(f"- {car.label}, worth {dollars(self._worth(car))} to you" for car in self._market.stock())]

    def _worth(self, car: Car) -> int:
        return self._market.reservations[self._market.cars.index(car)]

    def _state(self, agent: str) -> str:
        """How things stand, in words for ``agent``."""
        if self._sold is not None:
            return f"The {self._market.cars[self._sold.car].name} is sold for {dollars(self._sold.price)}."
        if self._over():
            return "There is no sale."
        if not self._offers:
            return "There is no offer yet."
        offer = self._offers[-1]
        who = "You offer" if offer.agent == agent else f"The {offer.agent} offers"
        return f"{who} the {self._market.cars[offer.car].name} for {dollars(offer.price)}."
