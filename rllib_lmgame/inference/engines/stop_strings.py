"""Stop strings: a reply ends at a text that is several tokens, or is completed within one.

vLLM's own ``stop`` acts where it turns ids into text, which this package leaves out. Here both engines ask the same
question after each token, so the ids that were sampled are the reply, whatever else the last of them spells.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

from rllib_lmgame.base.text import first_line
from rllib_lmgame.policies.chat.reply_formats import answer_of
from rllib_lmgame.policies.chat.special_token_sanitizer import text_of

CHANGED = 8
"""Characters that may be others where a text begins with their token: a blank, ``##``."""


class StopStrings:
    """Stop texts in ids of one tokenizer, a directory or hub id; it is loaded when first needed."""

    def __init__(self, tokenizer: str, trust_remote_code: bool = False) -> None:
        self.source = tokenizer
        self._trust_remote_code = trust_remote_code
        self._alone = lru_cache(maxsize=None)(lambda token: text_of(self.tokenizer, [token]))

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

    def ended(self, ids: Sequence[int], texts: Sequence[str], reasoning: Sequence[str] = ()) -> bool:
        """One of ``texts``, of ASCII, is in the text of ``ids``; asked of every beginning of a reply.

        Only a token that holds a text's last character can complete it, and then it is near the end. What stands
        within the reply's ``reasoning`` (as in ``SamplingSpec``) ends nothing.
        """
        return any(
            (text[-1] == " " or text[-1] in self._alone(ids[-1]))  # A token alone may lose its blank.
            and text in self._end_of(ids, len(text))
            and text in self._answer(ids, reasoning)
            for text in texts
        )

    def _answer(self, ids: Sequence[int], reasoning: Sequence[str]) -> str:
        text = text_of(self.tokenizer, ids)
        return answer_of(text, *reasoning) if reasoning else text

    def _end_of(self, ids: Sequence[int], length: int) -> str:
        """The end of the text of ``ids``, with ``length`` characters and more before its last token."""
        length += len(self._alone(ids[-1])) + CHANGED
        count = length
        while True:
            text = text_of(self.tokenizer, ids[-count:])
            begins_within = text.startswith("\ufffd")  # Bytes of a character, which spoil those behind them.
            if count >= len(ids) or (len(text) >= length and not begins_within):
                return text
            count *= 2
