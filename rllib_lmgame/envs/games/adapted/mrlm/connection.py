"""Sessions with a server of MRLM's gRPC service.

Guarantees (each has a test):

1. A call takes at most ``timeout_s``, and an answer has at most ``MOST_BYTES``.
2. A server that is not there, or whose sessions are all taken, is asked again for a session, ``retries`` times; then it
   is a :class:`~rllib_lmgame.base.step_timer.WaitedTooLong`: no level is to blame.
3. Any other status, a connection that breaks, a time-out and an answer of another form are a
   :class:`~rllib_lmgame.envs.contract.base.GameError` that names the address, and the session is given up. No step is
   sent twice.
4. The token is sent to the address alone, and stands in no message. Proxies are not used.

The service has no call that ends a session: one that is given up ends when its server says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rllib_lmgame.base.step_timer import waiting
from rllib_lmgame.base.text import shown
from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.games.adapted.mrlm.protocol import METHODS, SERVICE, messages, writable
from rllib_lmgame.envs.games.adapted.on_server import MOST_BYTES, NotNow, Wrong, patiently, without

DONE = ("", "success")
"""``status`` of an answer that is one."""
_OPTIONS = (
    ("grpc.max_receive_message_length", MOST_BYTES),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class Connection:
    """A session, which begins with ``reset``; the next one begins another.

    Args:
        address: ``HOST:PORT``.
        environment: Its name there.
        token: Sent with each call; ``None``: the server needs none.
        timeout_s: Of one call.
        retries: Times that a session is asked for again.
    """

    def __init__(self, address: str, environment: str, token: str | None, timeout_s: float, retries: int) -> None:
        self.address, self.environment = address, environment
        self.timeout_s, self.retries = timeout_s, retries
        self._token = token
        self._metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        self._channel: Any = None
        self._session = ""

    @property
    def where(self) -> str:
        """The environment and its address, for messages."""
        return f"{self.environment} at {self.address}"

    def environments(self) -> list[str]:
        """The names that the server lists. Raises: GameError, WaitedTooLong: see the top."""
        answer = self._told(lambda: self._ask("ListEnvironments"), patient=True)
        return [each.environment_id for each in answer.environments]

    def reset(self, config: Mapping[str, str]) -> Any:
        """Begin a session: its observation. Raises: GameError, WaitedTooLong: see the top."""
        self._session = ""
        sent = {writable(key): writable(value) for key, value in config.items()}
        answer = self._told(
            lambda: self._ask("Reset", environment_id=writable(self.environment), config=sent), patient=True
        )
        if not answer.session_id:
            raise GameError(f"{self.where} begins a session that has no name")
        self._session = answer.session_id
        return answer.observation

    def step(self, text: str) -> Any:
        """Reply: the answer, with its observation and reward. Raises: GameError."""
        if not self._session:
            raise GameError(f"{self.where} has no session any more")
        action = messages()["MessageProto"](role="assistant", content=writable(text))
        return self._told(lambda: self._ask("Step", session_id=self._session, action=action), patient=False)

    def close(self) -> None:
        """Hang up."""
        channel, self._channel, self._session = self._channel, None, ""
        if channel is not None:
            channel.close()

    def _told(self, ask: Callable[[], Any], patient: bool) -> Any:
        try:
            if patient:
                return patiently(ask, self.where, self.retries)
            with waiting():
                return ask()
        except (NotNow, Wrong) as error:
            self._session = ""
            raise GameError(f"{self.where} {error}") from None

    def _ask(self, method: str, **fields: Any) -> Any:
        """The answer. Raises: NotNow, Wrong."""
        import grpc

        asked, answered = METHODS[method]
        if self._channel is None:
            self._channel = grpc.insecure_channel(f"dns:///{self.address}", options=_OPTIONS)
        call = self._channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=messages()[asked].SerializeToString,
            response_deserializer=messages()[answered].FromString,
        )
        try:
            answer = call(messages()[asked](**fields), timeout=self.timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise self._refusal(error.code(), error.details() or "") from None
        status = getattr(answer, "status", "")
        if status not in DONE:
            raise Wrong(f"answers {without(self._token, shown(status, 300))}")
        return answer

    def _refusal(self, code: Any, details: str) -> Exception:
        """What a status says."""
        from grpc import StatusCode

        said = f": {without(self._token, shown(details, 300))}" if details else ""
        if code is StatusCode.UNAVAILABLE:
            return NotNow(f"is not there{said}")
        if code is StatusCode.RESOURCE_EXHAUSTED and "larger than max" not in details:  # That says gRPC itself.
            return NotNow(f"answers {code.name}{said}")
        if code is StatusCode.DEADLINE_EXCEEDED:
            return Wrong(f"gave no answer in timeout_s={self.timeout_s:g}")
        if code in (StatusCode.UNAUTHENTICATED, StatusCode.PERMISSION_DENIED):
            return Wrong(f"refuses the token, or its absence{said}; env_config.token_variable names one")
        return Wrong(f"answers {code.name}{said}")
