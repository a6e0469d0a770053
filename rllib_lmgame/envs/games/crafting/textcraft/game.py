"""TextCraft: get what can be got and craft the rest, up to a goal."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract.base import InvalidAction, TextGame, TextGameOptions, Variant
from rllib_lmgame.envs.contract.splits import ALL
from rllib_lmgame.envs.games.crafting.textcraft.planning import CraftLevel, first_plan, goal_splits, make_level, plan
from rllib_lmgame.envs.games.crafting.textcraft.recipes import Recipe, own_recipes

MAX_AMOUNT = 999
MAX_LENGTH = 500
GET = re.compile(r"get ([0-9]{1,3}) ([^,]+)")
CRAFT = re.compile(r"craft ([0-9]{1,3}) (.+?) using (.+)")
PART = re.compile(r"([0-9]{1,3}) ([^,]+)")

RULES = """You craft items. The crafting commands you may use are given, needed ones and others, in no order. \
Actions, one per reply:
- get N ITEM: take N of an item that cannot be crafted, for example get 2 iron ingot;
- craft N ITEM using M ITEM, K ITEM: a crafting command, or a multiple of all its amounts; \
you need the ingredients in your inventory;
- inventory: see what you have.
A name such as planks stands for any item of its kind, for example birch planks.
You have {turns} turns. Crafting the goal gives 1."""


class TextCraftOptions(TextGameOptions):
    """``env_config`` of TextCraft."""

    max_turns: int = option(30, "Replies per episode.", ge=1)
    depth: tuple[int, int] = option((1, 4), "Fewest and most crafts that lie one upon another below the goal.")
    distractors: int = option(10, "Crafting commands shown beside the needed ones.", ge=0, le=30)
    repeat_commands: bool = option(
        False, "Show the crafting commands and the goal in every observation instead of the first alone."
    )


@dataclass(frozen=True)
class _Craft:
    item: str
    count: int
    using: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class _Get:
    item: str
    count: int


class TextCraft(TextGame):
    """Craft an item from what can be got.

    Observation: first, and after an invalid reply, the crafting commands and the goal; else what the last action did
        (``Got 2 oak log``, ``Crafted 8 oak planks``, ``Inventory: [oak log] (2)``).
    Action: ``get N item``, ``craft N item using M item, K item`` (the amounts of a command or a multiple of them all;
        an ingredient such as ``planks`` is satisfied by any planks, also mixed), ``inventory``.
    Reward: 1 for crafting the goal, 0 otherwise; -0.1 for an action that is not possible.
    Horizon: 30 replies, as in AgentGym. Format and task are those of ADaPT (Prasad et al. 2023).
    Levels: a goal of depth 1 to 4, the recipes on one way to it and up to 10 others, shuffled. The goals are shared out
        among the splits, so that a test asks for items that were never asked for in training.
    Solver: adds up what is needed from the goal down; gets and crafts every item once.
    """

    variants = (Variant("lmgame/TextCraft-v0", (-2.1, 1.0)),)
    Options: ClassVar[type[TextGameOptions]] = TextCraftOptions
    rules_text = RULES
    options: TextCraftOptions

    def __init__(self, render_mode: str | None = None, **env_config: object) -> None:
        super().__init__(render_mode, **env_config)
        chosen = self.options
        self._book = own_recipes()
        self._goals, self._splits = _goals(chosen.depth, chosen.max_turns)

    @property
    def success(self) -> bool:
        return self._inventory[self._level.goal] > 0

    def levels(self, rng: random.Random) -> Iterator[CraftLevel]:
        split = self.options.split
        by_depth = [
            goals
            for of in self._goals.values()
            if (goals := [goal for goal in of if split in (ALL, self._splits[goal])])
        ]
        while by_depth:
            goal = rng.choice(rng.choice(by_depth))
            level = make_level(self._book, goal, self.options.distractors, rng)
            if len(first_plan(self._book, level)) <= self.options.max_turns:
                yield level

    def level_key(self, level: CraftLevel) -> str:
        return f"textcraft {level.goal} " + "; ".join(recipe.command for recipe in level.shown)

    def split_of_level(self, digest: str, level: CraftLevel) -> str:
        return self._splits[level.goal]

    def start(self, level: CraftLevel) -> None:
        self._level = level
        self._inventory: Counter[str] = Counter()
        self._reach = self._book.reach(level.shown)

    def board(self) -> str:
        commands = "\n".join(recipe.command for recipe in self._level.shown)
        task = f"Crafting commands:\n{commands}\n\nGoal: craft {self._level.goal}."
        if not self._said:
            return task
        return f"{self._said}\n\n{task}" if self.options.repeat_commands else self._said

    def legal_actions(self) -> tuple[str, ...]:
        """Things to get for the commands shown, one at a time, the crafts possible now, and ``inventory``."""
        names = dict.fromkeys(name for recipe in self._level.shown for name, _ in recipe.ingredients)
        items = dict.fromkeys(
            item for name in names for item in self._book.members(name) if not self._book.depths[item]
        )
        crafts = (recipe.command for recipe in self._level.shown if self._take(recipe.ingredients) is not None)
        return ("inventory", *(f"get 1 {item}" for item in items), *crafts)

    def read_move(self, text: str) -> str | _Get | _Craft:
        said = " ".join(text[: MAX_LENGTH + 1].lower().split()).rstrip(".")
        if len(text) > MAX_LENGTH:
            raise InvalidAction("the action is too long.")
        if said == "inventory":
            return said
        if match := GET.fullmatch(said):
            return _Get(match[2].strip(), int(match[1]))
        if match := CRAFT.fullmatch(said):
            parts = [PART.fullmatch(part.strip()) for part in match[3].split(",")]
            if all(parts):
                using: Counter[str] = Counter()
                for part in parts:
                    if part:
                        using[part[2].strip()] += int(part[1])
                return _Craft(match[2].strip(), int(match[1]), tuple(using.items()))
        raise InvalidAction(
            "an action reads get N ITEM, craft N ITEM using M ITEM, K ITEM, or inventory; one per reply."
        )

    def play_move(self, move: str | _Get | _Craft) -> float:
        if isinstance(move, _Get):
            self._get(move)
        elif isinstance(move, _Craft):
            self._craft(move)
        else:
            held = " ".join(f"[{item}] ({count})" for item, count in sorted(self._inventory.items()) if count)
            self._said = f"Inventory: {held or 'You are not carrying anything.'}"
        return 1.0 if self.success else 0.0

    def solve(self) -> list[str] | None:
        return plan(self._book, self._level, self._inventory, self._reach)

    def _get(self, move: _Get) -> None:
        depth = self._book.depths.get(move.item)
        if depth is None:
            kind = " Name one item of that kind." if move.item in self._book.tags else ""
            raise InvalidAction(f"could not find {move.item}.{kind}")
        if depth:
            raise InvalidAction(f"{move.item} cannot be got, it must be crafted.")
        if not 1 <= move.count <= MAX_AMOUNT - self._inventory[move.item]:
            raise InvalidAction(f"you may hold 1 to {MAX_AMOUNT} of an item.")
        self._inventory[move.item] += move.count
        self._said = f"Got {move.count} {move.item}"

    def _craft(self, move: _Craft) -> None:
        if not any(self._fits(recipe, move) for recipe in self._level.shown):
            raise InvalidAction(
                f"no crafting command says how to craft {move.count} {move.item} like that; keep to their items and "
                "amounts."
            )
        taken = self._take(move.using)
        if taken is None:
            raise InvalidAction(f"could not find enough items to craft {move.count} {move.item}.")
        if self._inventory[move.item] + move.count > MAX_AMOUNT:
            raise InvalidAction(f"you may hold 1 to {MAX_AMOUNT} of an item.")
        self._inventory.subtract(taken)
        self._inventory[move.item] += move.count
        self._said = f"Crafted {move.count} {move.item}"

    def _fits(self, recipe: Recipe, move: _Craft) -> bool:
        """Whether the craft is this recipe a whole number of times, names of kinds satisfied by any of their items."""
        if recipe.item != move.item or not move.count or move.count % recipe.count:
            return False
        times = move.count // recipe.count
        need = Counter({name: amount * times for name, amount in recipe.ingredients})
        given = Counter(dict(move.using))
        for name in need:  # what is named as in the recipe
            same = min(need[name], given[name])
            need[name] -= same
            given[name] -= same
        for name in need:
            for item in self._book.members(name):
                same = min(need[name], given[item])
                need[name] -= same
                given[item] -= same
        return not any(need.values()) and not any(given.values())

    def _take(self, using: tuple[tuple[str, int], ...]) -> Counter[str] | None:
        """Items of the inventory that make up these amounts (single items first, then kinds), or ``None`` if they are
        not there.
        """
        taken: Counter[str] = Counter()
        for name, amount in sorted(using, key=lambda part: part[0] in self._book.tags):
            for item in self._book.members(name):
                held = min(amount, self._inventory[item] - taken[item])
                taken[item] += held
                amount -= held
            if amount:
                return None
        return taken


@lru_cache(maxsize=16)
def _goals(depth: tuple[int, int], max_turns: int) -> tuple[dict[int, tuple[str, ...]], dict[str, str]]:
    """Goals by depth that can be crafted within the turns, and the split of every goal of the recipes."""
    book = own_recipes()
    low, high = depth
    deepest = max(book.depths.values())
    if not 1 <= low <= high:
        raise ConfigError("env_config.depth", f"must be two numbers from 1 on, the smaller first, got {list(depth)}")
    goals: dict[int, tuple[str, ...]] = {}
    for level in range(low, min(high, deepest) + 1):
        candidates = (item for item in book.makers if book.depths[item] == level)
        fitting = tuple(
            item
            for item in candidates
            if len(first_plan(book, make_level(book, item, 0, random.Random(0)))) <= max_turns
        )
        if fitting:
            goals[level] = fitting
    if not goals:
        nothing = (
            f"no item of depth {low} to {high} can be crafted in {max_turns} turns; the deepest item lies at {deepest}"
        )
        raise ConfigError("env_config.depth", nothing)
    return goals, goal_splits(book)
