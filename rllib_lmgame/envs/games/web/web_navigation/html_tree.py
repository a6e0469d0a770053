"""From HTML to the elements of a page: what can be read, followed, filled in and sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from rllib_lmgame.envs.games.web.web_navigation.html_tokens import tokens
from rllib_lmgame.envs.games.web.web_navigation.page import (
    BUTTON,
    CHECKBOX,
    COMBOBOX,
    HEADING,
    LINK,
    OPTION,
    RADIO,
    TEXT,
    TEXTBOX,
    Element,
    Form,
    Page,
    shortened,
)

MOST_ELEMENTS = 1_500
DEEPEST = 8
"""Elements that may be open inside one another; the outer ones of more get no further text."""

UNSEEN = frozenset(("script", "style", "noscript", "template", "svg", "iframe", "object"))
VOID = frozenset(("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"))
INLINE = frozenset(
    (
        "b",
        "i",
        "em",
        "strong",
        "span",
        "small",
        "code",
        "u",
        "s",
        "sub",
        "sup",
        "abbr",
        "time",
        "mark",
        "font",
        "bdi",
        "cite",
        "q",
    )
)
HEADINGS = frozenset(f"h{level}" for level in range(1, 7))
NOT_TYPED = {"submit": BUTTON, "image": BUTTON, "button": BUTTON, "checkbox": CHECKBOX, "radio": RADIO}
IGNORED_INPUTS = ("hidden", "file", "reset")
Resolve = Callable[[str], str | None]


@dataclass
class _Item:
    """An element in the making; ``texts`` is what was read inside it."""

    element: Element
    tag: str = ""
    texts: list[str] = field(default_factory=list)
    label: str = ""
    html_id: str = ""
    fallback: str = ""

    @property
    def text(self) -> str:
        return shortened("".join(self.texts))


def read_page(html: str, path: str, resolve: Resolve, status: int = 200) -> Page:
    """The page that ``html`` describes.

    Args:
        html: The document; it may be broken in any way.
        path: Its own address.
        resolve: Path on this site of an address in a link or form, ``None`` if it leads elsewhere.
        status: HTTP status.
    """
    reader = _Reader(resolve, path)
    reader.read(html)
    page = Page(path, reader.title or path, status=status)
    page.forms = [
        Form(form.action, form.method, tuple(hidden)) for form, hidden in zip(reader.forms, reader.hidden, strict=True)
    ]
    owner: int | None = None
    for item in reader.items[:MOST_ELEMENTS]:
        element = replace(item.element, name=_name(item, reader.labels))
        if element.role == OPTION:
            element = replace(element, owner=owner, value=element.value if item.fallback == "valued" else item.text)
        elif element.role == TEXTBOX and item.tag == "textarea":
            element = replace(element, value="".join(item.texts).strip())
        number = page.add(element)
        owner = number if element.role == COMBOBOX else owner
    _choose(
        page,
        {
            place
            for place, item in enumerate(reader.items[:MOST_ELEMENTS], start=2)
            if item.element.role == OPTION and item.element.checked
        },
    )
    if len(reader.items) > MOST_ELEMENTS:
        page.text("(the rest of this page is left out)")
    return page


def _name(item: _Item, labels: dict[str, str]) -> str:
    if item.element.role in (TEXT, HEADING, OPTION):
        return item.text
    if item.element.role in (LINK, BUTTON):
        return (
            shortened(item.label) or item.text or shortened(item.fallback) or (item.element.target or item.element.role)
        )
    return shortened(item.label or labels.get(item.html_id, "") or item.fallback or item.element.field)


def _choose(page: Page, selected: set[int]) -> None:
    """Give every combobox the value of its selected option, else of its first."""
    for number, element in enumerate(page.elements, start=1):
        if element.role == COMBOBOX:
            options = [
                (place, other)
                for place, other in enumerate(page.elements, start=1)
                if place > number and other.owner == number
            ]
            chosen = [other.value for place, other in options if place in selected] or [
                other.value for _, other in options[:1]
            ]
            page.elements[number - 1] = replace(element, value=chosen[-1] if chosen else "")


class _Reader:
    """Collects elements in reading order; text goes to every element that is open, else to one of its own."""

    def __init__(self, resolve: Resolve, path: str) -> None:
        self.items: list[_Item] = []
        self.forms: list[Form] = []
        self.hidden: list[list[tuple[str, str]]] = []
        self.labels: dict[str, str] = {}
        self.title = ""
        self._resolve, self._path = resolve, path
        self._open: list[_Item] = []
        self._free: list[str] = []
        self._form: int | None = None
        self._label: tuple[str, list[str]] | None = None
        self._unseen: tuple[str, int] | None = None
        self._in_title = False

    def read(self, html: str) -> None:
        """Take in a document, up to the element that is one too many."""
        for token in tokens(html):
            if token.kind == "text":
                self.take_text(token.text)
            elif token.kind == "start":
                self.take_start(token.name, token.attributes)
            else:
                self.take_end(token.name)
            if len(self.items) > MOST_ELEMENTS:
                break
        self.flush()

    def flush(self) -> None:
        """End the text that belongs to no element."""
        if text := shortened("".join(self._free)):
            self.items.append(_Item(Element(TEXT, ""), texts=[text]))
        self._free = []

    def take_start(self, tag: str, attributes: dict[str, str]) -> None:
        """An element begins."""
        if self._unseen is not None:
            self._unseen = (self._unseen[0], self._unseen[1] + (tag == self._unseen[0]))
            return
        if tag in UNSEEN or (("hidden" in attributes or attributes.get("aria-hidden") == "true") and tag not in VOID):
            self._unseen = (tag, 1)
        elif tag == "title":
            self._in_title = True
        elif tag == "img":
            self.take_text(attributes.get("alt", ""))
        elif tag == "label":
            self._label = (attributes.get("for", ""), [])
        elif tag not in INLINE:
            if not self._open:
                self.flush()
            self._element(tag, attributes)

    def take_end(self, tag: str) -> None:
        """An element ends."""
        if self._unseen is not None:
            left = self._unseen[1] - (tag == self._unseen[0])
            self._unseen = (self._unseen[0], left) if left else None
            return
        if tag == "title":
            self._in_title = False
        elif tag == "form":
            self._form = None
        elif tag == "label" and self._label is not None:
            self._end_label()
        elif tag not in INLINE:
            if not self._open:
                self.flush()
            self._close("option" if tag == "select" else tag)

    def take_text(self, data: str) -> None:
        """Text between tags."""
        if self._unseen is not None:
            return
        if self._in_title:
            self.title = shortened(self.title + data)
        elif self._label is not None and not self._open:
            self._label[1].append(data)
        elif self._open:
            for item in self._open:
                item.texts.append(data)
        else:
            self._free.append(data)

    def _element(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "form":
            method = "post" if attributes.get("method", "").lower() == "post" else "get"
            target = self._resolve(attributes.get("action") or self._path)
            self._form = None
            if target is not None:
                self.forms.append(Form(target, method))
                self.hidden.append([])
                self._form = len(self.forms) - 1
        elif tag == "a" and "href" in attributes:
            self._close("a")
            self._begin(tag, Element(LINK, "", target=self._resolve(attributes["href"])), attributes)
        elif tag in HEADINGS:
            self._begin(tag, Element(HEADING, ""), attributes)
        elif tag == "input":
            self._input(attributes)
        elif tag in ("button", "select", "textarea") and "disabled" not in attributes:
            sends = tag != "button" or attributes.get("type", "submit").lower() == "submit"
            role = {"button": BUTTON, "select": COMBOBOX, "textarea": TEXTBOX}[tag]
            value = attributes.get("value", "") if tag == "button" else ""
            element = Element(
                role, "", form=self._form if sends else None, field=attributes.get("name", ""), value=value
            )
            self._begin(tag, element, attributes, stays_open=tag != "select")
        elif tag == "option":
            self._close("option")
            element = Element(
                OPTION, "", form=self._form, value=attributes.get("value", ""), checked="selected" in attributes
            )
            self._begin(tag, element, attributes)
            self.items[-1].fallback = "valued" if "value" in attributes else ""

    def _input(self, attributes: dict[str, str]) -> None:
        kind, name, value = (
            attributes.get("type", "text").lower(),
            attributes.get("name", ""),
            attributes.get("value", ""),
        )
        if kind == "hidden" and self._form is not None and name:
            self.hidden[self._form].append((name, value))
        if kind in IGNORED_INPUTS or "disabled" in attributes:
            return
        role = NOT_TYPED.get(kind, TEXTBOX)
        form = None if kind == "button" else self._form
        self._begin(
            "input",
            Element(role, "", form=form, field=name, value=value, checked="checked" in attributes),
            attributes,
            stays_open=False,
        )
        if role == BUTTON:
            self.items[-1].fallback = value or attributes.get("alt", "") or "Submit"

    def _begin(self, tag: str, element: Element, attributes: dict[str, str], stays_open: bool = True) -> None:
        fallback = attributes.get("placeholder", "") or attributes.get("title", "")
        item = _Item(
            element, tag, label=attributes.get("aria-label", ""), html_id=attributes.get("id", ""), fallback=fallback
        )
        if self._label is not None and element.role in (TEXTBOX, COMBOBOX, CHECKBOX, RADIO):
            item.label = item.label or "".join(self._label[1])
            if not item.label.strip():
                self._waiting = item
        self.items.append(item)
        if stays_open:
            self._open = [*self._open[-DEEPEST:], item]

    _waiting: _Item | None = None
    """A field inside a label whose text comes after it."""

    def _end_label(self) -> None:
        assert self._label is not None
        target, texts = self._label
        self._label = None
        text = shortened("".join(texts))
        if self._waiting is not None:
            self._waiting.label, self._waiting = text, None
        if target:
            self.labels[target] = text

    def _close(self, tag: str) -> None:
        """End the innermost open element of this tag, and those inside it that were never ended."""
        for place in range(len(self._open) - 1, -1, -1):
            if self._open[place].tag == tag:
                del self._open[place:]
                return
