"""One Chromium per Python process, which all its games share.

Playwright's interface belongs to one thread, in which each of its calls is a greenlet that waits while others go on. So
one thread of its own starts the browser, and every job of a game is a greenlet there: a page that hangs keeps no other
game waiting. Each game has a browser context (cookies, storage, pages) to itself.

Guarantees, each tested:

1. A job that is not over in time closes the pages of its game, and raises there. No other game notices.
2. When a game closes its pages nothing of them is left. The last one of a process to close ends the browser.
3. When the process dies, also by a signal that cannot be caught, the browser ends with it.
4. A browser that has died fails the games that have pages in it; the next game starts a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from browsergym.core.constants import BROWSERGYM_ID_ATTRIBUTE
from greenlet import greenlet
from playwright.sync_api import Browser, BrowserContext, Error, Page, sync_playwright

from rllib_lmgame.base.text import first_line
from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.games.web.browser.program import find_chromium

T = TypeVar("T")

START_LIMIT_S = 60.0
"""Longest time a browser may take to start or to end."""

CLOSE_LIMIT_S = 10.0
"""Longest time the pages of a game may take to close."""


class Chromium:
    """A browser process and the thread that drives it. Raises: GameError: if it does not start."""

    def __init__(self, path: str) -> None:
        self._loop: Any = None
        self._over: asyncio.Event
        self._browser: Browser
        self._open = False
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._serve, args=(path, started), daemon=True, name="browser")
        self._thread.start()
        try:
            started.result(START_LIMIT_S)
        except Exception as error:
            self.stop()
            raise GameError(f"the browser {path} does not start: {first_line(error)}") from error

    @property
    def alive(self) -> bool:
        """It can take jobs."""
        return self._open and self._thread.is_alive()

    def new_context(self, settings: Mapping[str, Any]) -> BrowserContext:
        """A context with nothing in it; only in a job."""
        return self._browser.new_context(**settings)

    def call(self, job: Callable[[], T], limit_s: float) -> T:
        """Run ``job`` in the thread of the browser.

        Raises: TimeoutError: if it is not over in time; it is not ended.
        """
        answer: Future[T] = Future()

        def work() -> None:
            try:
                answer.set_result(job())
            except BaseException as error:
                answer.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(lambda: greenlet(work).switch())
        except RuntimeError as error:
            raise GameError("the browser has ended") from error
        return answer.result(limit_s)

    def stop(self) -> None:
        """End the browser and wait for it."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(START_LIMIT_S)

    def _serve(self, path: str, started: Future[None]) -> None:
        try:
            with sync_playwright() as playwright:
                playwright.selectors.set_test_id_attribute(BROWSERGYM_ID_ATTRIBUTE)
                self._browser = playwright.chromium.launch(executable_path=path)
                self._over = asyncio.Event()
                self._browser.on("disconnected", self._disconnected)
                self._loop = playwright._loop
                self._open = True
                started.set_result(None)
                playwright._sync(self._over.wait())  # Meanwhile the loop runs, and jobs with it.
                self._open = False
                with contextlib.suppress(Error):
                    self._browser.close()
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)
        finally:
            self._open = False

    def _disconnected(self, _: Browser) -> None:
        self._open = False
        self._over.set()


_lock = threading.Lock()
_shared: dict[int, tuple[Chromium, set[int]]] = {}
"""Of this process (by its id: a forked child must not use its parent's): the browser and the games in it."""


def _enter(user: int) -> Chromium:
    with _lock:
        browser, users = _shared.get(os.getpid(), (None, set()))
        if browser is None or not browser.alive:
            browser, users = Chromium(find_chromium()), set()
        users.add(user)
        _shared[os.getpid()] = (browser, users)
        return browser


def _leave(browser: Chromium, user: int) -> None:
    """One game less; the last one ends the browser."""
    with _lock:
        current, users = _shared.get(os.getpid(), (None, set[int]()))
        if current is not browser:  # It has died, and another one was started.
            return
        users.discard(user)
        if users:
            return
        del _shared[os.getpid()]
    browser.stop()


class _Held:
    """What the pages of one game hold: a place in the browser, and a context in it."""

    def __init__(self) -> None:
        self.browser: Chromium | None = None
        self.context: BrowserContext | None = None
        self.opening: object = None
        """Stands for the context that is being opened, if somebody still waits for it."""

    def end(self) -> None:
        """Close the context."""
        self.opening = None
        context, self.context = self.context, None
        if context is not None and self.browser is not None and self.browser.alive:
            with contextlib.suppress(TimeoutError, Error, GameError):
                self.browser.call(lambda: context.close(), CLOSE_LIMIT_S)

    def close(self) -> None:
        """Leave the browser as well."""
        self.end()
        browser, self.browser = self.browser, None
        if browser is not None:
            _leave(browser, id(self))


def _forget(held: _Held) -> None:
    """Close what a game that was forgotten holds: in a thread, since Python may find it anywhere, also in the browser's
    own thread.
    """
    threading.Thread(target=held.close, daemon=True, name="browser-close").start()


class Pages:
    """The pages that one game has open, in a context of their own.

    Args:
        limit_s: Longest time of one job in seconds.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._held = _Held()
        weakref.finalize(self, _forget, self._held).atexit = False
        self.page: Page
        """The page in front."""

    def begin(self, context: Mapping[str, Any]) -> None:
        """Close them and open an empty one.

        Args:
            context: Settings of the browser context, as Playwright names them.

        Raises:
            MissingDependencyError: if there is no browser.
            GameError: if it does not start.
        """
        held = self._held
        held.end()
        if held.browser is None or not held.browser.alive:
            held.browser = _enter(id(held))
        held.opening = opening = object()
        self._do("opening a page", self._open, context, opening)

    def do(self, what: str, job: Callable[..., T], *args: Any) -> T:
        """Run ``job(*args)``, which may use :attr:`page`, in the thread of the browser.

        Args:
            what: The job, for messages.

        Raises: GameError: if it fails or takes too long. The pages are then closed.
        """
        if self._held.context is None:
            raise GameError(f"{what}: the pages of this game are closed")
        return self._do(what, job, *args)

    def end(self) -> None:
        """Close them, and keep the place in the browser."""
        self._held.end()

    def close(self) -> None:
        """Close them; the last game of a process to do so ends the browser."""
        self._held.close()

    def _do(self, what: str, job: Callable[..., T], *args: Any) -> T:
        assert self._held.browser is not None
        try:
            return self._held.browser.call(lambda: job(*args), self._limit_s)
        except TimeoutError:
            self.end()
            raise GameError(f"{what}: the page did not answer within {self._limit_s:g} s") from None
        except Error as error:
            self.end()
            raise GameError(f"{what}: {first_line(error)}") from error

    def _open(self, context: Mapping[str, Any], opening: object) -> None:
        held = self._held
        assert held.browser is not None
        opened = held.browser.new_context(context)
        if held.opening is not opening:  # It took too long: the pages were closed meanwhile.
            opened.close()
            return
        held.context = opened
        opened.set_default_timeout(1000 * self._limit_s)
        self.page = opened.new_page()
