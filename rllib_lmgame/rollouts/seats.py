"""Seats: they turn observations into action texts and, for language models, into turn records."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np

from rllib_lmgame.base.errors import ConfigError, MissingDependencyError
from rllib_lmgame.envs.contract.session import GameSession, Observation
from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.inference.protocol import Generation, GenerationRequest, SamplingSpec, StopReason, allowed_tokens
from rllib_lmgame.policies.chat.format import ChatFormat, Conversation, Prompt
from rllib_lmgame.policies.scripted import ScriptedPlayer
from rllib_lmgame.rollouts.options import TextRolloutOptions
from rllib_lmgame.rollouts.plans import stable_seed
from rllib_lmgame.rollouts.records import SeatSummary, Turn

Generate = Callable[[GenerationRequest], Awaitable[Generation]]

GameCall = Callable[..., Awaitable[Any]]
"""``(what, function, *args)``: calls into a game, with a time limit where it is not ours; ``what`` names the call."""

MAX_SHOWN = 200
"""Characters that are kept of a reply that could not be read."""


class EpisodeFailed(Exception):
    """The episode cannot be finished, through no fault of the player; it is dropped, counted and replaced."""

    def __init__(self, reason: StopReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class OutOfTokens(Exception):
    """The player has no tokens left for another reply; its seat is truncated."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


@dataclass
class Seat:
    """Base class of seats.

    Attributes:
        role: Kind of seat.
        module_id: Policy that plays it.
        thought: Reasoning before the last action, if any.
        failed: The episode is dropped because this seat gave no reply.
        played_for: While such a seat (a language model's) is left, the game is played.
    """

    played_for: ClassVar[bool] = False
    agent_id: str
    role: str
    module_id: str
    thought: str | None = None
    failed: bool = False

    @cached_property
    def numbers(self) -> SeatSummary:
        """What is counted so far; its tokens are those of a model that keeps no record of its turns."""
        return SeatSummary(self.agent_id, self.role, self.module_id)

    async def act(self, session: GameSession, observation: Observation, call: GameCall) -> str | None:
        """The action text for ``observation``, or ``None``: the game waits for no action any more. The game is asked
        through ``call``.
        """
        raise NotImplementedError

    def said(self) -> str | None:
        """The last reply as it was written, if that is more than the action."""
        return None

    def not_played(self) -> frozenset[str]:
        """Levels that demonstrations have shown to the player, which it does not play."""
        return frozenset()

    def acted(self, invalid: bool) -> None:
        """Called when the game has received the last action; ``invalid``: it refused the action."""
        numbers = self.numbers
        numbers.turns += 1
        numbers.invalid_actions += invalid
        numbers.illegal_actions += invalid and self.was_read()
        if not self.was_read():
            numbers.format_errors += 1
            if numbers.unread is None:
                numbers.unread = (self.said() or "")[:MAX_SHOWN]

    def was_read(self) -> bool:
        """Whether the last reply had a readable answer."""
        return True

    def reward(self, value: float) -> None:
        """Credit a reward to the last action, even if another player's move earned it."""
        self.numbers.episode_return += value

    def finish(self, observation: Observation, reason: StopReason, terminated: bool) -> None:
        """Called when the seat's game is over; ``observation`` is its last one."""


def scripted_move(
    player: ScriptedPlayer, session: GameSession, agent_id: str, observation: Observation, rng: random.Random
) -> tuple[str, str | None]:
    """A scripted player's action and reasoning, if any. Raises: EpisodeFailed: one is not text."""
    think = getattr(player, "think", None)
    thought = think(session, agent_id) if think else None
    action = player.act(session, agent_id, observation, rng)
    if not (isinstance(action, str) and isinstance(thought, str | None)):
        said = f"{type(player).__name__} played {action!r} and thought {thought!r}; both must be text"
        raise EpisodeFailed(StopReason.ENV_ERROR, said)
    return action, thought


class ReplySource(Protocol):
    """Gives the ids of replies."""

    async def reply(
        self, seat: LanguageModelSeat, session: GameSession, observation: Observation, prompt: Prompt, call: GameCall
    ) -> Generation:
        """One reply to ``prompt``."""


