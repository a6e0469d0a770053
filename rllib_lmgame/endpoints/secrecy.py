"""Whether a text gives a key away, in whatever form."""

from __future__ import annotations

import base64
import binascii
import html
import re
import unicodedata
from collections.abc import Iterator
from urllib.parse import unquote_plus

RUN = 8
"""So many letters and digits of a key in a row give it away; shorter keys, maybe words, count only as a whole."""

PRETEND = (
    *("empty", "none", "null", "x", "xx", "xxx", "test", "dummy", "fake", "foo", "key", "apikey", "token", "unused"),
    *("nokey", "notneeded", "notused", "notrequired", "noneneeded", "nokeyrequired", "sknokeyrequired", "placeholder"),
    *("tokenabc123", "ollama", "vllm", "lmstudio", "local"),
)
"""Letters and digits of what people write where a server asks for no key, but its client wants one."""

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2}))")
_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/]")
_NOT_HEX = re.compile(r"[^0-9a-fA-F]")


def is_pretended(key: str) -> bool:
    return _core(key) in PRETEND


def gives_away(text: str, key: str, run: int = RUN) -> bool:
    """Whether ``run`` characters of ``key`` in a row are in ``text``, in any case or direction.

    Ignores other characters between them and undoes escapes of addresses, JSON, HTML, base64 and hexadecimal. A key of
    fewer than :data:`RUN` letters and digits counts only as it is.
    """
    secret = _core(key)
    if len(secret) < RUN:
        return key in text
    run = min(run, len(secret))
    runs = {secret[start : start + run] for start in range(len(secret) - run + 1)}
    runs |= {part[::-1] for part in runs}
    return any(form[at : at + run] in runs for form in map(_core, _forms(text)) for at in range(len(form) - run + 1))


def _core(text: str) -> str:
    """Letters and digits of a text, wide and styled ones as plain ones, in small letters."""
    plain = unicodedata.normalize("NFKD", text).casefold()
    return "".join(character for character in plain if character.isalnum())


def _forms(text: str) -> Iterator[str]:
    """The text, and what it may be an encoding of."""
    yield text
    escaped = _ESCAPE.sub(lambda match: chr(int(match[1] or match[2], 16)), text)
    yield unquote_plus(html.unescape(escaped))
    letters = _NOT_BASE64.sub("", text.replace("-", "+").replace("_", "/"))
    for start in range(4):  # Words before it shift what is encoded.
        end = start + (len(letters) - start) // 4 * 4
        yield base64.b64decode(letters[start:end]).decode("latin-1")
    digits = _NOT_HEX.sub("", text)
    for start in range(2):
        end = start + (len(digits) - start) // 2 * 2
        yield binascii.unhexlify(digits[start:end]).decode("latin-1")
