"""A page as its reader sees it: a list of elements, and the forms they belong to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rllib_lmgame.envs.support.datasets import package_lists

ROOT, HEADING, TEXT, LINK, BUTTON = "RootWebArea", "heading", "StaticText", "link", "button"
TEXTBOX, COMBOBOX, OPTION = "textbox", "combobox", "option"
LONGEST_NAME = 500

Fields = Sequence[tuple[str, str]]
"""Names and values of a form, in the order of the page."""


@dataclass(frozen=True)
class Element:
    """One line of the tree; its id is its place in the page, from 1.

    Attributes:
        role: Accessibility role.
        name: What it says.
        target: Where a link leads.
        form: Number of the form it belongs to.
        field: Name under which the form sends it.
        value: A field's value before anything is typed; for an option, what it chooses.
        owner: For an option, the id of its combobox.
    """

    role: str
    name: str
    target: str = ""
    form: int | None = None
    field: str = ""
    value: str = ""
    owner: int | None = None


@dataclass(frozen=True)
class Form:
    """Where fields are sent: ``get`` or ``post``, and what goes along unseen."""

    action: str
    method: str = "post"
    hidden: tuple[tuple[str, str], ...] = ()


@dataclass
class Page:
    """A page.

    Attributes:
        path: Its address: path and query.
        title: Name of the whole page.
        elements: In reading order; the first one is the root.
        forms: What buttons send.
    """

    path: str
    title: str
    elements: list[Element] = field(default_factory=list)
    forms: list[Form] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.elements.insert(0, Element(ROOT, shortened(self.title)))

    def add(self, element: Element) -> int:
        """Append an element; returns its id."""
        self.elements.append(element)
        return len(self.elements)

    def heading(self, name: str) -> None:
        """A heading."""
        self.add(Element(HEADING, shortened(name)))

    def text(self, name: str) -> None:
        """Text without a function."""
        self.add(Element(TEXT, shortened(name)))

    def link(self, name: str, target: str) -> None:
        """A link."""
        self.add(Element(LINK, shortened(name), target=target))

    def form(self, action: str, method: str = "post", hidden: Iterable[tuple[str, str]] = ()) -> int:
        """Begin a form; returns its number for the fields and buttons that follow."""
        self.forms.append(Form(action, method, tuple(hidden)))
        return len(self.forms) - 1

    def textbox(self, form: int, name: str, label: str, value: str = "") -> None:
        """A field to type into."""
        self.add(Element(TEXTBOX, shortened(label), form=form, field=name, value=value))

    def choice(self, form: int, name: str, label: str, options: Sequence[str], value: str = "") -> None:
        """A combobox with its options; the first one is chosen unless ``value`` says another."""
        owner = self.add(Element(COMBOBOX, shortened(label), form=form, field=name, value=value or options[0]))
        for text in options:
            self.add(Element(OPTION, shortened(text), form=form, value=text, owner=owner))

    def button(self, form: int, label: str) -> None:
        """A button that sends its form."""
        self.add(Element(BUTTON, shortened(label), form=form))

    def action(self, label: str, path: str) -> None:
        """A button that is a form of its own."""
        self.button(self.form(path), label)

    def find(self, role: str, name: str) -> int | None:
        """Id of the first element with this role and name."""
        return next(
            (i for i, element in enumerate(self.elements, start=1) if element.role == role and element.name == name),
            None,
        )


def shortened(text: str) -> str:
    """The text on one line, cut if it is long."""
    return " ".join(text.split())[:LONGEST_NAME]


def words() -> Mapping[str, tuple[str, ...]]:
    """The lists the site is filled from."""
    return package_lists("web_site_words.txt")
