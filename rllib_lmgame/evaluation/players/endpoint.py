"""A model behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, Self

from rllib_lmgame.algorithms.demonstrations import with_demonstrations
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import as_mapping, build
from rllib_lmgame.endpoints.address import read_address
from rllib_lmgame.endpoints.client import Answer, ConversationTooLong, EndpointClient, EndpointError
from rllib_lmgame.envs.contract.session import GameSession, Observation
from rllib_lmgame.evaluation.players.settings import PlayerSettings
from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.inference.protocol import StopReason
from rllib_lmgame.policies.chat.messages import MessageConversation
from rllib_lmgame.policies.chat.reply_formats import reply_format
from rllib_lmgame.policies.options import LanguageModelOptions
from rllib_lmgame.rollouts.plans import EpisodePlan, stable_seed
from rllib_lmgame.rollouts.players import Player, sampled_in
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.rollouts.seats import EpisodeFailed, GameCall, OutOfTokens, Seat


class EndpointPlayer(Player):
    """The model of ``openai:MODEL@URL``. Raises: ConfigError: a wrong address or setting, or no key."""

    def __init__(self, name: str, source: str, settings: PlayerSettings) -> None:
        super().__init__(name, source)
        own = settings.sections
        self.model = with_demonstrations(own.language_model, settings.games, settings.seed)
        self._inference, self._temperature, self.endpoint = own.inference, settings.temperature, own.endpoint
        if own.text_rollouts.constrained_decoding:
            why = f"player {name!r}: an endpoint cannot be kept to legal moves"
            raise ConfigError("--config.text_rollouts.constrained_decoding", why)
        self._check_talk("--config")
        for game in settings.games:
            self.in_game(game)
        self.sampling = _sampling(self.model, self._inference, settings.temperature)
        self.client = EndpointClient(
            read_address(source, settings.flag), self.endpoint, settings.time_limit_s, settings.at_once
        )

    def in_game(self, game: GameConfig) -> Self:
        if not game.language_model and game.temperature is None:
            return self
        own, where = copy.copy(self), f"games.{game.called(game.env)}"
        own.model = build(LanguageModelOptions, game.language_model, f"{where}.language_model", self.model)
        own._check_talk(where)
        own.sampling = _sampling(own.model, *sampled_in(game, self._inference, self._temperature))
        return own

    def _check_talk(self, where: str) -> None:
        """Raise :class:`ConfigError` if a model behind an endpoint cannot be talked to so; ``where`` asks for it."""
        try:
            reply_format(self.model)
        except ConfigError as error:
            key = error.path.removeprefix("config.")
            raise ConfigError(f"{where}.{key}", f"player {self.name!r}: {error.message}") from error
        if self.model.reply_prefill:
            why = f"player {self.name!r}: an endpoint writes whole replies"
            raise ConfigError(f"{where}.language_model.reply_prefill", why)

    async def __aenter__(self) -> Self:
        await self.client.__aenter__()
        try:
            await self.client.check()
        except ConfigError as error:
            await self.client.__aexit__()
            raise ConfigError("", f"player {self.name!r}: {error.message}") from None
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.client.__aexit__()

    def seat(self, session: GameSession, plan: EpisodePlan, agent: str, seed: int) -> Seat:
        return EndpointSeat(
            agent,
            session.roles[agent],
            self.name,
            client=self.client,
            conversation=MessageConversation(
                self.model, session.instructions, session.functions, session.game_id, session.roles[agent]
            ),
            sampling=self.sampling,
            max_tokens=self.model.max_tokens_per_episode,
            seed=seed,
        )

    def identity(self) -> dict[str, Any]:
        model = as_mapping(self.model)
        return {**super().identity(), "language_model": model, "request": {**self.sampling, **self.endpoint.request}}

    def counts(self) -> dict[str, int]:
        return self.client.spent()


def _sampling(model: LanguageModelOptions, inference: InferenceOptions, temperature: float | None) -> dict[str, Any]:
    """Fields of a request that say how the reply is drawn; as in training another temperature takes all tokens."""
    fields: dict[str, Any] = {"max_tokens": model.max_tokens_per_turn}
    fields["temperature"] = inference.temperature if temperature is None else temperature
    if temperature is None and inference.top_p < 1:
        fields["top_p"] = inference.top_p
    if temperature is None and inference.top_k:
        fields["top_k"] = inference.top_k
    return fields


@dataclasses.dataclass
class EndpointSeat(Seat):
    """The seat of a model behind an endpoint; ``max_tokens`` are for the episode, ``None``: no limit."""

    client: EndpointClient = None  # type: ignore[assignment]
    conversation: MessageConversation = None  # type: ignore[assignment]
    sampling: dict[str, Any] = dataclasses.field(default_factory=dict)
    max_tokens: int | None = None
    seed: int = 0
    _note: str | None = None
    _turns: int = 0
    _said: str | None = None

    async def act(self, session: GameSession, observation: Observation, call: GameCall) -> str:
        if self.max_tokens is not None and self.numbers.response_tokens >= self.max_tokens:
            raise OutOfTokens(StopReason.TOKEN_BUDGET)
        answer = await self._answer(observation)
        self._turns += 1
        self.numbers.response_tokens += answer.tokens or 0
        self.numbers.prompt_tokens += answer.prompt_tokens or 0
        self._said = self._whole(answer)
        parsed = self.conversation.reply(self._said)
        self._note, self.thought = parsed.error, parsed.think
        return "" if parsed.action is None else parsed.action

    def was_read(self) -> bool:
        return self._note is None

    def said(self) -> str | None:
        return self._said

    async def _answer(self, observation: Observation) -> Answer:
        messages = self.conversation.prompt(observation, self._note)
        sampling = dict(self.sampling)
        if self.max_tokens is not None:
            sampling["max_tokens"] = min(sampling["max_tokens"], self.max_tokens - self.numbers.response_tokens)
        try:
            return await self.client.answer(messages, **sampling, seed=stable_seed(self.seed, self._turns))
        except ConversationTooLong as error:
            if not self._turns:
                raise EpisodeFailed(StopReason.ENGINE_ERROR, f"{self.module_id}: {error}") from None
            raise OutOfTokens(StopReason.CONTEXT_OVERFLOW) from None
        except EndpointError as error:
            raise EpisodeFailed(StopReason.ENGINE_ERROR, f"{self.module_id}: {error}") from None

    def _whole(self, answer: Answer) -> str:
        parser = self.conversation.reply_format
        if answer.reasoning is None:
            return answer.text
        return f"{parser.think_opening}{answer.reasoning}{parser.think_closing}{answer.text}"
