"""TextNav: houses follow the seed, commands do what TextWorld says, the errand can be run."""

from __future__ import annotations

import random

import numpy as np
import pytest

pytest.importorskip("textworld")

from rllib_lmgame.envs.games.adapted.text_nav.game import TextNav
from rllib_lmgame.envs.games.adapted.text_nav.house import House, HousePlan, generated
from tests.envs.begun import begun

KNOWN = {
    1: ["take mouse from chair", "go east", "drop mouse"],
    3: ["go east", "take spork", "put spork on rack"],
    8: ["take strawberry from table", "eat strawberry"],
    11: ["unlock box with latchkey", "open box", "take binder from box"],
}
"""Seeds, and the commands that the errand of the house asks for, as a person reads it."""


@pytest.mark.parametrize("seed", KNOWN)
def test_a_known_errand_is_paid_at_its_end_alone(seed: int) -> None:
    game = begun(TextNav(split="all", show_rules=False, rooms=3, objects=4, quest_length=3), seed=seed)
    assert game.step(KNOWN[seed][-1])[1] == -0.1, "nothing can be done before its time"
    for command in KNOWN[seed]:
        _, reward, ended, cut, info = game.step(command)
        last = command == KNOWN[seed][-1]
        assert (reward, ended, cut, info.get("success")) == (float(last), last, False, True if last else None)


@pytest.mark.slow
def test_the_solver_runs_the_errand_of_1000_houses() -> None:
    for seed in range(1000):
        house = House(HousePlan(seed, 4, 6, 4))
        for command in house.winning_commands() or []:
            assert command in house.commands()
            house.do(command)
        assert house.won


def test_generating_a_house_leaves_global_chance_alone_and_ignores_it() -> None:
    plan = HousePlan(5, 4, 6, 4)
    texts = []
    for start in (1, 2):
        random.seed(start)
        np.random.seed(start)
        before = random.getstate(), np.random.get_state()[1].tolist()
        generated.cache_clear()
        house = House(plan)
        texts.append(house.errand + house.map())
        assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    assert texts[0] == texts[1]


def test_what_is_closed_is_hidden_in_the_room_and_shown_on_the_map() -> None:
    for seed in range(60):
        house = House(HousePlan(seed, 2, 8, 2))
        here = house._inside.get(house._here, ())
        closed = [thing for thing in here if house._state.get(thing, "open") != "open" and house._inside.get(thing)]
        if closed:
            (hidden, *_) = house._inside[closed[0]]
            assert house._name(hidden) not in house.room() and house._name(hidden) in house.map()
            return
    raise AssertionError("no house with a full closed box in the first room")
