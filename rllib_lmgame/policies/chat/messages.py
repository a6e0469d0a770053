"""The chat format as messages of text, for models whose tokens are not in our hands: those behind an endpoint.

What is said, how replies are read and which turns are shown is the same as in :mod:`.format`. Whoever serves the model
writes its template around the messages and encodes them, so what a game or another player says is made harmless as
text: control tokens and structural tags, as models of today write them, are broken apart. (Where the ids are ours,
:mod:`.guard` goes by the tokenizer itself.)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from rllib_lmgame.envs.contract.session import Observation
from rllib_lmgame.policies.chat.guard import TAG_NAMES
from rllib_lmgame.policies.chat.own_lines import own_lines
from rllib_lmgame.policies.chat.parser import ParsedReply, ReplyParser
from rllib_lmgame.policies.options import LanguageModelOptions

Message = dict[str, str]
"""``role`` and ``content``."""

CONTROL_NAMES = (
    "s",
    "bos",
    "eos",
    "pad",
    "unk",
    "start_of_turn",
    "end_of_turn",
    "start_of_image",
    "sep",
    "cls",
    "mask",
)
"""Control tokens written ``<name>``, beside all those written ``<|name|>``."""

BRACKETS = (
    "INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|ARGS|CALL_ID|THINK|IMG|PREFIX|SUFFIX"
)
"""Control tokens written ``[NAME]``."""


@dataclass
class MessageConversation:
    """One player's conversation in one episode.

    Args:
        options: The ``language_model`` section; its template, tokenizer and prefill are whoever's who serves the model.
        instructions: The game's rules; the system prompt unless the options set another.
    """

    options: LanguageModelOptions
    instructions: str = ""
    _users: list[str] = field(default_factory=list)
    _replies: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        options = self.options
        self.parser = ReplyParser(options.answer_tag, options.think_tag, options.think)
        names = "|".join(
            map(re.escape, dict.fromkeys((*TAG_NAMES, options.answer_tag, options.think_tag, *CONTROL_NAMES)))
        )
        self._structure = re.compile(rf"<(?=[|｜][^<>]*[|｜]>|/?(?:{names})>)|\[(?=/?(?:{BRACKETS})\])")

    def prompt(self, observation: Observation, note: str | None = None) -> list[Message]:
        """The messages that show ``observation``; :meth:`reply` is called with the answer before the next call.

        Args:
            observation: What the game shows.
            note: Why the last reply could not be read, if it could not.
        """
        before, after = own_lines(self.options, observation, note)
        self._users.append(before + self.harmless(observation.text) + after)
        own = self.options.system_prompt
        system = self.harmless(self.instructions) if own is None else own
        messages = [_message("system", system)] if system else []
        first = max(0, len(self._users) - self.options.history_window) if self.options.history == "window" else 0
        for turn in range(first, len(self._users)):
            messages.append(_message("user", self._users[turn]))
            if turn < len(self._replies):
                messages.append(_message("assistant", self._replies[turn]))
        return messages

    def reply(self, text: str) -> ParsedReply:
        """Take in the answer; returns it parsed."""
        parsed = self.parser.parse(text)
        end = self.parser.think_end(text) if self.options.history == "strip_think" else None
        self._replies.append(text[end:] if end is not None else text)
        return parsed

    def harmless(self, text: str) -> str:
        """``text`` with a space within what looks like structure."""
        return self._structure.sub(lambda match: match[0] + " ", text)


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content.encode("utf-8", "replace").decode("utf-8")}
