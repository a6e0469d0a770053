"""What a player sees of a page: its accessibility tree as text, one element a line.

``[12] button 'Submit'``: the number names the element in actions. BrowserGym marks the elements, reads the tree from
the browser and writes it down.
"""

from __future__ import annotations

import ast
import re
from typing import NamedTuple

from browsergym.core import observation
from browsergym.utils.obs import IGNORED_AXTREE_PROPERTIES, flatten_axtree_to_str
from playwright.sync_api import Error, Page

SETTLE_S = 0.05
TRIES = 5
"""A page may change while it is read; it is then read again, so often at most."""

IGNORED = (*IGNORED_AXTREE_PROPERTIES, "url")
"""Properties of elements that are not shown."""

UNSEEN = "InlineTextBox"
"""A role that says nothing more than the line above: how a text is broken into lines."""

LINE = re.compile(r"""(\t*)(?:\[(\w+)\] )?(\w+)(?: ('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"))?(.*)""")

LISTED = frozenset(
    {"button", "checkbox", "link", "menuitem", "option", "radio", "searchbox", "spinbutton", "tab", "textbox"}
)
FILLED = frozenset({"searchbox", "spinbutton", "textbox"})
QUOTED = re.compile(r'"([^"]{1,100})"')
MOST_LISTED = 200


class Element(NamedTuple):
    """One line of a tree.

    Attributes:
        depth: How many others it lies in.
        id: Its number; empty where it has none.
        role: What it is.
        name: What it is called.
        rest: Value and state, as they are written.
    """

    depth: int
    id: str
    role: str
    name: str
    rest: str


def tree_of(page: Page) -> str:
    """The tree of a page, in the thread of the browser.

    Raises: Error: Playwright's, if the page cannot be read or does not stop changing.
    """
    for left in reversed(range(TRIES)):
        try:
            return _read(page, lenient=not left)
        except (Error, observation.MarkingError):
            if not left or page.is_closed():
                raise
            page.wait_for_timeout(1000 * SETTLE_S)
    raise AssertionError


def elements_of(tree: str) -> list[Element]:
    """The elements of a tree."""
    found = []
    for line in tree.split("\n"):
        if match := LINE.fullmatch(line):
            tabs, number, role, name, rest = match.groups()
            found.append(Element(len(tabs), number or "", role, ast.literal_eval(name) if name else "", rest))
    return found


def listed_actions(tree: str, goal: str) -> tuple[str, ...]:
    """Clicks on what is there to be clicked, and the texts the goal quotes typed into its fields; any element may be
    clicked, and anything may be typed.
    """
    quoted = QUOTED.findall(goal)
    found = ["noop()"]
    for element in elements_of(tree):
        if element.id and element.role in LISTED:
            found.append(f"click({element.id!r})")
        if element.id and element.role in FILLED:
            found += [f"fill({element.id!r}, {text!r})" for text in quoted]
    return tuple(dict.fromkeys(found))[:MOST_LISTED]


def _read(page: Page, lenient: bool) -> str:
    observation._pre_extract(page, lenient=lenient)
    try:
        tree = observation.extract_merged_axtree(page)
        known = observation.extract_dom_extra_properties(observation.extract_dom_snapshot(page), scale_factor=1.0)
    finally:
        if not page.is_closed():
            observation._post_extract(page)
    text = flatten_axtree_to_str(tree, known, with_clickable=True, ignored_properties=IGNORED)
    return "\n".join(line for line in text.split("\n") if not line.lstrip("\t").startswith(UNSEEN))
