"""MiniWoB: the small web tasks of MiniWoB++, as BrowserGym sets and checks them, in a real browser."""

from __future__ import annotations

import importlib.util
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from browsergym.miniwob import ALL_MINIWOB_TASKS

from rllib_lmgame.base.errors import ConfigError, MissingDependencyError, did_you_mean
from rllib_lmgame.base.group import option
from rllib_lmgame.base.trust import is_name
from rllib_lmgame.envs.contract.base import TextGameOptions, Variant
from rllib_lmgame.envs.games.web.browser.actions import ON_A_PAGE, Call, read_call
from rllib_lmgame.envs.games.web.browser.host import Pages
from rllib_lmgame.envs.games.web.browser.program import find_chromium
from rllib_lmgame.envs.games.web.browser.sight import elements_of, listed_actions, tree_of
from rllib_lmgame.envs.games.web.mini_wob.expert import SOLVED, next_action
from rllib_lmgame.envs.support.replies import WholeReplyGame

TASKS = {task.subdomain: task for task in ALL_MINIWOB_TASKS}
"""Tasks by name, in BrowserGym's order."""

ALL = "all"
SOLVABLE = "solvable"
SEEDS = 1_000_000
SETTLE_MS = 100
"""What an action may set off on the page gets this time before the page is read."""

RULES = """You do a task on a small web page in a browser. You see the page as a tree of its elements; \
the number in brackets names an element.
Reply with one action, as in: click('12'). Actions are
click(ID), dblclick(ID), hover(ID), focus(ID), fill(ID, TEXT), clear(ID), press(ID, KEY) as in press('12', 'Enter'), \
select_option(ID, TEXT),
drag_and_drop(ID, ID), scroll(RIGHT, DOWN) in pixels, noop() which waits a second.
Doing the task gives 1, and a mistake may end it. There are {turns} turns."""

MINIWOB_URL = "MINIWOB_URL"
INSTALL_PAGES = (
    "MiniWoB needs the pages of its tasks, which the package 'miniwob' has: pip install --no-deps miniwob (what it "
    f"asks for besides is not needed), or let {MINIWOB_URL} be the address of a server of them"
)


class MiniWoBOptions(TextGameOptions):
    """``env_config`` of MiniWoB."""

    max_turns: int = option(10, "Replies per episode.", ge=1)
    tasks: str | tuple[str, ...] = option(
        SOLVABLE,
        "Names of tasks, as `[click-test, enter-text]`; `all` those of BrowserGym, or `solvable`, those that the "
        "scripted expert does. The seed chooses one of them.",
        stranger=is_name,
    )
    page_timeout_s: float = option(
        15.0, "Longest time a page may take to load or to answer; the episode is then dropped.", gt=0, le=600
    )


class Level(NamedTuple):
    """A task and the seed of what its page draws."""

    task: str
    seed: int


