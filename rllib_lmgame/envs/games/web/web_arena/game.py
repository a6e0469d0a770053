"""WebArena: tasks on copies of whole web sites, which run beside this package, in a real browser."""

from __future__ import annotations

import contextlib
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import urlsplit

from playwright.sync_api import Error, Page

from rllib_lmgame.base import json_files
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.base.storage import expanded
from rllib_lmgame.base.text import shown
from rllib_lmgame.envs.contract.base import GameError, InvalidAction, TextGameOptions, invalid_rule
from rllib_lmgame.envs.games.web.browser.actions import ACROSS_PAGES, TO_THE_USER, Call, read_call
from rllib_lmgame.envs.games.web.browser.host import Pages
from rllib_lmgame.envs.games.web.browser.program import find_chromium
from rllib_lmgame.envs.games.web.browser.sight import listed_actions, tree_of
from rllib_lmgame.envs.games.web.web_arena.judging import address_is_right, address_of, answer_is_right, page_says
from rllib_lmgame.envs.games.web.web_arena.tasks import (
    UNACHIEVABLE,
    Task,
    chosen_numbers,
    read_tasks,
    site_addresses,
    variable_of,
)
from rllib_lmgame.envs.support.asked_models import AskedModel
from rllib_lmgame.envs.support.listed_levels import ListedLevels
from rllib_lmgame.envs.support.replies import WholeReplyGame

VIEWPORT = {"width": 1280, "height": 720}
"""WebArena's."""

SETTLE_MS = 500
"""What an action may set off gets this time, and a page that it opens :data:`LOAD_MS` to load."""
LOAD_MS = 3000
JUDGED_AFTER_MS = 3000
"""A page that is opened to be judged gets this time, as WebArena gives it."""
ASKS_FOR_LOGIN = r"""() => [...document.querySelectorAll("a[href], input[type=password]")].some(one =>
    one.checkVisibility() && (one.type == "password"
        || /^\/(login|users\/sign_in|customer\/account\/login(\/.*)?)\/?$/.test(one.pathname)))"""
"""Of a page: it has a field for a password, or a link to the login of Magento, Postmill or GitLab."""
CHECK_S = 10.0
MOST_BYTES = 10_000_000
"""Of a file of a logged-in state."""

RULES = """You do a task on web sites in a browser. You see the page in front as a tree of its elements; \
the number in brackets names an element.
Reply with one action, as in: click('12'). Actions are
click(ID), dblclick(ID), hover(ID), focus(ID), fill(ID, TEXT), clear(ID), press(ID, KEY) as in press('12', 'Enter'), \
select_option(ID, TEXT),
drag_and_drop(ID, ID), scroll(RIGHT, DOWN) in pixels, noop() which waits a second,
goto(ADDRESS) on these sites, go_back(), go_forward(), new_tab(), tab_close(), tab_focus(NUMBER).
When the task is done, end it with send_msg_to_user(TEXT): the answer if the task asks for one, as short as it can be, \
else any word. If it cannot be done, end with report_infeasible(REASON).
Doing the task gives 1. There are {turns} turns."""


class WebArenaOptions(TextGameOptions):
    """``env_config`` of WebArena."""

    max_turns: int = option(30, "Replies per episode; 30 is WebArena's number.", ge=1)
    ids: str | int | None = option(
        None, "Tasks by their numbers, as `310` or `0-9, 44`. null: all those that can be played and judged here."
    )
    storage_state: str | None = option(
        None,
        "Folder of the files `SITE_state.json` that WebArena's `auto_login.py` writes (`.auth`): the cookies with "
        "which players are logged in. null: only tasks that need no login.",
        path=True,
    )
    judge: str | None = option(
        None, "Language model that compares answers, `openai:MODEL@URL`. null: only tasks that are judged without one."
    )
    page_timeout_s: float = option(
        60.0, "Longest time a page may take to load or to answer; the episode is then dropped.", gt=0, le=600
    )


