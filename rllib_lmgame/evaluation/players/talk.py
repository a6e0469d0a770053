"""A conversation with a language model outside any game: one's own prompts, its replies as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.contract.session import Observation
from rllib_lmgame.evaluation.players.language_model import LocalModel
from rllib_lmgame.inference.protocol import GenerationRequest, SamplingSpec, StopReason
from rllib_lmgame.policies.chat.format import PLAIN, ChatFormat, Conversation


class Talk:
    """A conversation with a model that has been entered.

    Args:
        system: The system message; empty: none.
        as_trained: Say what was said around each observation in training, and begin replies as there.
        max_tokens: Longest reply; by default that of training.

    Raises: ConfigError: the model cannot be talked to so.
    """

    def __init__(
        self, model: LocalModel, system: str = "", *, as_trained: bool = False, max_tokens: int | None = None
    ) -> None:
        options = model.options.language_model
        given: dict[str, Any] = {} if max_tokens is None else {"max_tokens_per_turn": max_tokens}
        plain: dict[str, Any] = {} if as_trained else {**PLAIN, "max_tokens_per_episode": None}
        self._chat = ChatFormat(model.chat_in("").tokenizer, options.model_copy(update={**plain, **given}))
        self._model = model
        self._begin: Callable[[], Conversation] = lambda: Conversation(self._chat, system)
        self._said = 0
        self.restart()

    def restart(self) -> None:
        """Forget what was said."""
        self._conversation = self._begin()
        self.turns = 0

    async def say(self, text: str) -> str:
        """The reply to a prompt, which the next one continues. Where the context has no room the talk begins anew.

        Raises: ConfigError: the prompt alone is too long, or the engine cannot reply.
        """
        prompt = self._conversation.prompt(Observation(text))
        if prompt.max_tokens == 0 and self.turns:
            self.restart()
            prompt = self._conversation.prompt(Observation(text))
        if prompt.max_tokens == 0:
            self.restart()
            length = self._chat.options.context_length
            raise ConfigError("", f"the prompt has {len(prompt.ids)} tokens, the context has room for {length}")
        settings, inference = self._model.settings, self._model.options.inference
        as_in_training = settings.temperature is None
        sampling = SamplingSpec(
            max_tokens=prompt.max_tokens,
            temperature=inference.temperature if as_in_training else settings.temperature or 0.0,
            top_p=inference.top_p if as_in_training else 1.0,
            top_k=inference.top_k if as_in_training else 0,
            **self._chat.ends,
        )
        self._said += 1
        generation = await self._model.generate(GenerationRequest(f"talk/{self._said}", prompt.ids, sampling))
        if generation.stop_reason is StopReason.ENGINE_ERROR:
            self.restart()
            raise ConfigError("", f"the engine gave no reply: {generation.error}")
        self._conversation.reply(generation.response_ids)
        self.turns += 1
        return self._chat.read(generation.response_ids)
