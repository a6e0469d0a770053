"""Texts of others, made fit for one line, an error message or a terminal."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

_LIBRARIES = {"rllib_lmgame", "gymnasium", "pettingzoo", *sys.stdlib_module_names}
_PATH = re.compile(r"(?<![\w./:~-])(?:~|[A-Za-z]:)?(?:[/\\][^\s/\\'\"<>|,;:()\[\]]+)+[/\\](?=[^\s/\\])")


def first_line(error: BaseException) -> str:
    """The first line of what an error says; its type's name if it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def in_words(error: BaseException) -> str:
    """An error's kind and message, also of one that cannot say what it is."""
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:
        return type(error).__name__


def place_of(error: BaseException) -> str:
    """``" (file.py:12)"``: the last line of the traceback that is not of this package, Gymnasium, PettingZoo or the
    standard library; empty if there is none.
    """
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        module = frame.f_globals.get("__name__")  # Code of others may have put anything there.
        if type(module) is not str or module.partition(".")[0] not in _LIBRARIES:
            place = f" ({printable(one_line(Path(frame.f_code.co_filename).name))}:{line})"
    return place


def one_line(text: str) -> str:
    """``text`` on one line, whatever ends lines in it: no part of it can pass for another line."""
    return " ".join(text.splitlines())


def is_writable(text: str) -> bool:
    """Whether UTF-8 has a form for ``text``: it holds no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(text: str) -> str:
    """``text`` with what cannot be shown spelt out, line ends and tabs excepted: none of it can steer a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def shown(value: object, most: int = 100) -> str:
    """``value`` as it would be written in Python, of a long one the beginning alone."""
    text = repr(value) if not isinstance(value, str) else repr(value[: most + 1])
    return text if len(text) <= most + 2 else f"{text[:most]}..."


def without_paths(text: str) -> str:
    """``text`` with the folders of absolute paths left out: for somebody who is not to know this machine."""
    return _PATH.sub("", text)


def columns(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """``rows`` as lines of a table; the first ``left`` columns are aligned to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = (
        [cell.ljust(width) for cell, width in zip(row[:left], widths, strict=False)]
        + [cell.rjust(width) for cell, width in zip(row[left:], widths[left:], strict=True)]
        for row in rows
    )
    return ["  ".join(cells).rstrip() for cells in padded]


def size_text(size: int) -> str:
    """A number of bytes, as people say it."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{max(1, round(size / 1000))} kB"
