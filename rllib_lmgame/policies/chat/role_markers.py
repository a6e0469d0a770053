"""Role markers that are plain text, as ``### assistant``: found in the chat template itself, and cut out of messages
that imitate them.

A control token cannot be written in a message, so a marker that stands behind one (``<|im_start|>user``) needs no care.
A template whose structure is words alone could be imitated word for word, by a whole marker or by one that completes
what the template writes before or after the message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

MARKS = "…_*·~^"
"""What may stand where something was cut: one that is part of no marker, so that cutting never puts a
new marker together.
"""


class RoleMarkers:
    """The plain-text markers of one template; none where control tokens guard them all.

    Args:
        heads: Template text before the first message, with and without a system prompt. Only its last line is a marker:
            a default system prompt may stand before it.
        between: Template text between two messages.
        controls: Control tokens of the vocabulary.
        rewritten: What the tokenizer makes of a text (it may change case, width and white space): encoded
            and decoded again.
    """

    def __init__(
        self, heads: Sequence[str], between: Sequence[str], controls: Iterable[str], rewritten: Callable[[str], str]
    ) -> None:
        control = re.compile("|".join(map(re.escape, sorted(controls, key=len, reverse=True))) or r"(?!)")
        pieces = [control.split(piece) for piece in (*heads, *between)]
        lines = [line for parts in pieces[: len(heads)] for line in _lines(parts[-1], len(parts) == 1)[-1:]]
        lines += [line for parts in pieces[len(heads) :] for part in parts for line in _lines(part, len(parts) == 1)]
        befores = [parts[-1].split("\n")[-1].split() for parts in pieces]
        afters = [parts[0].split("\n")[0].split() for parts in pieces[len(heads) :]]
        patterns: dict[str, str] = {}
        for line, alone in lines:
            for words in (line.split(), rewritten(line).split()):
                patterns |= _patterns(words, alone, befores, afters)
        self._words = tuple(dict.fromkeys(patterns.values()))
        self._pattern = re.compile("|".join(patterns) or r"(?!)", re.MULTILINE)
        taken = "".join(line for line, _ in lines)
        self._mark = next((mark for mark in MARKS if mark not in taken and mark in rewritten(f"a{mark}b")), "")

    def __bool__(self) -> bool:
        return bool(self._words)

    def found(self, text: str) -> bool:
        """``text`` holds a marker, or completes one at its beginning or end."""
        return any(word in text for word in self._words) and self._pattern.search(text) is not None

    def cut(self, text: str) -> str:
        """``text`` with a mark in the place of every marker."""
        return self._pattern.sub(self._mark, text) if self.found(text) else text


def _lines(text: str, alone: bool) -> list[tuple[str, bool]]:
    """Lines of template text that mark a role, each with whether no control token stands in its piece: then even a
    single word is structure.
    """
    lines = (line.strip() for line in text.split("\n"))
    return [(line, alone) for line in lines if line and (alone or not _is_words(line))]


def _is_words(line: str) -> bool:
    return re.fullmatch(r"[\w ]+", line) is not None


def _patterns(
    words: Sequence[str], alone: bool, befores: Sequence[Sequence[str]], afters: Sequence[Sequence[str]]
) -> dict[str, str]:
    """Regular expressions that find a marker, with any white space between its words, each with the longest word in it.

    A marker of letters alone (``user``) counts only as a line of its own, any other one everywhere.

    Args:
        words: The marker.
        alone: No control token stands beside it.
        befores: What the template writes on the line on which a message begins.
        afters: What it writes on the line on which a message ends.
    """
    if not words:
        return {}
    whole = _spaced(words)
    found = {rf"^[^\S\n]*{whole}[^\S\n]*$" if alone and _is_words(" ".join(words)) else whole: max(words, key=len)}
    for k in range(1, len(words)):
        if any(list(before[-k:]) == list(words[:k]) for before in befores):
            found[rf"\A\s*{_spaced(words[k:])}"] = max(words[k:], key=len)
        if any(list(after[: len(words) - k]) == list(words[k:]) for after in afters):
            found[rf"{_spaced(words[:k])}\s*\Z"] = max(words[:k], key=len)
    return found


def _spaced(words: Sequence[str]) -> str:
    return r"\s*".join(map(re.escape, words))
