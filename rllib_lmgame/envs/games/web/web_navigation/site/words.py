"""The lists the site is filled from."""

from __future__ import annotations

from functools import cache

from rllib_lmgame.envs.support.datasets import package_lines


@cache
def words() -> dict[str, tuple[str, ...]]:
    """The lists of ``web_site_words.txt`` by name."""
    pairs = (line.split(":", 1) for line in package_lines("web_site_words.txt"))
    return {name: tuple(value.strip() for value in values.split(";")) for name, values in pairs}
