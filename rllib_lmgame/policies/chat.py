"""Chat format: from observations to token ids, and back from sampled ids to text, without ever re-tokenising a reply.

The chat template of the model's own tokenizer is rendered once with placeholders where texts go. Template text is encoded
with special tokens, message text without (so that control tokens written in an observation never become structure), and
replies are the sampled ids themselves.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rllib_lmgame.envs.session import Observation
from rllib_lmgame.errors import ConfigError
from rllib_lmgame.policies.options import LanguageModelOptions
from rllib_lmgame.policies.parser import ParsedReply, ReplyParser

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

DEFAULT_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '### ' + message['role'] + '\n' + message['content'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '### assistant\n' }}{% endif %}"
)
"""Used, with a warning, for a tokenizer that has no chat template."""

_SYSTEM, _USER, _REPLY, _NEXT = "\u2402SYSTEM\u2403", "\u2402USER\u2403", "\u2402REPLY\u2403", "\u2402NEXT\u2403"


@dataclass(frozen=True)
class Prompt:
    """What the model is shown before one reply.

    Attributes:
        ids: The whole prompt.
        delta: int32; what was added since the last reply of the same row, or all of ``ids`` if ``new_row``.
        new_row: The prompt does not continue the previous prompt and reply.
        max_tokens: Reply tokens the budgets leave; 0 or less means no reply can be sampled.
        out_of_context: It is the context length, not a token budget, that leaves none.
    """

    ids: list[int]
    delta: np.ndarray
    new_row: bool
    max_tokens: int
    out_of_context: bool = False


class ChatFormat:
    """Token-exact chat for one tokenizer and one set of options. Immutable, shared by all conversations.

    Args:
        tokenizer: A Hugging Face tokenizer.
        options: The ``language_model`` section.

    Raises:
        ConfigError: if the chat template cannot be used.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, options: LanguageModelOptions) -> None:
        self.tokenizer = tokenizer
        self.options = options
        self.parser = ReplyParser(options.answer_tag, options.think_tag, options.think)
        self.template = self._find_template()
        self._cache: dict[str, list[int]] = {}
        self._head, self._middle, self._tail, self._turn_end, self._turn_tail = self._split_template()
        self.prefill_ids = self.encode(options.reply_prefill)

    # -- encoding -----------------------------------------------------------------------------------------------

    def encode(self, text: str) -> list[int]:
        """Ids of message text: special tokens written in it are spelt out, never structure."""
        if not text:
            return []
        return list(self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))

    def encode_structure(self, text: str) -> list[int]:
        """Ids of template text: special tokens are special."""
        return list(self.tokenizer.encode(text, add_special_tokens=False)) if text else []

    def decode(self, ids: Any) -> str:
        """Text of sampled ids, without a closing special token."""
        ids = [int(i) for i in ids]
        while ids and ids[-1] in self.special_ids:
            ids.pop()
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of the tokenizer's control tokens."""
        added = self.tokenizer.added_tokens_decoder
        return frozenset(self.tokenizer.all_special_ids) | {i for i, token in added.items() if token.special}

    @cached_property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Ids that end a reply: every control token, and the closing answer tag where it is one token and wanted."""
        stops = set(self.special_ids)
        if self.closing_id is not None:
            stops.add(self.closing_id)
        if not stops:
            raise ConfigError("config.language_model.tokenizer", "the tokenizer has no end-of-sequence token")
        return tuple(sorted(stops))

    @cached_property
    def closing_id(self) -> int | None:
        """Id of the closing answer tag if replies end there, else ``None``."""
        if not self.options.stop_at_answer:
            return None
        ids = self.encode(f"</{self.options.answer_tag}>")
        return ids[0] if len(ids) == 1 else None

    def reply_ids(self, action: str, think: str | None = None) -> list[int]:
        """Ids of a well-formed reply (after the prefill): what a model that plays ``action`` would sample."""
        options = self.options
        text = f"<{options.answer_tag}>{action}</{options.answer_tag}>"
        if think is not None or options.think == "required":
            text = f"<{options.think_tag}>{think or ''}</{options.think_tag}>{text}"
        ids = self.encode(text)
        if self.prefill_ids:
            if ids[: len(self.prefill_ids)] != self.prefill_ids:
                raise ConfigError("config.language_model.reply_prefill", f"replies do not begin with {options.reply_prefill!r}")
            ids = ids[len(self.prefill_ids) :]
        return ids if self.closing_id is not None else [*ids, self.end_id]

    @cached_property
    def end_id(self) -> int:
        """Token that ends an assistant message: the first control token the template puts after a reply, else EOS."""
        for token in self.encode_structure(self._turn_end_text):
            if token in self.special_ids:
                return token
        if self.tokenizer.eos_token_id is None:
            raise ConfigError("config.language_model.tokenizer", "the tokenizer has no end-of-sequence token")
        return int(self.tokenizer.eos_token_id)

    # -- prompts ------------------------------------------------------------------------------------------------

    def user_text(self, observation: Observation, note: str | None = None) -> str:
        """The user message that shows ``observation``; ``note`` says why the last reply could not be read."""
        options = self.options
        lines = [observation.text]
        if note and options.format_reminder:
            lines.insert(0, f"Your last reply could not be read: {note}.")
        if options.turn_note and observation.turns_left is not None:
            lines.append(options.turn_note.format(turns_left=observation.turns_left))
        if options.format_reminder:
            think = f"<{options.think_tag}>your reasoning</{options.think_tag}>" if options.think != "off" else ""
            lines.append(f"Answer as {think}<{options.answer_tag}>your action</{options.answer_tag}>.")
        return "\n".join(lines)

    def opening_ids(self, system: str, user: list[int]) -> list[int]:
        """A conversation up to its first reply."""
        return [*self._system_ids(system), *user, *self._tail, *self.prefill_ids]

    def continuation_ids(self, last_reply: Any, user: list[int]) -> list[int]:
        """From the end of a reply to the start of the next one: closes the message, shows ``user``, opens the next reply."""
        closing = self._turn_end
        if len(last_reply) and closing and int(last_reply[-1]) == closing[0]:
            closing = closing[1:]
        return [*closing, *user, *self._turn_tail, *self.prefill_ids]

    def _system_ids(self, system: str) -> list[int]:
        if system not in self._cache:
            if not system:
                self._cache[system] = self._bare_head
            elif self._middle is None:
                self._cache[system] = [*self._head, *self.encode(system + "\n\n")]
            else:
                self._cache[system] = [*self._head, *self.encode(system), *self._middle]
        return self._cache[system]

    # -- template -----------------------------------------------------------------------------------------------

    def _find_template(self) -> str:
        template = self.options.chat_template
        if template:
            path = Path(template)
            if len(template) < 1024 and path.suffix in (".jinja", ".j2", ".txt"):
                if not path.is_file():
                    raise ConfigError("config.language_model.chat_template", f"no such file: {template}")
                return path.read_text(encoding="utf-8")
            return template
        own = self.tokenizer.chat_template
        if isinstance(own, dict):
            own = own.get("default")
        if own:
            return str(own)
        logger.warning("The tokenizer of %s has no chat template; a plain default is used.", self.options.model)
        return DEFAULT_CHAT_TEMPLATE

    def _render(self, messages: list[dict[str, str]]) -> str:
        try:
            rendered = self.tokenizer.apply_chat_template(
                messages,
                chat_template=self.template,
                tokenize=False,
                add_generation_prompt=True,
                **self.options.chat_template_kwargs,
            )
        except Exception as error:
            raise _TemplateError(str(error)) from error
        return str(rendered)

    def _split_template(self) -> tuple[list[int], list[int] | None, list[int], list[int], list[int]]:
        user = {"role": "user", "content": _USER}
        try:
            bare_head, tail = _split(self._render([user]), _USER)
            head, middle = self._system_pieces(bare_head, tail)
            turn = self._render([user, {"role": "assistant", "content": _REPLY}, {"role": "user", "content": _NEXT}])
            turn_end, turn_tail = _split(_split(turn, _REPLY)[1], _NEXT)
        except _TemplateError as error:
            raise ConfigError("config.language_model.chat_template", f"the chat template cannot be used: {error}") from error
        self._bare_head = self.encode_structure(bare_head)
        self._turn_end_text = turn_end
        encoded = self.encode_structure
        return encoded(head), None if middle is None else encoded(middle), encoded(tail), encoded(turn_end), encoded(turn_tail)

    def _system_pieces(self, bare_head: str, tail: str) -> tuple[str, str | None]:
        """Template text before and after the system prompt; a template without system role gets it inside the user message."""
        try:
            text = self._render([{"role": "system", "content": _SYSTEM}, {"role": "user", "content": _USER}])
            head, rest = _split(text, _SYSTEM)
            return head, _split(rest, _USER)[0]
        except _TemplateError:
            return bare_head, None


class _TemplateError(ValueError):
    pass


def _split(text: str, marker: str) -> tuple[str, str]:
    if text.count(marker) != 1:
        raise _TemplateError(f"it shows a message {text.count(marker)} times instead of once")
    before, after = text.split(marker)
    return before, after


@dataclass
class Conversation:
    """One player's conversation in one episode: builds prompts, keeps replies as ids.

    Args:
        chat: The chat format.
        instructions: The game's rules; the system prompt unless the options set another.
    """

    chat: ChatFormat
    instructions: str = ""
    _users: list[list[int]] = field(default_factory=list)
    _replies: list[np.ndarray] = field(default_factory=list)
    _context: list[int] = field(default_factory=list)
    _tokens_written: int = 0

    @property
    def system(self) -> str:
        override = self.chat.options.system_prompt
        return self.instructions if override is None else override

    def prompt(self, observation: Observation, note: str | None = None) -> Prompt:
        """Show ``observation``; call :meth:`reply` with what was sampled before the next call.

        Args:
            observation: What the game shows.
            note: Why the last reply could not be read, if it could not.
        """
        chat, options = self.chat, self.chat.options
        user = chat.encode(chat.user_text(observation, note))
        if options.history == "window" or not self._users:
            self._users.append(user)
            ids = self._window(options.history_window if options.history == "window" else 1)
            new_row, delta = True, ids
        elif options.history == "strip_think" and len(self._without_think(self._replies[-1])) < len(self._replies[-1]):
            self._users.append(user)
            ids = self._window(len(self._users), strip=True)
            new_row, delta = True, ids
        else:
            self._users.append(user)
            delta = chat.continuation_ids(self._replies[-1], user)
            ids, new_row = [*self._context, *delta], False
        self._context = ids
        room = options.context_length - len(ids)
        budget = options.max_tokens_per_turn
        if options.max_tokens_per_episode is not None:
            budget = min(budget, options.max_tokens_per_episode - self._tokens_written)
        return Prompt(ids, np.asarray(delta, np.int32), new_row, min(room, budget), room < 1)

    def reply(self, response_ids: np.ndarray) -> ParsedReply:
        """Take in what was sampled; returns it parsed."""
        self._replies.append(response_ids)
        self._tokens_written += len(response_ids)
        self._context = [*self._context, *map(int, response_ids)]
        return self.chat.parser.parse(self.chat.options.reply_prefill + self.chat.decode(response_ids))

    def _window(self, turns: int, strip: bool = False) -> list[int]:
        """The prompt that shows the last ``turns`` observations and the replies between them."""
        chat = self.chat
        start = max(0, len(self._users) - turns)
        ids = chat.opening_ids(self.system, self._users[start])
        for turn in range(start + 1, len(self._users)):
            reply = self._replies[turn - 1]
            if strip:
                reply = self._without_think(reply)
            ids = [*ids, *map(int, reply), *chat.continuation_ids(reply, self._users[turn])]
        return ids

    def _without_think(self, reply: np.ndarray) -> np.ndarray:
        """The reply's ids after its reasoning, cut at the token in which the closing tag ends."""
        closing = f"</{self.chat.options.think_tag}>"
        if closing not in self.chat.options.reply_prefill + self.chat.decode(reply):
            return reply
        low, high = 1, len(reply)
        while low < high:
            middle = (low + high) // 2
            if closing in self.chat.options.reply_prefill + self.chat.decode(reply[:middle]):
                high = middle
            else:
                low = middle + 1
        return reply[low:]