class WebArena(ListedLevels, WholeReplyGame):
    """A task on a copy of a shop, a forum, GitLab, a map or Wikipedia (needs Chromium and the sites).

    The 812 tasks are WebArena's (Zhou et al. 2023).

    Observation: the task, the open tabs, and the page in front as an accessibility tree, ``[12] button 'Submit'``; what
        went wrong with the last action.
    Action: one of BrowserGym's, as ``click('12')`` or ``send_msg_to_user('42')``, which ends the task.
    Reward: 1 if the task is done, judged when the player ends it or has no turn left; -0.1 for what is no action, names
        no element of the page, or would leave the sites. A page of another site, by a link, ends the task without
        reward.
    Horizon: 30 replies, as WebArena has it.
    Levels: tasks by their numbers (option ``ids``).
    """

    extra = "browser"
    Options: ClassVar[type[TextGameOptions]] = WebArenaOptions
    slow_calls = True  # the browser and the sites are processes of their own
    turns_are_tries = True
    solver_wins = False
    rules_text = RULES
    options: WebArenaOptions

    def __init__(self, render_mode: str | None = None, **env_config: Any) -> None:
        super().__init__(render_mode, **env_config)
        chosen = self.options
        self._sites = site_addresses()
        self._judge = None if chosen.judge is None else AskedModel(chosen.judge, "env_config.judge")
        self._tasks = self._playable()
        self._states = self._logins()
        self._hosts = {_host(url) for url in self._sites.values()}
        find_chromium()
        self._pages = Pages(chosen.page_timeout_s)

    def _playable(self) -> tuple[Task, ...]:
        """The tasks to play. Raises: ConfigError: there is none, or one that is asked for cannot be played."""
        chosen = self.options
        tasks = read_tasks(self._sites)
        self._left_out: Counter[str] = Counter()
        wanted = None if chosen.ids is None else chosen_numbers(chosen.ids, "env_config.ids")
        found = []
        for task in tasks if wanted is None else [tasks[number] for number in wanted]:
            logins = chosen.storage_state is not None
            why = task.hindrance(self._sites, judge=self._judge is not None, logins=logins)
            if not why:
                found.append(task)
            elif wanted is not None:
                raise ConfigError("env_config.ids", f"WebArena's task {task.number} cannot be played: {why}")
            self._left_out[why] += bool(why)
        if not found:
            what = "; ".join(f"{count} tasks: {why}" for why, count in self._left_out.most_common(3))
            message = (
                f"none of WebArena's tasks can be played. Start its sites and let {variable_of('shopping')} and so"
            )
            raise ConfigError("env_config.ids", f"{message} on be their addresses ({what})")
        return tuple(found)

    def _logins(self) -> dict[str, Mapping[str, Any]]:
        """The logged-in states that the tasks need. Raises: ConfigError: one is missing or damaged."""
        key, folder = "env_config.storage_state", self.options.storage_state
        states: dict[str, Mapping[str, Any]] = {}
        for name in {task.login for task in self._tasks if task.login} if folder is not None else ():
            path = expanded(str(folder)) / name
            try:
                states[name] = json_files.read_mapping(path, MOST_BYTES)
            except OSError as error:
                hint = "WebArena's auto_login.py writes it; or name tasks by `ids` that do not need it"
                raise ConfigError(key, f"{path} cannot be read ({error.strerror}): {hint}") from None
            except ValueError as error:
                raise ConfigError(key, str(error)) from None
            if not all(isinstance(states[name].get(part), list) for part in ("cookies", "origins")):
                raise ConfigError(key, f"{path} is no state of a browser: it must have lists `cookies` and `origins`")
        return states

    def check_ready(self) -> str:
        """Ask the sites of the tasks whether they are there, and the judge.

        Returns: What was found, in a few words.
        Raises: ConfigError: if one is not there, or no task is of the split.
        """
        self.check_split()
        for site in dict.fromkeys(site for task in self._tasks for site in task.sites):
            try:
                with urllib.request.urlopen(self._sites[site], timeout=CHECK_S):
                    pass
            except urllib.error.HTTPError as error:
                error.close()  # It answers; what, is the browser's to see.
            except (OSError, ValueError) as error:
                reason = getattr(error, "reason", error)
                message = f"WebArena's {site} at {self._sites[site]} ({variable_of(site)}) does not answer: {reason}"
                raise ConfigError("env_config", message) from None
        if self._judge is not None:
            self._judge.check()
        left = "".join(f"; left out {count}: {why}" for why, count in self._left_out.most_common() if why)
        return f"has {len(self._tasks)} tasks whose sites answer{left}"

    @property
    def instructions(self) -> str:
        return f"{self.rules}\n{invalid_rule(self.options, self.options.max_turns)}"

    @property
    def listed(self) -> Sequence[Task]:
        return self._tasks

    def level_key(self, level: Task) -> str:
        return f"web_arena {level.number}"

    def start(self, level: Task) -> None:
        self._task = level
        self._over, self._score, self._wrong, self._end = False, 0.0, "", ""
        state = {"storage_state": self._states[level.login]} if level.login in self._states else {}
        self._pages.begin({"viewport": VIEWPORT, **state})
        for number, url in enumerate(level.starts):
            self._pages.do(f"task {level.number}", self._begin, url, number > 0)
        self._pages.do(f"task {level.number}", self._look)
        asks = self._pages.do(f"task {level.number}", self._asks_for_login) if state and not self._over else ""
        if asks:
            self._pages.end()
            hint = "WebArena's auto_login.py writes a new one"
            raise GameError(f"the login of {level.login} has expired: {asks} asks for one; {hint}")
        if self._over:
            self._pages.end()
            raise GameError(f"task {level.number} begins on another site than its address says: {self._tabs}")

    def board(self) -> str:
        several = len(self._task.sites) > 1
        sites = ", ".join(f"{site} {self._sites[site]}" for site in self._task.sites) if several else ""
        wrong = f"The last action failed: {self._wrong}" if self._wrong else ""
        parts = (f"Goal: {self._task.intent}", sites and f"Sites: {sites}", self._tabs, self._tree, wrong, self._end)
        return "\n".join(part for part in parts if part)

    def legal_actions(self) -> tuple[str, ...]:
        """Clicks on what is there, and texts the task quotes typed into its fields; there are more."""
        return listed_actions(self._tree, self._task.intent)

    def read_move(self, text: str) -> Call:
        return read_call(text, (*ACROSS_PAGES, *TO_THE_USER))

    def play_move(self, move: Call) -> float:
        given = dict(move.arguments)
        if move.name == "goto" and not self._is_ours(given["url"]):
            raise InvalidAction(f"{shown(given['url'], 80)} is no address on these sites.")
        move.check_elements(self._tree)
        if move.name in TO_THE_USER:
            self._finish(UNACHIEVABLE if move.name == "report_infeasible" else given["text"])
            return self._score
        self._wrong = self._pages.do(move.name, self._act, move)
        self._pages.do(move.name, self._look)
        if self._over:
            self._pages.end()
        return 0.0

    def _play(self, action: Any) -> tuple[float, str, InvalidAction | None]:
        reward, note, problem = super()._play(action)
        if not self._over and (self._turns_left() <= 0 or self._actions_left() == 0):
            self._finish("")
            reward += self._score
        return reward, note, problem

    @property
    def success(self) -> bool:
        return self._score > 0

    @property
    def finished(self) -> bool:
        return self._over

    def measures(self) -> Mapping[str, float]:
        """``left_sites``: whether a page of another site was opened."""
        return {"left_sites": float(bool(self._end))}

    def close(self) -> None:
        """Close the pages; the last game of a process to do so ends the browser."""
        self._pages.close()

    def _finish(self, answer: str) -> None:
        """Judge the task, and close its pages."""
        task = self._task
        done = not task.answers or answer_is_right(task, answer, self._judge)
        if done and "url_match" in task.checks["eval_types"]:
            done = address_is_right(task, self._pages.do("judging", lambda: self._pages.page.url))
        for target in task.targets if done else ():
            done = done and self._pages.do(f"judging task {task.number}", self._says, target)
        self._over, self._score = True, float(done)
        self._pages.end()

    def _is_ours(self, url: str) -> bool:
        try:
            return urlsplit(url).scheme in ("http", "https") and _host(url) in self._hosts
        except ValueError:
            return False

    # What follows runs in the thread of the browser.

    def _begin(self, url: str, beside: bool) -> None:
        page = self._pages.page.context.new_page() if beside else self._pages.page
        _load(page, url)

    def _act(self, call: Call) -> str:
        """Do it; the page in front is then the newest one that it opened."""
        context = self._pages.page.context
        before = context.pages
        page, wrong = call.play(self._pages.page)
        if context.pages:
            context.pages[-1].wait_for_timeout(SETTLE_MS)
        opened = [each for each in context.pages if each not in before]
        if opened:
            page = opened[-1]
        elif page.is_closed():
            page = context.pages[-1] if context.pages else context.new_page()
        self._pages.page = page
        with contextlib.suppress(Error):
            page.wait_for_load_state("load", timeout=LOAD_MS)
        return wrong

    def _look(self) -> None:
        """See the page in front; a page of another site ends the task. Raises: GameError: if a site does not answer."""
        front, pages = self._pages.page, self._pages.page.context.pages
        for page in pages:
            if page.url.startswith("chrome-error:"):
                raise GameError("a page of the sites does not load")
            if page.url and not page.url.startswith("about:") and not self._is_ours(page.url):
                self._over, self._end = True, "A page of another site was opened, which ends the task."
        marks = [" (in front)" if page is front else "" for page in pages]
        tabs = [f"Tab {number}{mark}: {page.url}" for number, (page, mark) in enumerate(zip(pages, marks, strict=True))]
        self._tabs, self._tree = "\n".join(tabs), "" if self._over else tree_of(front)

    def _asks_for_login(self) -> str:
        """Address of a page that asks for a login, of the sites that the player is to be logged in to; else nothing."""
        sites = {_host(self._sites[site]) for site in self._task.logged_in_to if site in self._sites}
        pages = [page for page in self._pages.page.context.pages if _host(page.url) in sites]
        return next((page.url for page in pages if page.evaluate(ASKS_FOR_LOGIN)), "")

    def _says(self, target: Mapping[str, Any]) -> bool:
        """Whether a target of the check is met, on the page in front or one that is opened for it."""
        front = self._pages.page
        url = address_of(target, front.url)
        if not url:
            return page_says(front, target)
        page = front.context.new_page()
        _load(page, url)
        page.wait_for_timeout(JUDGED_AFTER_MS)
        met = page_says(page, target)
        page.close()
        return met


def _load(page: Page, url: str) -> None:
    """Raises: GameError: the site is in trouble; Error: Playwright's, if it does not answer."""
    answer = page.goto(url)
    if answer is not None and answer.status >= 500:
        raise GameError(f"{url} answers with status {answer.status}")


def _host(url: str) -> tuple[str | None, int | None]:
    """Host and port, ``None`` for those that need not be said."""
    parts = urlsplit(url)
    return parts.hostname, None if parts.port in (80, 443) else parts.port
