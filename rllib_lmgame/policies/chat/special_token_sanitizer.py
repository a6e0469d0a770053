"""Text that never becomes structure: what a game, another player or a web page says is encoded without control tokens,
tags and role markers.

1. No text, whoever wrote it, gives the id of a control token. Some vocabularies would give one from ordinary letters:
   they have control symbols among their pieces, or merges that spell them.
2. A game's text also gives no id of a structural tag (``<think>``, ``<answer>``, ``<tool_call>``). Nor does it hold a
   role marker of a template whose markers are plain text, alone or with the template text around it, or a plain-text
   mark of the reply format (``Action:``, three backticks).
3. Text without these is encoded together with the template's text around it, as the tokenizer encodes the whole. A
   piece alone would get other ids, above all from SentencePiece, which begins every text with a blank.

A control token or tag is cut in two where the vocabulary can spell it, so that the text stays; else it is left out.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from rllib_lmgame.base.text import first_line
from rllib_lmgame.policies.chat.reply_formats import apart, closing_of, marks_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def ids_of(tokenizer: PreTrainedTokenizerBase, text: str, *, split: bool = False) -> list[int]:
    """Ids of a text alone; with ``split`` no text is a special token."""
    return list(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=split)) if text else []


def text_of(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """The text of ids, with that of special tokens."""
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)) if ids else ""


def spelling_problem(tokenizer: PreTrainedTokenizerBase, tags: str) -> str | None:
    """Why a tokenizer cannot be used, or ``None``: it fails, or does not give back a game's text (but for white
    space, case and width).
    """
    text = f"You stand at a wall (3, 0). Go up, down, left or right; turns left: 12456789. {tags}"
    try:
        back = text_of(tokenizer, ids_of(tokenizer, text))
    except Exception as error:  # Fields of the wrong type fail in many ways.
        return f"it fails on a text of a game: {first_line(error)}"
    return None if _bare(back) == _bare(text) else f"it cannot spell a text of a game: {text!r} becomes {back[:200]!r}"


def _bare(text: str) -> str:
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())


MARKS = "…_*·~^"
"""What may stand where something was cut: the first that is in no marker, so that cutting makes no new one."""


class RoleMarkers:
    """The plain-text markers of one template, as ``### assistant``; none where control tokens guard them all.

    A marker behind a control token (``<|im_start|>user``) is safe, since no message can hold one. Words alone could be
    imitated, by a whole marker or one completed by the template text around a message: such text is cut out.

    Args:
        heads: Template text before the first message, with and without a system prompt. Only its last line is a marker:
            a default system prompt may stand before it.
        between: Template text between two messages.
        controls: Control tokens of the vocabulary.
        marks: Plain text that has a meaning in replies; it is broken apart.
    """

    def __init__(
        self, heads: Sequence[str], between: Sequence[str], controls: Iterable[str], marks: Sequence[str] = ()
    ) -> None:
        control = re.compile("|".join(map(re.escape, sorted(controls, key=len, reverse=True))) or r"(?!)")
        pieces = [control.split(piece) for piece in (*heads, *between)]
        lines = [line for parts in pieces[: len(heads)] for line in _lines(parts[-1], len(parts) == 1)[-1:]]
        lines += [line for parts in pieces[len(heads) :] for part in parts for line in _lines(part, len(parts) == 1)]
        befores = [parts[-1].split("\n")[-1].split() for parts in pieces]
        afters = [parts[0].split("\n")[0].split() for parts in pieces[len(heads) :]]
        patterns = dict.fromkeys(
            found for line, alone in lines for found in _patterns(line.split(), alone, befores, afters)
        )
        self._apart = re.compile(apart(marks))
        self._pattern = re.compile("|".join(patterns) or r"(?!)", re.MULTILINE)
        taken = "".join(line for line, _ in lines)
        self._mark = next((mark for mark in MARKS if mark not in taken), "")

    def found(self, text: str) -> bool:
        """``text`` holds a marker, or completes one at its beginning or end."""
        return self._pattern.search(text) is not None or self._apart.search(text) is not None

    def cut(self, text: str) -> str:
        """``text`` with a mark in the place of every marker, and a blank within the marks of replies."""
        return self._apart.sub(r"\g<0> ", self._pattern.sub(self._mark, text))


def _lines(text: str, alone: bool) -> list[tuple[str, bool]]:
    """Lines that mark a role, each with whether its piece has no control token: then a single word is structure too."""
    lines = (line.strip() for line in text.split("\n"))
    return [(line, alone) for line in lines if line and (alone or not _is_words(line))]


def _is_words(line: str) -> bool:
    return re.fullmatch(r"[\w ]+", line) is not None


def _patterns(
    words: Sequence[str], alone: bool, befores: Sequence[Sequence[str]], afters: Sequence[Sequence[str]]
) -> Iterator[str]:
    """Regular expressions that find a marker of at least one word, with any white space between its words.

    A marker of letters counts only as a line of its own. ``befores`` and ``afters`` are what the template writes on the
    line on which a message begins, and ends; ``alone``: no control token stands beside the marker.
    """
    whole = _spaced(words)
    yield rf"^[^\S\n]*{whole}[^\S\n]*$" if alone and _is_words(" ".join(words)) else whole
    for k in range(1, len(words)):
        if any(list(before[-k:]) == list(words[:k]) for before in befores):
            yield rf"\A\s*{_spaced(words[k:])}"
        if any(list(after[: len(words) - k]) == list(words[k:]) for after in afters):
            yield rf"{_spaced(words[:k])}\s*\Z"


def _spaced(words: Sequence[str]) -> str:
    return r"\s*".join(map(re.escape, words))


TAG_NAMES = ("think", "answer", "tool_call", "tool_response")
"""Tags that structure replies of current models, in addition to those of the options."""

MAX_PARTS = 1024
"""Size of the cache of parts' structural tokens."""

