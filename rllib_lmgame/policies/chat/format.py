"""Chat format: from observations to token ids, and back from sampled ids to text, without re-tokenising a reply.

The tokenizer's chat template is rendered once with placeholders where texts go. Template text is encoded with special
tokens, message text without any structure (:mod:`.special_token_sanitizer`); replies are the sampled ids.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.storage import expanded
from rllib_lmgame.base.text import first_line
from rllib_lmgame.envs.contract.functions import GameFunction
from rllib_lmgame.envs.contract.session import Observation
from rllib_lmgame.policies.chat.reply_formats import (
    PAIR,
    ParsedReply,
    Whole,
    answer_of,
    message_parts,
    reply_format,
    system_parts,
)
from rllib_lmgame.policies.chat.special_token_sanitizer import (
    Part,
    Source,
    SpecialTokenSanitizer,
    as_encoded,
    ids_of,
    text_of,
)
from rllib_lmgame.policies.chat.template import (
    PLAIN_CHAT_TEMPLATE,
    REASONING_MARKS,
    Job,
    Messages,
    Rendered,
    TemplateError,
    TemplatePieces,
    cut,
)
from rllib_lmgame.policies.chat.tool_calls import CallForm, form_of_calls
from rllib_lmgame.policies.demonstrations import Demonstration
from rllib_lmgame.policies.options import AGREED, LanguageModelOptions

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

MAX_REPLIES_CACHED = 4096

PLAIN: dict[str, Any] = {
    "system_prompt": None,
    "reply_format": Whole(),
    "format_instructions": False,
    "turn_suffix": "",
    "reply_prefill": "",
    "demonstrations": 0,
    "history": "full",
    "min_tokens_per_turn": 1,
}
"""Options of ``language_model`` for plain talk: nothing stands around what is written."""

T = TypeVar("T")

Message = tuple[Part, ...]
"""A user message: what the game says between lines of our own."""

Example = tuple[Message, str]
"""A turn shown before the game's own: the user message, and the text of the reply."""


@dataclass(frozen=True)
class Prompt:
    """What the model is shown before one reply.

    Attributes:
        ids: The whole prompt.
        delta: int32; what was added since the last reply of the same row, or all if ``new_row`` (it continues none).
        max_tokens: Reply tokens that context and budgets leave; 0: no reply is to be sampled.
        out_of_context: The context length, not a token budget, leaves no more.
        observed: bool, over ``delta``: what the game has said since the last reply; ``None``: nobody asked.
    """

    ids: list[int]
    delta: np.ndarray
    new_row: bool
    max_tokens: int
    out_of_context: bool = False
    observed: np.ndarray | None = None

    def fitted(self, tokens: int) -> Prompt:
        """The prompt's first ``tokens`` tokens."""
        beyond = max(0, len(self.ids) - tokens)
        left = max(0, len(self.delta) - beyond)
        observed = None if self.observed is None else self.observed[:left]
        return replace(self, ids=self.ids[: len(self.ids) - beyond], delta=self.delta[:left], observed=observed)


