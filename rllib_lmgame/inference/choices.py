"""Constrained decoding: a reply must be one of a few token sequences.

Both engines walk the same trie, so that a constrained log-probability means the same in each: that of the token
among those that still lead to a choice. Whoever asked for the reply knows its choices, so what each token was chosen
among (:func:`allowed_tokens`) need not travel back with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

Choices = tuple[tuple[int, ...], ...]

_KEPT = 4096
"""Lists of allowed tokens that are kept, to be shared by equal replies."""


@dataclass(frozen=True, slots=True)
class AllowedTokens:
    """What each of ``n`` tokens was chosen among: a list of ids per token, laid end to end.

    Attributes:
        counts: int32 ``[n]``; 1 where the token was forced, 0 where it was chosen among the whole vocabulary.
        ids: int32 ``[sum(counts)]``; among them the token itself.
    """

    counts: np.ndarray
    ids: np.ndarray

    @classmethod
    def joined(cls, parts: Sequence[tuple[AllowedTokens | None, int]]) -> AllowedTokens | None:
        """Those of several stretches of tokens, end to end; ``None`` if none was constrained.

        Args:
            parts: Per stretch what its tokens were chosen among (``None``: the whole vocabulary), and how many tokens
                it has.
        """
        constrained = [allowed.ids for allowed, _ in parts if allowed is not None]
        if not constrained:
            return None
        counts = [np.zeros(tokens, np.int32) if allowed is None else allowed.counts for allowed, tokens in parts]
        return cls(np.concatenate(counts), np.concatenate(constrained))


class ChoiceCursor:
    """Position of one reply in the trie of its choices."""

    def __init__(self, choices: Sequence[Sequence[int]]) -> None:
        self._root: dict[int, dict] = {}
        for choice in choices:
            node = self._root
            for token in choice:
                node = node.setdefault(token, {})
        self._node = self._root
        self._read = 0

    def allowed(self, reply: Sequence[int]) -> list[int]:
        """Tokens that may follow ``reply``; empty once a choice is complete.

        Args:
            reply: Tokens sampled so far. Calls with a growing reply cost one look-up per new token.
        """
        if len(reply) < self._read:
            self._node, self._read = self._root, 0
        for token in reply[self._read :]:
            self._node = self._node.get(token, {})
            self._read += 1
        return list(self._node)


def allowed_tokens(choices: Choices, reply: tuple[int, ...]) -> AllowedTokens:
    """What each token of ``reply``, one of ``choices``, was chosen among.

    Equal lists are the same object, which a message of many turns then holds once.

    Raises:
        ValueError: ``reply`` is none of the choices.
    """
    cursor = ChoiceCursor(choices)
    steps = [cursor.allowed(reply[:position]) for position in range(len(reply))]
    if cursor.allowed(reply) or not all(token in ids for token, ids in zip(reply, steps, strict=True)):
        raise ValueError(f"the reply {reply} is none of the {len(choices)} choices")
    counts = np.array([len(ids) for ids in steps], np.int32)
    return AllowedTokens(
        _shared(counts.tobytes()), _shared(np.array([token for ids in steps for token in ids], np.int32).tobytes())
    )


@lru_cache(maxsize=_KEPT)
def _shared(content: bytes) -> np.ndarray:
    return np.frombuffer(content, np.int32)