NAMES = ("bos", "eos", "pad", "unk", "sep", "cls", "mask")
"""Special tokens that a tokenizer has by name."""

ANCHORS = ("\n", "0", ".", "a")
"""Texts that may stand before another one so that it does not begin the whole."""


class Source(Enum):
    """The author of a text, which determines what may be structure in it."""

    TEMPLATE = "template"
    """Special tokens are special."""
    OWN = "own"
    """Tags are tags."""
    GAME = "game"
    """Nothing is structure."""


class Part(NamedTuple):
    source: Source
    text: str


@dataclass(frozen=True)
class Vocabulary:
    """What in a vocabulary is structure.

    Attributes:
        ending: Ids of control tokens that end a reply.
        control: Ids that no text may give: control tokens, and what is written like one (``<|…|>``).
        tags: Structural tags that are one token, and their ids; to the tokenizer ``special_tags`` are special.
        marks: Other marks of replies with control tokens, and their ids: of the reasoning, and where a reply begins.
    """

    ending: frozenset[int]
    control: frozenset[int]
    tags: dict[str, int]
    special_tags: tuple[str, ...]
    marks: dict[str, tuple[int, ...]]


def read_vocabulary(
    tokenizer: PreTrainedTokenizerBase,
    structure: Collection[int],
    reply_tags: Sequence[str],
    think_tag: str,
    lead: str = "",
    replies: tuple[str, str, str] = ("", "", ""),
) -> Vocabulary:
    """Sort the tokens of a vocabulary; ``structure`` are ids of the chat template's own text.

    A special token ends a reply unless it is part of one. These are: the reasoning's marks; ``lead``, which the
    template writes where a reply begins; pairs of marks (``[TOOL_CALLS]`` and ``[/TOOL_CALLS]``) that neither template
    nor tokenizer names. So are tokens that the template writes in ``replies``: before the text of the first, and in
    the second, which has a call. What ends a message is not: the third text begins with it.
    """
    known = tokenizer.get_vocab()
    added = tokenizer.added_tokens_decoder
    written = [*reply_tags, *(tag for name in TAG_NAMES for tag in (f"<{name}>", f"</{name}>"))]
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
    inside, called, turn_end = (ids_of(tokenizer, text) for text in replies)
    while called and not text_of(tokenizer, called[-1:]).strip():
        called.pop()
    called = called[:-1]
    ends = next(([i] for i in turn_end if i in ending), [])
    within |= {*inside, *called} - {*ends, tokenizer.eos_token_id}
    # An unknown token stands for a character that the vocabulary lacks, which is no structure, unless it is another
    # token as well.
    unknown = {tokenizer.unk_token_id} - {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    control = (ending - unknown) | {i for token, i in known.items() if token.startswith("<|") and token.endswith("|>")}
    special_tags = tuple(tag for tag, i in tags.items() if i in special)
    return Vocabulary(ending - within, control - set(tags.values()), tags, special_tags, several)


_CONTROL = re.compile(r"<(?!0x)[^<>\s]{2,}>|\[/?[A-Z_]{3,}\]")
"""How control tokens are written; ``<0x0A>`` is a byte."""


class SpecialTokenSanitizer:
    """Encodes messages for one tokenizer and template; arguments: see :class:`RoleMarkers`, :func:`read_vocabulary`."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        heads: Sequence[str],
        between: Sequence[str],
        reply_tags: Sequence[str],
        think_tag: str,
        lead: str = "",
        marks: Sequence[str] = (),
        replies: tuple[str, str, str] = ("", "", ""),
    ) -> None:
        self.tokenizer = tokenizer
        structure = {i for piece in (*heads, *between) for i in self._ids(piece)}
        self.vocabulary = read_vocabulary(tokenizer, structure, reply_tags, think_tag, lead, replies)
        self._tag_ids = frozenset(self.vocabulary.tags.values())
        self._structure = self.vocabulary.control | self._tag_ids
        self._structures: dict[Part, list[int]] = {}
        special = sorted((*self.vocabulary.special_tags, *self.vocabulary.marks), key=len, reverse=True)
        self._special_tags = re.compile("(" + "|".join(map(re.escape, special)) + ")") if special else None
        controls = [*tokenizer.convert_ids_to_tokens(sorted(self.vocabulary.control)), *self.vocabulary.tags]
        self.markers = RoleMarkers(heads, between, controls, marks)

    def encode(self, parts: Sequence[Part], after: str | None = None) -> list[int]:
        """Ids of a prompt's parts, as if in one. ``after``: template text before them; ``None`` at the beginning."""
        parts = as_encoded(parts)
        together = self._together(parts, after)
        return [i for ids in self._apart(parts, after) for i in ids] if together is None else together

    def sizes_apart(self, parts: Sequence[Part], after: str | None = None) -> list[int] | None:
        """How many ids of :meth:`encode` each of the parts has, if each is encoded for itself."""
        return None if self._together(parts, after) is not None else [len(ids) for ids in self._apart(parts, after)]

    def _apart(self, parts: Sequence[Part], after: str | None) -> Iterator[list[int]]:
        for number, (source, text) in enumerate(parts):
            if source is not Source.TEMPLATE:
                yield self.encode_game(text) if source is Source.GAME else self.encode_own(text)
            else:
                yield self._ids(text) if after is None and number == 0 else self._behind_anchor(text, split=False)

    def encode_rendered(self, text: str, after: str | None = None) -> list[int]:
        """Ids of a stretch of a rendered conversation, in which special tokens are special; ``after``: as above."""
        text = _whole(text)
        ids = self._continued(text, after)
        return self._behind_anchor(text, split=False) if ids is None else ids

    def _together(self, parts: Sequence[Part], after: str | None) -> list[int] | None:
        """Ids of the whole, unless something in it would be structure that is none."""
        if any(source is Source.GAME and self.markers.found(text) for source, text in parts):
            return None
        ids = self._continued("".join(text for _, text in parts), after)
        structure = [i for part in parts for i in self._structure_of(part)]
        return ids if ids is not None and [i for i in ids if i in self._structure] == structure else None

    def _continued(self, text: str, after: str | None) -> list[int] | None:
        """Ids of ``text`` behind another text; ``None`` if they cannot be separated from the other's."""
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
        if part.source is Source.GAME:
            return []
        known = self._structures.get(part)
        if known is None:
            ids = self._ids(part.text) if part.source is Source.TEMPLATE else self.encode_own(part.text)
            if len(self._structures) >= MAX_PARTS:
                self._structures.clear()
            known = self._structures[part] = [i for i in ids if i in self._structure]
        return known

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
        return self._spelt(self.markers.cut(text), self._structure)

    def _spelt(self, text: str, forbidden: frozenset[int]) -> list[int]:
        """Ids of ``text``; what would give a forbidden id is cut in two, and what still does is left out."""
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
        """What stands before a text so that the tokenizer adds no blank; empty where it adds none."""
        for anchor in ANCHORS:
            first, both, alone = (self._ids(text, split=True) for text in (anchor, anchor + "b", "b"))
            if first and both[: len(first)] == first and both[len(first) :]:
                return "" if both[len(first) :] == alone else anchor
        return ""

    def _ids(self, text: str, *, split: bool = False) -> list[int]:
        return ids_of(self.tokenizer, text, split=split)


def as_encoded(parts: Sequence[Part]) -> list[Part]:
    """Parts that are not empty, as they are encoded."""
    return [Part(source, _whole(text)) for source, text in parts if text]


def _whole(text: str) -> str:
    """``text`` with question marks for lone surrogates, which no tokenizer takes."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
