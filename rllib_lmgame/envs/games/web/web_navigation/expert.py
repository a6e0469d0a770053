"""A player who finds the way by the names of links, and fills in what is asked for."""

from __future__ import annotations

from rllib_lmgame.envs.games.web.web_navigation.browser import Browser
from rllib_lmgame.envs.synthetic.web_site.page import BUTTON, COMBOBOX, LINK, OPTION, TEXTBOX
from rllib_lmgame.envs.synthetic.web_site.site import Site
from rllib_lmgame.envs.synthetic.web_site.tasks import Stage, Task

HOME = "Home"


def next_action(browser: Browser, site: Site, task: Task) -> str:
    """The next reply: on the way to the page of the first stage that is not done, the deepest link of its route that is
    on the page.
    """
    for stage in task.stages:
        reached = browser.page.path == stage.path
        if stage.done(site) if stage.done is not None else reached:
            continue
        return _work(browser, stage) if reached else _walk(browser, stage)
    return f"stop [{task.answer or 'done'}]"


def _walk(browser: Browser, stage: Stage) -> str:
    for name in (*reversed(stage.route), HOME):
        link = browser.page.find(LINK, name)
        if link is not None:
            return f"click [{link}]"
    return "goto [/]"


def _work(browser: Browser, stage: Stage) -> str:
    page = browser.page
    for label, value in stage.fills:
        for number, element in enumerate(page.elements, start=1):
            if element.name == label and element.role in (TEXTBOX, COMBOBOX) and browser.value(number) != value:
                if element.role == TEXTBOX:
                    return f"type [{number}] [{value}]"
                choices = enumerate(page.elements, start=1)
                option = next(
                    place
                    for place, other in choices
                    if (other.role, other.owner, other.value) == (OPTION, number, value)
                )
                return f"click [{option}]"
    button = page.find(BUTTON, stage.button or "")
    return "goto [/]" if button is None else f"click [{button}]"
