"""BrowserGym's actions: read from a reply, and played on a page.

An action is a call of one of BrowserGym's functions with literal arguments, as ``fill('12', "a text")``. Nothing of a
reply is run: it is parsed, and the function is called with the arguments.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Collection
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from browsergym.core.action import functions
from playwright.sync_api import Error, Page

from rllib_lmgame.base.text import first_line
from rllib_lmgame.envs.contract.base import InvalidAction
from rllib_lmgame.envs.games.web.browser.sight import elements_of

ON_A_PAGE = (
    "click", "dblclick", "hover", "focus", "fill", "clear", "press", "select_option", "drag_and_drop", "scroll", "noop",
)  # fmt: skip
"""Actions within one page."""

ACROSS_PAGES = (*ON_A_PAGE, "goto", "go_back", "go_forward", "new_tab", "tab_close", "tab_focus")
"""Those, and what changes pages and tabs."""

TO_THE_USER = ("send_msg_to_user", "report_infeasible")
"""The answer, or that there is none."""

IDS = frozenset({"bid", "from_bid", "to_bid"})
BUTTONS = ("left", "middle", "right")
KEYS = ("Alt", "Control", "ControlOrMeta", "Meta", "Shift")
MAX_REPLY = 4_000
MAX_WAIT_MS = 5_000
MAX_SCROLL = 100_000


@dataclass(frozen=True)
class Call:
    """One action: a function of BrowserGym's and its arguments."""

    name: str
    arguments: tuple[tuple[str, Any], ...]

    @property
    def text(self) -> str:
        """As it is written, all arguments by position."""
        shown = (list(value) if isinstance(value, tuple) else value for _, value in self.arguments)
        return f"{self.name}({', '.join(map(repr, shown))})"

    def check_elements(self, tree: str) -> None:
        """Raises: InvalidAction: it names an element that the tree does not have."""
        known = {element.id for element in elements_of(tree)}
        for name, value in self.arguments:
            if name in IDS and value not in known:
                raise InvalidAction(f"the page has no element {value[:20]!r}.")

    def play(self, page: Page) -> tuple[Page, str]:
        """Call the function on ``page``.

        Args:
            page: The page in front; in the thread of the browser.

        Returns:
            The page that is in front then, and what went wrong (empty if nothing did).
        """
        original: Any = getattr(functions, self.name)
        scope = {**vars(functions), "page": page, "demo_mode": "off", "retry_with_force": False}
        function = FunctionType(original.__code__, scope, self.name, original.__defaults__)
        try:
            function(**{name: list(value) if isinstance(value, tuple) else value for name, value in self.arguments})
        except (Error, ValueError, IndexError) as error:
            return scope["page"], first_line(error)
        return scope["page"], ""


def read_call(text: str, names: Collection[str]) -> Call:
    """The action that a reply says.

    Args:
        text: The reply.
        names: Functions that may be called.

    Raises: InvalidAction: if it is no call of one of them with arguments it takes.
    """
    name, positional, named = _parsed(text)
    if name not in names:
        raise InvalidAction(f"{name[:40]!r} is no action; there are {', '.join(names)}.")
    signature = inspect.signature(getattr(functions, name))
    try:
        arguments = signature.bind(*positional, **named).arguments
    except TypeError as error:
        raise InvalidAction(f"{name}{_shown(signature)}: {error}.") from None
    for argument, value in arguments.items():
        if (wrong := _wrong(argument, value)) is not None:
            raise InvalidAction(f"{argument} of {name} must be {wrong}.")
    return Call(
        name, tuple((key, tuple(value) if isinstance(value, list) else value) for key, value in arguments.items())
    )


def _parsed(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Name, positional and named arguments of the one call in ``text``."""
    try:
        tree = ast.parse(text.strip()[:MAX_REPLY], mode="eval").body
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
            positional = [ast.literal_eval(argument) for argument in tree.args]
            named = {str(each.arg): ast.literal_eval(each.value) for each in tree.keywords}
            return tree.func.id, positional, named
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        pass
    raise InvalidAction("an action is one call with its arguments, as: click('12') or fill('12', 'a text').")


def _shown(signature: inspect.Signature) -> str:
    return f"({', '.join(signature.parameters)})"


def _wrong(name: str, value: Any) -> str | None:
    """What an argument must be, if it is not."""
    if name in ("delta_x", "delta_y", "wait_ms"):
        most = MAX_WAIT_MS if name == "wait_ms" else MAX_SCROLL
        least = 0 if name == "wait_ms" else -MAX_SCROLL
        right = isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
        return None if right else f"a number from {least} to {most}"
    if name == "index":
        return None if isinstance(value, int) and 0 <= value < 100 else "the number of a tab"
    if name == "button":
        return None if value in BUTTONS else f"one of {', '.join(BUTTONS)}"
    if name == "enable_autocomplete_menu":
        return None if isinstance(value, bool) else "True or False"
    if name == "modifiers":
        right = isinstance(value, list) and all(key in KEYS for key in value)
        return None if right else f"a list of {', '.join(KEYS)}"
    if name == "options" and isinstance(value, list) and value:
        return None if all(isinstance(each, str) for each in value) else "a text or a list of texts"
    return None if isinstance(value, str) else "a text"
