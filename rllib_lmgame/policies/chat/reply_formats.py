"""The formats of replies that are here; :mod:`.replies` has what they share."""

from __future__ import annotations

import re
from functools import cached_property
from typing import ClassVar, Self

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import tag
from rllib_lmgame.policies.chat.replies import ParsedReply, ReplyFormat, is_name, marks_of
from rllib_lmgame.policies.options import LanguageModelOptions


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
    def stops(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(self.closings.values())

    @property
    def tags(self) -> tuple[str, ...]:  # type: ignore[override]
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


class LastNumber(ReplyFormat):
    """`29 - 14 = 15`: the action is the last number of the reply, without the commas of its thousands."""

    type: str = tag("last_number", "Its name.")
    has_thought = True
    thought_form = ""
    NUMBER: ClassVar[re.Pattern[str]] = re.compile(
        r"(?:(?<![\w).])[-+\u2212])?(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
        r"(?:[eE][-+]?[0-9]+)?(?:/[0-9]+)?"
    )

    def form(self) -> str:
        if self.options.think == "off":
            return "Write a number as your reply. The last number in it is read."
        return "Reason first, then write a number as your reply. The last number alone is played."

    def read(self, text: str) -> ParsedReply:
        *_, last = (None, *self.NUMBER.finditer(text))
        if last is None:
            return ParsedReply(None, None, "the reply has no number")
        return ParsedReply(last[0].replace(",", "").replace("\u2212", "-"), text[: last.start()].strip() or None)

    def say(self, action: str, thought: str | None) -> str:
        return f"{_line(thought)}{action}"


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
