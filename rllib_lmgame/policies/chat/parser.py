"""The form of a reply: how a user message asks for it, and how the action is read out of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from rllib_lmgame.envs.contract.session import Observation
from rllib_lmgame.settings.placeholders import fill_placeholders
from rllib_lmgame.settings.sections.language_model import LanguageModelOptions

PAIR = "..."
"""Between the two marks of a pair."""
_BEGINNINGS = (("START", "END"), ("start", "end"), ("BEGIN", "END"), ("begin", "end"))


def closing_of(mark: str) -> str:
    """The mark that closes another: ``</x>`` for ``<x>``, ``[/X]`` for ``[X]``, ``<|END_X|>`` for ``<|START_X|>``."""
    for beginning, end in _BEGINNINGS:
        if beginning in mark:
            return mark.replace(beginning, end, 1)
    return re.sub(r"(?=\w)", "/", mark, count=1)


def marks_of(tag: str) -> tuple[str, str]:
    """Both marks of a tag: by its name (``think``), its opening mark (``[THINK]``), or both with ``...`` between."""
    opening, pair, closing = tag.partition(PAIR)
    if pair and opening and closing:
        return opening, closing
    return (f"<{tag}>", f"</{tag}>") if is_name(tag) else (tag, closing_of(tag))


def is_name(tag: str) -> bool:
    """``tag`` is the name of a tag, not a mark as it is written."""
    return PAIR not in tag and (not tag or tag[0].isalnum() or tag[0] == "_")


@dataclass(frozen=True)
class ParsedReply:
    """A reply taken apart; ``error`` says why ``action`` is ``None``, in words a model or person can act on."""

    action: str | None
    think: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class ReplyParser:
    """Parses ``<think>...</think><answer>...</answer>``: the answer is the one pair of its tags outside the reasoning.

    No pair, two pairs that differ, or an unclosed pair is an error, never a guess. ``think_tag`` may be marks
    (:func:`marks_of`); ``think`` is ``off``, ``optional`` or ``required``.
    """

    answer_tag: str = "answer"
    think_tag: str = "think"
    think: str = "off"

    @property
    def answer_opening(self) -> str:
        return f"<{self.answer_tag}>"

    @property
    def answer_closing(self) -> str:
        return f"</{self.answer_tag}>"

    @property
    def think_opening(self) -> str:
        return self._marks[0]

    @property
    def think_closing(self) -> str:
        return self._marks[1]

    @cached_property
    def _marks(self) -> tuple[str, str]:
        return marks_of(self.think_tag)

    def parse(self, reply: str) -> ParsedReply:
        """Parse the whole reply text, prefill included. Never raises."""
        think, rest = self._split_think(reply)
        if self.think == "required" and think is None:
            return ParsedReply(None, None, f"the reply has no {self.think_opening}...{self.think_closing} part")
        opening, closing = self.answer_opening, self.answer_closing
        answers = []
        position = 0
        while (start := rest.find(opening, position)) >= 0:
            end = rest.find(closing, start)
            answer = rest[start + len(opening) : end] if end >= 0 else ""
            if end < 0 or opening in answer:
                return ParsedReply(None, think, f"{opening} is not closed by {closing}")
            answers.append(answer.strip())
            position = end + len(closing)
        if not answers:
            return ParsedReply(None, think, f"the reply has no {opening}...{closing}")
        if len(set(answers)) > 1:
            return ParsedReply(None, think, f"the reply has {len(answers)} different answers")
        return ParsedReply(answers[0], think)

    def think_end(self, reply: str) -> int | None:
        """Where the text after the reasoning begins; ``None`` unless the reply opens with reasoning and closes it."""
        start = len(reply) - len(reply.lstrip())
        if not reply.startswith(self.think_opening, start):
            return None
        end = reply.find(self.think_closing, start)
        return None if end < 0 else end + len(self.think_closing)

    def _split_think(self, reply: str) -> tuple[str | None, str]:
        """The reasoning that opens the reply, and what follows it: nothing if it is never closed."""
        stripped = reply.lstrip()
        if not stripped.startswith(self.think_opening):
            return None, reply
        end = self.think_end(stripped)
        if end is None:
            return stripped[len(self.think_opening) :].strip(), ""
        return stripped[len(self.think_opening) : end - len(self.think_closing)].strip(), stripped[end:]


def message_parts(options: LanguageModelOptions, observation: Observation, note: str | None) -> tuple[str, str, str]:
    """Lines of the user message before the game's text, that text, and lines after it.

    The game sees a reply that could not be read as empty text. Where ``note`` tells the model why, what the game says
    of the empty text is left out.
    """
    before, text, after = "", observation.text, ""
    if note and options.format_reminder:
        before = f"Your last reply could not be read: {note}.\n"
        if observation.refusal:
            text = text.removeprefix(observation.refusal).removeprefix("\n")
    if options.turn_note and observation.turns_left is not None:
        after += "\n" + fill_placeholders(options.turn_note, {"turns_left": observation.turns_left})
    if options.format_reminder:
        after += "\n" + _reminder(options)
    return before, text, after


def _reminder(options: LanguageModelOptions) -> str:
    """What a reply is, in the word that games have for it."""
    reply = f"<{options.answer_tag}>your reply</{options.answer_tag}>"
    if options.think == "off":
        return f"Write your reply between tags: {reply}. Nothing else is read."
    if not is_name(options.think_tag):  # Control tokens, which the model knows, and which are no text of a message.
        return f"Write your reply, after your reasoning, between tags: {reply}. The reply alone is played."
    reasoning = "your reasoning".join(marks_of(options.think_tag))
    return f"Write your reasoning and your reply between tags: {reasoning}{reply}. The reply alone is played."
