"""A browser without a screen: one page, what was typed into it, and the way back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from urllib.parse import urlencode

from rllib_lmgame.envs.contract.base import InvalidAction
from rllib_lmgame.envs.games.web.web_navigation.page import (
    BUTTON,
    CHECKBOX,
    COMBOBOX,
    FIELDS,
    LINK,
    OPTION,
    RADIO,
    TEXTBOX,
    TICKED,
    Element,
    Page,
)

SCREEN = 9_000
"""Characters of the tree that are shown at once; ``scroll`` shows the rest."""

LONGEST_TYPED = 1_000
LONGEST_HISTORY = 200
CHECKED = "on"


Fields = Sequence[tuple[str, str]]
"""Names and values of a form, in the order of the page."""


class Backend(Protocol):
    """What answers requests: the site of this package, or a real one."""

    def request(self, method: str, path: str, fields: Fields) -> Page:
        """The page at ``path`` (after redirects). ``method`` is ``get`` (fields are in the path) or ``post``."""
        ...

    def local(self, address: str) -> str | None:
        """Path of an address of this site; ``None`` for any other."""
        ...


class Browser:
    """Follows links, fills in and sends forms.

    Args:
        backend: What answers.
        start: Path of the first page.
    """

    def __init__(self, backend: Backend, start: str) -> None:
        self._backend = backend
        self._history: list[str] = []
        self.show(backend.request("get", start, ()))

    def show(self, page: Page) -> None:
        """Make ``page`` the one that is open."""
        self.page = page
        self.screen = 0
        self._typed: dict[int, str] = {}
        self._history = [*self._history[-LONGEST_HISTORY:], page.path]

    def visit(self, address: str) -> None:
        """Go to an address that was typed.

        Raises:
            InvalidAction: if it is none of this site.
        """
        path = self._backend.local(address)
        if path is None:
            raise InvalidAction("goto takes an address of this site, for example goto [/].")
        self.open(path)

    def open(self, path: str) -> None:
        """Go to a path of the site."""
        self.show(self._backend.request("get", path, ()))

    def click(self, number: int) -> None:
        """Follow a link, press a button, choose an option or tick a box; a click on anything else does nothing.

        Raises:
            InvalidAction: if there is no such element, or it leads nowhere.
        """
        element = self._element(number)
        if element.role == LINK:
            if element.target is None:
                raise InvalidAction(
                    f"the link [{number}] leads nowhere here: to another site, or to scripts, which this browser does "
                    "not run."
                )
            self.open(element.target)
        elif element.role == BUTTON:
            if element.form is None:
                raise InvalidAction(
                    f"the button [{number}] sends nothing: it needs scripts, which this browser does not run."
                )
            self._send(element.form, element)
        elif element.role == OPTION and element.owner is not None:
            self._typed[element.owner] = element.value
        elif element.role == CHECKBOX:
            self._typed[number] = "" if self.value(number) else element.value or CHECKED
        elif element.role == RADIO:
            for place, other in enumerate(self.page.elements, start=1):
                if (other.role, other.form, other.field) == (RADIO, element.form, element.field):
                    self._typed[place] = ""
            self._typed[number] = element.value or CHECKED

    def type(self, number: int, text: str, enter: bool) -> None:
        """Replace what stands in a field (in a combobox: choose); with ``enter``, send its form.

        Raises:
            InvalidAction: if there is no such field, or no such choice.
        """
        element = self._element(number)
        if element.role == COMBOBOX:
            choices = [other.value for other in self.page.elements if other.owner == number]
            matching = [choice for choice in choices if choice.casefold() == text.strip().casefold()]
            if not matching:
                raise InvalidAction(f"[{number}] has no option {text[:60]!r}.")
            self._typed[number] = matching[0]
        elif element.role == TEXTBOX:
            if len(text) > LONGEST_TYPED:
                raise InvalidAction(f"the text is too long; a field takes {LONGEST_TYPED} characters.")
            self._typed[number] = text
        else:
            raise InvalidAction(f"[{number}] is a {element.role}; type into a textbox.")
        if enter and element.form is not None:
            self._send(element.form, None)

    def back(self) -> None:
        """The page before this one.

        Raises:
            InvalidAction: if this is the first one.
        """
        if len(self._history) < 2:
            raise InvalidAction("there is no page to go back to.")
        del self._history[-1]
        self.open(self._history.pop())

    def scroll(self, step: int) -> None:
        """Show the next or the previous part of a long page; stays where it is at either end."""
        self.screen = min(max(self.screen + step, 0), len(self._screens()) - 1)

    def value(self, number: int) -> str:
        """What stands in a field now."""
        element = self.page.elements[number - 1]
        if number not in self._typed and element.role in TICKED:
            return (element.value or CHECKED) if element.checked else ""
        return self._typed.get(number, element.value)

    def tree(self) -> str:
        """The part of the page that is on the screen, a line per element: ``[id] role 'name'`` and a field's value."""
        screens = self._screens()
        lines = screens[self.screen]
        more = f"(screen {self.screen + 1} of {len(screens)}; scroll [down] or scroll [up] shows the rest)"
        return "\n".join(lines if len(screens) == 1 else [*lines, more])

    def _screens(self) -> list[list[str]]:
        screens: list[list[str]] = [[]]
        used = 0
        for number, element in enumerate(self.page.elements, start=1):
            line = self._line(number, element)
            if used + len(line) > SCREEN and screens[-1]:
                screens.append([])
                used = 0
            screens[-1].append(line)
            used += len(line) + 1
        return screens

    def _line(self, number: int, element: Element) -> str:
        indent = "" if number == 1 else "\t\t" if element.role == OPTION else "\t"
        line = f"{indent}[{number}] {element.role} '{element.name}'"
        if element.role in (TEXTBOX, COMBOBOX):
            return f"{line} value: '{self.value(number)}'"
        return f"{line} checked: {bool(self.value(number))}" if element.role in TICKED else line

    def _element(self, number: int) -> Element:
        if not 1 <= number <= len(self.page.elements):
            raise InvalidAction(f"there is no element [{number}] on this page.")
        return self.page.elements[number - 1]

    def _send(self, number: int, button: Element | None) -> None:
        form = self.page.forms[number]
        fields = list(form.hidden)
        for place, element in enumerate(self.page.elements, start=1):
            if element.form == number and element.role in FIELDS and element.field:
                value = self.value(place)
                if value or element.role not in TICKED:
                    fields.append((element.field, value))
        if button is not None and button.field:
            fields.append((button.field, button.value))
        if form.method == "get":
            self.open(f"{form.action.split('?')[0]}?{urlencode(fields, errors='replace')}")
        else:
            self.show(self._backend.request("post", form.action, fields))
