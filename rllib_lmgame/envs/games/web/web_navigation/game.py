"""The game of WebNavigation."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from typing import ClassVar

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract.base import SEPARATOR, GameError, TextGameOptions, Variant
from rllib_lmgame.envs.games.web.web_navigation.actions import Action, read_action
from rllib_lmgame.envs.games.web.web_navigation.browser import Browser
from rllib_lmgame.envs.games.web.web_navigation.http_backend import HttpBackend
from rllib_lmgame.envs.games.web.web_navigation.jobs import Job, RemoteJob, SiteJob
from rllib_lmgame.envs.games.web.web_navigation.page import BUTTON, LINK, OPTION, TEXTBOX, TICKED
from rllib_lmgame.envs.games.web.web_navigation.remote import RemoteTask, load_tasks
from rllib_lmgame.envs.games.web.web_navigation.tasks import FAMILIES
from rllib_lmgame.envs.support.listed_levels import ListedLevels
from rllib_lmgame.settings.trust import is_name

SITE_SEEDS = 2**31
MOST_LISTED = 150
LONGEST_SOLUTION = 10
UNREACHABLE = 0
QUOTED = re.compile(r"'([^']{1,200})'")
LINKED = (LINK, BUTTON, OPTION, *TICKED)

RULES = """You use a web site to do what the objective says. A page is shown as its accessibility tree: \
a line per element, [id] role 'name'.
Each reply is one action:
click [id]: follow a link, press a button, choose an option, tick a box.
type [id] [text]: write into a textbox, replacing what is there; type [id] [text] [1] presses Enter afterwards.
goto [path]: open an address of this site. go_back: the page before. scroll [down] or scroll [up]: \
the rest of a long page.
stop [answer]: end, with the answer if the objective asks for one, else with any word.
The reward is 1 if then the objective is met and nothing else was changed, else 0. There are {turns} turns, \
stop included."""


class WebNavigationOptions(TextGameOptions):
    """``env_config`` of WebNavigation."""

    max_turns: int = option(15, "Replies per episode, `stop` included.", ge=2)
    sections: tuple[str, ...] = option(
        ("shop", "forum", "tracker", "cms"), "Sections of the site that tasks are about.", stranger=is_name
    )
    families: tuple[str, ...] | None = option(
        None,
        "Families of tasks by name, e.g. `[shop_order, cms_publish]`; null takes all of `sections`.",
        stranger=is_name,
    )
    url: str | None = option(
        None, "Root of a running site (WebArena's, for example) to play on instead, `http://host:port`; needs `tasks`."
    )
    tasks: str | None = option(None, "Tasks on that site in WebArena's form, JSON lines or a JSON array.", path=True)
    site: str | None = option(None, "Of those, only tasks whose `sites` are this one, e.g. `shopping`.")
    timeout_s: float = option(10.0, "Longest time for one page of that site.", gt=0, le=600)
    max_page_bytes: int = option(1_000_000, "Bytes of a page of that site that are read.", ge=1_000, le=50_000_000)


class WebNavigation(ListedLevels):
    """Do a task on a site of shop, forum, issue tracker and CMS.

    Observation: the objective, the address, and the page as an accessibility tree in WebArena's form, ``[12] button
        'Add to cart'``. An id is the element's place in the page, so it does not change while the page is open.
    Action: ``click [id]``, ``type [id] [text]`` (``[1]`` behind it presses Enter; WebArena presses it unless ``[0]`` is
        given), ``goto [path]``, ``go_back``, ``scroll [down]``, ``stop [answer]``.
    Reward: 1 at ``stop`` if the task is done, else 0. The site's state is checked, not the way there. The site must be
        what it would be after the change asked for and no other. An answer asked for must be right but for case,
        quotation marks and a full stop.
    Horizon: 15 replies, ``stop`` included.
    Levels: a site (its products, prices, threads, issues, pages drawn from the seed) and one of 28 families of tasks.
        They are reading (prices, authors, counts, the best or cheapest) and changing (ordering, voting, writing,
        labelling, assigning, publishing, deleting). ``url`` and ``tasks`` play on a running site over HTTP, without
        scripts, so only tasks can be played that need none (see ``http_backend.py``); checked are WebArena's
        ``string_match`` and ``url_match``. The site is the same for all games that are played on it and is not reset
        between them.
    Solver: goes by the names of links to the page of the task, fills in the form and presses the button.
    """

    variants = (Variant("lmgame/WebNavigation-v0", (-1.1, 1.0)),)
    Options: ClassVar[type[TextGameOptions]] = WebNavigationOptions
    real_levels = ("url", "WebArena's sites (`url`)")
    lists_levels = "tasks"
    options: WebNavigationOptions

    def __init__(self, render_mode: str | None = None, **env_config: object) -> None:
        super().__init__(render_mode, **env_config)
        self._families = self._chosen_families()
        self.slow_calls = self.options.url is not None
        self.replayable = self.options.url is None
        self._remote: list[RemoteTask] = []
        if (self.options.url is None) != (self.options.tasks is None):
            missing, given = ("tasks", "url") if self.options.tasks is None else ("url", "tasks")
            raise ConfigError(
                f"env_config.{missing}",
                f"must be given with {given}: a running site and the tasks on it belong together",
            )
        if self.options.tasks is not None:
            self._remote = load_tasks(self.options.tasks, self._connect(), self.options.site)
        self.check_split()

    @property
    def rules(self) -> str:
        return RULES.format(turns=self.options.max_turns)

    @property
    def success(self) -> bool:
        return self._answer is not None and self._job.solved(self._browser, self._answer)

    @property
    def finished(self) -> bool:
        return self._answer is not None

    @property
    def solver_wins(self) -> bool:
        return not self._remote and self.options.max_turns >= LONGEST_SOLUTION

    @property
    def listed(self) -> Sequence[RemoteTask]:
        return self._remote

    def made_up(self, rng: random.Random) -> Iterator[tuple[int, str]]:
        while True:
            yield rng.randrange(SITE_SEEDS), rng.choice(self._families)

    def level_key(self, level: tuple[int, str] | RemoteTask) -> str:
        return (
            f"web_navigation {level.start} {level.intent}"
            if isinstance(level, RemoteTask)
            else f"web_navigation {level[0]} {level[1]}"
        )

    def start(self, level: tuple[int, str] | RemoteTask) -> None:
        self._job: Job = RemoteJob(level, self._connect()) if isinstance(level, RemoteTask) else SiteJob(*level)
        self._browser = Browser(self._job.backend, self._job.start)
        self._answer: str | None = None
        if self._browser.page.status == UNREACHABLE:
            raise GameError(f"cannot open {self.options.url}{self._job.start}: {self._browser.page.elements[-1].name}")

    def board(self) -> str:
        if self._answer is not None:
            return f"Objective: {self._job.intent}\nYou stopped with: {self._answer}"
        return f"Objective: {self._job.intent}\nURL: {self._browser.page.path}\n{self._browser.tree()}"

    def legal_actions(self) -> tuple[str, ...]:
        """What the page offers, the texts the objective quotes typed into its fields, and an empty ``stop``; anything
        may be typed and answered.
        """
        return listed_actions(self._browser, self._job.intent)

    def read_move(self, text: str) -> Action:
        return read_action(text)

    def play_move(self, move: Action) -> float:
        if move.verb == "stop":
            self._answer = move.text
            return float(self.success)
        play(self._browser, move)
        return 0.0

    def expert_action(self) -> str | None:
        return self._job.expert(self._browser)

    def _connect(self) -> HttpBackend:
        """The running site, without cookies."""
        return HttpBackend(self.options.url or "", self.options.timeout_s, self.options.max_page_bytes)

    def _chosen_families(self) -> list[str]:
        sections = list(dict.fromkeys(name.split("_")[0] for name in FAMILIES))
        for name in self.options.sections:
            if name not in sections:
                raise ConfigError("env_config.sections", f"{name!r} is not one of {', '.join(sections)}")
        for name in self.options.families or ():
            if name not in FAMILIES:
                raise ConfigError("env_config.families", f"{name!r} is not one of {', '.join(FAMILIES)}")
        chosen = list(
            self.options.families or [name for name in FAMILIES if name.split("_")[0] in self.options.sections]
        )
        if not chosen:
            raise ConfigError("env_config.sections", f"names no section; give one or more of {', '.join(sections)}")
        return chosen


def play(browser: Browser, action: Action) -> None:
    """Carry out any action but ``stop``.

    Raises:
        InvalidAction: if the page has no such element, or the address is none of this site.
    """
    if action.verb == "click":
        browser.click(action.number)
    elif action.verb == "type":
        browser.type(action.number, action.text, action.enter)
    elif action.verb == "goto":
        browser.visit(action.text)
    elif action.verb == "go_back":
        browser.back()
    else:
        browser.scroll(1 if action.text == "down" else -1)


def listed_actions(browser: Browser, intent: str) -> tuple[str, ...]:
    """Actions worth listing on this page, ``MOST_LISTED`` at most."""
    quoted = [text for text in QUOTED.findall(intent) if SEPARATOR not in text]
    found = ["stop []"]
    for number, element in enumerate(browser.page.elements, start=1):
        if (
            element.role in LINKED
            and not (element.role == LINK and element.target is None)
            and not (element.role == BUTTON and element.form is None)
        ):
            found.append(f"click [{number}]")
        elif element.role == TEXTBOX:
            found += [f"type [{number}] [{text}]" for text in quoted]
    return tuple(found[:MOST_LISTED])
