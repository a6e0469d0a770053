"""What games have in common that are environments on servers of others, whatever they speak."""

from __future__ import annotations

import os
import random
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.base.http_client import Broken, Late, NoAnswer, Reply, Unreachable, ask
from rllib_lmgame.base.step_timer import WaitedTooLong, waiting
from rllib_lmgame.base.text import shown
from rllib_lmgame.envs.contract.base import GameError, TextGameOptions
from rllib_lmgame.envs.support.replies import WholeReplyGame

CHECK_S = 10.0
"""Seconds that a server has to answer before a run."""
LONGEST_PAUSE_S = 5.0
"""Between a request that finds no server, or a full one, and the next try."""
MOST_BYTES = 16_000_000
"""Of one answer."""

T = TypeVar("T")


class NotNow(Exception):
    """The server is not there, or full."""


class Wrong(Exception):
    """What the server did, in words that follow its address."""


class BrokeOff(Wrong):
    """The connection broke; the server may have heard the request."""


def patiently(ask: Callable[[], T], where: str, retries: int) -> T:
    """What is answered, asked for again while the server is full or not there. Raises: WaitedTooLong."""
    problem = ""
    for attempt in range(retries + 1):
        with waiting():
            if attempt:
                time.sleep(min(LONGEST_PAUSE_S, 0.1 * 2 ** (attempt - 1)))
            try:
                return ask()
            except NotNow as error:
                problem = str(error)
    tries = f" (asked {retries + 1} times)" if retries else ""
    raise WaitedTooLong(f"{where} {problem}{tries}")


async def answer_of(http: Any, method: str, url: str, timeout_s: float, **how: Any) -> Reply:
    """An answer over HTTP. Raises: NotNow: the server is not there; Wrong: there is no whole answer."""
    try:
        return await ask(http, method, url, timeout_s, MOST_BYTES, **how)
    except Unreachable as error:
        raise NotNow(f"is not there ({error})") from None
    except Broken as error:
        raise BrokeOff(f"broke off: {error}") from None
    except Late:
        raise Wrong(f"gave no whole answer in timeout_s={timeout_s:g}") from None
    except NoAnswer as error:
        raise Wrong(str(error)) from None


TOKEN = "Environment variable that holds the token of the server; null: it needs none."


def refusal(status: int) -> str:
    """What a server did that answers so."""
    if status in (401, 403):
        return f"refuses the token, or its absence (status {status}); env_config.token_variable names one"
    return f"answers status {status}"


def without(token: str | None, said: object) -> str:
    """What a server said, without its token."""
    return str(said) if token is None else str(said).replace(token, "***")


def read_token(variable: str | None) -> str | None:
    """The token in an environment variable. Raises: ConfigError: it holds none."""
    if variable is None:
        return None
    token = os.environ.get(variable, "").strip()
    if not token or not token.isascii() or not token.isprintable():
        raise ConfigError("env_config.token_variable", f"the token is to stand in ${variable}, which holds none")
    return token


class OnServerOptions(TextGameOptions):
    """``env_config`` of environments on servers."""

    max_turns: int = option(100, "Replies per episode; the server may end it before.", ge=1)
    invalid_action_penalty: float = option(0.0, "Reward of a reply that is no action of the environment.", le=0)
    max_invalid_actions: int | None = option(
        None, "Such replies in a row that end the episode; null never ends it.", ge=1
    )
    token_variable: str | None = option(None, TOKEN)
    rules: str = option("", "What players are told, beside what the environment shows.")
    success_above: float = option(
        0.0, "Where the environment gives no `info.success`: an episode is a success if its return is above this."
    )
    timeout_s: float = option(600.0, "Longest time for one message; then the episode is dropped.", gt=0, le=86_400)
    retries: int = option(10, "Times a session is asked for again of a server that is full or not there.", le=100)


class OnServerGame(WholeReplyGame):
    """An environment on a server: a level is a number that the server is told."""

    solver_wins = False
    Options: ClassVar[type[TextGameOptions]] = OnServerOptions
    slow_calls = True  # the server is a process of its own
    replayable = False  # nobody here knows what it does
    most_levels: int = 2**31 - 1

    def __init__(self, render_mode: str | None = None, **env_config: Any) -> None:
        super().__init__(render_mode, **env_config)
        self._place: int | None = None
        self._seen = ""
        self._legal: tuple[str, ...] = ()
        self._over = self._cut = False
        self._won: bool | None = None
        self._return = 0.0

    @property
    @abstractmethod
    def where(self) -> str:
        """The address, for messages."""

    def _refuse_level_keys(self, asked: Mapping[str, Any], *keys: str) -> None:
        """Raises: ConfigError: the option ``reset`` says what the level says."""
        for key in keys:
            if key in asked:
                raise ConfigError(f"env_config.reset.{key}", "is the level's; leave it out")

    @property
    def rules(self) -> str:
        return str(self.options.rules)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin the level of ``seed``."""
        self._place = seed
        return super().reset(seed=seed, options=options)

    def levels(self, rng: random.Random) -> Iterator[int]:
        if self._place is not None:
            yield self._place % self.most_levels
        while True:
            yield rng.randrange(self.most_levels)

    def board(self) -> str:
        return self._seen

    def legal_actions(self) -> tuple[str, ...]:
        """Those that ``info.legal_actions`` lists, if it is there, as games of this package have it."""
        return self._legal

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        text, reward, terminated, truncated, info = super().step(action)
        cut = terminated and self._over and self._cut
        return text, reward, terminated and not cut, truncated or cut, info

    @property
    def success(self) -> bool:
        """What ``info.success`` says, else a return above ``success_above`` at the end."""
        if self._won is not None:
            return self._won
        return self._over and self._return > self.options.success_above

    @property
    def finished(self) -> bool:
        return self._over

    def _begin(self, answer: Any) -> None:
        """Keep what the server says of a new episode. Raises: GameError."""
        self._take(answer)
        self._return = 0.0
        if self._over:
            raise GameError(f"{self.where}: the episode is over before it begins")

    @abstractmethod
    def _take(self, answer: Any) -> float:
        """Keep what an answer shows, and what it says by :meth:`_keep`; its reward. Raises: GameError."""

    def _keep(self, reward: Any, done: Any, info: Mapping[str, Any]) -> float:
        """Keep what an answer says; its reward. Raises: GameError: it cannot be."""
        number = 0.0 if reward is None else reward
        if not isinstance(number, int | float) or not abs(number) <= sys.float_info.max:
            raise GameError(f"{self.where}: the reward is {shown(reward)}, which is no finite number")
        if not isinstance(done, bool):
            raise GameError(f"{self.where}: `done` is {shown(done)}; it must be true or false")
        self._return += float(number)
        self._over = done
        listed = info.get("legal_actions")
        self._legal = tuple(listed) if isinstance(listed, list) and all(isinstance(a, str) for a in listed) else ()
        won = info.get("success")
        self._won = won if isinstance(won, bool) and done else None
        self._cut = done and info.get("truncated") is True
        return float(number)
