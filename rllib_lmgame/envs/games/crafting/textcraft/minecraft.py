"""Recipes of Minecraft as its data packs hold them: one JSON file per recipe, tags in a folder of their own.

Read are ``crafting_shaped`` and ``crafting_shapeless`` of all versions (ingredients as ``{"item": ...}``, ``{"tag":
...}``, plain names, ``#`` names, and lists of alternatives). What smelting and the like give can be got; other types
are left out. Tags are read from ``tags/item(s)`` inside the folder or beside it; a tag without a file counts as an item
of its own.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

from rllib_lmgame.base import json_files
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.games.crafting.textcraft.recipes import Recipe, RecipeBook

KEY = "env_config.recipes"
FURNACES = ("smelting", "blasting", "smoking", "campfire_cooking")
TAG_FOLDERS = ("tags/items", "tags/item", "../tags/items", "../tags/item")


class _Malformed(Exception):
    """What is wrong with a file."""


@lru_cache(maxsize=4)
def load_minecraft(folder: str) -> RecipeBook:
    """The recipes of a folder, subfolders included; read once per process.

    Raises: ConfigError: if the folder does not exist or holds no crafting recipe, or for a malformed file, by name.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise ConfigError(
            KEY,
            f"{folder!r} is no folder; give the folder of recipe JSON files (data/minecraft/recipes of a data pack)",
        )
    tags = _Tags(root)
    recipes, found = [], set()
    for file in sorted(root.rglob("*.json")):
        if "tags" in file.relative_to(root).parts:
            continue
        record = _json(file)
        try:
            kind = _text(record, "type").removeprefix("minecraft:")
            if kind in FURNACES:
                found.add(_result(record)[0])
            elif kind in ("crafting_shaped", "crafting_shapeless"):
                item, count = _result(record)
                used = Counter(
                    tags.name_of(part) for part in (_shaped if kind == "crafting_shaped" else _shapeless)(record)
                )
                recipes.append(Recipe(item, count, tuple(used.items())))
        except _Malformed as problem:
            raise ConfigError(KEY, f"{file}: {problem}") from None
    if not recipes:
        raise ConfigError(KEY, f"{folder!r} holds no crafting_shaped or crafting_shapeless recipe")
    return RecipeBook(tuple(sorted(set(recipes))), tags.used, frozenset(found))


class _Tags:
    """Names for ingredients that several items satisfy."""

    def __init__(self, root: Path) -> None:
        self.folders = [folder for name in TAG_FOLDERS if (folder := root / name).is_dir()]
        self.used: dict[str, tuple[str, ...]] = {}

    def name_of(self, ingredient: Any) -> str:
        """The name an ingredient goes by; a tag is recorded in ``used``."""
        if isinstance(ingredient, list):
            members = tuple(dict.fromkeys(item for one in ingredient for item in self._items(one)))
            if not members:
                raise _Malformed("an ingredient is an empty list")
            return self._named(
                members[0]
                if len(members) == 1
                else " or ".join(members[:3]) + (" or other" if len(members) > 3 else ""),
                members,
            )
        if isinstance(ingredient, dict) and "tag" in ingredient:
            ingredient = "#" + _text(ingredient, "tag")
        if isinstance(ingredient, str) and ingredient.startswith("#"):
            name = _plain(ingredient[1:])
            members = self._tagged(ingredient[1:], ())
            # An item may bear the name of a tag (`sand`): the tag is then called `any sand`.
            return self._named(f"any {name}" if name in members and len(members) > 1 else name, members)
        return _item(ingredient)

    def _named(self, name: str, members: tuple[str, ...]) -> str:
        if members and members != (name,):
            self.used[name] = members
        return name

    def _items(self, ingredient: Any) -> tuple[str, ...]:
        name = self.name_of(ingredient)
        return self.used.get(name, (name,))

    def _tagged(self, tag: str, above: tuple[str, ...]) -> tuple[str, ...]:
        if tag in above:
            raise _Malformed(f"the tag {tag!r} contains itself")
        file = next(
            (path for folder in self.folders if (path := folder / f"{tag.removeprefix('minecraft:')}.json").is_file()),
            None,
        )
        if file is None:
            return ()
        values = _json(file).get("values")
        if not isinstance(values, list):
            raise ConfigError(KEY, f"{file}: field 'values' must be a list")
        items: list[str] = []
        for value in values:
            name = value.get("id") if isinstance(value, dict) else value
            if not isinstance(name, str):
                raise ConfigError(KEY, f"{file}: {value!r} is no item")
            items += self._tagged(name[1:], (*above, tag)) if name.startswith("#") else [_plain(name)]
        return tuple(dict.fromkeys(items))


def _json(file: Path) -> dict[str, Any]:
    try:
        record = json_files.parse(file.read_bytes())
    except json.JSONDecodeError as error:
        raise ConfigError(KEY, f"{file}, line {error.lineno}: not JSON ({error.msg})") from error
    except (OSError, ValueError) as error:
        raise ConfigError(KEY, f"{file} cannot be read: {error}") from error
    if not isinstance(record, dict):
        raise ConfigError(KEY, f"{file}: expected a JSON object, got {type(record).__name__}")
    return record


def _plain(name: str) -> str:
    """``minecraft:oak_planks`` as ``oak planks``."""
    words = " ".join(name.rpartition(":")[2].lower().replace("_", " ").replace("/", " ").split())
    if not words or "," in words or "\n" in words:
        raise _Malformed(f"{name!r} is no name of an item")
    return words


def _text(record: dict[str, Any], field: str) -> str:
    if not isinstance(record.get(field), str):
        raise _Malformed(f"field {field!r} must be a text, got {record.get(field)!r}")
    return str(record[field])


def _item(ingredient: Any) -> str:
    if isinstance(ingredient, dict):
        ingredient = ingredient.get("item", ingredient.get("id"))
    if not isinstance(ingredient, str):
        raise _Malformed(f"{ingredient!r} is no ingredient")
    return _plain(ingredient)


def _result(record: dict[str, Any]) -> tuple[str, int]:
    result = record.get("result")
    count = result.get("count", 1) if isinstance(result, dict) else 1
    if result is None or not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise _Malformed("field 'result' must name an item, with a count of 1 or more")
    return _item(result), count


def _shaped(record: dict[str, Any]) -> list[Any]:
    pattern, key = record.get("pattern"), record.get("key")
    if not isinstance(pattern, list) or not all(isinstance(row, str) for row in pattern) or not isinstance(key, dict):
        raise _Malformed("a shaped recipe needs 'pattern' (a list of texts) and 'key' (an object)")
    signs = [sign for row in pattern for sign in row if sign != " "]
    for sign in signs:
        if sign not in key:
            raise _Malformed(f"'key' does not say what {sign!r} of the pattern is")
    if not signs:
        raise _Malformed("the pattern is empty")
    return [key[sign] for sign in signs]


def _shapeless(record: dict[str, Any]) -> list[Any]:
    ingredients = record.get("ingredients")
    if not isinstance(ingredients, list) or not ingredients:
        raise _Malformed("a shapeless recipe needs 'ingredients' (a list that is not empty)")
    return ingredients
