"""Calls into a tokenizer, whose files may be a stranger's or damaged: what fails is an error with a message."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.text import first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

GAME_TEXT = "You stand at a wall (3, 0). Go up, down, left or right; turns left: 12456789."


def ids_of(tokenizer: PreTrainedTokenizerBase, text: str, *, split: bool = False) -> list[int]:
    """Ids of a text without tokens that a tokenizer adds; with ``split`` no text is a special token.

    Raises:
        ConfigError: if the tokenizer fails on it.
    """
    if not text:
        return []
    with _panic_told(f"a text of {len(text)} characters"):
        return list(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=split))


def text_of(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """The text of ids, that of special tokens included.

    Raises:
        ConfigError: if the tokenizer fails on it.
    """
    if not ids:
        return ""
    with _panic_told(f"{len(ids)} tokens"):
        return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def spelling_problem(tokenizer: PreTrainedTokenizerBase, tags: str) -> str | None:
    """Why a tokenizer cannot be used, or ``None``: it does not give a text back, as one without a vocabulary, or fails.
    White space, case and the width of letters may change, as tokenizers of some families change them.

    Args:
        tokenizer: The tokenizer.
        tags: Tags of replies.
    """
    text = f"{GAME_TEXT} {tags}"
    try:
        back = text_of(tokenizer, ids_of(tokenizer, text))
    except ConfigError as error:
        return error.message
    except Exception as error:  # Fields of the wrong type fail in many ways.
        return f"it fails on a text of a game: {first_line(error)}"
    return None if _bare(back) == _bare(text) else f"it cannot spell a text of a game: {text!r} becomes {back[:200]!r}"


def _bare(text: str) -> str:
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())


@contextmanager
def _panic_told(what: str) -> Iterator[None]:
    """A pattern of a ``tokenizer.json`` that backtracks without end is given up by the regular expression library after
    ten million steps (a third of a second); the error that it raises then is no :class:`Exception`.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ConfigError(
            "config.language_model.tokenizer", f"the tokenizer fails on {what}: {first_line(error)}"
        ) from None
