"""Whether a text that a server sent gives a key away."""

from __future__ import annotations

import unicodedata

RUN = 8
"""So many letters and digits of a key in a row give it away; shorter ones, as `none`, are no secret."""


def gives_away(text: str, key: str, run: int = RUN) -> bool:
    """Whether ``run`` letters and digits of ``key`` in a row are in ``text``, whatever stands between them.

    A key of fewer than :data:`RUN` letters and digits is no secret.
    """
    secret = _core(key)
    if len(secret) < RUN:
        return False
    run, plain = min(run, len(secret)), _core(text)
    return any(secret[start : start + run] in plain for start in range(len(secret) - run + 1))


def _core(text: str) -> str:
    """Letters and digits of a text, wide and styled ones as plain ones, in small letters."""
    plain = unicodedata.normalize("NFKD", text).casefold()
    return "".join(character for character in plain if character.isalnum())
