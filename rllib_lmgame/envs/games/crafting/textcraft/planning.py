"""Levels of TextCraft and the plan that solves them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rllib_lmgame.envs.contract.splits import split_few, split_of
from rllib_lmgame.envs.games.crafting.textcraft.recipes import Recipe, RecipeBook


@dataclass(frozen=True)
class CraftLevel:
    """A goal and the recipes that are shown, needed ones and others, in the order shown."""

    goal: str
    shown: tuple[Recipe, ...]


def needed_recipes(book: RecipeBook, goal: str, rng: random.Random) -> list[Recipe]:
    """One recipe for every item on a way to ``goal``; where a name leaves a choice of items, one of the
    flattest is drawn.
    """
    needed: dict[str, Recipe] = {}
    waiting = [goal]
    while waiting:
        item = waiting.pop()
        if item in needed or not book.depths[item]:
            continue
        needed[item] = recipe = rng.choice(book.makers[item])
        for name, _ in recipe.ingredients:
            members = book.members(name)
            least = min(book.depths[member] for member in members)
            waiting.append(rng.choice([member for member in members if book.depths[member] == least]))
    return list(needed.values())


def make_level(book: RecipeBook, goal: str, distractors: int, rng: random.Random) -> CraftLevel:
    """A level for ``goal``: the needed recipes among others, half of which use an ingredient or a product
    of the needed ones.
    """
    needed = needed_recipes(book, goal, rng)
    made = {recipe.item for recipe in needed}
    named = made | {name for recipe in needed for name, _ in recipe.ingredients}
    others = [recipe for recipes in book.makers.values() for recipe in recipes if recipe.item not in made]
    related = [recipe for recipe in others if any(name in named for name, _ in recipe.ingredients)]
    chosen = rng.sample(related, min(distractors // 2, len(related)))
    rest = [recipe for recipe in others if recipe not in chosen]
    chosen += rng.sample(rest, min(distractors - len(chosen), len(rest)))
    shown = [*needed, *chosen]
    rng.shuffle(shown)
    return CraftLevel(goal, tuple(shown))


def plan(book: RecipeBook, level: CraftLevel, inventory: Mapping[str, int], depths: Mapping[str, int]) -> list[str]:
    """Actions that craft the goal from ``inventory``: every item is got or crafted once, in the amount needed in all.

    ``depths`` is ``book.reach(level.shown)``.
    """
    recipes: dict[str, Recipe] = {}
    for recipe in level.shown:
        if recipe.item not in recipes and _depth(book, recipe, depths) is not None:
            recipes[recipe.item] = recipe
    need: Counter[str] = Counter({level.goal: 1})
    crafts: list[str] = []
    for item in sorted((item for item in recipes if depths.get(item)), key=lambda item: (-depths[item], item)):
        missing = need[item] - inventory.get(item, 0)
        if missing <= 0:
            continue
        recipe = recipes[item]
        times = -(-missing // recipe.count)
        used: Counter[str] = Counter()
        for name, amount in recipe.ingredients:
            used += _chosen(book, name, amount * times, need + used, inventory, depths)
        need += used
        crafts.append(craft_command(recipe.item, recipe.count * times, used.items()))
    lacking = {item: amount - inventory.get(item, 0) for item, amount in need.items() if not depths.get(item, 1)}
    return [f"get {amount} {item}" for item, amount in lacking.items() if amount > 0] + crafts[::-1]


def first_plan(book: RecipeBook, level: CraftLevel) -> list[str]:
    """The plan from an empty inventory."""
    return plan(book, level, {}, book.reach(level.shown))


def craft_command(item: str, count: int, using: Iterable[tuple[str, int]]) -> str:
    """The action as a player types it."""
    return f"craft {count} {item} using " + ", ".join(f"{amount} {name}" for name, amount in using)


def goal_splits(book: RecipeBook) -> dict[str, str]:
    """Split of every goal, so that no goal of a test was crafted in training; drawn within each depth."""
    splits: dict[str, str] = {}
    for depth in set(book.depths.values()) - {0}:
        keys = {f"textcraft {item}": item for item in book.makers if book.depths[item] == depth}
        few = split_few(keys) if len(keys) >= 3 else {key: split_of(key) for key in keys}
        splits.update({keys[key]: split for key, split in few.items()})
    return splits


def _depth(book: RecipeBook, recipe: Recipe, depths: Mapping[str, int]) -> int | None:
    """Depth by this recipe, if it is the least of its item."""
    below = [
        min((depths[item] for item in book.members(name) if item in depths), default=None)
        for name, _ in recipe.ingredients
    ]
    if any(depth is None for depth in below):
        return None
    depth = 1 + max(depth for depth in below if depth is not None)
    return depth if depth == depths[recipe.item] else None


def _chosen(
    book: RecipeBook,
    name: str,
    amount: int,
    need: Mapping[str, int],
    inventory: Mapping[str, int],
    depths: Mapping[str, int],
) -> Counter[str]:
    """Items that satisfy ``name``: those to spare in the inventory first, then the flattest that can be had."""
    chosen: Counter[str] = Counter()
    members = book.members(name)
    for item in members:
        spare = min(amount, inventory.get(item, 0) - need.get(item, 0))
        if spare > 0:
            chosen[item] += spare
            amount -= spare
    if amount:
        chosen[
            min((item for item in members if item in depths), key=lambda item: (depths[item], members.index(item)))
        ] += amount
    return chosen
