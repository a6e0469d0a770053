"""What an engine backend has to do; threads, pausing, versions and errors are :mod:`.engines.threaded`'s."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rllib_lmgame.inference.engines.stop_strings import StopStrings
from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.inference.protocol import EngineStats, Generation, GenerationRequest, SamplingSpec


class Core(ABC):
    """A model that generates in steps. Lives in one thread; no method is called from another.

    ``vocab_size`` is its number of token ids, ``context_length`` the most tokens of prompt and reply together.
    """

    vocab_size: int
    context_length: int
    ends: StopStrings
    """Where replies end by their text; set by who makes the core."""
    adapters: Collection[str | None] = (None,)
    """What may reply: the weights themselves (``None``), or adapters by their names."""
    loads: Mapping[str | None, int] = MappingProxyType({})
    """How often each of ``adapters`` has come; set by who makes the core. Prefixes cached before are not used again."""

    @abstractmethod
    def __init__(
        self, model_dir: str, options: InferenceOptions, context_length: int, seed: int, trust_remote_code: bool
    ) -> None:
        """Load the model; arguments as those of :class:`~rllib_lmgame.inference.engines.threaded.ThreadedEngine`."""

    @abstractmethod
    def add(self, request: GenerationRequest) -> None:
        """Queue a valid request."""

    @abstractmethod
    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget requests; unknown ones are ignored."""

    @abstractmethod
    def has_work(self) -> bool:
        """Whether a request is queued or running."""

    @abstractmethod
    def step(self) -> Sequence[Generation]:
        """Advance every running request by one token; the replies that ended, without ``policy_version``."""

    @abstractmethod
    def load(self, state: Mapping[str, Any]) -> None:
        """Replace all weights with these, named as in a Hugging Face checkpoint. Called while nothing runs."""

    @abstractmethod
    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix."""

    @abstractmethod
    def fill_stats(self, stats: EngineStats) -> None:
        """Add what only the backend knows."""

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Backend-specific operations (sleep, device weight transfer)."""
        operation = getattr(self, method, None)
        if operation is None:
            raise ValueError(f"{type(self).__name__} has no operation {method!r}")
        return operation(*args, **kwargs)

    def close(self) -> None:  # noqa: B027 - most backends have nothing to stop
        """Stop what the backend started."""

    def stops(self, sampling: SamplingSpec, ids: Sequence[int]) -> bool:
        """The last of a reply's ``ids`` ends it."""
        if ids[-1] in sampling.stop_token_ids:
            return True
        return bool(sampling.stop_strings) and self.ends.ended(ids, sampling.stop_strings, sampling.reasoning)

    def request_error(self, request: GenerationRequest) -> str | None:
        """What is wrong with ``request``, or ``None``. A bad request must not reach :meth:`add`."""
        prompt, sampling = request.prompt_ids, request.sampling
        if request.adapter not in self.adapters:
            return "the engine was given no adapter" + ("" if request.adapter is None else f" {request.adapter}")
        replies = request.choices if request.scored is None else (request.scored,)
        if not prompt or (replies is not None and not (replies and all(replies))):
            return "the prompt, a choice or the reply to be scored is empty"
        parts = (prompt, *(replies or ()))
        lowest, highest = min(map(min, parts)), max(map(max, parts))
        if lowest < 0 or highest >= self.vocab_size:
            token = highest if lowest >= 0 else lowest
            return f"token {token} is outside the vocabulary of {self.vocab_size}"
        longest = max(map(len, replies)) if replies else 1
        room = self.context_length - (request.scored is not None)  # vLLM needs one more behind what it scores.
        if len(prompt) + longest > room:
            return f"the prompt has {len(prompt)} tokens, the reply {longest}; the context holds {room}"
        if sampling.max_tokens < 1:
            return f"max_tokens must be at least 1, got {sampling.max_tokens}"
        if sampling.temperature < 0 or not 0 < sampling.top_p <= 1 or sampling.top_k < 0:
            return f"impossible sampling: {sampling}"
        if sampling.stop_strings and (problem := self.ends.problem()):
            return problem
        return choices_error(request)


def tied_embeddings(config: Mapping[str, Any]) -> bool:
    """Whether a ``config.json`` ties the output head to the input embedding."""
    text = config.get("text_config")
    return bool(config.get("tie_word_embeddings", (text or {}).get("tie_word_embeddings", False)))


def choices_error(request: GenerationRequest) -> str | None:
    """What is wrong with the choices, or ``None``. Each must end with a stop token, its only one, or a stop text."""
    stops = set(request.sampling.stop_token_ids)
    for choice in request.choices or ():
        if choice[-1] not in stops and not request.sampling.stop_strings:
            return f"choice {tuple(choice)} does not end with one of the stop tokens {tuple(sorted(stops))}"
        if stops.intersection(choice[:-1]):
            return f"choice {tuple(choice)} holds a stop token before its end"
        if len(choice) > request.sampling.max_tokens:
            return f"choice {tuple(choice)} has {len(choice)} tokens, max_tokens is {request.sampling.max_tokens}"
    return None
