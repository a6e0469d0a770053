"""The form of a reply: how a user message asks for it, how the action is read out of it, and how experts write it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import Group, fill_placeholders, tag
from rllib_lmgame.base.plugin import asking
from rllib_lmgame.base.registry import REPLY_FORMATS

if TYPE_CHECKING:
    from rllib_lmgame.envs.contract.functions import GameFunction
    from rllib_lmgame.envs.contract.session import Observation
    from rllib_lmgame.policies.options import LanguageModelOptions

PAIR = "..."
"""Between the two marks of a pair."""
_BEGINNINGS = (("START", "END"), ("start", "end"), ("BEGIN", "END"), ("begin", "end"))


def closing_of(mark: str) -> str:
    """The mark that closes another: ``</x>`` for ``<x>``, ``[/X]`` for ``[X]``, ``<|END_X|>`` for ``<|START_X|>``,
    ``<x|>`` for ``<|x>``.
    """
    if half := re.fullmatch(r"<\|(\w+)>", mark):
        return f"<{half[1]}|>"
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


def answer_start(reply: str, opening: str, closing: str) -> int | None:
    """Where a reply's text behind its marked reasoning begins: 0 if it opens none, ``None`` while that is open.

    All that reads a reply, or ends it by its text, begins here.
    """
    start = len(reply) - len(reply.lstrip())
    if not reply.startswith(opening, start):
        return 0
    end = reply.find(closing, start + len(opening))
    return None if end < 0 else end + len(closing)


def answer_of(said: str, opening: str, closing: str, begun: str) -> str:
    """What of a reply's sampled text stands behind its reasoning, nothing while that is open; the prompt made the reply
    begin with ``begun``.
    """
    start = answer_start(begun + said, opening, closing)
    return "" if start is None else said[max(0, start - len(begun)) :]


def apart(marks: Iterable[str]) -> str:
    """A pattern that finds each mark up to where a blank breaks it, before its last character."""
    return "|".join(rf"{re.escape(mark[:-1])}(?={re.escape(mark[-1])})" for mark in marks) or r"(?!)"


@dataclass(frozen=True)
class ParsedReply:
    """A reply taken apart; ``error`` says why ``action`` is ``None``, in words a model or person can act on."""

    action: str | None
    think: str | None = None
    error: str | None = None


class ReplyFormat(Group):
    """How a policy's replies are written and read. A format of your own derives from it: its fields are the options
    beside ``type``, and it defines :meth:`form`, :meth:`read` and :meth:`say`.

    The reasoning of a model that marks it (``think_tag``) is taken off before a reply is read, whatever the format.

    Attributes:
        tags: What marks the action, as tags: a game's text never gives their ids.
        marks: The same as plain text: they are broken apart in a game's text.
        begins: Where the action begins, for `history: strip_think`, if the reasoning before it has no marks.
        stops: Texts of ASCII at which a reply is over (``stop_on_answer``); a written reply ends with one or with none.
        has_thought: The format has a place for the reasoning; otherwise that stands between the marks of ``think_tag``.
        thought_form: What a reply without reasoning lacks: ``None``: those marks; empty: nothing that can be read.
    """

    type: str = tag("", "Its name, or `package.module:Class`.")

    tags: ClassVar[tuple[str, ...]] = ()
    marks: ClassVar[tuple[str, ...]] = ()
    begins: ClassVar[str] = ""
    stops: ClassVar[tuple[str, ...]] = ()
    has_thought: ClassVar[bool] = False
    thought_form: ClassVar[str | None] = None

    _options: Any = None

    def of_model(self, options: LanguageModelOptions) -> Self:
        """The format for a model with these options, which it reads ``think`` and the tags of."""
        other = self.model_copy()
        other._options = options
        return other

    @property
    def options(self) -> LanguageModelOptions:
        """The ``language_model`` options."""
        return self._options  # type: ignore[no-any-return]

    @property
    def think_opening(self) -> str:
        return marks_of(self.options.think_tag)[0]

    @property
    def think_closing(self) -> str:
        return marks_of(self.options.think_tag)[1]

    def form(self) -> str:
        """Lines of a user message that ask for this form."""
        raise NotImplementedError

    def read(self, text: str) -> ParsedReply:
        """Read a reply without its marked reasoning. Never raises."""
        raise NotImplementedError

    def say(self, action: str, thought: str | None) -> str:
        """A reply that plays ``action``; ``thought`` is ``None`` unless the format has a place for it."""
        raise NotImplementedError

    def parse(self, reply: str) -> ParsedReply:
        """Parse the whole reply text, prefill included. Never raises."""
        think, rest = self.split(reply)
        found = self.read(rest)
        think = found.think if think is None else think
        if self.options.think == "required" and think is None and self.thought_form != "":
            lacking = self.thought_form or f"{self.think_opening}...{self.think_closing} part"
            return ParsedReply(None, None, f"the reply has no {lacking}")
        return replace(found, think=think)

    def parts(self, action: str, thought: str | None) -> tuple[str, str]:
        """A reply's marked reasoning, empty if it has none, and what follows; ``thought``: ``None`` for none."""
        if thought is None or self.has_thought:
            return "", self.say(action, None if thought is None else self.harmless(thought))
        return f"{self.think_opening}{thought}{self.think_closing}", self.say(action, None)

    def write(self, thought: str | None, action: str) -> str:
        """The whole reply that an expert writes. Whether it is read as ``action`` :meth:`parse` says."""
        return "".join(self.parts(action, thought))

    def think_end(self, reply: str) -> int | None:
        """Where the text after the reasoning begins; ``None`` unless the reply opens with reasoning and closes it."""
        end = answer_start(reply, self.think_opening, self.think_closing)
        if end != 0:
            return end
        start = len(reply) - len(reply.lstrip())
        action = reply.find(self.begins, start) if self.begins else -1
        return action if action > start else None

    def harmless(self, text: str) -> str:
        """``text`` with a blank within each of ``marks``."""
        return self._apart.sub(r"\g<0> ", text)

    @cached_property
    def _apart(self) -> re.Pattern[str]:
        return re.compile(apart(self.marks))

    def for_game(self, functions: Sequence[GameFunction]) -> ReplyFormat:
        """The format in a game that lists ``functions``: with the same tags, marks and stops."""
        return self

    def split(self, reply: str) -> tuple[str | None, str]:
        """The marked reasoning that opens the reply, and what follows it: nothing if it is never closed."""
        end = answer_start(reply, self.think_opening, self.think_closing)
        if end == 0:
            return None, reply
        reasoning = reply if end is None else reply[: end - len(self.think_closing)]
        return reasoning.lstrip().removeprefix(self.think_opening).strip(), "" if end is None else reply[end:]


