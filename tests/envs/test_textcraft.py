"""TextCraft: recipes, crafting and plans."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from rllib_lmgame.envs.contract.splits import SPLITS
from rllib_lmgame.envs.games.crafting.textcraft.game import TextCraft
from rllib_lmgame.envs.games.crafting.textcraft.planning import CraftLevel, goal_splits
from rllib_lmgame.envs.games.crafting.textcraft.recipes import own_recipes, parse_recipes

LINES = [
    "planks: oak planks, birch planks", "4 oak planks = 1 oak log", "4 birch planks = 1 birch log",
    "4 stick = 2 planks", "1 torch = 1 coal, 1 stick", "1 ladder = 3 stick, 1 oak planks",
]  # fmt: skip


def by_hand(goal: str = "ladder", **config) -> TextCraft:
    """A game with the few recipes above, all of them shown."""
    game = TextCraft(show_rules=False, **config)
    game.reset(seed=0)
    book = parse_recipes(LINES)
    game._book = book
    game.start(CraftLevel(goal, book.recipes))
    return game


def play(game: TextCraft, *actions: str) -> list[str]:
    """What the game says to actions that must all be possible."""
    said = []
    for action in actions:
        observation, _, _, _, info = game.step(action)
        assert not info["invalid_action"], observation
        said.append(observation)
    return said


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("get 1 oak planks", "cannot be got"),
        ("get 1 planks", "Name one item of that kind"),
        ("get 1 unicorn", "could not find unicorn"),
        ("get 0 coal", "1 to 999"),
        ("get 1 coal\nget 1 coal", "could not find"),
        ("craft 4 stick using 3 oak planks", "no crafting command"),
        ("craft 4 stick using 2 oak planks, 1 coal", "no crafting command"),
        ("craft 4 stick using 2 birch planks", "could not find enough"),
        ("craft 1 torch using 1 coal, 1 stick", "could not find enough"),
        ("craft ladder", "an action reads"),
        ("craft 1 ladder using " + "1 stick, " * 99, "too long"),
        ("٣", "an action reads"),
    ],
)
def test_what_is_not_possible_changes_nothing(action: str, said: str) -> None:
    game = by_hand()
    play(game, "get 1 oak log", "craft 4 oak planks using 1 oak log", "get 1 oak log")
    before = Counter(game._inventory)
    observation, reward, _, _, info = game.step(action)
    assert said in observation and (reward, info["invalid_action"]) == (-0.1, True)
    assert game._inventory == before


def test_the_plan_uses_what_is_there() -> None:
    game = by_hand()
    play(game, "get 1 birch log", "craft 4 birch planks using 1 birch log", "craft 4 stick using 2 birch planks")
    assert game.solve() == [
        "get 1 oak log",
        "craft 4 oak planks using 1 oak log",
        "craft 1 ladder using 3 stick, 1 oak planks",
    ]


def test_goals_of_a_test_are_never_those_of_training() -> None:
    goals: dict[str, set[str]] = {}
    for split in SPLITS:
        game = TextCraft(split=split)
        for seed in range(400):
            game.reset(seed=seed)
            goals.setdefault(split, set()).add(game._level.goal)
    assert not goals["train"] & goals["test"] and not goals["train"] & goals["validation"]
    assert not goals["test"] & goals["validation"]
    book, splits = own_recipes(), goal_splits(own_recipes())
    for split in SPLITS:
        assert {book.depths[goal] for goal, of in splits.items() if of == split} == {1, 2, 3, 4}


def test_the_planner_finishes_what_somebody_else_began() -> None:
    game = TextCraft(max_turns=80)
    for seed in range(150):
        chance = random.Random(seed)
        game.reset(seed=seed)
        done = False
        for _ in range(12):
            _, _, done, _, info = game.step(chance.choice(game.legal_actions()))
            assert not info["invalid_action"]
            if done:
                break
        while not done:
            _, _, done, truncated, info = game.step(game.expert_action() or "")
            assert not info["invalid_action"] and not truncated
        assert info["success"]
