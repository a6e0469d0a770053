"""Content management: pages that are written, published and withdrawn."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rllib_lmgame.envs.synthetic.web_site.page import Page, words


@dataclass
class Entry:
    """One page of the site that is managed."""

    number: int
    title: str
    body: str
    author: str
    published: bool


@dataclass
class Cms:
    """State of the section."""

    user: str
    site_title: str
    entries: list[Entry]

    def create(self, title: str, body: str) -> Entry:
        """Write a page; it is a draft."""
        self.entries.append(
            Entry(max((entry.number for entry in self.entries), default=0) + 1, title, body, self.user, False)
        )
        return self.entries[-1]

    def entry(self, number: str) -> Entry | None:
        """The page with this number."""
        return next((entry for entry in self.entries if str(entry.number) == number), None)


def make_cms(rng: random.Random, user: str) -> Cms:
    """Six pages, drafts and published ones."""
    lists = words()
    titles = rng.sample(lists["page"], 6)
    published = [True, False, *(rng.random() < 0.6 for _ in range(4))]
    rng.shuffle(published)
    entries = [
        Entry(number, title, rng.choice(lists["page-text"]), rng.choice(lists["people"]), state)
        for number, (title, state) in enumerate(zip(titles, published, strict=True), start=1)
    ]
    return Cms(user, rng.choice(lists["site-title"]), entries)


def show(cms: Cms, parts: Sequence[str], page: Page) -> bool:
    """Fill in the page at ``parts``; false if there is none."""
    match list(parts):
        case []:
            page.heading("Pages")
            page.link("New page", "/cms/new")
            page.link("Settings", "/cms/settings")
            for entry in cms.entries:
                page.link(entry.title, f"/cms/{entry.number}")
                page.text("published" if entry.published else "draft")
        case ["new"]:
            page.heading("New page")
            form = page.form("/cms/new")
            page.textbox(form, "title", "Title")
            page.textbox(form, "body", "Content")
            page.button(form, "Save draft")
        case ["settings"]:
            page.heading("Settings")
            form = page.form("/cms/settings")
            page.textbox(form, "title", "Site title", cms.site_title)
            page.button(form, "Save settings")
        case [number] if (found := cms.entry(number)) is not None:
            _show_entry(found, page)
        case _:
            return False
    return True


def act(cms: Cms, parts: Sequence[str], fields: Mapping[str, str]) -> str | None:
    """Carry out what a form sends; returns the path that is shown then, or ``None`` if it makes no sense."""
    title, body = fields.get("title", "").strip(), fields.get("body", "").strip()
    match list(parts):
        case ["new"] if title:
            return f"/cms/{cms.create(title, body).number}"
        case ["settings"] if title:
            cms.site_title = title
            return "/cms/settings"
        case [number, verb] if (entry := cms.entry(number)) is not None:
            if verb == "save" and title:
                entry.title, entry.body = title, body
            elif verb == "publish":
                entry.published = not entry.published
            elif verb == "delete":
                cms.entries.remove(entry)
                return "/cms"
            else:
                return None
            return f"/cms/{number}"
    return None


def _show_entry(entry: Entry, page: Page) -> None:
    page.heading(f"Edit page {entry.number}")
    page.text(f"{'Published' if entry.published else 'Draft'}, last edited by {entry.author}")
    form = page.form(f"/cms/{entry.number}/save")
    page.textbox(form, "title", "Title", entry.title)
    page.textbox(form, "body", "Content", entry.body)
    page.button(form, "Save changes")
    page.action("Unpublish" if entry.published else "Publish", f"/cms/{entry.number}/publish")
    page.action("Delete page", f"/cms/{entry.number}/delete")
