"""An environment on a server of MRLM's gRPC service."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, ClassVar

from rllib_lmgame.base import json_files
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.base.step_timer import WaitedTooLong
from rllib_lmgame.base.text import shown
from rllib_lmgame.envs.contract.base import MAX_TEXT, GameError, TextGameOptions
from rllib_lmgame.envs.games.adapted.mrlm.connection import Connection
from rllib_lmgame.envs.games.adapted.mrlm.protocol import writable
from rllib_lmgame.envs.games.adapted.on_server import CHECK_S, OnServerGame, OnServerOptions, read_token

PORT = 50051
_ADDRESS = re.compile(r"(?P<id>.+)@(?P<host>[\w.-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>[0-9]{1,5}))?", re.ASCII)
OWN = "assistant"
"""Role of the messages that repeat a player's reply."""

Told = list[tuple[str, str]]
"""Messages of a conversation: role and text."""


class MRLMOptions(OnServerOptions):
    """``env_config`` of environments on servers of MRLM."""

    address: str | None = option(None, "Where the environment is; `mrlm:ID@HOST:PORT` says it.")
    reset: dict[str, Any] = option({}, "`config` of `Reset` beside the seed: `{split: test, seats: 'remote,minimax'}`.")


class MRLM(OnServerGame):
    """An environment on a server that speaks MRLM's gRPC service, which runs beside this package.

    Observation: the messages of the conversation that are new, without the player's own reply.
    Action: any text.
    Reward: the environment's.
    Horizon: the environment's, and `max_turns`.
    Levels: seeds, which a server of this package reads and MRLM's own does not.
    """

    Options: ClassVar[type[TextGameOptions]] = MRLMOptions
    options: MRLMOptions

    def __init__(self, render_mode: str | None = None, **env_config: Any) -> None:
        super().__init__(render_mode, **env_config)
        chosen = self.options
        if chosen.address is None:
            raise ConfigError("env_config.address", "is missing; write mrlm:ID@HOST:PORT as the game")
        environment, host = read_address(chosen.address)
        token = read_token(chosen.token_variable)
        self.connection = Connection(host, environment, token, chosen.timeout_s, chosen.retries)
        self._refuse_level_keys(chosen.reset, "seed")
        self._asked = {key: _as_text(key, value) for key, value in chosen.reset.items()}
        self._told: dict[str, Told] = {}
        self._agent = self._reply = ""

    @property
    def where(self) -> str:
        return self.connection.where

    def check_ready(self) -> str:
        """Ask the server whether it is there, and has the environment. No session is begun: none could be ended.

        Returns: What was found, in a few words.
        Raises: ConfigError: it is not there, or does not have it.
        """
        patient = self.connection
        timeout_s = min(CHECK_S, patient.timeout_s)
        token = read_token(self.options.token_variable)
        asked = Connection(patient.address, patient.environment, token, timeout_s, 0)
        try:
            known = asked.environments()
        except (GameError, WaitedTooLong) as error:
            raise ConfigError("env_config.address", f"no session can be begun: {error}") from None
        finally:
            asked.close()
        if patient.environment not in known:
            listed = ", ".join(shown(name) for name in known[:20]) or "none"
            raise ConfigError(
                "env_config.address",
                f"{patient.address} has no environment {shown(patient.environment)}; it lists {listed}",
            )
        return f"{patient.address} lists {patient.environment}"

    def level_key(self, level: int) -> str:
        return f"mrlm {level}"  # No address: a server that moves has the same levels to test.

    def start(self, level: int) -> None:
        self._told, self._agent, self._reply = {}, "", ""
        self._begin((self.connection.reset({**self._asked, "seed": str(level)}), 0.0))

    def read_move(self, text: str) -> str:
        return text

    def play_move(self, move: str) -> float:
        self._reply = writable(move)[:MAX_TEXT]
        self._told.setdefault(self._agent, []).append((OWN, self._reply))
        answer = self.connection.step(move)
        return self._take((answer.observation, answer.reward.value))

    def close(self) -> None:
        """Hang up."""
        self.connection.close()

    def _take(self, answer: tuple[Any, float]) -> float:
        observation, reward = answer
        info = {key: _value(observation.info[key]) for key in _READ if key in observation.info}
        reward = self._keep(reward, observation.done, info)
        told = [(message.role, message.content) for message in observation.messages]
        agent = info.get("agent")
        self._agent = agent if isinstance(agent, str) else ""
        self._seen = new_of(told, self._told.get(self._agent, ()), self._reply)
        self._told[self._agent] = told
        return reward


_READ = ("agent", "legal_actions", "success", "truncated")


def new_of(told: Sequence[tuple[str, str]], known: Sequence[tuple[str, str]], reply: str) -> str:
    """What a conversation shows that is new.

    Args:
        told: Its messages: all of them, as servers of this package have it, or the last ones, as MRLM's have it.
        known: Those that were known.
        reply: The player's last reply, which is left out.
    """
    new = told[len(known) :] if list(told[: len(known)]) == list(known) else told
    return "\n".join(text for role, text in new if not (role == OWN and text == reply))


def read_address(text: str) -> tuple[str, str]:
    """The environment's name, and ``HOST:PORT``. Raises: ConfigError: it is no address."""
    found = _ADDRESS.fullmatch(text)
    port = int(found["port"] or PORT) if found else 0
    if found is None or not 0 < port < 65536:
        raise ConfigError("env_config.address", f"{shown(text)} is no environment on a server; write ID@HOST:PORT")
    return found["id"], f"{found['host']}:{port}"


def _as_text(key: str, value: Any) -> str:
    """A value of ``config``, which has texts alone. Raises: ConfigError."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise ConfigError(f"env_config.reset.{key}", f"must be a text, a number or true or false, got {shown(value)}")


def _value(text: str) -> Any:
    """A value of ``info``: JSON, as servers of this package have it, or as Python writes it, as MRLM's have it."""
    if text in ("True", "False"):
        return text == "True"
    try:
        return json_files.parse(text)
    except ValueError:
        return text