class ChatFormat:
    """Token-exact chat for one tokenizer; immutable, shared. Raises: ConfigError: the chat template cannot be used."""

    tells_observed: bool = False
    """Prompts and transcripts tell which of their tokens are the game's text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, options: LanguageModelOptions) -> None:
        self.tokenizer = tokenizer
        self.options = options
        self.reply_format = form = reply_format(options)
        self.template = self._find_template()
        self._turn_cache: dict[tuple[Any, ...], list[int]] = {}
        self._reply_cache: dict[tuple[Any, ...], list[int]] = {}
        self._choice_cache: dict[tuple[Any, ...], tuple[int, ...] | None] = {}
        self._of_games: dict[tuple[Any, ...], ChatFormat] = {}
        self._texts_alone: dict[int, str] = {}
        self.structures: dict[Any, list[str]] = {}  # Of conversations that programs write.
        self._warned_of_choices = False
        self.pieces = pieces = self._cut_template()
        replies = (pieces.inside, pieces.called, pieces.turn_end)
        self.sanitizer = SpecialTokenSanitizer(
            tokenizer, pieces.heads, pieces.between, form.tags, options.think_tag, pieces.lead, form.marks, replies
        )
        self._check_reasoning()
        self.end_id = self._find_end()
        self.prefill_ids = self.sanitizer.encode([Part(Source.OWN, options.reply_prefill)], after=pieces.tail)
        self.reply_prefix = self._opened_reasoning(pieces.tail) + options.reply_prefill
        self._warn_of_reasoning()

    def for_game(self, functions: Sequence[GameFunction]) -> ChatFormat:
        """The same for a game that lists ``functions``."""
        return _remembered(self._of_games, self._for_functions, tuple(functions)) if functions else self

    def _for_functions(self, functions: tuple[GameFunction, ...]) -> ChatFormat:
        form = self.reply_format.for_game(functions)
        if form is self.reply_format:
            return self
        other = copy.copy(self)
        other.reply_format = form
        other._reply_cache, other._choice_cache, other._of_games = {}, {}, {}
        other.__dict__.pop("shortest_reply", None)
        return other

    def for_program(self) -> ChatFormat:
        """The same for programs that write all messages themselves, and read whole replies."""
        return _remembered(self._of_games, self._for_program)

    def _for_program(self) -> ChatFormat:
        other = copy.copy(self)
        other.options = self.options.model_copy(update=PLAIN)
        other.reply_format = reply_format(other.options)
        other._reply_cache, other._choice_cache, other._of_games, other.structures = {}, {}, {}, {}
        other.prefill_ids, other.reply_prefix = [], self._opened_reasoning(self.pieces.tail)
        for name in ("stop_token_ids", "closing_ids", "stop_strings", "shortest_reply"):
            other.__dict__.pop(name, None)
        return other

    def with_options(self, **changes: Any) -> ChatFormat:
        """The same with other limits of a reply (``max_tokens_per_turn``, ``max_tokens_per_episode``)."""
        other = copy.copy(self)
        other.options, other._of_games = self.options.model_copy(update=changes), {}
        return other

    def encode(self, text: str) -> list[int]:
        """Ids of text of our own within a larger one: never a control token."""
        return self.sanitizer.encode_own(text)

    def decode(self, ids: Any) -> str:
        """Text of sampled ids without closing special tokens; bytes that are no UTF-8 become replacement characters."""
        ids = ids.tolist() if isinstance(ids, np.ndarray) else [int(i) for i in ids]
        while ids and ids[-1] in self.special_ids:
            ids.pop()
        return text_of(self.tokenizer, ids)

    def lengths(self, ids: Sequence[int]) -> list[int]:
        """Characters that each of ``ids`` adds to the text of all, as :meth:`decode` gives it; 0 for those left out.

        A character that several ids write together counts for the last of them.
        """
        text = self.decode(ids)
        for each in {int(each) for each in ids} - self._texts_alone.keys():
            self._texts_alone[each] = text_of(self.tokenizer, [each])
        alone = [self._texts_alone[int(each)] for each in ids]
        kept = len(ids)
        while kept and int(ids[kept - 1]) in self.special_ids:
            kept -= 1
        if "".join(alone[:kept]) == text:
            return [len(each) for each in alone[:kept]] + [0] * (len(ids) - kept)
        found, start, end = [], 0, 0  # Ids from ``start`` on give the context of those from ``end`` on.
        for place in range(kept):
            before = text_of(self.tokenizer, [int(each) for each in ids[start:end]])
            now = text_of(self.tokenizer, [int(each) for each in ids[start : place + 1]])
            whole = len(now) > len(before) and not now.endswith("\ufffd")
            whole = whole or place - end >= 3  # No character has more bytes: these are no UTF-8.
            found.append(max(0, len(now) - len(before)) if whole else 0)
            if whole:
                start, end = end, place + 1
        if found:
            found[-1] += len(text) - sum(found)
        return found + [0] * (len(ids) - kept)

    def read(self, ids: Any) -> str:
        """Text of a whole reply: what the prompt made it begin with, and the sampled ids."""
        return self.reply_prefix + self.decode(ids)

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of control tokens that end a reply; tags and marks within replies do not, even as special tokens."""
        return self.sanitizer.vocabulary.ending

    @cached_property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Ids that end a reply: control tokens, and the format's stops that are one token."""
        return tuple(sorted({*self.special_ids, *self.closing_ids.values()}))

    @cached_property
    def closing_ids(self) -> dict[str, int]:
        """The reply format's stops that are one token, with their ids, if replies end there.

        Of a model that reasons there are none: a stop within the reasoning ends nothing, so they go by their text.
        """
        reasons = self.options.think != "off" or self.reply_format.think_opening in self.template
        stops = self.reply_format.stops if self.options.stop_on_answer and not reasons else ()
        return {stop: ids[0] for stop in stops if len(ids := self.encode(stop)) == 1}

    @cached_property
    def stop_strings(self) -> tuple[str, ...]:
        """The format's other stops, if replies end there."""
        stops = self.reply_format.stops if self.options.stop_on_answer else ()
        return tuple(stop for stop in stops if stop not in self.closing_ids)

    @property
    def ends(self) -> dict[str, Any]:
        """What ends a reply, as fields of a ``SamplingSpec``."""
        reasoning = (self.reply_format.think_opening, self.reply_format.think_closing, self.reply_prefix)
        return {"stop_token_ids": self.stop_token_ids, "stop_strings": self.stop_strings, "reasoning": reasoning}

    def ended(self, ids: Any) -> bool:
        """A reply of these ids is over by its text: one of ``stop_strings`` stands behind its reasoning."""
        answer = answer_of(self.decode(ids), *self.ends["reasoning"])
        return any(stop in answer for stop in self.stop_strings)

    def reply_ids(self, action: str, think: str | None = None) -> list[int]:
        """Ids of a reply that plays ``action``, after the prefill. Raises: ConfigError: none begins with it."""
        return _remembered(self._reply_cache, lambda *said: self._closed(self._said(*said)), action, think).copy()

    def choice_ids(self, action: str) -> tuple[int, ...] | None:
        """Ids of the reply that plays ``action``; ``None`` if it would be read as another action, or end early."""
        return _remembered(self._choice_cache, self._write_choice, action)

    def _write_choice(self, action: str) -> tuple[int, ...] | None:
        text = self._reply_text(action, None)
        if text is not None:
            ids = self._closed(text)
            read = self.reply_format.parse(self.read(ids)).action
            early = not set(self.stop_token_ids).isdisjoint(ids[:-1]) or self.ended(ids[:-1])
            if read == action.strip() and not early:
                return tuple(ids)
        if not self._warned_of_choices:
            self._warned_of_choices = True
            logger.warning("%s cannot spell %r, which is no choice then", self.options.model, action)
        return None

    def _said(self, action: str, think: str | None) -> str:
        """As :meth:`_reply_text`. Raises: ConfigError: there is none."""
        if (text := self._reply_text(action, think)) is not None:
            return text
        name, prefill = self.options.reply_format.type, self.options.reply_prefill
        key = "reply_prefill" if prefill else "answer_tag" if name == "tags" else "reply_format"
        begins = f" that begins with {prefill!r}" if prefill else ""
        said = f"{action!r} cannot be said as `{name}`{begins}; choose another"
        raise ConfigError(f"config.language_model.{key}", said)

    def _reply_text(self, action: str, think: str | None) -> str | None:
        """Text, after the prefix, of a reply that is read as ``action``, if there is one."""
        text = self._rest_of_reply(action, think)
        return text if self.reply_format.parse(self.reply_prefix + text).action == action.strip() else None

    def _closed(self, text: str) -> list[int]:
        """Ids of a reply's text and of what ends it, as they stand behind the prompt."""
        given = self.pieces.tail + self.options.reply_prefill
        for stop, closing in self.closing_ids.items():
            if text.endswith(stop):
                return [*self.sanitizer.encode([Part(Source.OWN, text.removesuffix(stop))], after=given), closing]
        if self.stop_strings and text.endswith(self.stop_strings):
            return self.sanitizer.encode([Part(Source.OWN, text)], after=given)
        before, ended, _ = self.pieces.turn_end.partition(self.tokenizer.convert_ids_to_tokens(self.end_id))
        return [*self.sanitizer.encode([Part(Source.OWN, text + before if ended else text)], after=given), self.end_id]

    @cached_property
    def shortest_reply(self) -> int:
        """Tokens of a well-formed reply around an action of one token."""
        return len(self._closed(self._rest_of_reply("", None))) + 1

    def reply_room(self, prompt: int, written: int, shortest: int) -> tuple[int, bool]:
        """Tokens of a reply behind a prompt of so many, 0 for none; and whether it is the context that says so.

        ``written``: those of earlier replies; ``shortest``: those that a reply has at least.
        """
        options = self.options
        room, budget = options.context_length - prompt, options.max_tokens_per_turn
        if room < options.least_room:
            return 0, True
        if options.max_tokens_per_episode is not None:
            left = options.max_tokens_per_episode - written
            budget = min(left, budget) if left >= shortest else 0
        return min(room, budget), room <= budget

    def _rest_of_reply(self, action: str, think: str | None) -> str:
        """The reply's text after its prefix, written as the template writes replies."""
        form, prefix, lead = self.reply_format, self.reply_prefix, self.pieces.lead
        thought = think or "" if think is not None or self.options.think == "required" else None
        reasoning, answer = form.parts(action, thought)
        mark = "" if lead.isspace() or form.think_closing.endswith(lead) else lead  # Of what follows the reasoning.
        plain = (reasoning + mark + answer if reasoning else lead + answer, reasoning + answer, answer)
        for whole in (lead + reasoning + answer, *plain) if lead.isspace() else plain:
            if whole.startswith(prefix):
                return whole.removeprefix(prefix)
        if prefix.lstrip().startswith(form.think_opening) and form.think_end(prefix) is None:
            return f"{think or ''}{form.think_closing}{mark}{form.say(action, None)}"
        return answer

    def _find_end(self) -> int:
        """What ends an assistant message: the first control token the template puts after a reply, else EOS."""
        for token in self.sanitizer.encode([Part(Source.TEMPLATE, self.pieces.turn_end)], after=""):
            if token in self.special_ids:
                return token
        if self.tokenizer.eos_token_id is None:
            raise ConfigError("config.language_model.tokenizer", "the tokenizer has no end-of-sequence token")
        return int(self.tokenizer.eos_token_id)

    def message(self, observation: Observation, note: str | None = None) -> Message:
        """The user message that shows ``observation``; ``note`` says why the last reply could not be read."""
        before, text, after = message_parts(self.options, self.reply_format, observation, note)
        return (Part(Source.OWN, before), Part(Source.GAME, text), Part(Source.OWN, after))

    def system(self, rules: str, turns: int | None) -> Message:
        """The system message of a game with these rules and so many turns; empty if there is none."""
        parts = system_parts(self.options, rules, turns)
        return tuple(Part(Source.GAME if of_game else Source.OWN, text) for text, of_game in parts if text)

    def opening_ids(
        self, system: Message, user: Message, *, reasoning: bool = True, examples: Sequence[Example] = ()
    ) -> list[int]:
        """A conversation up to its first reply, behind ``examples`` of turns.

        Without ``reasoning`` it goes up to an earlier reply, which is shown without its own.
        """
        pieces = self.pieces
        messages = [*(message for message, _ in examples), user]
        parts = list(self._first_message(system, messages[0]))
        for (_, reply), message in zip(examples, messages[1:], strict=True):
            shown = (Part(Source.TEMPLATE, pieces.opener), Part(Source.OWN, reply))
            parts += (*shown, *self._next_message(message))
        tail = (pieces.turn_tail if examples else pieces.tail) if reasoning else pieces.opener
        ids = self.sanitizer.encode([*parts, Part(Source.TEMPLATE, tail)])
        return [*ids, *(self.prefill_ids if reasoning else [])]

    def _first_message(self, system: Message, user: Message) -> tuple[Part, ...]:
        pieces = self.pieces
        if not system:
            return (Part(Source.TEMPLATE, pieces.bare_head), *_trimmed(user, pieces.trims_user))
        head = Part(Source.TEMPLATE, pieces.head)
        if pieces.middle is None:
            return (head, *_trimmed((*system, Part(Source.OWN, "\n\n"), *user), pieces.trims_first))
        middle = Part(Source.TEMPLATE, pieces.middle)
        return (head, *_trimmed(system, pieces.trims_system), middle, *_trimmed(user, pieces.trims_first))

    def example(self, turn: Demonstration) -> Example:
        """A demonstration as the template writes an earlier turn. Raises: ConfigError: no reply says its action."""
        think = turn.think if self.options.think != "off" else None
        whole, lead = self.reply_prefix + self._said(turn.action, think), self.pieces.lead
        message = self.message(Observation(turn.observation, turns_left=turn.turns_left))
        return message, whole if whole.startswith(lead) else lead + whole

    def continuation_ids(self, last_reply: Any, user: Message, *, reasoning: bool = True) -> list[int]:
        """From the end of a reply to the start of the next one: closes the message, shows ``user``."""
        return self.behind(last_reply, _remembered(self._turn_cache, self._turn_ids, user, reasoning))

    def behind(self, reply: Any, ids: list[int]) -> list[int]:
        """``ids`` that begin with the end of a message, without that if the reply has written it itself."""
        closed = len(reply) > 0 and int(reply[-1]) == self.end_id and self._ends_by_template
        return ids[ids.index(self.end_id) + 1 :] if closed and self.end_id in ids else list(ids)

    def game_text(self, user: Message) -> np.ndarray:
        """Which of the ids from the end of a reply to the start of the next one hold the game's text in ``user``, bool.

        A token that the text begins or ends in does.
        """
        ids = _remembered(self._turn_cache, self._turn_ids, user, True)
        parts = as_encoded([*self._next_message(user), Part(Source.TEMPLATE, self.pieces.turn_tail)])
        game = [part.source is Source.GAME for part in parts]
        sizes = self.sanitizer.sizes_apart(parts, after="")
        if sizes is not None:
            found = np.repeat(game, sizes)
            return np.concatenate([found, np.zeros(len(ids) - len(found), bool)])
        ends = np.cumsum([len(part.text) for part in parts]).tolist()
        spans = [(end - len(part.text), end) for end, part, own in zip(ends, parts, game, strict=True) if own]
        return self.holding(ids, "".join(part.text for part in parts), spans)

    def holding(self, ids: Sequence[int], text: str, spans: Sequence[tuple[int, int]]) -> np.ndarray:
        """Which of ``ids``, which ``text`` begins, hold characters of these ``spans`` of it, bool."""
        widths = np.array(self.lengths(ids), np.int64)
        ends = np.cumsum(widths)
        begins, found = ends - widths, np.zeros(len(ids), bool)
        exact = text.startswith(self.decode(ids))
        for a, b in spans:
            if not exact:  # A tokenizer that rewrites texts.
                before = (self.sanitizer.encode_rendered(text[:end], after="") for end in (a, b))
                a, b = (len(text_of(self.tokenizer, some)) for some in before)
            found |= (begins < b) & ((ends > a) | ((widths == 0) & (begins >= a)))
        return found

    def _turn_ids(self, user: Message, reasoning: bool) -> list[int]:
        tail = Part(Source.TEMPLATE, self.pieces.turn_tail if reasoning else self.pieces.opener)
        ids = self.sanitizer.encode([*self._next_message(user), tail], after="")
        return [*ids, *(self.prefill_ids if reasoning else [])]

    def _next_message(self, user: Message) -> tuple[Part, ...]:
        """From the end of a reply to that of the user message behind it."""
        return (Part(Source.TEMPLATE, self.pieces.turn_end), *_trimmed(user, self.pieces.trims_user))

    @cached_property
    def _ends_by_template(self) -> bool:
        """The template writes the token that ends a reply."""
        return self.end_id in self.sanitizer.encode([Part(Source.TEMPLATE, self.pieces.turn_end)], after="")

    @cached_property
    def call_form(self) -> CallForm:
        return form_of_calls(self.rendered, self.reply_format.think_closing)

    @cached_property
    def empties_reasoning(self) -> bool:
        """Every reply begins with a closed reasoning, which the template leaves out of earlier replies."""
        _, opened, rest = self.pieces.turn_tail.rpartition(self.reply_format.think_opening)
        closed = bool(opened) and self.reply_format.think_closing in rest
        return closed and opened not in self.pieces.opener + self.pieces.lead

    def _opened_reasoning(self, tail: str) -> str:
        """The template's text from an opening reasoning tag on, if it leaves the reasoning open."""
        opening = self.reply_format.think_opening
        _, found, rest = tail.rpartition(opening)
        return opening + rest if found and self.reply_format.think_closing not in rest else ""

    def _find_template(self) -> str:
        template = self.options.chat_template
        if template:
            path = expanded(template)
            if len(template) >= 1024 or path.suffix not in (".jinja", ".j2", ".txt"):
                return template
            try:
                return path.read_text(encoding="utf-8-sig")
            except (OSError, ValueError) as error:
                message = f"{template} cannot be read: {first_line(error)}"
                raise ConfigError("config.language_model.chat_template", message) from None
        own = self.tokenizer.chat_template
        if isinstance(own, dict):
            own = own.get("default")
        if own:
            return str(own)
        logger.warning("The tokenizer of %s has no chat template; a plain default is used.", self.options.model)
        begins = self.tokenizer("a").input_ids[:1] == [self.tokenizer.bos_token_id]  # Models made so need it.
        return "{{ bos_token }}" * begins + PLAIN_CHAT_TEMPLATE

    def _cut_template(self) -> TemplatePieces:
        try:
            return cut(self.rendered, (self.reply_format.think_opening, self.reply_format.think_closing))
        except TemplateError as error:
            message = f"the chat template cannot be used: {first_line(error)}"
            raise ConfigError("config.language_model.chat_template", message) from error

    def rendered(self, jobs: Sequence[Job]) -> list[Rendered]:
        """Render conversations with the template; each result has a text or an error."""
        return [self._render(messages, own) for messages, own in jobs]

    def _render(self, messages: Messages, own: Mapping[str, Any]) -> Rendered:
        arguments = {"add_generation_prompt": True, **self.options.chat_template_kwargs, **own}
        arguments |= {"chat_template": self.template, "tokenize": False}
        try:
            text = self.tokenizer.apply_chat_template([*messages], **arguments)
        except Exception as error:  # A template is a program of others.
            return Rendered("", first_line(error) or type(error).__name__)
        return Rendered(str(text))

    def _check_reasoning(self) -> None:
        """Raise if the model's reasoning marks would end its replies or would not be recognized."""
        opening, written = self.reply_format.think_opening, self.pieces.reasoning
        marks = dict(REASONING_MARKS)
        if written and not self.sanitizer.vocabulary.control.isdisjoint(ids_of(self.tokenizer, written[0])):
            marks[written[0]] = PAIR.join(written)
        for mark, tag in marks.items():
            known = opening.startswith(mark) or opening in self.sanitizer.vocabulary.tags
            wanted = self.options.think != "off" or mark in self.pieces.lead
            shown = mark in self.template and mark in self.tokenizer.get_vocab()
            if wanted and not known and (shown or (written and mark == written[0])):
                message = f"{self.options.model} has control tokens for its reasoning; set think_tag: {tag!r}"
                raise ConfigError("config.language_model.think_tag", message)

    def _warn_of_reasoning(self) -> None:
        if self.options.think == "off" and self.reply_prefix.startswith(self.reply_format.think_opening):
            cure = "set `think: optional`, or `chat_template_kwargs: {enable_thinking: false}` if the template has that"
            name = self.options.model
            logger.warning("The chat template of %s opens a reasoning, and `think` is off; %s.", name, cure)


