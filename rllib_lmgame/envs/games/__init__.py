"""The games of this package, a folder for each family."""

from __future__ import annotations

from collections.abc import Mapping

FAMILIES: Mapping[str, str] = {
    "grids": "Puzzles on grids and with blocks",
    "words": "Games of words and talk",
    "mathematics": "Word problems and mathematics",
    "crafting": "Crafting",
    "code": "Programs, queries and tools",
    "web": "Shops, sites and search",
    "adapted": "Games whose engine is a package of its own",
    "duels": "Games for two and more",
    "dilemmas": "Social dilemmas: all players decide at once",
    "talk": "Games of talk for two",
    "teams": "Games of teams, and of all together",
}
"""Folder -> title, in the order in which the families are listed."""
