"""Text that never becomes structure: what a game, another player or a web page says is encoded without control tokens,
tags and role markers.

1. No text, whoever wrote it, gives the id of a control token, whatever the vocabulary: one with control symbols among
   its pieces, or with merges that spell them, would give it from ordinary letters.
2. The text of a game gives no id of a structural tag (``<think>``, ``<answer>``, ``<tool_call>``) either, and holds no
   role marker of a template whose markers are plain text, alone or together with the template text around it.
3. Text that holds none of these is encoded together with the template's text around it, as the tokenizer encodes the
   whole: a piece alone would get other ids, above all from SentencePiece, which begins every text with a blank.

A control token or tag is spelt out (cut in two, so that the text stays) where the vocabulary can spell it, and left out
where it cannot.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from rllib_lmgame.policies.chat.parser import closing_of, marks_of
from rllib_lmgame.policies.chat.role_markers import RoleMarkers
from rllib_lmgame.policies.chat.spelling import ids_of, text_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TAG_NAMES = ("think", "answer", "tool_call", "tool_response")
"""Tags that structure replies of models known today, beside those of the options."""

MAX_ROUNDS = 4
"""Encodings after which a text that still imitates structure is left out whole. A second one is needed only by a
tokenizer that rewrites text.
"""

MAX_PARTS = 1024
"""Texts of our own and of the template whose structure is remembered."""

MAX_CHARACTERS = 100_000
"""Characters remembered as those a tokenizer leaves as they are."""

ASCII = "a\nb\tc" + "".join(map(chr, range(32, 127)))


NAMES = ("bos", "eos", "pad", "unk", "sep", "cls", "mask")
"""Special tokens that a tokenizer has by name."""

ANCHORS = ("\n", "0", ".", "a")
"""Texts that may stand before another one so that it does not begin the whole."""


class Source(Enum):
    """Whose text it is, and with that what may be structure in it."""

    TEMPLATE = "template"
    """Special tokens are special."""
    OWN = "own"
    """Tags are tags."""
    GAME = "game"
    """Nothing is structure."""


class Part(NamedTuple):
    """A piece of a prompt."""

    source: Source
    text: str


@dataclass(frozen=True)
class Vocabulary:
    """What in a vocabulary is structure.

    Attributes:
        ending: Ids of control tokens that end a reply.
        control: Ids that no text may give: control tokens, and what is written like one (``<|…|>``).
        tags: Structural tags that are one token, and their ids. They are part of replies, also where the tokenizer
            marks them as special.
        special_tags: Those it marks as special.
        marks: Other marks of replies with control tokens in them, and their ids: those of the reasoning, and what the
            template writes where a reply begins.
    """

    ending: frozenset[int]
    control: frozenset[int]
    tags: dict[str, int]
    special_tags: tuple[str, ...]
    marks: dict[str, tuple[int, ...]]


def read_vocabulary(
    tokenizer: PreTrainedTokenizerBase,
    structure: Collection[int],
    answer_tag: str,
    think_tag: str,
    lead: str = "",
) -> Vocabulary:
    """Sort the tokens of a vocabulary.

    A special token ends a reply, unless it has a place within one: the marks of the reasoning, what the template
    writes where a reply begins, and a pair of marks (``[TOOL_CALLS]`` and ``[/TOOL_CALLS]``) that neither the template
    nor the tokenizer names.

    Args:
        tokenizer: The tokenizer.
        structure: Ids of the chat template's own text.
        answer_tag, think_tag: Tags of replies.
        lead: What the template writes where a reply begins.
    """
    known = tokenizer.get_vocab()
    added = tokenizer.added_tokens_decoder
    written = [tag for name in dict.fromkeys((answer_tag, *TAG_NAMES)) for tag in (f"<{name}>", f"</{name}>")]
    reasoning = marks_of(think_tag)
    tags = {tag: known[tag] for tag in dict.fromkeys((*reasoning, *written)) if tag in known}
    special = frozenset(tokenizer.all_special_ids) | {i for i, token in added.items() if token.special}
    several = {
        mark: tuple(ids)
        for mark in (*reasoning, lead)
        if mark and mark not in tags and not special.isdisjoint(ids := ids_of(tokenizer, mark))
    }
    in_template = {
        i
        for i in structure
        if (i in added and added[i].content.strip()) or _CONTROL.fullmatch(tokenizer.convert_ids_to_tokens(i))
    }
    named = {getattr(tokenizer, f"{name}_token_id", None) for name in NAMES}
    texts = {tokenizer.convert_ids_to_tokens(i): i for i in special - in_template - named}
    pairs = {
        i for text, opening in texts.items() if closing_of(text) in texts for i in (opening, texts[closing_of(text)])
    }
    within = (pairs | {i for ids in several.values() for i in ids}) - {tokenizer.eos_token_id}
    ending = (special | in_template) - set(tags.values())
    # An unknown token stands for a character that the vocabulary lacks, which is no structure, unless it is another
    # token as well.
    unknown = {tokenizer.unk_token_id} - {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    control = (ending - unknown) | {i for token, i in known.items() if token.startswith("<|") and token.endswith("|>")}
    special_tags = tuple(tag for tag, i in tags.items() if i in special)
    return Vocabulary(ending - within, control - set(tags.values()), tags, special_tags, several)


_CONTROL = re.compile(r"<(?!0x)[^<>\s]{2,}>|\[/?[A-Z_]{3,}\]")
"""How control tokens are written; ``<0x0A>`` is a byte."""


class MessageGuard:
    """Encodes messages for one tokenizer and chat template.

    Args:
        tokenizer: A Hugging Face tokenizer.
        heads: Template text before the first message.
        between: Template text between two messages.
        answer_tag, think_tag: Tags of replies.
        lead: What the template writes where a reply begins.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        heads: Sequence[str],
        between: Sequence[str],
        answer_tag: str,
        think_tag: str,
        lead: str = "",
    ) -> None:
        self.tokenizer = tokenizer
        structure = {i for piece in (*heads, *between) for i in self._ids(piece)}
        self.vocabulary = read_vocabulary(tokenizer, structure, answer_tag, think_tag, lead)
        self._tag_ids = frozenset(self.vocabulary.tags.values())
        self._structure = self.vocabulary.control | self._tag_ids
        self._structures: dict[Part, list[int]] = {}
        special = sorted((*self.vocabulary.special_tags, *self.vocabulary.marks), key=len, reverse=True)
        self._special_tags = re.compile("(" + "|".join(map(re.escape, special)) + ")") if special else None
        controls = [*tokenizer.convert_ids_to_tokens(sorted(self.vocabulary.control)), *self.vocabulary.tags]
        self.markers = RoleMarkers(heads, between, controls, self._rewritten)
        self._kept = set(ASCII) if self._rewritten(ASCII) == ASCII else set()

    def encode(self, parts: Sequence[Part], after: str | None = None) -> list[int]:
        """Ids of the parts of a prompt one after the other, as if they were written in one.

        Args:
            parts: Texts, each with its source.
            after: Text of the template that stands before them; ``None`` if they are the beginning.
        """
        parts = [Part(source, _whole(text)) for source, text in parts if text]
        together = self._together(parts, after)
        if together is not None:
            return together
        begins = after is None
        return [i for n, part in enumerate(parts) for i in self._alone(part, begins and n == 0)]

    def _together(self, parts: Sequence[Part], after: str | None) -> list[int] | None:
        """Ids of the whole, unless something in it would be structure that is none."""
        if any(source is Source.GAME and self._imitates(text) for source, text in parts):
            return None
        ids = self._continued("".join(text for _, text in parts), after)
        structure = [i for part in parts for i in self._structure_of(part)]
        return ids if ids is not None and [i for i in ids if i in self._structure] == structure else None

    def _continued(self, text: str, after: str | None) -> list[int] | None:
        """Ids of ``text`` behind another one, if they can be told apart from those of the other."""
        if after is None:
            return self._ids(text)
        # A context is needed only by a tokenizer to which the beginning of a text is something else.
        for before in dict.fromkeys((after or self._anchor, self._anchor)) if self._anchor else ("",):
            first = self._ids(before)
            ids = self._ids(before + text)
            if ids[: len(first)] == first:
                return ids[len(first) :]
        return None

    def _structure_of(self, part: Part) -> list[int]:
        """Control tokens and tags that a part stands for."""
        if part.source is Source.GAME:
            return []
        known = self._structures.get(part)
        if known is None:
            ids = self._ids(part.text) if part.source is Source.TEMPLATE else self.encode_own(part.text)
            if len(self._structures) >= MAX_PARTS:
                self._structures.clear()
            known = self._structures[part] = [i for i in ids if i in self._structure]
        return known

    def _alone(self, part: Part, begins: bool) -> list[int]:
        if part.source is Source.GAME:
            return self.encode_game(part.text)
        if part.source is Source.OWN:
            return self.encode_own(part.text)
        return self._ids(part.text) if begins else self._behind_anchor(part.text, split=False)

    def _imitates(self, text: str) -> bool:
        """A text of a game holds a role marker, or becomes one."""
        if not self.markers:
            return False
        return self.markers.found(text) or not (self._keeps(text) or not self.markers.found(self._rewritten(text)))

    def encode_own(self, text: str) -> list[int]:
        """Ids of text of our own, in which tags are tags, wherever it stands. Lone surrogates become question marks."""
        if not text:
            return []
        if self._special_tags is not None and self._special_tags.search(text):
            tags = {**{tag: (i,) for tag, i in self.vocabulary.tags.items()}, **self.vocabulary.marks}
            parts = self._special_tags.split(text)
            return [i for part in parts for i in tags.get(part) or self._spelt(part, self.vocabulary.control)]
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
        return [i for part in parts for i in self._plain(part) if i not in forbidden]

    def _plain(self, text: str) -> list[int]:
        """Ids of text in which nothing is special, within a larger one."""
        return self._behind_anchor(_whole(text), split=True) if text else []

    def _behind_anchor(self, text: str, *, split: bool) -> list[int]:
        first = self._ids(self._anchor, split=split)
        ids = self._ids(self._anchor + text, split=split)
        return ids[len(first) :] if ids[: len(first)] == first else self._ids(text, split=split)

    @cached_property
    def _anchor(self) -> str:
        """What stands before a text for it to get no blank of the tokenizer's own; empty where it gets none."""
        for anchor in ANCHORS:
            first, both, alone = (self._ids(text, split=True) for text in (anchor, anchor + "b", "b"))
            if first and both[: len(first)] == first and both[len(first) :]:
                return "" if both[len(first) :] == alone else anchor
        return ""

    def _ids(self, text: str, *, split: bool = False) -> list[int]:
        return ids_of(self.tokenizer, text, split=split)

    def _decode(self, ids: list[int]) -> str:
        return text_of(self.tokenizer, ids)

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
