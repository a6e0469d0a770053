"""Chat format: from observations to token ids, and back from sampled ids to text, without ever re-tokenising a reply.

The chat template of the model's own tokenizer is rendered once with placeholders where texts go. Template text is
encoded with special tokens, message text without structure of any kind (see :mod:`.guard`), and replies are the sampled
ids themselves.
"""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from rllib_lmgame.envs.contract.session import Observation
from rllib_lmgame.errors import ConfigError
from rllib_lmgame.policies.chat.guard import MessageGuard
from rllib_lmgame.policies.chat.own_lines import message_parts
from rllib_lmgame.policies.chat.parser import ParsedReply, ReplyParser
from rllib_lmgame.policies.options import LanguageModelOptions
from rllib_lmgame.storage import expanded
from rllib_lmgame.text import first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

DEFAULT_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '### ' + message['role'] + '\n' + message['content'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '### assistant\n' }}{% endif %}"
)
"""Used, with a warning, for a tokenizer that has no chat template."""

MAX_REPLIES_CACHED = 4096

_SYSTEM, _USER, _REPLY, _NEXT = "\u2402SYSTEM\u2403", "\u2402USER\u2403", "\u2402REPLY\u2403", "\u2402NEXT\u2403"


@dataclass(frozen=True)
class TemplatePieces:
    """A chat template cut where the texts go.

    Attributes:
        bare_head: Before the first user message, without a system prompt.
        head: Before the system prompt.
        middle: Between system prompt and first user message; ``None`` for a template without a system role.
        tail: Between the first user message and the reply.
        turn_end: Between a reply and the next user message.
        turn_tail: Between a later user message and its reply.
    """

    bare_head: str
    head: str
    middle: str | None
    tail: str
    turn_end: str
    turn_tail: str


