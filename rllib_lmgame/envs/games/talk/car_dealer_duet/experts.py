"""Both sides played by rule: the seller that comes down from a high price, and the buyer of CarDealer."""

from __future__ import annotations

import random
from collections.abc import Sequence

from rllib_lmgame.envs.games.talk.car_dealer_duet.offers import ACCEPT, LEAVE, Offer, offer_text
from rllib_lmgame.envs.games.words.car_dealer.buyer import Answer, Buyer
from rllib_lmgame.envs.games.words.car_dealer.game import ASK_STEP, FIRST_ASK
from rllib_lmgame.envs.games.words.car_dealer.market import Car, Market, rounded
from rllib_lmgame.envs.games.words.guessing.questions import all_words


def seller_reply(cars: Sequence[Car], heard: Sequence[str], own: Sequence[Offer], standing: Offer | None) -> str:
    """What a seller says that knows the sheet and what was said.

    Args:
        cars: The stock, in the order of the market's numbers.
        heard: The buyer's messages.
        own: Its own offers so far.
        standing: The buyer's offer on the table, if there is one.
    """
    number = standing.car if standing else own[-1].car if own else _asked_for(cars, heard)
    car = cars[number]
    before = next((offer.price for offer in reversed(own) if offer.car == number), None)
    ask = rounded(FIRST_ASK * car.msrp) if before is None else max(car.invoice, rounded(before - ASK_STEP * car.msrp))
    if standing is not None and standing.price >= ask:
        return ACCEPT
    return offer_text(car, ask)


def buyer_reply(market: Market, heard: Sequence[str], standing: Offer | None, own: Sequence[Offer]) -> str:
    """What the buyer of CarDealer says and does, having heard all that the seller has said and offered, in order.

    Args:
        market: Of it the buyer knows its wish, means and what each car is worth to it.
        heard: The seller's messages, and its offers in words.
        standing: The seller's offer on the table, if there is one.
        own: The buyer's offers so far.
    """
    buyer = Buyer(market, random.Random(f"{market}"))
    answer = Answer(buyer.greeting())
    for utterance in heard:
        answer = buyer.hear(utterance)
    if answer.left:
        return LEAVE
    if answer.car is not None and answer.price is not None:
        number = market.cars.index(answer.car)
        agreed = standing is not None and (standing.car, standing.price) == (number, answer.price)
        return ACCEPT if agreed else offer_text(answer.car, answer.price)
    offers = [(number, buyer.offer_for(car)) for number, car in enumerate(market.cars)]
    fresh = [(number, price) for number, price in offers if price and all(o[1:] != (number, price) for o in own)]
    return offer_text(market.cars[fresh[-1][0]], fresh[-1][1]) if fresh else answer.text


def _asked_for(cars: Sequence[Car], heard: Sequence[str]) -> int:
    """The car the buyer named last; the dearest if it named none."""
    for text in reversed(heard):
        words = set(all_words(text))
        named = [number for number, car in enumerate(cars) if words.issuperset(all_words(car.brand))]
        if named:
            return named[-1]
    return max(range(len(cars)), key=lambda number: cars[number].msrp)
