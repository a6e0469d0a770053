"""The form of a reply: how a user message asks for it, how the action is read out of it, and how experts write it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import Group, tag
from rllib_lmgame.base.plugin import asking
from rllib_lmgame.base.registry import REPLY_FORMATS
from rllib_lmgame.policies.options import LanguageModelOptions

if TYPE_CHECKING:
    from rllib_lmgame.envs.contract.functions import GameFunction
    from rllib_lmgame.envs.contract.session import Observation

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
        return self._options

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
    return found


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
        after += "\n" + options.turn_suffix.format(turns_left=observation.turns_left)
    if options.format_instructions:
        after += "\n" + form.form()
    return before, text, after


class Tags(ReplyFormat):
    """`<answer>up</answer>`: the action is the one pair of tags (`answer_tag`) outside the reasoning.

    No pair, two pairs that differ, or an unclosed pair is an error, never a guess. Of a list of tags the reply has one,
    which the game is told: the action keeps its tags.
    """

    type: str = tag("tags", "Its name.")

    def of_model(self, options: LanguageModelOptions) -> Self:
        if not options.answer_tag:
            raise ConfigError("config.language_model.answer_tag", "must name a tag")
        return super().of_model(options)

    @cached_property
    def closings(self) -> dict[str, str]:
        names = self.options.answer_tag
        return {f"<{name}>": f"</{name}>" for name in ([names] if isinstance(names, str) else names)}

    @property
    def stops(self) -> tuple[str, ...]:
        return tuple(self.closings.values())

    @property
    def tags(self) -> tuple[str, ...]:
        return (*self.closings, *self.stops)

    @property
    def keeps(self) -> bool:
        return not isinstance(self.options.answer_tag, str)

    @cached_property
    def _opening(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self.closings)))

    @property
    def _pairs(self) -> str:
        return " or ".join(f"{opening}...{closing}" for opening, closing in self.closings.items())

    def form(self) -> str:
        reply = self._pairs.replace("...", "your reply")
        if self.options.think == "off":
            return f"Write your reply between tags: {reply}. Nothing else is read."
        if not is_name(self.options.think_tag):  # Control tokens: the model knows them, and they are no text.
            return f"Write your reply, after your reasoning, between tags: {reply}. The reply alone is played."
        reasoning = "your reasoning".join(marks_of(self.options.think_tag))
        behind = f", then {reply}" if len(self.closings) > 1 else reply
        return f"Write your reasoning and your reply between tags: {reasoning}{behind}. The reply alone is played."

    def read(self, text: str) -> ParsedReply:
        answers = []
        position = 0
        while found := self._opening.search(text, position):
            closing = self.closings[found[0]]
            end = text.find(closing, found.end())
            answer = text[found.end() : end] if end >= 0 else ""
            if end < 0 or self._opening.search(answer):
                return ParsedReply(None, None, f"{found[0]} is not closed by {closing}")
            answers.append(f"{found[0]}{answer.strip()}{closing}" if self.keeps else answer.strip())
            position = end + len(closing)
        if not answers:
            return ParsedReply(None, None, f"the reply has no {self._pairs}")
        if len(set(answers)) > 1:
            return ParsedReply(None, None, f"the reply has {len(answers)} different answers")
        return ParsedReply(answers[0])

    def say(self, action: str, thought: str | None) -> str:
        if self.keeps and self.read(action).action == action.strip():
            return action.strip()
        opening, closing = next(iter(self.closings.items()))
        return f"{opening}{action}{closing}"


class Boxed(ReplyFormat):
    r"""`\boxed{up}`: the action is what the last box holds; what stands before it is the reasoning."""

    type: str = tag("boxed", "Its name.")
    MARK: ClassVar[str] = "\\boxed{"
    marks = (MARK,)
    begins = MARK
    has_thought = True
    thought_form = ""

    def form(self) -> str:
        if self.options.think == "off":
            return f"Write your reply in a box: {self.MARK}your reply}}. Nothing else is read."
        return f"Reason first, then write your reply in a box: {self.MARK}your reply}}. The last box alone is played."

    def read(self, text: str) -> ParsedReply:
        before, found, rest = text.rpartition(self.MARK)
        if not found:
            return ParsedReply(None, None, f"the reply has no {self.MARK}...}}")
        depth = 1
        for place in re.finditer(r"[{}]", rest):
            depth += 1 if place[0] == "{" else -1
            if depth == 0:
                return ParsedReply(rest[: place.start()].strip(), before.strip() or None)
        return ParsedReply(None, before.strip() or None, f"{self.MARK} is not closed by }}")

    def say(self, action: str, thought: str | None) -> str:
        return f"{_line(thought)}{self.MARK}{action}}}"


class Fence(ReplyFormat):
    """An action between triple backticks, the last such block of the reply; what stands before it is the reasoning.

    A block that names a language is the action with its backticks: games that ask for programs want it so.
    """

    type: str = tag("fence", "Its name.")
    MARK: ClassVar[str] = "```"
    marks = (MARK,)
    begins = MARK
    has_thought = True
    thought_form = ""
    SENTENCE: ClassVar[str] = "In summary, the next action I will perform is"
    PROGRAM: ClassVar[re.Pattern[str]] = re.compile(r"[\w+#.-]+[^\S\n]*\n.*\S", re.DOTALL)

    def form(self) -> str:
        if self.options.think == "off":
            return f"Write your reply between triple backticks: {self.MARK}your reply{self.MARK}. Nothing else is read."
        return (
            f"Reason first, then write your reply between triple backticks: {self.SENTENCE} {self.MARK}your reply"
            f"{self.MARK}. The last such block alone is played."
        )

    def read(self, text: str) -> ParsedReply:
        *parts, _ = text.split(self.MARK)
        if not parts:
            return ParsedReply(None, None, f"the reply has no {self.MARK}...{self.MARK}")
        if len(parts) % 2:
            return ParsedReply(None, None, f"{self.MARK} is not closed by {self.MARK}")
        thought = self.MARK.join(parts[:-1]).strip().removesuffix(self.SENTENCE).strip()
        action = f"{self.MARK}{parts[-1]}{self.MARK}" if self.PROGRAM.match(parts[-1]) else parts[-1].strip()
        return ParsedReply(action, thought or None)

    def say(self, action: str, thought: str | None) -> str:
        apart = "\n" in action or action.startswith("`") or action.endswith("`")
        block = f"{self.MARK}\n{action}\n{self.MARK}" if apart else f"{self.MARK}{action}{self.MARK}"
        if self.read(action.strip()).action == action.strip():  # A program in a block of its own.
            block = action
        return f"{_line(thought)}{'' if thought is None else self.SENTENCE + ' '}{block}"


class Whole(ReplyFormat):
    """`up`: the whole reply, but for the reasoning between its marks, is the action."""

    type: str = tag("whole", "Its name.")

    def form(self) -> str:
        if self.options.think == "off":
            return "Your whole reply is read as your action: write nothing else."
        if not is_name(self.options.think_tag):
            return "All that you write after your reasoning is read as your action."
        reasoning = "your reasoning".join(marks_of(self.options.think_tag))
        return f"Write your reasoning between tags: {reasoning}. All that follows is read as your action."

    def read(self, text: str) -> ParsedReply:
        action = text.strip()
        return ParsedReply(action) if action else ParsedReply(None, None, "the reply is empty")

    def say(self, action: str, thought: str | None) -> str:
        return action


class React(ReplyFormat):
    """`Thought:` and `Action:`, each on a line of its own with what belongs to it below, as in AgentGym.

    The action is what stands behind the only `Action:`, up to a line that begins with `Observation:`.
    """

    type: str = tag("react", "Its name.")
    THOUGHT: ClassVar[str] = "Thought:"
    ACTION: ClassVar[str] = "Action:"
    OBSERVATION: ClassVar[str] = "Observation:"
    marks = (THOUGHT, ACTION, OBSERVATION)
    begins = ACTION
    stops = (f"\n{OBSERVATION}",)
    has_thought = True
    thought_form = THOUGHT

    def form(self) -> str:
        if self.options.think == "off":
            return f"Write your reply in this form:\n{self.ACTION}\nyour reply"
        return f"Write your reply in this form, once:\n{self.THOUGHT}\nyour reasoning\n\n{self.ACTION}\nyour reply"

    def read(self, text: str) -> ParsedReply:
        before, *rest = text.partition(self.stops[0])[0].split(self.ACTION)
        thought = before.partition(self.THOUGHT)[2].strip() if self.THOUGHT in before else None
        if len(rest) != 1:
            problem = f"has {len(rest)} times {self.ACTION}; one is allowed" if rest else f"has no {self.ACTION}"
            return ParsedReply(None, thought, f"the reply {problem}")
        action = rest[0].strip()
        return ParsedReply(action, thought) if action else ParsedReply(None, thought, f"{self.ACTION} says nothing")

    def say(self, action: str, thought: str | None) -> str:
        said = "" if thought is None else f"{self.THOUGHT}\n{thought}\n\n"
        return f"{said}{self.ACTION}\n{action}"


def _line(thought: str | None) -> str:
    return f"{thought}\n" if thought else ""
