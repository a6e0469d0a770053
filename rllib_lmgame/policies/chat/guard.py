"""Text that never becomes structure: what a game, another player or a web page says is encoded without control tokens,
tags and role markers.

1. No text, whoever wrote it, gives the id of a control token, whatever the vocabulary: one with control symbols among
   its pieces, or with merges that spell them, would give it from ordinary letters.
2. The text of a game gives no id of a structural tag (``<think>``, ``<answer>``, ``<tool_call>``) either, and holds no
   role marker of a template whose markers are plain text, alone or together with the template text around it.
3. Text that holds none of these is encoded as the tokenizer encodes it.

A control token or tag is spelt out (cut in two, so that the text stays) where the vocabulary can spell it, and left out
where it cannot.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rllib_lmgame.policies.chat.role_markers import RoleMarkers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TAG_NAMES = ("think", "answer", "tool_call", "tool_response")
"""Tags that structure replies of models known today, beside those of the options."""

MAX_ROUNDS = 4
"""Encodings after which a text that still imitates structure is left out whole. A second one is needed only by a
tokenizer that rewrites text.
"""

MAX_CHARACTERS = 100_000
"""Characters remembered as those a tokenizer leaves as they are."""

ASCII = "".join(map(chr, range(32, 127))) + "a\nb\tc"


@dataclass(frozen=True)
class Vocabulary:
    """What in a vocabulary is structure.

    Attributes:
        ending: Ids of control tokens; sampled, they end a reply.
        control: Ids that no text may give: these, and what is written like one (``<|…|>``).
        tags: Structural tags that are one token, and their ids. They are part of replies, also where the tokenizer
            marks them as special.
        special_tags: Those it marks as special.
    """

    ending: frozenset[int]
    control: frozenset[int]
    tags: dict[str, int]
    special_tags: tuple[str, ...]


def read_vocabulary(
    tokenizer: PreTrainedTokenizerBase, structure: Collection[int], tag_names: Collection[str]
) -> Vocabulary:
    """Sort the tokens of a vocabulary.

    Args:
        tokenizer: The tokenizer.
        structure: Ids of the chat template's own text.
        tag_names: Names of the tags of replies.
    """
    known = tokenizer.get_vocab()
    added = tokenizer.added_tokens_decoder
    tags = {
        tag: known[tag]
        for name in dict.fromkeys((*tag_names, *TAG_NAMES))
        for tag in (f"<{name}>", f"</{name}>")
        if tag in known
    }
    special = frozenset(tokenizer.all_special_ids) | {i for i, token in added.items() if token.special}
    in_template = {
        i
        for i in structure
        if (i in added and added[i].content.strip()) or _CONTROL.fullmatch(tokenizer.convert_ids_to_tokens(i))
    }
    ending = (special | in_template) - set(tags.values())
    # An unknown token stands for a character that the vocabulary lacks, which is no structure, unless it is another
    # token as well.
    unknown = {tokenizer.unk_token_id} - {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    control = (ending - unknown) | {i for token, i in known.items() if token.startswith("<|") and token.endswith("|>")}
    return Vocabulary(ending, control - set(tags.values()), tags, tuple(tag for tag, i in tags.items() if i in special))


_CONTROL = re.compile(r"<(?!0x)[^<>\s]{2,}>|\[/?[A-Z_]{3,}\]")
"""How control tokens are written; ``<0x0A>`` is a byte."""


class MessageGuard:
    """Encodes messages for one tokenizer and chat template.

    Args:
        tokenizer: A Hugging Face tokenizer.
        heads: Template text before the first message.
        between: Template text between two messages.
        tag_names: Names of the tags of replies.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        heads: Sequence[str],
        between: Sequence[str],
        tag_names: Collection[str],
    ) -> None:
        self.tokenizer = tokenizer
        structure = {
            i for piece in (*heads, *between) if piece for i in tokenizer.encode(piece, add_special_tokens=False)
        }
        self.vocabulary = read_vocabulary(tokenizer, structure, tag_names)
        self._tag_ids = frozenset(self.vocabulary.tags.values())
        special = self.vocabulary.special_tags
        self._special_tags = re.compile("(" + "|".join(map(re.escape, special)) + ")") if special else None
        controls = [*tokenizer.convert_ids_to_tokens(sorted(self.vocabulary.control)), *self.vocabulary.tags]
        self.markers = RoleMarkers(heads, between, controls, self._rewritten)
        self._kept = set(ASCII) if self._rewritten(ASCII) == ASCII else set()

    def encode(self, text: str) -> list[int]:
        """Ids of text of our own, in which tags are tags. Lone surrogates become question marks."""
        if not text:
            return []
        if self._special_tags is not None and self._special_tags.search(text):
            tags = self.vocabulary.tags
            parts = self._special_tags.split(text)
            return [
                i
                for part in parts
                for i in ([tags[part]] if part in tags else self._spelt(part, self.vocabulary.control))
            ]
        return self._spelt(text, self.vocabulary.control)

    def encode_game(self, text: str) -> list[int]:
        """Ids of text of a game: no control token, no tag, no role marker."""
        for _ in range(MAX_ROUNDS):
            text = self.markers.cut(text)
            ids = self._spelt(text, self.vocabulary.control | self._tag_ids)
            if not self.markers or not self.markers.found(rewritten := self._decode(ids)):
                return ids
            text = rewritten
        return []

    def encode_message(self, before: str, text: str, after: str) -> list[int]:
        """Ids of a message: ``text`` of a game between lines of our own.

        They are those of the whole message wherever ``text`` holds nothing that looks like structure.
        """
        own = before + after
        if self._special_tags is None or not self._special_tags.search(own):
            ids = self._plain(before + text + after)
            if self._harmless(ids, text, own):
                return ids
        return [*self.encode(before), *self.encode_game(text), *self.encode(after)]

    def _harmless(self, ids: list[int], text: str, own: str) -> bool:
        if not self.vocabulary.control.isdisjoint(ids):
            return False
        if not self._tag_ids.isdisjoint(ids) and [i for i in ids if i in self._tag_ids] != [
            i for i in self._plain(own) if i in self._tag_ids
        ]:
            return False
        if not self.markers:
            return True
        return not self.markers.found(text) and (self._keeps(text) or not self.markers.found(self._decode(ids)))

    def _spelt(self, text: str, forbidden: frozenset[int]) -> list[int]:
        """Ids of ``text``, in which what would give a forbidden id is cut in two, and what still does is left out."""
        ids = self._plain(text)
        if forbidden.isdisjoint(ids):
            return ids
        tokens = self.tokenizer.convert_ids_to_tokens(sorted(forbidden.intersection(ids)))
        cuts = [
            match.start() + 1
            for match in re.finditer("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))), text)
        ]
        parts = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        spelt = self.tokenizer(
            [_whole(part) for part in parts if part], add_special_tokens=False, split_special_tokens=True
        )["input_ids"]
        return [i for part in spelt for i in part if i not in forbidden]

    def _plain(self, text: str) -> list[int]:
        return (
            list(self.tokenizer.encode(_whole(text), add_special_tokens=False, split_special_tokens=True))
            if text
            else []
        )

    def _decode(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _rewritten(self, text: str) -> str:
        return self._decode(self._plain(text))

    def _keeps(self, text: str) -> bool:
        """The tokenizer leaves every character of ``text`` as it is."""
        if self._kept.issuperset(text):
            return True
        new = set(text) - self._kept
        if len(self._kept) > MAX_CHARACTERS or any(mark.isascii() or self._rewritten(mark) != mark for mark in new):
            return False
        self._kept |= new
        return True


def _whole(text: str) -> str:
    """``text`` with question marks for lone surrogates, which no tokenizer takes."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