@dataclass
class EngineReplies:
    """Replies of an engine, sampled as ``inference`` says, or at another ``temperature`` without top-p and top-k.

    ``constrained_decoding`` limits decoding to the legal moves in turns for which the game lists them; ``seeded`` gives
    each request its own seed.
    """

    generate: Generate
    inference: InferenceOptions = InferenceOptions()
    temperature: float | None = None
    constrained_decoding: bool = False
    seeded: bool = False

    async def reply(
        self, seat: LanguageModelSeat, session: GameSession, observation: Observation, prompt: Prompt, call: GameCall
    ) -> Generation:
        chat = seat.chat
        turn, inference, own = len(seat.turns), self.inference, self.temperature
        sampling = SamplingSpec(
            max_tokens=prompt.max_tokens,
            temperature=inference.temperature if own is None else own,
            top_p=inference.top_p if own is None else 1.0,
            top_k=inference.top_k if own is None else 0,
            seed=stable_seed(seat.seed, turn) if self.seeded else None,
            **chat.ends,
        )
        request_id = f"{seat.episode_id}/{seat.agent_id}/{turn}"
        choices = None
        if self.constrained_decoding and observation.legal_actions:  # Without them it is free talk, for example.
            choices = tuple(seat.moves(session, observation, prompt).values())
        routes_from = None
        if self.inference.router_replay and seat.numbers.trained:  # With the last token, which was not computed yet.
            routes_from = max(0, len(prompt.ids) - len(prompt.delta) - 1)
        request = GenerationRequest(request_id, prompt.ids, sampling, choices, routes_from=routes_from)
        try:
            generation = await self.generate(request)
        except (ConfigError, MissingDependencyError):
            raise
        except Exception as error:
            raise EpisodeFailed(
                StopReason.ENGINE_ERROR, f"the engine's client raised {type(error).__name__}: {error}"
            ) from error
        problem = _generation_problem(generation)
        if problem is not None:
            raise EpisodeFailed(StopReason.ENGINE_ERROR, problem)
        if choices is None:
            return generation
        try:
            allowed = allowed_tokens(choices, tuple(np.asarray(generation.response_ids).tolist()))
        except ValueError as error:
            raise EpisodeFailed(StopReason.ENGINE_ERROR, str(error)) from None
        return replace(generation, allowed=allowed)


def _generation_problem(generation: Generation) -> str | None:
    if generation.stop_reason is StopReason.ENGINE_ERROR:
        return generation.error or "the engine failed"
    tokens, logprobs = len(generation.response_ids), len(generation.logprobs)
    if tokens != logprobs:
        return f"the engine gave {tokens} tokens and {logprobs} log-probabilities"
    if not np.isfinite(generation.logprobs).all():
        return "the engine gave a log-probability that is no finite number"
    return None


@dataclass
class ExpertReplies:
    """Replies of a scripted player, written in the chat format: the data of supervised learning."""

    player: ScriptedPlayer
    rng: random.Random

    async def reply(
        self, seat: LanguageModelSeat, session: GameSession, observation: Observation, prompt: Prompt, call: GameCall
    ) -> Generation:
        action, thought = await call(
            "expert_action", scripted_move, self.player, session, seat.agent_id, observation, self.rng
        )
        ids = np.asarray(seat.chat.reply_ids(action, thought if seat.chat.options.think != "off" else None), np.int32)
        if len(ids) > prompt.max_tokens:
            raise seat.out_of_tokens(session, prompt, len(ids))
        return Generation("", ids, np.zeros(len(ids), np.float32), StopReason.EOS, 0)


