"""CarDealer: sell a car for as much as the buyer will pay."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import ClassVar

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.base.trust import is_name
from rllib_lmgame.envs.contract.base import InvalidAction, TextGameOptions, Variant
from rllib_lmgame.envs.games.words.car_dealer.buyer import PERSONAS, Buyer, ModelBuyer
from rllib_lmgame.envs.games.words.car_dealer.market import REWARDS, Car, Market, random_market, rounded, seller_reward
from rllib_lmgame.envs.games.words.car_dealer.prices import dollars
from rllib_lmgame.envs.games.words.guessing.questions import shown
from rllib_lmgame.envs.support.asked_models import AskedModel
from rllib_lmgame.envs.support.replies import WholeReplyGame

MAX_SHOWN = 300
"""Characters of an utterance that are shown again."""

FIRST_ASK, ASK_STEP = 1.12, 0.02
"""The expert's first price and its concessions, as shares of the list price."""

RULES = """You sell cars. A buyer comes in; talk the buyer into a car at the best price you can get.
Reply with what you say to the buyer, and nothing else. \
Name the car and a price in dollars, as in "The Toyota is yours for $28,500.";
say "Deal!" to take the buyer's offer. A buyer who hears the same price again and again, or only talk, leaves.
There are {turns} replies. {reward} Selling below the invoice price (what you paid) is no success."""
REWARD_TEXTS = {
    "lmrl": (
        "Your reward is the price in relation to the mean of list price and budget, and less than nothing without "
        "a sale."
    ),
    "revenue": "Your reward is the price in thousands of dollars.",
}


class CarDealerOptions(TextGameOptions):
    """``env_config`` of CarDealer."""

    max_turns: int = option(25, "Replies of the seller; with the buyer's answers twice as many lines.", ge=1)
    invalid_action_penalty: float = option(
        -0.5, "Reward of a reply without words; the default costs more than any lost sale.", le=0
    )
    reward: str = option(
        "lmrl",
        "`lmrl`: the price over the mean of list price and budget; `revenue`: the price in thousands.",
        choices=REWARDS,
    )
    buyer: str | None = option(None, "A language model that plays the buyer (`openai:MODEL@URL`); null: the rules.")
    personas: tuple[str, ...] = option(
        tuple(PERSONAS), "Buyers' personas to draw from.", choices=tuple(PERSONAS), stranger=is_name
    )


class CarDealer(WholeReplyGame):
    """Sell a car to a buyer who bargains, in free talk.

    Observation: the stock with list and invoice prices, and the dialogue so far.
    Action: what the seller says.
    Reward: at the end, ``price / ((budget + msrp) / 2)`` if a car was bought and ``-(budget - msrp) / msrp`` if not
        (LMRL-Gym). ``msrp`` is the list price of the car bought, else of the car that suits the buyer. With ``reward:
        revenue`` it is the price in thousands and 0. Success is a sale at the invoice price (90 % of the list price) or
        above.
    Horizon: 25 replies, which with the buyer's answers are 50 lines (LMRL-Gym); after the last one the buyer leaves
        (``terminated``).
    Levels: three cars of 13 brands and 6 kinds, one of which suits the buyer; one of 6 personas; and a reservation
        price for each car. The budget is 100 to 135 % of the list price of the car that suits, so that no sale is never
        rewarded.
    Solver: begins 12 % above the list price of the car asked for, points out its features, comes down by 2 % a time and
        takes an offer that is as good as its next price.

    The buyer is rule-based: it reads prices from free talk, offers along its persona's concession curve, and never pays
    more than its reservation price. With ``buyer`` a language model speaks for it, as in LMRL-Gym; a sale is at a price
    that was named, and never above the reservation price either.
    """

    variants = (Variant("lmgame/CarDealer-v0", (-8.5, 1.1)),)
    Options: ClassVar[type[TextGameOptions]] = CarDealerOptions
    turns_are_tries = True
    options: CarDealerOptions
    roles: ClassVar[dict[str, str]] = {"player": "seller"}

    def __init__(self, render_mode: str | None = None, **env_config: object) -> None:
        super().__init__(render_mode, **env_config)
        if not self.options.personas:
            raise ConfigError("env_config.personas", f"names nobody; give one or more of {', '.join(PERSONAS)}")
        self._model = None if self.options.buyer is None else AskedModel(self.options.buyer, "env_config.buyer")
        self.slow_calls = self._model is not None

    def check_ready(self) -> str:
        """Ask a buyer that is a language model whether it is there. Raises: ConfigError: it is not."""
        return "" if self._model is None else self._model.check()

    @property
    def rules(self) -> str:
        return RULES.format(turns=self.options.max_turns, reward=REWARD_TEXTS[self.options.reward])

    @property
    def success(self) -> bool:
        return self._sold is not None and self._price is not None and self._price >= self._sold.invoice

    @property
    def finished(self) -> bool:
        return self._sold is not None or self._left or super().finished

    @property
    def solver_wins(self) -> bool:
        """With fewer replies the expert may not come down far enough; nobody knows what a language model takes."""
        return self._model is None and self.options.max_turns >= 15

    def levels(self, rng: random.Random) -> Iterator[Market]:
        while True:
            yield random_market(rng, self.options.personas)

    def level_key(self, level: Market) -> str:
        return f"car dealer {level}"

    def start(self, level: Market) -> None:
        self._market = level
        self._buyer = Buyer(level, self.random) if self._model is None else ModelBuyer(level, self.random, self._model)
        self._sold: Car | None = None
        self._price: int | None = None
        self._left = False
        self._lines = [("Buyer", self._buyer.greeting())]
        self._asked: int | None = None

    def board(self) -> str:
        stock = ["Your cars:", *(f"- {car.describe()}" for car in self._market.stock())]
        return "\n".join((*stock, "", *(f"{speaker}: {text}" for speaker, text in self._lines)))

    def legal_actions(self) -> tuple[str, ...]:
        """None are listed: anything may be said."""
        return ()

    def read_move(self, text: str) -> str:
        if not any(mark.isalnum() for mark in text):
            raise InvalidAction("say something to the buyer.")
        return text

    def play_move(self, move: str) -> float:
        answer = self._buyer.hear(move)
        self._lines += [("You", shown(move)[:MAX_SHOWN]), ("Buyer", answer.text)]
        self._sold, self._price, self._left = answer.car, answer.price, answer.left
        return seller_reward(self._market, self._sold, self._price, self.options.reward) if self.finished else 0.0

    def expert_action(self) -> str:
        """What a seller says who knows the sheet, what the buyer is looking for and the buyer's last offer."""
        car = self._market.wanted  # The buyer's greeting names it.
        if self._asked is None:
            self._asked = rounded(FIRST_ASK * car.msrp)
            return (
                f"We have the right one for you: the {car.name} with {', '.join(car.features)}. It is yours for "
                f"{dollars(self._asked)}."
            )
        self._asked = max(car.invoice, rounded(self._asked - ASK_STEP * car.msrp))
        offer = self._buyer.offer_for(car)
        if offer is not None and offer >= self._asked:
            return f"Deal! The {car.name} is yours."
        return f"I can come down to {dollars(self._asked)} for the {car.name}."
