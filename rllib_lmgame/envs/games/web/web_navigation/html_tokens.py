"""HTML in tokens, in time that grows with its length only.

The standard library's parser takes minutes for a page of unclosed tags and raises for some broken ones; a page is
somebody else's text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import unescape

LONGEST_TAG = 5_000
"""Characters of a tag that are looked at; a tag that does not end within them is dropped with them."""

RAW = ("script", "style")
ESCAPED_RAW = ("textarea", "title")
MARK = re.compile(r"<(?=[a-z/!?])", re.IGNORECASE)
START = re.compile(r"""<([a-z][a-z0-9:-]{0,30})((?:[^>"']|"[^"]*"|'[^']*')*)>""", re.IGNORECASE)
NAME = re.compile(r"</?([a-z][a-z0-9:-]{0,30})", re.IGNORECASE)
ATTRIBUTE = re.compile(r"""([^\s"'<>/=]+)(?:\s*=\s*("[^"]*"|'[^']*'|[^\s"'>]+))?""")


@dataclass(frozen=True)
class Token:
    """A piece of HTML: ``text``, the ``start`` of an element (``name`` in lower case, ``attributes``) or its
    ``end``.
    """

    kind: str
    name: str = ""
    text: str = ""
    attributes: dict[str, str] = field(default_factory=dict)


def tokens(html: str) -> Iterator[Token]:
    """Tokens of ``html``, whatever it is; comments, declarations and the content of scripts are left out."""
    at = 0
    while at < len(html):
        mark = MARK.search(html, at)
        tag = mark.start() if mark else len(html)
        if tag > at:
            yield Token("text", text=unescape(html[at:tag]))
        if mark is None:
            return
        token, at = _markup(html, tag)
        if token is not None:
            yield token
        if token is not None and token.kind == "start" and token.name in (*RAW, *ESCAPED_RAW):
            closing = re.compile(f"</{token.name}", re.IGNORECASE).search(html, at)
            end = closing.start() if closing else len(html)
            if token.name in ESCAPED_RAW:
                yield Token("text", text=unescape(html[at:end]))
            at = end


def _markup(html: str, at: int) -> tuple[Token | None, int]:
    """What begins with the ``<`` at ``at``, and where it ends."""
    if html.startswith("<!--", at):
        return None, _after(html, "-->", at + 4)
    if html.startswith(("<!", "<?"), at):
        return None, _after(html, ">", at)
    name = NAME.match(html, at)
    if name is None:
        return None, _after(html, ">", at)
    if html[at + 1] == "/":
        return Token("end", name[1].lower()), _after(html, ">", at)
    limit = min(at + LONGEST_TAG, len(html))
    whole = START.match(html, at, limit)
    end = whole.end() if whole else html.find(">", at, limit) + 1
    if not end:
        return None, limit
    inside = html[name.end() : end - 1]
    # The first of two counts.
    attributes = {key.lower(): unescape(_unquoted(value)) for key, value in reversed(ATTRIBUTE.findall(inside))}
    return Token("start", name[1].lower(), attributes=attributes), end


def _after(html: str, mark: str, at: int) -> int:
    """Where ``mark`` ends, or the text does."""
    found = html.find(mark, at)
    return len(html) if found < 0 else found + len(mark)


def _unquoted(value: str) -> str:
    return value[1:-1] if value[:1] in ("'", '"') and value[-1:] == value[:1] and len(value) > 1 else value
