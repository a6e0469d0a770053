"""The page as one file: with the episodes in it, or asking the server that sent it for them.

Scripts and styles are the file's own, by their hashes; nothing is loaded from anywhere else, and texts of models are
only ever text.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from rllib_lmgame.viewer.library import Library, as_json, with_rows

CHUNK = 32
"""Episodes that are packed together, and unpacked by who looks at one of them."""


def page(data: str = "", *, connect: str = "'self'") -> str:
    """The page; ``data`` are elements with episodes, ``connect`` is what it may ask."""
    text = files("rllib_lmgame.viewer").joinpath("page.html").read_text(encoding="utf-8")
    policy = {
        "default-src": "'none'",
        "script-src": _hash(text, "script"),
        "style-src": _hash(text, "style"),
        "connect-src": connect,
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    text = text.replace("@policy@", "; ".join(f"{name} {value}" for name, value in policy.items()))
    return text.replace("@data@", data)


def _hash(text: str, element: str) -> str:
    content = re.search(rf"<{element}>(.*?)</{element}>", text, re.DOTALL)
    assert content is not None
    return f"'sha256-{base64.b64encode(hashlib.sha256(content[1].encode()).digest()).decode()}'"


def exported(library: Library, head: dict[str, Any]) -> Iterator[str]:
    """The page with all episodes of ``library``, which has been read, in parts."""
    before, after = page("@here@", connect="'none'").split("@here@")
    yield before
    yield _packed("d-head", with_rows({**head, "chunk": CHUNK}, library.rows))
    total = len(library.rows)
    for first in range(0, total, CHUNK):
        some = [library.episode(number) for number in range(first, min(first + CHUNK, total))]
        yield _packed(f"d-{first // CHUNK}", as_json(some))
    yield after


def _packed(name: str, content: bytes) -> str:
    packed = base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()
    return f'<script type="text/plain" id="{name}">{packed}</script>\n'
