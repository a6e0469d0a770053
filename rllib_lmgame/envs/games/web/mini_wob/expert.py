"""Scripts that do tasks of MiniWoB from what a player sees: the goal and the page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from rllib_lmgame.envs.games.web.browser.sight import Element


class Sight(NamedTuple):
    """What a script goes by.

    Attributes:
        goal: The task in words.
        elements: The page.
    """

    goal: str
    elements: Sequence[Element]

    def find(self, role: str, name: str | None = None) -> str:
        """The first element of a role (and a name)."""
        return self.all(role, name)[0]

    def all(self, role: str, name: str | None = None) -> list[str]:
        """All of them that can be named in actions."""
        return [
            element.id
            for element in self.elements
            if element.role == role and element.id and name in (None, element.name)
        ]

    def quoted(self) -> list[str]:
        """Texts the goal quotes."""
        return re.findall(r'"([^"]*)"', self.goal)

    def goal_match(self, pattern: str) -> re.Match[str]:
        """Where the goal says something."""
        match = re.search(pattern, self.goal)
        if match is None:
            raise LookupError(f"the goal {self.goal!r} does not say {pattern!r}")
        return match


Script = Callable[[Sight], Iterator[str]]
"""Actions that do the task, in order. It is run anew on every page; those that were played are left out."""


def _click(number: str) -> str:
    return f"click({number!r})"


def _fill(number: str, text: str) -> str:
    return f"fill({number!r}, {text!r})"


def _submit(sight: Sight, *names: str) -> Iterator[str]:
    yield _click(next(number for name in (*names, "Submit") for number in sight.all("button", name)))


def click_only_button(sight: Sight) -> Iterator[str]:
    yield _click(sight.find("button"))


def click_named_button(sight: Sight) -> Iterator[str]:
    yield _click(sight.find("button", sight.quoted()[0]))


def click_first_named(sight: Sight) -> Iterator[str]:
    yield _click(sight.find("button", sight.goal_match(r"button (\w+)")[1]))


def click_in_order(sight: Sight) -> Iterator[str]:
    for name in re.findall(r"button (\w+)", sight.goal):
        yield f"press({sight.find('button', name)!r}, 'Enter')"  # One may lie on the other.


def close_dialog(sight: Sight) -> Iterator[str]:
    yield _click(sight.find("button", "Close"))


def tick(sight: Sight) -> Iterator[str]:
    named = sight.goal_match(r"Select (.*) and click Submit")[1]
    for name in [] if named == "nothing" else named.split(", "):
        yield _click(sight.find("checkbox", name))
    yield from _submit(sight)


def choose_radio(sight: Sight) -> Iterator[str]:
    yield _click(sight.find("radio", sight.goal_match(r"Select (.*) and click Submit")[1]))
    yield from _submit(sight)


def choose_in_list(sight: Sight) -> Iterator[str]:
    wanted = sight.goal_match(r"Select (.*) from the (?:scroll )?list and click Submit")[1]
    yield f"select_option({sight.find('combobox')!r}, {wanted!r})"
    yield from _submit(sight)


def enter_quoted(sight: Sight) -> Iterator[str]:
    yield _fill(sight.find("textbox"), sight.quoted()[0])
    yield from _submit(sight)


def enter_everywhere(sight: Sight) -> Iterator[str]:
    for number in sight.all("textbox"):
        yield _fill(number, sight.quoted()[0])
    yield from _submit(sight)


def log_in(sight: Sight) -> Iterator[str]:
    for number, text in zip(sight.all("textbox"), sight.quoted(), strict=True):
        yield _fill(number, text)
    yield from _submit(sight, "Login")


def enter_date(sight: Sight) -> Iterator[str]:
    month, day, year = sight.goal_match(r"(\d+)/(\d+)/(\d+)").groups()
    yield _fill(sight.find("Date"), f"{year}-{month}-{day}")
    yield from _submit(sight)


def open_tab(sight: Sight) -> Iterator[str]:
    yield _click(sight.find("tab", sight.goal_match(r"(Tab #\d+)")[1]))


def focus_numbered(sight: Sight) -> Iterator[str]:
    number = sight.goal_match(r"(\d+)\w\w input|Focus")[1] or "1"
    yield f"focus({sight.all('textbox')[int(number) - 1]!r})"


def calculate(sight: Sight) -> Iterator[str]:
    text = next(element.name for element in sight.elements if element.role == "StaticText" and "=" in element.name)
    left, sign, right = text.split()[:3]
    value = {"+": int(left) + int(right), "-": int(left) - int(right), "x": int(left) * int(right)}[sign]
    yield _fill(sight.find("textbox"), str(value))
    yield from _submit(sight)


def read_cell(sight: Sight) -> Iterator[str]:
    wanted = sight.goal_match(r"value of (.*) into")[1]
    cells = [element.name for element in sight.elements if element.role == "cell"]
    yield _fill(sight.find("textbox"), cells[cells.index(wanted) + 1])
    yield from _submit(sight)


def copy_letters(sight: Sight) -> Iterator[str]:
    letters = [element.name for element in sight.elements if element.role == "StaticText" and element.depth == 1]
    yield _fill(sight.find("textbox"), "".join(letters))
    yield from _submit(sight)


def unfold(sight: Sight) -> Iterator[str]:
    yield _click(next(each.id for each in sight.elements if each.role == "tab" and each.name.startswith("Section")))
    yield from _submit(sight)


SOLVED: Mapping[str, Script] = {
    "click-test": click_only_button,
    "click-test-2": click_first_named,
    "click-button": click_named_button,
    "click-button-sequence": click_in_order,
    "click-dialog": close_dialog,
    "click-checkboxes": tick,
    "click-checkboxes-transfer": tick,
    "click-option": choose_radio,
    "click-tab": open_tab,
    "click-collapsible": unfold,
    "choose-list": choose_in_list,
    "enter-text": enter_quoted,
    "enter-text-dynamic": enter_quoted,
    "enter-password": enter_everywhere,
    "enter-date": enter_date,
    "login-user": log_in,
    "focus-text": focus_numbered,
    "focus-text-2": focus_numbered,
    "simple-arithmetic": calculate,
    "read-table": read_cell,
    "text-transform": copy_letters,
}
"""Tasks that are done on every seed tried, by their scripts."""


def next_action(task: str, goal: str, elements: Sequence[Element], done: Sequence[str]) -> str | None:
    """The next reply; ``None`` where there is no script, or it does not know what to do."""
    script = SOLVED.get(task)
    if script is None:
        return None
    played = list(done)
    try:
        for action in script(Sight(goal, elements)):
            if action not in played:
                return action
            played.remove(action)
    except (LookupError, StopIteration, RuntimeError, ValueError):
        return None
    return None