@dataclass
class LanguageModelSeat(Seat):
    """A language model's seat: keeps the conversation as token ids and a record of every turn.

    Attributes:
        turns: One per reply that the game received, with rewards.
        temperature: That of the game's entry, if it has one and replies are sampled.
        options: Penalties, and which limits are truncations to the learner, not the end.
        final_prompt: If truncated after at least one turn, the last state, as much of it as the context holds. The
            value at its last token stands for what follows.
    """

    played_for = True
    chat: ChatFormat = None  # type: ignore[assignment]
    source: ReplySource = None  # type: ignore[assignment]
    instructions: str = ""
    game_id: str = ""
    episode_id: str = ""
    seed: int = 0
    options: TextRolloutOptions = TextRolloutOptions()
    temperature: float | None = None
    turns: list[Turn] = field(default_factory=list)
    final_prompt: Prompt | None = None

    def __post_init__(self) -> None:
        self.conversation = Conversation(self.chat, self.instructions, self.game_id, self.role)
        self._note: str | None = None
        self._open_prompt: Prompt | None = None

    async def act(self, session: GameSession, observation: Observation, call: GameCall) -> str | None:
        prompt = self.conversation.prompt(observation, self._note)
        if prompt.max_tokens < 1:
            self._open_prompt = prompt
            raise self.out_of_tokens(session, prompt, 1)
        parsed = self.conversation.reply(await self._replied(session, observation, prompt, call))
        self._note = parsed.error
        self.thought = parsed.think
        return "" if parsed.action is None else parsed.action

    async def _replied(
        self, session: GameSession, observation: Observation, prompt: Prompt, call: GameCall
    ) -> np.ndarray:
        """Ids of the reply to ``prompt``, int32; the reply becomes a turn."""
        self._open_prompt = prompt
        generation = await self.source.reply(self, session, observation, prompt, call)
        response_ids = np.asarray(generation.response_ids, np.int32)
        self.turns.append(
            Turn(
                prompt_ids=prompt.delta,
                response_ids=response_ids,
                rollout_logprobs=np.asarray(generation.logprobs, np.float32),
                policy_version=generation.policy_version,
                later_versions=generation.later_versions,
                new_row=prompt.new_row,
                stop_reason=generation.stop_reason.value,
                allowed=generation.allowed,
                observed=prompt.observed,
                routed_experts=self._routes(generation.routed_experts, len(prompt.delta) + len(response_ids)),
            )
        )
        return response_ids

    def _routes(self, told: np.ndarray | None, tokens: int) -> np.ndarray | None:
        """The experts of a turn's ``tokens``; the turn before learns those of its last one."""
        if told is None:
            return None
        routes = np.full((tokens, *told.shape[1:]), np.iinfo(told.dtype).max, told.dtype)
        routes[:-1] = told[len(told) - tokens + 1 :]
        before = self.turns[-1].routed_experts if self.turns and len(told) == tokens else None
        if before is not None and len(before):
            before[-1] = told[0]
        return routes

    def moves(self, session: GameSession, observation: Observation, prompt: Prompt) -> dict[str, tuple[int, ...]]:
        """The legal moves that fit behind ``prompt``, with the ids of each as a reply.

        Raises: ConfigError: the tokenizer can spell none, or see :meth:`out_of_tokens`; OutOfTokens: none fits.
        """
        all_ids = {move: self.chat.choice_ids(move) for move in observation.legal_actions}
        spelled = {move: ids for move, ids in all_ids.items() if ids is not None}
        if not spelled:
            form, action = self.chat.options.reply_format.type, observation.legal_actions[0]
            why = f"the tokenizer can spell no legal action of {session.game_id} as {form}, such as {action!r}"
            raise ConfigError("config.text_rollouts.constrained_decoding", why)
        fitting = {move: ids for move, ids in spelled.items() if len(ids) <= prompt.max_tokens}
        if not fitting:
            raise self.out_of_tokens(session, prompt, min(map(len, spelled.values())))
        return fitting

    def not_played(self) -> frozenset[str]:
        return frozenset(turn.level for turn in self.conversation.demonstrations if turn.level)

    def said(self) -> str | None:
        return self.chat.read(self.turns[-1].response_ids) if self.turns else None

    def was_read(self) -> bool:
        return self._note is None

    def acted(self, invalid: bool) -> None:
        super().acted(invalid)
        self._open_prompt = None
        if not self.was_read():
            self.turns[-1].reward += self.options.format_penalty

    def reward(self, value: float) -> None:
        super().reward(value)
        if self.turns and self.final_prompt is None:
            self.turns[-1].reward += value

    def finish(self, observation: Observation, reason: StopReason, terminated: bool) -> None:
        # The token budget is part of the task, and so is the limit of turns unless it is to bootstrap.
        over = reason is StopReason.TOKEN_BUDGET or (
            reason is StopReason.MAX_TURNS and not self.options.bootstrap_turn_limit
        )
        if terminated or over or not self.turns:
            return
        left = observation.turns_left
        if left is not None:  # No prompt of a reply ever says that no turn is left.
            observation = replace(observation, turns_left=max(1, left))
        prompt = self._open_prompt or self._last_prompt(observation)
        self.final_prompt = prompt.fitted(self.chat.options.context_length)

    def _last_prompt(self, observation: Observation) -> Prompt:
        return self.conversation.prompt(observation, self._note)

    def out_of_tokens(self, session: GameSession, prompt: Prompt, needed: int) -> Exception:
        """The error if ``prompt`` leaves fewer than ``needed`` tokens: a ConfigError at the first prompt."""
        options = self.chat.options
        if not self.turns and prompt.out_of_context:
            examples = len(self.conversation.demonstrations)
            key, shown = ("demonstrations", f" with {examples} demonstrations") if examples else ("context_length", "")
            least = len(prompt.ids) + max(needed, options.least_room)
            return ConfigError(
                f"config.language_model.{key}",
                f"the first prompt of {session.game_id}{shown} has {len(prompt.ids)} tokens; the context holds "
                f"{options.context_length}; set context_length to at least {least}",
            )
        if not self.turns:
            key = "max_tokens_per_turn" if needed > options.max_tokens_per_turn else "max_tokens_per_episode"
            message = f"a reply of {session.game_id} has {needed} tokens or more; {prompt.max_tokens} are allowed"
            return ConfigError(f"config.language_model.{key}", message)
        return OutOfTokens(StopReason.CONTEXT_OVERFLOW if prompt.out_of_context else StopReason.TOKEN_BUDGET)
