"""One level in play: a task, what answers the browser, and whether the task is done."""

from __future__ import annotations

import random
from typing import Protocol

from rllib_lmgame.envs.games.web.web_navigation.browser import Backend, Browser
from rllib_lmgame.envs.games.web.web_navigation.expert import next_action
from rllib_lmgame.envs.games.web.web_navigation.http_backend import HttpBackend
from rllib_lmgame.envs.games.web.web_navigation.remote import RemoteTask
from rllib_lmgame.envs.games.web.web_navigation.site import SiteBackend, build_site, copy_site
from rllib_lmgame.envs.games.web.web_navigation.tasks import FAMILIES


class Job(Protocol):
    """What the game needs to know of a level."""

    intent: str
    start: str
    backend: Backend

    def solved(self, browser: Browser, answer: str) -> bool:
        """Whether stopping now with ``answer`` is right."""
        ...

    def expert(self, browser: Browser) -> str | None:
        """The solver's next reply, if there is a solver."""
        ...


class SiteJob:
    """A task on the site of this package.

    Args:
        seed: Which site.
        family: Which family of tasks.
    """

    start = "/"

    def __init__(self, seed: int, family: str) -> None:
        self.task = FAMILIES[family](build_site(seed), random.Random(f"web task {seed} {family}"))
        self.site = copy_site(self.task.site)
        self.intent = self.task.intent
        self.backend: Backend = SiteBackend(self.site)

    def solved(self, browser: Browser, answer: str) -> bool:
        return self.task.solved(self.site, answer)

    def expert(self, browser: Browser) -> str | None:
        return next_action(browser, self.site, self.task)


class RemoteJob:
    """A task on a running site; it has no solver."""

    def __init__(self, task: RemoteTask, backend: HttpBackend) -> None:
        self._task = task
        self.intent, self.start = task.intent, task.start
        self.backend: Backend = backend

    def solved(self, browser: Browser, answer: str) -> bool:
        return self._task.solved(browser.page.path, answer)

    def expert(self, browser: Browser) -> str | None:
        return None
