"""What the rest of the system knows of an inference engine.

Token ids in, token ids and log-probabilities out. An engine never sees text, games or RLlib.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from rllib_lmgame.inference.choices import AllowedTokens


class StopReason(enum.StrEnum):
    """Why a reply, or an episode, ended."""

    EOS = "eos"
    MAX_TOKENS = "max_tokens"
    CONTEXT_OVERFLOW = "context_overflow"
    TOKEN_BUDGET = "token_budget"
    GAME_OVER = "game_over"
    MAX_TURNS = "max_turns"
    FORFEIT = "forfeit"
    TIMEOUT = "timeout"
    ENV_ERROR = "env_error"
    ENV_BUSY = "env_busy"
    ENGINE_ERROR = "engine_error"
    RESTART_MISMATCH = "restart_mismatch"


@dataclass(frozen=True, slots=True)
class SamplingSpec:
    """How one reply is sampled. `temperature` 0 is greedy. `stop_token_ids` end the reply and are part of it."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One reply to sample.

    Attributes:
        request_id: Unique over the whole run.
        prompt_ids: Token ids of the full prompt.
        sampling: How to sample.
        choices: If given, the reply must be one of these token sequences (legal-move-constrained decoding),
            each including its stop token. Log-probabilities are then those under the constraint.
        scored: If given, nothing is sampled: the reply is these tokens, and their log-probabilities are those of the
            model at temperature 1 with the whole vocabulary. ``sampling`` says nothing then.
    """

    request_id: str
    prompt_ids: list[int]
    sampling: SamplingSpec
    choices: tuple[tuple[int, ...], ...] | None = None
    scored: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """One sampled reply, or the one that was to be scored (``stop_reason`` is then ``EOS``).

    Attributes:
        request_id: That of the request.
        response_ids: int32 ``[tokens]``, the stop token included if there was one.
        logprobs: float32 ``[tokens]``, log-probability of each token under the distribution it was sampled from.
        stop_reason: ``EOS`` (a stop token), ``MAX_TOKENS``, or ``ENGINE_ERROR``.
        policy_version: Version of the weights that sampled every token of the reply.
        error: Message if ``stop_reason`` is ``ENGINE_ERROR``.
        allowed: What each token was chosen among, if the request had choices. Engines leave it to those who asked.
    """

    request_id: str
    response_ids: np.ndarray
    logprobs: np.ndarray
    stop_reason: StopReason
    policy_version: int
    error: str | None = None
    allowed: AllowedTokens | None = None


@dataclass
class EngineStats:
    """Counters since the engine started; all monotonic except the two gauges at the end."""

    requests: int = 0
    prompt_tokens: int = 0
    prompt_tokens_computed: int = 0
    generated_tokens: int = 0
    steps: int = 0
    busy_s: float = 0.0
    uptime_s: float = 0.0
    running: int = 0
    waiting: int = 0
    extra: dict[str, Any] = field(default_factory=dict)


class InferenceEngine(Protocol):
    """An engine as it lives inside its actor. All methods are coroutines, so one actor serves many clients."""

    async def start(self) -> None:
        """Load the model; returns when the first request can be served."""

    async def generate(self, request: GenerationRequest) -> Generation:
        """Sample one reply. Concurrent calls are batched by the engine. Never raises for one bad request."""

    async def update_weights(self, state: dict[str, np.ndarray], version: int) -> str:
        """Drain, load Hugging Face named tensors, reset the prefix cache; returns the checksum of what is loaded."""

    async def pause(self) -> None:
        """Stop taking new requests into steps and wait for running ones."""

    async def resume(self) -> None:
        """Undo :meth:`pause`."""

    async def reset_prefix_cache(self) -> None:
        """Forget every cached prefix."""

    async def version(self) -> int:
        """Version of the loaded weights."""

    async def health(self) -> None:
        """Raise if the engine cannot serve."""

    async def stats(self) -> EngineStats:
        """Counters."""

    async def shutdown(self) -> None:
        """Stop every process this engine started."""


class DeviceEngine(InferenceEngine, Protocol):
    """What an engine must also have where weights go over devices (``weight_transport``), or where it gives its GPU
    memory back meanwhile (``sleep_during_update``).
    """

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Run an operation of the backend.

        They are ``sleep`` and ``wake_up``; ``worker_call``, whose first argument names a weight-transfer operation of
        vLLM's workers; ``reset_prefix_cache``; and ``weight_digests``, which returns a digest of each loaded parameter
        by name, for every worker.
        """

    def accept_version(self, version: int) -> None:
        """The weights that arrived over devices are those of ``version``."""
