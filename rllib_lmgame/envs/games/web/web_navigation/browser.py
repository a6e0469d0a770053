"""A browser without a screen: one page, what was typed into it, and the way back."""

from __future__ import annotations

from urllib.parse import urlencode

from rllib_lmgame.envs.contract.base import InvalidAction
from rllib_lmgame.envs.synthetic.web_site.page import BUTTON, COMBOBOX, LINK, OPTION, TEXTBOX, Element, Page
from rllib_lmgame.envs.synthetic.web_site.site import SiteBackend

SCREEN = 9_000
"""Characters of the tree that are shown at once; ``scroll`` shows the rest."""

LONGEST_TYPED = 1_000
LONGEST_HISTORY = 200


class Browser:
    """Follows links, fills in and sends forms.

    Args:
        backend: What answers.
        start: Path of the first page.
    """

    def __init__(self, backend: SiteBackend, start: str) -> None:
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
        """Go to an address that was typed. Raises: InvalidAction: if it is none of this site."""
        path = self._backend.local(address)
        if path is None:
            raise InvalidAction("goto takes an address of this site, for example goto [/].")
        self.open(path)

    def open(self, path: str) -> None:
        """Go to a path of the site."""
        self.show(self._backend.request("get", path, ()))

    def click(self, number: int) -> None:
        """Follow a link, press a button or choose an option; a click on anything else does nothing.

        Raises: InvalidAction: there is no such element.
        """
        element = self._element(number)
        if element.role == LINK:
            self.open(element.target)
        elif element.role == BUTTON and element.form is not None:
            self._send(element.form)
        elif element.role == OPTION and element.owner is not None:
            self._typed[element.owner] = element.value

    def type(self, number: int, text: str, enter: bool) -> None:
        """Replace what stands in a field (in a combobox: choose); with ``enter``, send its form.

        Raises: InvalidAction: if there is no such field, or no such choice.
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
            self._send(element.form)

    def back(self) -> None:
        """The page before this one. Raises: InvalidAction: if this is the first one."""
        if len(self._history) < 2:
            raise InvalidAction("there is no page to go back to.")
        del self._history[-1]
        self.open(self._history.pop())

    def scroll(self, step: int) -> None:
        """Show the next or the previous part of a long page; stays where it is at either end."""
        self.screen = min(max(self.screen + step, 0), len(self._screens()) - 1)

    def value(self, number: int) -> str:
        """What stands in a field now."""
        return self._typed.get(number, self.page.elements[number - 1].value)

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
        return f"{line} value: '{self.value(number)}'" if element.role in (TEXTBOX, COMBOBOX) else line

    def _element(self, number: int) -> Element:
        if not 1 <= number <= len(self.page.elements):
            raise InvalidAction(f"there is no element [{number}] on this page.")
        return self.page.elements[number - 1]

    def _send(self, number: int) -> None:
        form = self.page.forms[number]
        fields = list(form.hidden)
        for place, element in enumerate(self.page.elements, start=1):
            if element.form == number and element.role in (TEXTBOX, COMBOBOX):
                fields.append((element.field, self.value(place)))
        if form.method == "get":
            self.open(f"{form.action}?{urlencode(fields, errors='replace')}")
        else:
            self.show(self._backend.request("post", form.action, fields))
