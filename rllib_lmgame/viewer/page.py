"""The page as one file: with the episodes in it, or asking the server that sent it for them.

Scripts and styles are the file's own, by their hashes; nothing is loaded from anywhere else, and texts of models are
only ever text.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import itertools
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any

from rllib_lmgame.viewer.forms import COLUMNS, words_of
from rllib_lmgame.viewer.library import Library, as_json

CHUNK = 32
"""Episodes that are packed together, and unpacked by who looks at one of them."""
WORDS = 256
"""Episodes whose words are packed together."""
_DECIMALS = {"logprobs": 4, "gap": 5, "advantages": 4, "entropy": 3, "values": 3, "ref": 4, "weight": 4}
"""Decimals of the numbers of tokens."""
_COLUMNS = ("logprobs", *COLUMNS.values())


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
    rows = b"[" + b",".join(library.rows) + b"]"
    content = as_json({**head, "chunk": CHUNK, "words": WORDS, "rows": None})
    yield _packed("d-head", content.replace(b'"rows":null', b'"rows":' + rows))
    words: list[list[str]] = []
    known: dict[str, int] = {}
    total, packs = len(library.rows), itertools.count()
    for first in range(0, total, CHUNK):
        some = [library.episode(number) for number in range(first, min(first + CHUNK, total))]
        words += [words_of(episode) for episode in some]
        yield _packed(f"d-{first // CHUNK}", as_json(_apart(some, known)))
        if len(words) >= WORDS or first + CHUNK >= total:
            yield _packed(f"w-{next(packs)}", as_json(words))
            words = []
    yield _packed("d-known", as_json(known))
    yield after


def _apart(episodes: Sequence[dict[str, Any]], known: dict[str, int]) -> dict[str, Any]:
    """Their ``columns`` of numbers apart from the ``episodes``: alike, they pack better. Replies are with the words.

    A turn keeps the number ``n`` of its tokens and the names of the columns it ``has``. ``gap`` is the learner's
    log-probability less the sampler's, ``lengths`` are those of its pieces in JavaScript's characters. ``known`` are
    the ids of pieces, which is added to: an id is 0 where its piece has the one that is known, otherwise one more.
    """
    columns: dict[str, list[Any]] = {}
    for turn in (turn for episode in episodes for seat in episode["seats"] for turn in seat["turns"]):
        found = {name: turn.pop(name) for name in ("ids", "counts", "pieces", *_COLUMNS) if turn.get(name)}
        if "pieces" in found:
            pieces = found.pop("pieces")
            found["ids"] = [
                0 if known.setdefault(*each) == each[1] else each[1] + 1
                for each in zip(pieces, found["ids"], strict=True)
            ]
            found["lengths"] = [len(piece.encode("utf-16-le", "surrogatepass")) // 2 for piece in pieces]
        else:
            found["ids"] = [token + 1 for token in found.get("ids", ())]
        if "old" in found:
            pairs = zip(found.pop("old"), found["logprobs"], strict=True)
            found["gap"] = [old - sampled if _are_numbers(old, sampled) else None for old, sampled in pairs]
        del turn["text"]
        turn["n"], turn["has"] = len(found["ids"]), list(found)
        for name, values in found.items():
            columns.setdefault(name, []).extend(_rounded(values, _DECIMALS.get(name)))
    return {"episodes": episodes, "columns": columns}


def _rounded(values: Sequence[Any], decimals: int | None) -> Sequence[Any]:
    if decimals is None:
        return values
    return [round(value, decimals) if _are_numbers(value) else value for value in values]


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(value, int | float) for value in values)


def _packed(name: str, content: bytes) -> str:
    packed = base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()
    return f'<script type="text/plain" id="{name}">{packed}</script>\n'
