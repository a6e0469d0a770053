"""Recipes: what can be crafted from what, and how deep an item lies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property

from rllib_lmgame.envs.support.datasets import package_lines

BOOK = "textcraft_recipes.txt"


@dataclass(frozen=True, order=True)
class Recipe:
    """One way to craft an item.

    Attributes:
        item: What it gives.
        count: How many of it.
        ingredients: Names with amounts; a name is an item or a tag that several items satisfy.
    """

    item: str
    count: int
    ingredients: tuple[tuple[str, int], ...]

    @property
    def command(self) -> str:
        """The action as a player types it."""
        return f"craft {self.count} {self.item} using " + ", ".join(
            f"{amount} {name}" for name, amount in self.ingredients
        )


@dataclass(frozen=True)
class RecipeBook:
    """A set of recipes and tags.

    Attributes:
        recipes: All recipes.
        tags: Items that satisfy a name, by name.
    """

    recipes: tuple[Recipe, ...]
    tags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def depths(self) -> dict[str, int]:
        """Crafts that lie one upon another below an item: 0 for what is got, else 1 more than the deepest ingredient,
        by the flattest recipe.
        """
        need = {name for recipe in self.recipes for name, _ in recipe.ingredients}
        items = {recipe.item for recipe in self.recipes} | {item for name in need for item in self.members(name)}
        depths = dict.fromkeys(items - {recipe.item for recipe in self.recipes}, 0)
        self._settle(depths)
        return depths

    @cached_property
    def makers(self) -> dict[str, tuple[Recipe, ...]]:
        """Recipes of every item that is not got, those of the least depth alone, in order."""
        found: defaultdict[str, list[Recipe]] = defaultdict(list)
        for recipe in sorted(self.recipes):
            if 0 < self.depths[recipe.item] == self._depth_of(recipe, self.depths):
                found[recipe.item].append(recipe)
        return {item: tuple(recipes) for item, recipes in sorted(found.items())}

    def reach(self, recipes: Iterable[Recipe]) -> dict[str, int]:
        """Depths of what can be had with only these recipes of the book."""
        depths = {item: 0 for item, depth in self.depths.items() if not depth}
        RecipeBook(tuple(recipes), self.tags)._settle(depths)
        return depths

    def members(self, name: str) -> tuple[str, ...]:
        """Items that a name in a recipe stands for."""
        return self.tags.get(name, (name,))

    def _depth_of(self, recipe: Recipe, depths: Mapping[str, int]) -> int | None:
        """Depth of a recipe's item by this recipe, or ``None`` if an ingredient has none yet."""
        deepest = 0
        for name, _ in recipe.ingredients:
            known = [depths[item] for item in self.members(name) if item in depths]
            if not known:
                return None
            deepest = max(deepest, min(known))
        return deepest + 1

    def _settle(self, depths: dict[str, int]) -> None:
        """Give every item that can be crafted from items with a depth its own, flattest first."""
        level = 1
        while True:
            reached = {
                recipe.item
                for recipe in self.recipes
                if recipe.item not in depths and (self._depth_of(recipe, depths) or level + 1) <= level
            }
            depths.update(dict.fromkeys(reached, level))
            deeper = any(
                recipe.item not in depths and self._depth_of(recipe, depths) is not None for recipe in self.recipes
            )
            if not reached and not deeper:
                return
            level += 1


def parse_recipes(lines: Iterable[str]) -> RecipeBook:
    """Recipes in the notation of this package: ``4 stick = 2 planks`` is a recipe, ``planks: oak planks, birch planks``
    a tag.
    """
    recipes, tags = [], {}
    for line in lines:
        made, equals, using = line.partition("=")
        if equals:
            item, count = _amount(made)
            recipes.append(Recipe(item, count, tuple(_amount(part) for part in using.split(","))))
        else:
            tag, _, members = line.partition(":")
            tags[tag.strip()] = tuple(member.strip() for member in members.split(","))
    return RecipeBook(tuple(recipes), tags)


def _amount(text: str) -> tuple[str, int]:
    count, _, item = text.strip().partition(" ")
    return item.strip(), int(count)


@cache
def own_recipes() -> RecipeBook:
    """The recipes of this package."""
    return parse_recipes(package_lines(BOOK))
