"""CarDealerDuet: offers and words, what each side knows, rewards of both sides."""

from __future__ import annotations

from rllib_lmgame.envs.games.talk.car_dealer_duet.game import CarDealerDuet
from rllib_lmgame.envs.games.words.car_dealer.market import Car, Market
from tests.envs.begun import begun

CARS = (
    Car("Toyota", "SUV", ("heated seats", "a sunroof", "leather seats"), 30_000),
    Car("Mercedes", "sedan", ("a sunroof", "a backup camera", "leather seats"), 50_000),
    Car("Ford", "truck", ("a navigation system", "heated seats", "a sunroof"), 20_000),
)
MARKET = Market(CARS, "heated seats", "polite", 36_000, (32_000, 36_000, 17_900))
BUYER, SELLER = "buyer", "seller"


def talks(*replies: str, **config: object) -> CarDealerDuet:
    """A game with a chosen market in which ``replies`` were given, the buyer's first."""
    return begun(CarDealerDuet(show_rules=False, **config), *replies, level=MARKET)


def test_a_sale_pays_both_by_the_documented_formulas() -> None:
    game = talks("A Toyota, please.", "offer: Toyota SUV for $31,000", "accept")
    assert game.rewards == {BUYER: 1_000 / 33_000, SELLER: 31_000 / 33_000}
    assert game.infos[BUYER]["success"] and game.infos[SELLER]["success"] and all(game.terminations.values())
    assert game.infos[SELLER]["measures"] == {
        "sale": 1.0,
        "joint_share": 1.0,
        "price_share": 31_000 / 33_000,
        "seller_surplus_share": 4_000 / 5_000,
    }
    game = talks("A Toyota, please.", "offer: Toyota SUV for $31,000", "accept", reward="surplus")
    assert game.rewards == {BUYER: 1_000 / 30_000, SELLER: 4_000 / 30_000}


def test_no_sale_pays_the_seller_less_than_nothing_or_nobody() -> None:
    for replies in (["walk away"], ["Hello.", "walk away"], ["a"] * 30, ["", "", ""]):
        game = talks(*replies)
        assert all(game.terminations.values()) and not any(game.truncations.values())
        assert game.infos[SELLER]["result"] == -6_000 / 30_000 and game.infos[BUYER]["result"] == 0.0
        assert not game.infos[BUYER]["success"] and game.infos[BUYER]["measures"] == {"sale": 0.0, "joint_share": 0.0}
    assert talks("walk away", reward="surplus").rewards == {BUYER: 0.0, SELLER: 0.0}


def test_the_buyer_cannot_spend_what_it_has_not_and_the_seller_is_not_told_why() -> None:
    game = talks("offer: Mercedes sedan for $36,001")
    assert game.infos[BUYER]["invalid_action"] and "$36,000" in game.observe(BUYER)
    game = talks("Hm.", "offer: Mercedes sedan for $45,000", "accept")
    assert game.infos[BUYER]["invalid_action"] and not game.finished
    assert "36,000" not in game.observe(SELLER)


def test_each_side_sees_its_own_numbers_alone() -> None:
    game = talks()
    for worth in ("$36,000", "$32,000", "$17,900", "polite"):
        assert worth not in game.observe(SELLER)
    assert "$32,000" in game.observe(BUYER) and "$36,000" in game.observe(BUYER)
    for car in CARS:
        assert f"${car.invoice:,}" in game.observe(SELLER) and f"${car.invoice:,}" not in game.observe(BUYER)
    assert game.observe(SELLER).startswith("You are the seller.")
    assert game.observe(BUYER).startswith("You are the buyer.")


def test_an_offer_holds_until_there_is_another_and_ones_own_cannot_be_accepted() -> None:
    game = talks("offer: Toyota SUV for $25,000", "No, friend.", "Please!")
    assert "The buyer offers the Toyota SUV for $25,000." in game.observe(SELLER)
    assert "[Buyer] Please!" in game.observe(SELLER)
    game.step("offer: Toyota SUV for $30,000")
    assert "The seller offers the Toyota SUV for $30,000." in game.observe(BUYER)
    game = talks("offer: Toyota SUV for $25,000", "Hm.", "accept")
    assert game.infos[BUYER]["invalid_action"]
