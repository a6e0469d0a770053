"""Offers of a car at a price, in words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from rllib_lmgame.envs.contract import InvalidAction
from rllib_lmgame.envs.games.words.car_dealer.market import Car
from rllib_lmgame.envs.games.words.car_dealer.prices import amount, dollars, whole

OFFER, ACCEPT, LEAVE = "offer", "accept", "walk away"
FORM = re.compile(r"(?:the |your |my )?(.+?) (?:for|at) \$ ?([0-9][0-9.,]*)")


class Offer(NamedTuple):
    """Who offers which car (its number in the market) at what price in dollars."""

    agent: str
    car: int
    price: int


def offer_text(car: Car, price: int) -> str:
    """The action that offers ``car`` at ``price``."""
    return f"{OFFER}: {car.name} for {dollars(price)}"


def read_offer(text: str, agent: str, cars: Sequence[Car]) -> Offer:
    """The offer that ``toyota suv for $28,500`` makes; the brand alone names the car as well.

    Raises: InvalidAction: if it names no car in stock, no price or several, or anything else stands there.
    """
    example = f"write it as `{offer_text(cars[0], cars[0].msrp)}`"
    match = FORM.fullmatch(text.strip(" .!"))
    if match is None:
        raise InvalidAction(f"the offer cannot be read; {example}.")
    named = [number for number, car in enumerate(cars) if match[1] in (car.name.lower(), car.brand.lower())]
    if not named:
        raise InvalidAction(f"there is no {match[1][:40]!r}; the cars are {', '.join(car.name for car in cars)}.")
    price = amount(match[2])
    if price is None or price < 1:
        raise InvalidAction(f"the price cannot be read; {example}.")
    return Offer(agent, named[0], whole(price))
