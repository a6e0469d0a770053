"""Where a reply ends by its text: at a stop text that is several tokens, or is completed within one.

vLLM's own ``stop`` acts where it turns ids into text, which this package leaves out. Here both engines ask the same
question after each token, so the ids that were sampled are the reply, whatever else the last of them spells.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

from rllib_lmgame.policies.chat.guard import text_of
from rllib_lmgame.text import first_line


class TextEnds:
    """Stop texts in ids of one tokenizer, a directory or hub id; it is loaded when first needed."""

    def __init__(self, tokenizer: str, trust_remote_code: bool = False) -> None:
        self.source = tokenizer
        self._trust_remote_code = trust_remote_code
        self._holds = lru_cache(maxsize=None)(self._holds_uncached)

    @cached_property
    def tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.source, trust_remote_code=self._trust_remote_code)

    def problem(self) -> str | None:
        """Why no text is known here, or ``None``."""
        try:
            _ = self.tokenizer
        except Exception as error:  # A damaged file fails in many ways.
            return f"replies cannot end at a text: no tokenizer at {self.source!r}: {first_line(error)}"
        return None

    def ended(self, ids: Sequence[int], texts: Sequence[str]) -> bool:
        """One of ``texts``, which end in ASCII, is in the text of ``ids``; asked of every beginning of a reply."""
        return any(self._holds(ids[-1], text[-1]) and text in text_of(self.tokenizer, ids) for text in texts)

    def _holds_uncached(self, token: int, mark: str) -> bool:
        """Only such a token can complete a text that ends with ``mark``."""
        return mark in text_of(self.tokenizer, [token])
