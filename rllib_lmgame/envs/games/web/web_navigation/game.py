"""The game of WebNavigation."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import ClassVar

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.base.trust import is_name
from rllib_lmgame.envs.contract.base import SEPARATOR, TextGame, TextGameOptions, Variant
from rllib_lmgame.envs.games.web.web_navigation.actions import Action, read_action
from rllib_lmgame.envs.games.web.web_navigation.browser import Browser
from rllib_lmgame.envs.games.web.web_navigation.expert import next_action
from rllib_lmgame.envs.synthetic.web_site.page import BUTTON, LINK, OPTION, TEXTBOX
from rllib_lmgame.envs.synthetic.web_site.site import SiteBackend, build_site, copy_site
from rllib_lmgame.envs.synthetic.web_site.tasks import FAMILIES

SITE_SEEDS = 2**31
MOST_LISTED = 150
LONGEST_SOLUTION = 10
QUOTED = re.compile(r"'([^']{1,200})'")
LINKED = (LINK, BUTTON, OPTION)

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


SECTIONS = ("shop", "forum", "tracker", "cms")


class WebNavigationOptions(TextGameOptions):
    """``env_config`` of WebNavigation."""

    max_turns: int = option(15, "Replies per episode, `stop` included.", ge=2)
    sections: tuple[str, ...] = option(
        SECTIONS, "Sections of the site that tasks are about.", choices=SECTIONS, stranger=is_name
    )
    families: tuple[str, ...] | None = option(
        None, "Families of tasks; null takes all of `sections`.", choices=tuple(FAMILIES), stranger=is_name
    )


class WebNavigation(TextGame):
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
        labelling, assigning, publishing, deleting). Tasks on WebArena's own sites are `lmgame/WebArena-v0`.
    Solver: goes by the names of links to the page of the task, fills in the form and presses the button.
    """

    variants = (Variant("lmgame/WebNavigation-v0", (-1.1, 1.0)),)
    Options: ClassVar[type[TextGameOptions]] = WebNavigationOptions
    real_levels = ("", "WebArena's (`lmgame/WebArena-v0`)")
    rules_text = RULES
    options: WebNavigationOptions

    def __init__(self, render_mode: str | None = None, **env_config: object) -> None:
        super().__init__(render_mode, **env_config)
        self._families = self._chosen_families()

    @property
    def success(self) -> bool:
        return self._answer is not None and self._task.solved(self._site, self._answer)

    @property
    def finished(self) -> bool:
        return self._answer is not None

    @property
    def solver_wins(self) -> bool:
        return self.options.max_turns >= LONGEST_SOLUTION

    def levels(self, rng: random.Random) -> Iterator[tuple[int, str]]:
        while True:
            yield rng.randrange(SITE_SEEDS), rng.choice(self._families)

    def level_key(self, level: tuple[int, str]) -> str:
        return f"web_navigation {level[0]} {level[1]}"

    def start(self, level: tuple[int, str]) -> None:
        seed, family = level
        self._task = FAMILIES[family](build_site(seed), random.Random(f"web task {seed} {family}"))
        self._site = copy_site(self._task.site)
        self._browser = Browser(SiteBackend(self._site), "/")
        self._answer: str | None = None

    def board(self) -> str:
        if self._answer is not None:
            return f"Objective: {self._task.intent}\nYou stopped with: {self._answer}"
        return f"Objective: {self._task.intent}\nURL: {self._browser.page.path}\n{self._browser.tree()}"

    def legal_actions(self) -> tuple[str, ...]:
        """What the page offers, the texts the objective quotes typed into its fields, and an empty ``stop``; anything
        may be typed and answered.
        """
        return listed_actions(self._browser, self._task.intent)

    def read_move(self, text: str) -> Action:
        return read_action(text)

    def play_move(self, move: Action) -> float:
        if move.verb == "stop":
            self._answer = move.text
            return float(self.success)
        play(self._browser, move)
        return 0.0

    def expert_action(self) -> str | None:
        return next_action(self._browser, self._site, self._task)

    def _chosen_families(self) -> list[str]:
        chosen = list(
            self.options.families or [name for name in FAMILIES if name.split("_")[0] in self.options.sections]
        )
        if not chosen:
            raise ConfigError("env_config.sections", f"names no section; give one or more of {', '.join(SECTIONS)}")
        return chosen


def play(browser: Browser, action: Action) -> None:
    """Carry out any action but ``stop``.

    Raises: InvalidAction: if the page has no such element, or the address is none of this site.
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
        if element.role in LINKED:
            found.append(f"click [{number}]")
        elif element.role == TEXTBOX:
            found += [f"type [{number}] [{text}]" for text in quoted]
    return tuple(found[:MOST_LISTED])