@dataclass
class Conversation:
    """One player's conversation in an episode: builds prompts, keeps replies as ids.

    The game's rules, ``instructions``, are the system prompt unless the options set another, or begin with a user
    message that has them and an answer to it. Demonstrations for this ``role`` of this ``game`` stand in front,
    whatever else of the history is shown.
    """

    chat: ChatFormat
    instructions: str = ""
    game: str = ""
    role: str = ""
    _users: list[Message] = field(default_factory=list)
    _replies: list[np.ndarray] = field(default_factory=list)
    _context: list[int] = field(default_factory=list)
    _tokens_written: int = 0
    _system: Message = ()

    def __post_init__(self) -> None:
        self.demonstrations = self.chat.options.shown(self.game, self.role)
        self._examples = [*map(self.chat.example, self.demonstrations)]

    def prompt(self, observation: Observation, note: str | None = None) -> Prompt:
        """Show ``observation``; call :meth:`reply` next. ``note``: why the last reply could not be read."""
        if len(self._users) != len(self._replies):
            raise RuntimeError("a prompt must be answered before the next one is made")
        chat, options = self.chat, self.chat.options
        first = not self._users
        if first:
            told = chat.system(self.instructions, observation.turns_left)
            if options.conversation_start != "user":
                self._system = told
            elif told:  # In a first turn before the examples.
                self._examples = [(told, chat.pieces.lead + AGREED), *self._examples]
        self._users.append(chat.message(observation, note))
        windowed = options.history == "window" or first
        strips = options.history == "strip_think"  # Then the prompt may not begin with the last one and its reply.
        new_row = windowed or (strips and self._without_think(self._replies[-1]) is not None)
        if windowed:
            delta = ids = self._window(options.history_window)
        elif new_row:
            delta = ids = self._window(len(self._users), strip=strips)
        else:
            delta = chat.continuation_ids(self._replies[-1], self._users[-1])
            ids = [*self._context, *delta]
        self._context = ids
        observed = self._observed(len(delta), windowed) if chat.tells_observed else None
        shortest = 1 if options.max_tokens_per_episode is None else chat.shortest_reply
        room = chat.reply_room(len(ids), self._tokens_written, shortest)
        return Prompt(ids, np.asarray(delta, np.int32), new_row, *room, observed)

    def _observed(self, size: int, windowed: bool) -> np.ndarray:
        """What the last message shows of the game behind a reply, bool over the last ``size`` ids of the prompt."""
        observed = np.zeros(size, bool)
        if len(self._users) > 1 and not (windowed and self.chat.options.history_window < 2):
            found = self.chat.game_text(self._users[-1])
            own = min(size, len(found))
            observed[size - own :] = found[len(found) - own :]
        return observed

    def reply(self, response_ids: np.ndarray) -> ParsedReply:
        self._replies.append(response_ids)
        self._tokens_written += len(response_ids)
        self._context = [*self._context, *response_ids.tolist()]
        return self.chat.reply_format.parse(self.chat.read(response_ids))

    def _window(self, turns: int, strip: bool = False) -> list[int]:
        """The prompt that shows the last ``turns`` observations and the replies between them."""
        chat, last = self.chat, len(self._users) - 1
        start = max(0, last + 1 - turns)
        ids: list[int] = []
        closing: list[int] = []
        for turn in range(start, last + 1):
            stripped = self._without_think(self._replies[turn]) if strip and turn < last else None
            user, reasoning = self._users[turn], stripped is None
            if turn == start:
                ids = chat.opening_ids(self._system, user, reasoning=reasoning, examples=self._examples)
            else:
                ids += chat.continuation_ids(closing, user, reasoning=reasoning)
            if turn < last:
                closing = self._replies[turn].tolist() if stripped is None else stripped
                ids += closing
        return ids

    def _without_think(self, reply: np.ndarray) -> list[int] | None:
        """The reply without its reasoning, as the template shows earlier ones; ``None`` if it has none.

        It is cut behind the token that ends the reasoning; what else that token spells is written out.
        """
        chat = self.chat
        if chat.reply_format.think_end(chat.read(reply)) is None:
            return reply.tolist() if chat.empties_reasoning else None
        low, high = 0, len(reply)
        while low < high:
            middle = (low + high) // 2
            if self._after_think(reply[:middle]) is not None:
                high = middle
            else:
                low = middle + 1
        lead = chat.pieces.lead
        written = "" if (self._after_think(reply) or "").startswith(lead) else lead
        begun = Part(Source.OWN, written + (self._after_think(reply[:low]) or ""))
        return [*chat.sanitizer.encode([begun], after=chat.pieces.opener), *reply[low:].tolist()]

    def _after_think(self, reply: np.ndarray) -> str | None:
        """The text behind the reasoning; ``None`` if there is none so far."""
        chat = self.chat
        text = chat.read(reply)
        end = chat.reply_format.think_end(text)
        if end is None:
            return None
        return (text[end:].lstrip("\n") or None) if chat.pieces.trims_reasoning else text[end:]


def _remembered(cache: dict[tuple[Any, ...], T], make: Callable[..., T], *key: Any) -> T:
    if key not in cache:
        if len(cache) >= MAX_REPLIES_CACHED:
            cache.clear()
        cache[key] = make(*key)
    return cache[key]


def _trimmed(parts: Sequence[Part], trims: tuple[bool, bool]) -> tuple[Part, ...]:
    """A message's parts without the blanks that the template leaves out at its ends."""
    parts = [part for part in parts if part.text]
    while trims[0] and parts and (text := parts[0].text.lstrip()) != parts[0].text:
        parts = [Part(parts[0].source, text), *parts[1:]] if text else parts[1:]
    while trims[1] and parts and (text := parts[-1].text.rstrip()) != parts[-1].text:
        parts = [*parts[:-1], Part(parts[-1].source, text)] if text else parts[:-1]
    return tuple(parts)
