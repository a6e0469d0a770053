"""TextCraft: recipes, crafting, plans, and Minecraft's own files."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from rllib_lmgame.envs.contract.splits import SPLITS
from rllib_lmgame.envs.games.crafting.textcraft.game import TextCraft
from rllib_lmgame.envs.games.crafting.textcraft.minecraft import load_minecraft
from rllib_lmgame.envs.games.crafting.textcraft.planning import CraftLevel, goal_splits
from rllib_lmgame.envs.games.crafting.textcraft.recipes import Recipe, own_recipes, parse_recipes
from tests.envs.begun import played_by_expert

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
        ("get oak log", "an action reads"),
        ("get 1 coal\nget 1 coal", "could not find"),
        ("craft 1 stick using 2 oak planks", "no crafting command"),
        ("craft 4 stick using 3 oak planks", "no crafting command"),
        ("craft 4 stick using 1 oak planks", "no crafting command"),
        ("craft 4 stick using 2 oak planks, 1 coal", "no crafting command"),
        ("craft 0 stick using 0 oak planks", "no crafting command"),
        ("craft 4 stick using 2 birch planks", "could not find enough"),
        ("craft 8 oak planks using 2 oak log", "could not find enough"),
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


def write(folder, files) -> str:
    for name, content in files.items():
        path = folder / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return str(folder)


def shaped(result, pattern: list[str], **key):
    return {"type": "minecraft:crafting_shaped", "pattern": pattern, "key": key, "result": result}


def shapeless(result, *ingredients):
    return {"type": "crafting_shapeless", "ingredients": list(ingredients), "result": result}


PACK = {
    "recipes/oak_planks": shapeless({"item": "minecraft:oak_planks", "count": 4}, {"tag": "minecraft:oak_logs"}),
    "recipes/stick": shaped({"item": "minecraft:stick", "count": 4}, ["P", "P"], P={"tag": "minecraft:planks"}),
    "recipes/torch": shaped(
        {"id": "minecraft:torch", "count": 4},
        ["C", "S"],
        S="minecraft:stick",
        C=["minecraft:coal", "minecraft:charcoal"],
    ),
    "recipes/iron_block": shaped("minecraft:iron_block", ["III"] * 3, I={"item": "minecraft:iron_ingot"}),
    "recipes/iron_ingot": shapeless({"item": "minecraft:iron_ingot", "count": 9}, {"item": "minecraft:iron_block"}),
    "recipes/bucket": shaped({"item": "minecraft:bucket"}, ["I I", " I "], I="minecraft:iron_ingot"),
    "recipes/wheat": shapeless({"id": "minecraft:wheat", "count": 9}, "minecraft:hay_block"),
    "recipes/hay_block": shapeless({"id": "minecraft:hay_block"}, *["minecraft:wheat"] * 9),
    "recipes/bread": shaped({"id": "minecraft:bread"}, ["WWW"], W="minecraft:wheat"),
    "recipes/smelt": {
        "type": "minecraft:smelting",
        "ingredient": {"item": "minecraft:iron_ore"},
        "result": "minecraft:iron_ingot",
    },
    "recipes/dye": {"type": "minecraft:crafting_special_armordye"},
    "tags/items/planks": {"values": ["minecraft:oak_planks", "#minecraft:exotic_planks"]},
    "tags/items/exotic_planks": {"values": [{"id": "minecraft:crimson_planks", "required": False}]},
}


def test_recipes_of_minecraft_are_read(tmp_path) -> None:
    folder = write(tmp_path, PACK) + "/recipes"
    book = load_minecraft(folder)
    assert book.tags == {"planks": ("oak planks", "crimson planks"), "coal or charcoal": ("coal", "charcoal")}
    assert Recipe("torch", 4, (("coal or charcoal", 1), ("stick", 1))) in book.recipes
    assert Recipe("bucket", 1, (("iron ingot", 3),)) in book.recipes
    # Crimson planks have no recipe here, so they can be got; ingots are smelted; of wheat and hay, wheat is what more
    # recipes need.
    assert {item: depth for item, depth in book.depths.items() if depth} == {
        "oak planks": 1, "stick": 1, "torch": 2, "iron block": 1, "bucket": 1, "hay block": 1, "bread": 1,
    }  # fmt: skip
    game = TextCraft(recipes=folder, split="all")
    goals = set()
    for seed in range(80):
        game.reset(seed=seed)
        goals.add(game._level.goal)
        assert played_by_expert(game)[0] == 1.0
    assert goals == set(book.makers)
