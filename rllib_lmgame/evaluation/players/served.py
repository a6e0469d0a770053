"""A finished policy behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import itertools

from rllib_lmgame.endpoints.completions import (
    TOO_LONG,
    ChatReply,
    ChatRequest,
    RequestError,
    ScoredPrompt,
    ScoreRequest,
)
from rllib_lmgame.evaluation.players.language_model import LocalModel
from rllib_lmgame.inference.protocol import GenerationRequest, SamplingSpec, StopReason
from rllib_lmgame.policies.chat.requested import RequestedConversation

LEAST_TOP_P = 1e-6
"""The most likely token alone: engines take no 0, which OpenAI's clients may send."""
LEAST_TEMPERATURE = 0.01
"""Below it the most likely token is taken, as vLLM takes it: logits that are divided by less overflow."""


class ServedPolicy:
    """Completions of a model that has been entered; each request stands alone.

    What a request says of sampling goes before the command's temperature, and that before what training sampled with.
    """

    def __init__(self, model: LocalModel) -> None:
        self._model = model
        self._chat = model.chat_in("").for_program()
        self._numbers = itertools.count()

    async def __call__(self, request: ChatRequest) -> ChatReply:
        """Raises: RequestError: it cannot be replied to."""
        conversation = RequestedConversation(self._chat)
        prompt = conversation.prompt(request)
        sampling = self._sampling(request, prompt.max_tokens)
        asked = GenerationRequest(f"served/{next(self._numbers)}", prompt.ids, sampling)
        generation = await self._model.generate(asked)
        if generation.stop_reason is StopReason.ENGINE_ERROR:
            raise RequestError(f"the engine gave no reply: {generation.error}", status=503)
        return conversation.read(generation.response_ids)

    async def score(self, request: ScoreRequest) -> ScoredPrompt:
        """Log-probabilities of its tokens. Raises: RequestError: the model does not take them."""
        first, *rest = request.ids
        most = self._model.options.language_model.context_length
        if len(request.ids) > most:
            said = f"the prompt has {len(request.ids)} tokens; the context holds {most}"
            raise RequestError(said, "prompt", TOO_LONG)
        asked = GenerationRequest(f"scored/{next(self._numbers)}", [first], SamplingSpec(len(rest)), None, tuple(rest))
        generation = await self._model.generate(asked)
        if generation.stop_reason is StopReason.ENGINE_ERROR:
            raise RequestError(f"the engine gave no log-probabilities: {generation.error}", "prompt")
        tokenizer = self._chat.tokenizer
        texts = tuple(tokenizer.decode([each]) for each in rest)
        return ScoredPrompt(request.ids, tuple(generation.logprobs.tolist()), texts)

    def _sampling(self, request: ChatRequest, most: int) -> SamplingSpec:
        inference, temperature = self._model.options.inference, self._model.settings.temperature
        as_in_training = temperature is None and request.temperature is None and request.top_p is None
        said = (request.temperature, temperature, inference.temperature)
        chosen = next(each for each in said if each is not None)
        top_p = 1.0 if request.top_p is None else max(request.top_p, LEAST_TOP_P)
        return SamplingSpec(
            most,
            0.0 if chosen < LEAST_TEMPERATURE else chosen,
            inference.top_p if as_in_training else top_p,
            inference.top_k if as_in_training else 0,
            seed=request.seed,
            **self._chat.ends,
        )