def reply_format(options: LanguageModelOptions) -> ReplyFormat:
    """The format of the options. Raises: ConfigError: a custom format fails, or a stop is not ASCII."""
    key, found = REPLY_FORMATS.key, options.reply_format.of_model(options)
    if ":" in found.type:
        with asking(f"trying `{found.type}`", key):
            found.form(), found.parse(found.write(None, "up"))
    if not all(stop and stop.isascii() for stop in found.stops):
        raise ConfigError(key, f"`{found.type}` has stops {found.stops!r}; a stop is a text of ASCII")
    return found  # type: ignore[no-any-return]


_IN_PROMPT = re.compile(r"\{(rules|max_turns|max_tokens)\}")


def system_parts(options: LanguageModelOptions, rules: str, turns: int | None) -> list[tuple[str, bool]]:
    """Texts of the system message in order, and whether each is the game's own: its ``rules``.

    ``turns`` are the game's, ``None`` for no limit. Raises: ConfigError: the prompt says a limit that there is not.
    """
    if options.system_prompt is None:
        return [(rules, True)]
    numbers = {"max_turns": turns, "max_tokens": options.max_tokens_per_turn}
    parts, own = list[tuple[str, bool]](), ""
    for place, text in enumerate(_IN_PROMPT.split(options.system_prompt)):
        if place % 2 == 0:
            own += text
        elif text == "rules":
            parts, own = [*parts, (own, False), (rules, True)], ""
        elif numbers[text] is None:
            key = "config.language_model.system_prompt"
            raise ConfigError(key, f"says {{{text}}}, but this game has no turn limit")
        else:
            own += str(numbers[text])
    return [(text, of_game) for text, of_game in (*parts, (own, False)) if text]


def message_parts(
    options: LanguageModelOptions, form: ReplyFormat, observation: Observation, note: str | None
) -> tuple[str, str, str]:
    """Lines of the user message before the game's text, that text, and lines after it.

    The game sees a reply that could not be read as empty text. Where ``note`` tells the model why, what the game says
    of the empty text is left out.
    """
    before, text, after = "", observation.text, ""
    if note and options.format_instructions:
        before = f"Your last reply could not be read: {note}.\n"
        if observation.refusal:
            text = text.removeprefix(observation.refusal).removeprefix("\n")
    if options.turn_suffix and observation.turns_left is not None:
        after += "\n" + fill_placeholders(options.turn_suffix, {"turns_left": observation.turns_left})
    if options.format_instructions:
        after += "\n" + form.form()
    return before, text, after
