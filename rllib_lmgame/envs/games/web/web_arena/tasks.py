"""WebArena's 812 tasks: read from its file, with the addresses of the sites put in.

The file is that of the package ``libwebarena``, which is not imported: what it asks for does not go with Ray.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from rllib_lmgame.base.errors import ConfigError, MissingDependencyError
from rllib_lmgame.envs.support.addresses import check_address
from rllib_lmgame.envs.support.item_lists import numbers_in

SITES = ("shopping", "shopping_admin", "reddit", "gitlab", "wikipedia", "map", "homepage")
"""The environment variable ``WA_`` and the name in capitals holds the address of each; tasks write it ``__NAME__``."""

INSTALL_TASKS = (
    "WebArena needs the list of its tasks, which the package 'libwebarena' has: pip install --no-deps libwebarena "
    "(what it asks for besides is not needed)"
)
PLACEHOLDER = re.compile(rf"__({'|'.join(map(str.upper, SITES))})__")
AND, UNACHIEVABLE = " |AND| ", "N/A"
SHOPS_API = "func:shopping_"
"""What asks the shop's own interface, as its administrator; no page says it."""


class Task(NamedTuple):
    """One task.

    Attributes:
        number: 0 to 811, WebArena's.
        intent: What is to be done, in words.
        starts: Addresses of the pages that are open at first.
        sites: Names of the sites it needs.
        login: File of the state in which its player is logged in; empty: nobody is.
        checks: How it is judged, as WebArena writes it down.
    """

    number: int
    intent: str
    starts: tuple[str, ...]
    sites: tuple[str, ...]
    login: str
    checks: Mapping[str, Any]

    @property
    def logged_in_to(self) -> list[str]:
        """Sites that the player is logged in to, by the name of the file: ``gitlab.reddit_state.json``."""
        return self.login.rpartition("_")[0].split(".")

    @property
    def answers(self) -> Mapping[str, Any]:
        """What the answer must be or say, by how it is compared."""
        return self.checks["reference_answers"] or {} if "string_match" in self.checks["eval_types"] else {}

    @property
    def targets(self) -> list[Mapping[str, Any]]:
        """What pages must say at the end."""
        return list(self.checks["program_html"]) if "program_html" in self.checks["eval_types"] else []

    def hindrance(self, sites: Mapping[str, str], *, judge: bool, logins: bool) -> str:
        """Why it cannot be played or judged; empty if it can be.

        Args:
            sites: Addresses by the names of sites.
            judge: There is a language model that compares answers.
            logins: There are files of logged-in states.
        """
        if missing := [variable_of(name) for name in self.sites if name not in sites]:
            return f"no address in {', '.join(missing)}"
        if "fuzzy_match" in self.answers and not judge:
            return "its answer is compared by a language model (option `judge`)"
        if any(target[key].startswith(SHOPS_API) for target in self.targets for key in ("url", "locator")):
            return "it is judged by the shop's database, not by a page"
        if self.login and not logins:
            return "its player must be logged in (option `storage_state`)"
        return ""


def variable_of(site: str) -> str:
    """The environment variable of a site's address."""
    return f"WA_{site.upper()}"


def site_addresses() -> dict[str, str]:
    """Addresses of the sites that the environment names. Raises: ConfigError: if one is no address."""
    named = {site: os.environ.get(variable_of(site), "").strip() for site in SITES}
    return {site: check_address(url, variable_of(site)) for site, url in named.items() if url}


def read_tasks(sites: Mapping[str, str]) -> tuple[Task, ...]:
    """All tasks by their numbers, the addresses of the ``sites`` put in.

    Raises: MissingDependencyError: if there is no list of them.
    """
    return tuple(_task(raw, sites) for raw in _as_published())


def chosen_numbers(ids: str | int, key: str) -> list[int]:
    """The numbers that ``310`` or ``0-9, 44`` names, each once.

    Raises: ConfigError: if it is no such list, or there is no task of a number.
    """
    numbers, last = numbers_in(ids, key), len(_as_published()) - 1
    if numbers is None:
        raise ConfigError(key, f"{str(ids)[:80]!r} must be numbers of tasks, as 310, or 0-9, 44")
    if beyond := [number for number in numbers if number > last]:
        raise ConfigError(key, f"{beyond[0]} names no task; WebArena's are 0-{last}")
    return numbers


@cache
def _as_published() -> tuple[Mapping[str, Any], ...]:
    spec = importlib.util.find_spec("webarena")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(folder) / "test.raw.json"
        if path.is_file():
            return tuple(json.loads(path.read_text(encoding="utf-8")))
    raise MissingDependencyError(INSTALL_TASKS)


def _task(raw: Mapping[str, Any], sites: Mapping[str, str]) -> Task:
    needed = [
        *raw["sites"],
        *(name.lower() for name in PLACEHOLDER.findall(json.dumps([raw["start_url"], raw["eval"]]))),
    ]
    filled = _filled({"start_url": raw["start_url"], "eval": raw["eval"]}, sites)
    return Task(
        int(raw["task_id"]),
        " ".join(str(raw["intent"]).split()),
        tuple(filled["start_url"].split(AND)),
        tuple(dict.fromkeys(needed)),
        Path(raw["storage_state"] or "").name,
        filled["eval"],
    )


def _filled(value: Any, sites: Mapping[str, str]) -> Any:
    """``value`` with the addresses in place of their names."""
    if isinstance(value, str):
        return PLACEHOLDER.sub(lambda match: sites.get(match[1].lower(), match[0]), value)
    if isinstance(value, list):
        return [_filled(each, sites) for each in value]
    if isinstance(value, dict):
        return {key: _filled(each, sites) for key, each in value.items()}
    return value