class MiniWoB(WholeReplyGame):
    """A small task on a web page in a real browser (needs Chromium).

    The tasks are those of MiniWoB++ (Shi et al. 2017, Liu et al. 2018), set and checked by BrowserGym.

    Observation: the goal and the page as an accessibility tree, ``[12] button 'Submit'``; what went wrong with the last
        action.
    Action: one of BrowserGym's, as ``click('12')`` or ``fill('12', 'a text')``.
    Reward: 1 when the page says that the task is done, 0 when it says that it is failed; -0.1 for what is no action, or
        names no element of the page.
    Horizon: 10 replies. The page's own clock does not end it.
    Levels: a task and a seed of what its page draws.
    Speed: some ten replies a second and browser. A process has one, of some 400 MB, and 100 MB more for each game.
    Setting up: ``apt-get install chromium`` and ``pip install --no-deps browsergym-core browsergym-miniwob miniwob``
        (the tasks and their pages), both of which ``make test`` does; or ``RLLIB_LMGAME_CHROMIUM`` names the browser
        and ``MINIWOB_URL`` a server of the pages. The browser runs without its own sandbox, as Playwright starts it:
        show it no pages that you do not trust.
    Solver: a script for each of some twenty tasks.
    """

    variants = (Variant("lmgame/MiniWoB-v0", (-0.7, 1.0)),)
    extra = "browser"
    Options: ClassVar[type[TextGameOptions]] = MiniWoBOptions
    slow_calls = True  # the browser is a process of its own
    rules_text = RULES
    options: MiniWoBOptions

    def __init__(self, render_mode: str | None = None, **env_config: Any) -> None:
        super().__init__(render_mode, **env_config)
        self._tasks = chosen_tasks(self.options.tasks)
        self._url = pages_url()
        find_chromium()
        self._pages = Pages(self.options.page_timeout_s)

    def levels(self, rng: random.Random) -> Iterator[Level]:
        while True:
            yield Level(rng.choice(self._tasks), rng.randrange(SEEDS))

    def level_key(self, level: Level) -> str:
        return f"mini_wob {level.task} {level.seed}"

    def start(self, level: Level) -> None:
        self._level = level
        self._task = TASKS[level.task](seed=level.seed, base_url=self._url)
        self._pages.begin({"viewport": self._task.viewport})
        self._reward, self._done, self._wrong = 0.0, False, ""
        self._played: list[str] = []
        self._goal, self._tree = self._pages.do(f"task {level.task}", self._begin)

    def board(self) -> str:
        wrong = f"The last action failed: {self._wrong}" if self._wrong else ""
        end = "" if not self._done else "The task is done." if self.success else "The task is failed."
        return "\n".join(part for part in (f"Goal: {self._goal}", self._tree, wrong, end) if part)

    def legal_actions(self) -> tuple[str, ...]:
        return listed_actions(self._tree, self._goal)

    def read_move(self, text: str) -> Call:
        return read_call(text, ON_A_PAGE)

    def play_move(self, move: Call) -> float:
        move.check_elements(self._tree)
        self._wrong, self._reward, self._done, self._tree = self._pages.do(move.name, self._act, move)
        if not self._wrong:
            self._played.append(move.text)
        if self._done:
            self._pages.end()
        return self._reward

    @property
    def success(self) -> bool:
        return self._done and self._reward > 0

    @property
    def finished(self) -> bool:
        return self._done

    @property
    def solver_wins(self) -> bool:
        return set(self._tasks) <= SOLVED.keys() and self.options.max_turns >= 10

    def expert_action(self) -> str | None:
        """What the script of the task does next; ``None`` for a task without one."""
        return next_action(self._level.task, self._goal, elements_of(self._tree), self._played)

    def close(self) -> None:
        """Close the page; the last game of a process to do so ends the browser."""
        self._pages.close()

    def _begin(self) -> tuple[str, str]:
        page = self._pages.page
        goal, _ = self._task.setup(page)
        return " ".join(str(goal).split()), tree_of(page)

    def _act(self, call: Call) -> tuple[str, float, bool, str]:
        page = self._pages.page
        _, wrong = call.play(page)
        page.wait_for_timeout(SETTLE_MS)
        reward, done, _, _ = self._task.validate(page, [])
        return wrong, float(reward), bool(done), tree_of(page)


def chosen_tasks(tasks: str | tuple[str, ...]) -> list[str]:
    """The tasks that an option names.

    Raises: ConfigError: if there is no such task; the message names the nearest one.
    """
    if tasks == ALL:
        return list(TASKS)
    if tasks == SOLVABLE:
        return list(SOLVED)
    chosen = [tasks] if isinstance(tasks, str) else list(tasks)
    for name in chosen:
        if name not in TASKS:
            hint = did_you_mean(name, TASKS, f"tasks: {', '.join(TASKS)}")
            raise ConfigError("env_config.tasks", f"there is no task {name!r}; {hint}")
    if not chosen:
        raise ConfigError("env_config.tasks", f"names no task; give names, {SOLVABLE!r} or {ALL!r}")
    return chosen


def pages_url() -> str:
    """Address of the folder of the tasks' pages, with a slash at its end.

    Raises: MissingDependencyError: if there is none.
    """
    if url := os.environ.get(MINIWOB_URL):
        return url.rstrip("/") + "/"
    found = importlib.util.find_spec("miniwob")  # Importing it would ask for Selenium.
    folder = Path(found.origin).parent / "html" / "miniwob" if found is not None and found.origin else None
    if folder is None or not folder.is_dir():
        raise MissingDependencyError(INSTALL_PAGES)
    return folder.as_uri() + "/"
