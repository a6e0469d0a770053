"""The chat format as text messages, for models behind an endpoint, which tokenizes them itself.

The server encodes them, so a text of others is made harmless as text: what looks like a control token or structural tag
is broken apart. (Where the ids are ours, :mod:`.special_token_sanitizer` goes by the tokenizer itself.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from rllib_lmgame.envs.contract.functions import GameFunction
from rllib_lmgame.envs.contract.session import Observation
from rllib_lmgame.policies.chat.reply_formats import (
    ParsedReply,
    apart,
    marks_of,
    message_parts,
    reply_format,
    system_parts,
)
from rllib_lmgame.policies.chat.special_token_sanitizer import TAG_NAMES
from rllib_lmgame.policies.options import AGREED, LanguageModelOptions

Message = dict[str, str]

_NAME = r"[^\W\d][\w:-]*"
CONTROL_FORMS = (
    r"<(?=[|｜][^<>]*[|｜]>)",  # <|im_end|>, <｜User｜>
    rf"<(?=/?[|｜\[]?/?{_NAME}[|｜\]]?/?>)",  # <s>, <end_of_turn>, <seed:bos>, <unused9>, <|turn>, <turn|>, <[PLHD]>
    r"\[(?=[|｜]/?\w{2}[^\[\]|｜\n]*[|｜]\])",  # [|assistant|]
    r"\[(?=/?[A-Z]+(?:_[A-Z0-9]+)+\])",  # [TOOL_CALLS], [UNUSED_TOKEN_9]
    r"\[(?=(?:unused|reserved|control|extra_id|special)[\w-]*\d\])",  # [unused9], [control_8]
    r"\[(?=/?(?:INST|ARGS|THINK|IMG|AUDIO|PREFIX|MIDDLE|SUFFIX|PAD|UNK|MASK|BOS|EOS|[gs]MASK)\])",
    r"\](?=(?=[A-Za-z]{0,2}[~!])(?=[~!]{0,3}[A-Za-z])[~!A-Za-z]{2,4}[\[\]])",  # ]~b], ]~!b[
    r"\[(?=(?=[A-Za-z]{0,2}[~!])(?=[~!]{0,3}[A-Za-z])[~!A-Za-z]{2,4}\[)",  # [e~[
    r"\](?=<\][^\[\]<>]*\[>\[)",  # ]<]image[>[
)
"""How control tokens are written, up to where each is broken apart.

Words in square brackets go by name, since games write moves and players like that.
"""


@dataclass
class MessageConversation:
    """One player's conversation in one episode. Template, tokenizer and prefill are the server's own.

    The game's rules, ``instructions``, are the system prompt unless the options set another.
    """

    options: LanguageModelOptions
    instructions: str = ""
    functions: Sequence[GameFunction] = ()
    game: str = ""
    role: str = ""
    _users: list[str] = field(default_factory=list)
    _replies: list[str] = field(default_factory=list)
    _system: str = ""

    def __post_init__(self) -> None:
        options = self.options
        self.reply_format = reply_format(options).for_game(self.functions)
        names, form = "|".join(map(re.escape, TAG_NAMES)), self.reply_format
        written = (*form.tags, *marks_of(options.think_tag))
        tags = (rf"{re.escape(mark[:1])}(?={re.escape(mark[1:])})" for mark in written)
        self._structure = re.compile("|".join((*CONTROL_FORMS, rf"<(?=/?(?:{names})>)", *tags, apart(form.marks))))
        self.demonstrations = options.shown(self.game, self.role)

    def prompt(self, observation: Observation, note: str | None = None) -> list[Message]:
        """The messages that show ``observation``; :meth:`reply` is next. ``note``: why the last reply could not be
        read.
        """
        if not self._users:
            parts = system_parts(self.options, self.instructions, observation.turns_left)
            self._system = "".join(self.harmless(text) if of_game else text for text, of_game in parts)
        self._users.append(self._shown(observation, note))
        system = self._system
        messages = []
        if system and self.options.conversation_start == "user":
            messages = [_message("user", system), _message("assistant", AGREED)]
        elif system:
            messages = [_message("system", system)]
        for example in self.demonstrations:
            seen = Observation(example.observation, turns_left=example.turns_left)
            messages.append(_message("user", self._shown(seen, None)))
            thought = None if self.options.think == "off" else example.think
            messages.append(_message("assistant", self.reply_format.write(thought, example.action)))
        first = max(0, len(self._users) - self.options.history_window) if self.options.history == "window" else 0
        for turn in range(first, len(self._users)):
            messages.append(_message("user", self._users[turn]))
            if turn < len(self._replies):
                messages.append(_message("assistant", self._replies[turn]))
        return messages

    def _shown(self, observation: Observation, note: str | None) -> str:
        before, text, after = message_parts(self.options, self.reply_format, observation, note)
        return before + self.harmless(text) + after

    def reply(self, text: str) -> ParsedReply:
        """Take in the answer; returns it parsed."""
        parsed = self.reply_format.parse(text)
        end = self.reply_format.think_end(text) if self.options.history == "strip_think" else None
        self._replies.append(text[end:] if end is not None else text)
        return parsed

    def harmless(self, text: str) -> str:
        """``text`` with a space within what looks like structure."""
        return self._structure.sub(lambda match: match[0] + " ", text)


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content.encode("utf-8", "replace").decode("utf-8")}
