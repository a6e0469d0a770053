"""Calls into games: directly for games of this package, in a daemon thread with a time limit for all others."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from rllib_lmgame.base.errors import ConfigError, MissingDependencyError
from rllib_lmgame.base.step_timer import CALL_LIMIT_S, WaitedTooLong, clocked
from rllib_lmgame.base.text import in_words, one_line
from rllib_lmgame.envs.contract.session import GameSession
from rllib_lmgame.envs.registry import game_spec, make_session
from rllib_lmgame.inference.protocol import StopReason
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.rollouts.seats import EpisodeFailed

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_IDLE = 64
"""Threads that are kept for later calls."""


@dataclass(eq=False)
class GameCalls:
    """Calls one game, or player of others; an exception or a hang becomes an
    :class:`~rllib_lmgame.rollouts.seats.EpisodeFailed`.

    Calls of a ``trusted`` game have no time limit; messages name that of others by its ``key``.
    """

    game_id: str
    trusted: bool
    timeout_s: float
    key: str = "env_step_timeout_s"

    async def __call__(
        self, what: str, function: Callable[..., T], *args: Any, unwanted: Callable[[T], object] | None = None
    ) -> T:
        """``function(*args)``; ``what`` names the call in messages, ``unwanted`` gets a result that came too late."""
        try:
            if self.trusted:
                return catching(function, *args)
            return await self._watched(what, unwanted, function, *args)
        except (ConfigError, MissingDependencyError, EpisodeFailed):
            raise
        except WaitedTooLong as error:
            raise EpisodeFailed(StopReason.ENV_BUSY, f"{self.game_id}: {what}: {error}") from error
        except Exception as error:
            words = str(error) if isinstance(error, RaisedError) else in_words(error)
            raise EpisodeFailed(StopReason.ENV_ERROR, f"{self.game_id}: {what}: {words}") from error

    async def _watched(
        self, what: str, unwanted: Callable[[T], object] | None, function: Callable[..., T], *args: Any
    ) -> T:
        try:
            async with asyncio.timeout(self.timeout_s) as limit:
                clock = _PausedWhileWaiting(limit, self.timeout_s)
                return await in_daemon_thread(clocked, clock, catching, function, *args, unwanted=unwanted)
        except TimeoutError:
            if not limit.expired():
                raise
            message = f"{self.game_id}: {what} took longer than {self.key}={self.timeout_s:g}"
            raise EpisodeFailed(StopReason.TIMEOUT, message) from None


async def open_session(game: GameConfig, timeout_s: float) -> GameSession:
    """A new session of ``game``.

    Raises: EpisodeFailed: it could not be built, or not in time; ConfigError: unknown game or key, or an impossible
        value; MissingDependencyError: the game needs a missing package.
    """
    return await GameCalls(game.env, game_spec(game.env).own, timeout_s)(
        "the constructor", make_session, game.env, dict(game.env_config), unwanted=abandon
    )


@contextmanager
def opened(game: str, env_config: Mapping[str, Any] | None = None) -> Iterator[GameSession]:
    """A session that is not in play, closed at the end. Raises: ConfigError: it cannot be made, or not in time."""
    try:
        session = run_to_end(open_session(GameConfig(env=game, env_config=dict(env_config or {})), CALL_LIMIT_S))
    except EpisodeFailed as error:
        raise ConfigError("game", one_line(str(error))) from error
    try:
        yield session
    finally:
        close_games([session], CALL_LIMIT_S)


def abandon(session: GameSession) -> threading.Thread:
    """Close a game in a thread, without waiting for it; what it raises is logged."""

    def close() -> None:
        try:
            session.close()
        except BaseException as error:
            logger.debug("%s could not be closed: %s", session.game_id, in_words(error))

    thread = threading.Thread(target=close, daemon=True, name="game-close")
    thread.start()
    return thread


def close_games(sessions: Iterable[GameSession], limit_s: float) -> None:
    """Close games as :func:`abandon` does, and wait for them for at most ``limit_s`` seconds."""
    closing = [(session.game_id, abandon(session)) for session in sessions]
    deadline = time.monotonic() + limit_s
    for _, thread in closing:
        thread.join(max(0.0, deadline - time.monotonic()))
    late = dict.fromkeys(game for game, thread in closing if thread.is_alive())
    if late:
        logger.warning("%s did not close within %g s and is left behind", ", ".join(late), limit_s)


def run_to_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run``, in another thread if a loop is running already (as in a notebook)."""
    found: list[T] = []

    async def run() -> None:  # Before Python 3.13 asyncio.run takes the ``repr`` of all that its coroutine returns.
        found.append(await coroutine)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(run())
    else:
        with ThreadPoolExecutor(1, "play") as executor:
            executor.submit(asyncio.run, run()).result()
    return found[0]