@dataclass(frozen=True)
class Prompt:
    """What the model is shown before one reply.

    Attributes:
        ids: The whole prompt.
        delta: int32; what was added since the last reply of the same row, or all of ``ids`` if ``new_row``.
        new_row: The prompt does not continue the previous prompt and reply.
        max_tokens: Reply tokens that context and budgets leave; 0 means that no reply is to be sampled.
        out_of_context: It is the context length, not a token budget, that leaves no more.
    """

    ids: list[int]
    delta: np.ndarray
    new_row: bool
    max_tokens: int
    out_of_context: bool = False

    def fitted(self, tokens: int) -> Prompt:
        """The prompt as far as ``tokens`` hold it: its end is left out, never its beginning."""
        beyond = max(0, len(self.ids) - tokens)
        return replace(self, ids=self.ids[: len(self.ids) - beyond], delta=self.delta[: len(self.delta) - beyond])


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
        self._system_cache: dict[str, list[int]] = {}
        self._reply_cache: dict[tuple[str, str | None], list[int]] = {}
        self._choice_cache: dict[str, tuple[int, ...] | None] = {}
        self._warned_of_choices = False
        pieces = self._split_template()
        self._pieces = pieces
        between = [
            piece for piece in (pieces.middle, pieces.tail, pieces.turn_end, pieces.turn_tail) if piece is not None
        ]
        self.guard = MessageGuard(
            tokenizer, (pieces.bare_head, pieces.head), between, (options.think_tag, options.answer_tag)
        )
        self._bare_head, self._head, self._tail = (
            self.encode_structure(text) for text in (pieces.bare_head, pieces.head, pieces.tail)
        )
        self._middle = None if pieces.middle is None else self.encode_structure(pieces.middle)
        self._turn_end, self._turn_tail = (
            self.encode_structure(pieces.turn_end),
            self.encode_structure(pieces.turn_tail),
        )
        self._after_end = (
            self._turn_end[self._turn_end.index(self.end_id) + 1 :] if self.end_id in self._turn_end else self._turn_end
        )
        self.prefill_ids = self.encode(options.reply_prefill)
        self.reply_prefix = self._opened_reasoning(pieces.tail) + options.reply_prefill

    def with_options(self, **changes: Any) -> ChatFormat:
        """The same with other limits of a reply (``max_tokens_per_turn``, ``max_tokens_per_episode``)."""
        other = copy.copy(self)
        other.options = replace(self.options, **changes)
        return other

    # -- encoding -----------------------------------------------------------------------------------------------

    def encode(self, text: str) -> list[int]:
        """Ids of text of our own: no control token, whatever is written in it."""
        return self.guard.encode(text)

    def encode_structure(self, text: str) -> list[int]:
        """Ids of template text: special tokens are special."""
        return list(self.tokenizer.encode(text, add_special_tokens=False)) if text else []

    def decode(self, ids: Any) -> str:
        """Text of sampled ids, without closing special tokens. Bytes that are no UTF-8 become replacement
        characters.
        """
        ids = ids.tolist() if isinstance(ids, np.ndarray) else [int(i) for i in ids]
        while ids and ids[-1] in self.special_ids:
            ids.pop()
        return (
            str(self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
            if ids
            else ""
        )

    def read(self, ids: Any) -> str:
        """Text of a whole reply: what the prompt made it begin with, and the sampled ids."""
        return self.reply_prefix + self.decode(ids)

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of the tokenizer's control tokens; tags of replies are none, also where it marks them as special."""
        return self.guard.vocabulary.ending

    @cached_property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Ids that end a reply: every control token, and the closing answer tag where it is one token and wanted."""
        stops = set(self.special_ids)
        if self.closing_id is not None:
            stops.add(self.closing_id)
        return tuple(sorted(stops))

    @cached_property
    def closing_id(self) -> int | None:
        """Id of the closing answer tag if replies end there, else ``None``."""
        if not self.options.stop_at_answer:
            return None
        ids = self.encode(f"</{self.options.answer_tag}>")
        return ids[0] if len(ids) == 1 else None

    def reply_ids(self, action: str, think: str | None = None) -> list[int]:
        """Ids of a well-formed reply (after the prefill): what a model that plays ``action`` would sample.

        Raises:
            ConfigError: if no well-formed reply begins with the prefill.
        """
        known = self._reply_cache.get((action, think))
        if known is None:
            if len(self._reply_cache) >= MAX_REPLIES_CACHED:
                self._reply_cache.clear()
            known = self._reply_cache[action, think] = self._write_reply(action, think)
        return list(known)

    def choice_ids(self, action: str) -> tuple[int, ...] | None:
        """Ids of the reply that plays ``action``, or ``None`` if no reply of this tokenizer does: what it cannot spell
        would be read as another action, or end the reply."""
        if action not in self._choice_cache:
            if len(self._choice_cache) >= MAX_REPLIES_CACHED:
                self._choice_cache.clear()
            self._choice_cache[action] = self._write_choice(action)
        return self._choice_cache[action]

    def _write_choice(self, action: str) -> tuple[int, ...] | None:
        text = self._reply_text(action, None)
        if text is not None:
            ids = self._closed(text)
            if self.parser.parse(self.read(ids)).action == action.strip() and not set(self.stop_token_ids).intersection(
                ids[:-1]
            ):
                return tuple(ids)
        if not self._warned_of_choices:
            self._warned_of_choices = True
            message = (
                "The tokenizer of %s cannot spell the action %r: it is no choice where only legal moves are, nor are "
                "others like it."
            )
            logger.warning(message, self.options.model, action)
        return None

    def _write_reply(self, action: str, think: str | None) -> list[int]:
        text = self._reply_text(action, think)
        if text is None:
            if not self.options.reply_prefill:
                raise ConfigError(
                    "config.language_model.answer_tag",
                    f"{action!r} cannot be said between answer tags; name another tag",
                )
            message = (
                f"a reply that begins with {self.options.reply_prefill!r} cannot say {action!r} between answer tags"
            )
            raise ConfigError("config.language_model.reply_prefill", message)
        return self._closed(text)

    def _reply_text(self, action: str, think: str | None) -> str | None:
        """The text after the prefix of a reply that is read as ``action``, if there is one."""
        text = self._rest_of_reply(action, think)
        return text if self.parser.parse(self.reply_prefix + text).action == action.strip() else None

    def _closed(self, text: str) -> list[int]:
        """Ids of a reply's text and of what ends it."""
        if self.closing_id is None:
            return [*self.encode(text), self.end_id]
        return [*self.encode(text.removesuffix(self.parser.answer_closing)), self.closing_id]

    @cached_property
    def shortest_reply(self) -> int:
        """Tokens of a well-formed reply around an action of one token."""
        return len(self._closed(self._rest_of_reply("", None))) + 1

    def _rest_of_reply(self, action: str, think: str | None) -> str:
        """The reply's text after its prefix."""
        parser, prefix = self.parser, self.reply_prefix
        answer = f"{parser.answer_opening}{action}{parser.answer_closing}"
        reasoning = (
            f"{parser.think_opening}{think or ''}{parser.think_closing}"
            if think is not None or self.options.think == "required"
            else ""
        )
        for whole in (reasoning + answer, answer):
            if whole.startswith(prefix):
                return whole.removeprefix(prefix)
        if prefix.lstrip().startswith(parser.think_opening) and parser.think_end(prefix) is None:
            return f"{think or ''}{parser.think_closing}{answer}"
        return answer

    @cached_property
    def end_id(self) -> int:
        """Token that ends an assistant message: the first control token the template puts after a reply, else EOS."""
        for token in self._turn_end:
            if token in self.special_ids:
                return token
        if self.tokenizer.eos_token_id is None:
            raise ConfigError("config.language_model.tokenizer", "the tokenizer has no end-of-sequence token")
        return int(self.tokenizer.eos_token_id)

    # -- prompts ------------------------------------------------------------------------------------------------

    def user_ids(self, observation: Observation, note: str | None = None) -> list[int]:
        """Ids of the user message that shows ``observation``; ``note`` says why the last reply could not be read.
        Nothing that the game says is structure in it.
        """
        return self.guard.encode_message(*message_parts(self.options, observation, note))

    def opening_ids(self, system: str, user: list[int], *, reasoning: bool = True) -> list[int]:
        """A conversation up to its first reply; without ``reasoning`` up to a reply whose reasoning was cut off."""
        return [*self._system_ids(system), *user, *(self._generation if reasoning else self._bare_generation)[0]]

    def continuation_ids(self, last_reply: Any, user: list[int], *, reasoning: bool = True) -> list[int]:
        """From the end of a reply to the start of the next one: closes the message, shows ``user``,
        opens the next reply.
        """
        closed = len(last_reply) > 0 and int(last_reply[-1]) == self.end_id
        closing = self._after_end if closed else self._turn_end
        return [*closing, *user, *(self._generation if reasoning else self._bare_generation)[1]]

    @cached_property
    def _generation(self) -> tuple[list[int], list[int]]:
        """What opens the first and every later reply."""
        return [*self._tail, *self.prefill_ids], [*self._turn_tail, *self.prefill_ids]

    @cached_property
    def _bare_generation(self) -> tuple[list[int], list[int]]:
        """The same where the reply's reasoning, which the template or the prefill may have opened, was cut off."""
        if self.parser.think_opening not in self.reply_prefix:
            return self._generation
        opened = len(self._opened_reasoning(self._pieces.tail))
        texts = (text[: len(text) - opened] for text in (self._pieces.tail, self._pieces.turn_tail))
        first, later = (self.encode_structure(text) for text in texts)
        return first, later

    def _opened_reasoning(self, tail: str) -> str:
        """The end of the template's text from an opening reasoning tag on, if it leaves the reasoning open."""
        opening = self.parser.think_opening
        _, found, rest = tail.rpartition(opening)
        return opening + rest if found and self.parser.think_closing not in rest else ""

    def _system_ids(self, system: str) -> list[int]:
        if system not in self._system_cache:
            encode = self.guard.encode_game if self.options.system_prompt is None else self.encode
            if not system:
                self._system_cache[system] = self._bare_head
            elif self._middle is None:
                self._system_cache[system] = [*self._head, *encode(system + "\n\n")]
            else:
                self._system_cache[system] = [*self._head, *encode(system), *self._middle]
        return self._system_cache[system]

    # -- template -----------------------------------------------------------------------------------------------

    def _find_template(self) -> str:
        template = self.options.chat_template
        if template:
            path = expanded(template)
            if len(template) < 1024 and path.suffix in (".jinja", ".j2", ".txt"):
                try:
                    return path.read_text(encoding="utf-8-sig")
                except FileNotFoundError:
                    reason = f"no such file: {template}"
                except (OSError, ValueError) as error:
                    reason = f"{template} cannot be read: {first_line(error)}"
                raise ConfigError("config.language_model.chat_template", reason)
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

    def _split_template(self) -> TemplatePieces:
        user = {"role": "user", "content": _USER}
        try:
            bare_head, tail = _split(self._render([user]), _USER)
            head, middle = self._system_pieces(bare_head)
            turn = self._render([user, {"role": "assistant", "content": _REPLY}, {"role": "user", "content": _NEXT}])
            turn_end, turn_tail = _split(_split(turn, _REPLY)[1], _NEXT)
        except _TemplateError as error:
            raise ConfigError(
                "config.language_model.chat_template", f"the chat template cannot be used: {error}"
            ) from error
        return TemplatePieces(bare_head, head, middle, tail, turn_end, turn_tail)

    def _system_pieces(self, bare_head: str) -> tuple[str, str | None]:
        """Template text before and after the system prompt; a template without system role gets it
        inside the user message.
        """
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
        if len(self._users) != len(self._replies):
            raise RuntimeError("a prompt must be answered before the next one is made")
        chat, options = self.chat, self.chat.options
        first = not self._users
        self._users.append(chat.user_ids(observation, note))
        if options.history == "window" or first:
            ids = self._window(options.history_window)
            new_row, delta = True, ids
        elif options.history == "strip_think" and self._without_think(self._replies[-1]) is not None:
            ids = self._window(len(self._users), strip=True)
            new_row, delta = True, ids
        else:
            delta = chat.continuation_ids(self._replies[-1], self._users[-1])
            ids, new_row = [*self._context, *delta], False
        self._context = ids
        return Prompt(ids, np.asarray(delta, np.int32), new_row, *self._reply_room(options.context_length - len(ids)))

    def _reply_room(self, room: int) -> tuple[int, bool]:
        """Tokens a reply may have where the context has ``room`` for them, 0 if none is to be sampled; and whether it
        is the context that says so.
        """
        options = self.chat.options
        if room < options.least_room:
            return 0, True
        if options.max_tokens_per_episode is None:
            return min(room, options.max_tokens_per_turn), room <= options.max_tokens_per_turn
        left = options.max_tokens_per_episode - self._tokens_written
        budget = min(left, options.max_tokens_per_turn) if left >= self.chat.shortest_reply else 0
        return min(room, budget), room <= budget

    def reply(self, response_ids: np.ndarray) -> ParsedReply:
        """Take in what was sampled; returns it parsed."""
        self._replies.append(response_ids)
        self._tokens_written += len(response_ids)
        self._context = [*self._context, *response_ids.tolist()]
        return self.chat.parser.parse(self.chat.read(response_ids))

    def _window(self, turns: int, strip: bool = False) -> list[int]:
        """The prompt that shows the last ``turns`` observations and the replies between them."""
        chat = self.chat
        start = max(0, len(self._users) - turns)
        ids: list[int] = []
        closing: list[int] = []
        for turn in range(start, len(self._users)):
            answered = turn + 1 < len(self._users)
            stripped = self._without_think(self._replies[turn]) if strip and answered else None
            shown = stripped is None
            if turn == start:
                ids = chat.opening_ids(self.system, self._users[turn], reasoning=shown)
            else:
                ids += chat.continuation_ids(closing, self._users[turn], reasoning=shown)
            if answered:
                closing = self._replies[turn].tolist() if stripped is None else stripped
                ids += closing
        return ids

    def _without_think(self, reply: np.ndarray) -> list[int] | None:
        """The reply without its reasoning, or ``None`` if it has none.

        It is cut behind the token in which the closing tag ends; what else that token spells is written out. These ids
        are only ever part of a prompt.
        """
        chat = self.chat
        if chat.parser.think_end(chat.read(reply)) is None:
            return None
        low, high = 0, len(reply)
        while low < high:
            middle = (low + high) // 2
            if chat.parser.think_end(chat.read(reply[:middle])) is not None:
                high = middle
            else:
                low = middle + 1
        text = chat.read(reply[:low])
        return [*chat.encode(text[chat.parser.think_end(text) :]), *reply[low:].tolist()]
