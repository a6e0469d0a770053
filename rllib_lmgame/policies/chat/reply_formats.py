"""The formats of replies that are here; :mod:`.replies` has what they share."""

from __future__ import annotations

from rllib_lmgame.policies.chat.replies import ParsedReply, ReplyFormat, is_name, marks_of
from rllib_lmgame.settings.sections.language_model import LanguageModelOptions


class Tags(ReplyFormat):
    """`<answer>up</answer>`: the action is the one pair of tags (`answer_tag`) outside the reasoning.

    No pair, two pairs that differ, or an unclosed pair is an error, never a guess.
    """

    def __init__(self, options: LanguageModelOptions) -> None:
        super().__init__(options)
        self.opening, self.closing = self.tags = (f"<{options.answer_tag}>", f"</{options.answer_tag}>")
        self.stops = (self.closing,)

    def form(self) -> str:
        reply = f"{self.opening}your reply{self.closing}"
        if self.options.think == "off":
            return f"Write your reply between tags: {reply}. Nothing else is read."
        if not is_name(self.options.think_tag):  # Control tokens: the model knows them, and they are no text.
            return f"Write your reply, after your reasoning, between tags: {reply}. The reply alone is played."
        reasoning = "your reasoning".join(marks_of(self.options.think_tag))
        return f"Write your reasoning and your reply between tags: {reasoning}{reply}. The reply alone is played."

    def read(self, text: str) -> ParsedReply:
        opening, closing = self.opening, self.closing
        answers = []
        position = 0
        while (start := text.find(opening, position)) >= 0:
            end = text.find(closing, start)
            answer = text[start + len(opening) : end] if end >= 0 else ""
            if end < 0 or opening in answer:
                return ParsedReply(None, None, f"{opening} is not closed by {closing}")
            answers.append(answer.strip())
            position = end + len(closing)
        if not answers:
            return ParsedReply(None, None, f"the reply has no {opening}...{closing}")
        if len(set(answers)) > 1:
            return ParsedReply(None, None, f"the reply has {len(answers)} different answers")
        return ParsedReply(answers[0])

    def say(self, action: str, thought: str | None) -> str:
        return f"{self.opening}{action}{self.closing}"