def call_game(session: GameSession, what: str, function: Callable[..., T], *args: Any) -> T:
    """``function(*args)``, a call into a game that is not in play; ``what`` names it.

    Raises: EpisodeFailed: it fails, or takes longer than :data:`CALL_LIMIT_S` in a game of others.
    """
    return run_to_end(GameCalls(session.game_id, session.trusted, CALL_LIMIT_S)(what, function, *args))


class RaisedError(Exception):
    """What a game raised, as text. The text is made in the game's thread, since it may hang like any call."""


def catching(function: Callable[..., T], *args: Any) -> T:
    """``function(*args)``; what it raises becomes a :class:`RaisedError`, except errors for the user.

    This includes ``sys.exit()`` and ``CancelledError``, which would end or cancel the caller.
    """
    try:
        return function(*args)
    except (ConfigError, MissingDependencyError, EpisodeFailed, WaitedTooLong, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise RaisedError(in_words(error)) from error


class _PausedWhileWaiting:
    """Extends the time limit of a call by the time that it waits for its turn."""

    def __init__(self, limit: asyncio.Timeout, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit = limit
        self._left = seconds
        self._since = self._loop.time()

    def pause(self) -> None:
        self._left = self.left()
        self._move(None)

    def resume(self) -> None:
        """The call continues with the time that was left."""
        self._since = self._loop.time()
        self._move(self._since + self._left)

    def left(self) -> float:
        return self._left - (self._loop.time() - self._since)

    def _move(self, when: float | None) -> None:
        with contextlib.suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(self._reschedule, when)

    def _reschedule(self, when: float | None) -> None:
        with contextlib.suppress(RuntimeError):  # The call is over, or was given up.
            self._limit.reschedule(when)


async def in_daemon_thread(function: Callable[..., T], *args: Any, unwanted: Callable[[T], object] | None = None) -> T:
    """Run ``function`` in a daemon thread, so that a game that hangs does not keep the process alive.

    ``unwanted`` gets the result, in any thread, if it is not awaited any more.
    """
    future: Future[T] = Future()
    caller = _idle.pop() if _idle else _Caller()
    caller.jobs.put((partial(function, *args), future, unwanted))
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        if not future.cancel() and unwanted is not None and future.exception() is None:
            unwanted(future.result())
        raise


class _Caller:
    """A thread that makes one call after another: starting one per call would cost more than most games."""

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any], Any]] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True, name="game-call").start()

    def _work(self) -> None:
        while _deliver(*self.jobs.get()) and len(_idle) < MAX_IDLE:
            _idle.append(self)


def _deliver(call: Callable[[], Any], future: Future[Any], unwanted: Callable[[Any], object] | None) -> bool:
    """Make the call. Returns whether its result was still awaited."""
    result: Any = None
    error: Exception | None = None
    try:
        result = call()
    except BaseException as caught:
        # A future cannot carry StopIteration, and an exit asked for by a game must not end this process.
        plain = isinstance(caught, Exception) and not isinstance(caught, StopIteration)
        error = caught if plain else RuntimeError(in_words(caught))  # type: ignore[assignment]
    try:
        future.set_result(result) if error is None else future.set_exception(error)
    except InvalidStateError:  # It was cancelled.
        if error is None and unwanted is not None:
            unwanted(result)
        return False
    return True


_idle: list[_Caller] = []
os.register_at_fork(after_in_child=_idle.clear)
