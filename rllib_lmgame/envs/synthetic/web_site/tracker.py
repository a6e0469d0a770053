"""The issue tracker: projects and their issues."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rllib_lmgame.envs.synthetic.web_site.page import Page, words
from rllib_lmgame.envs.synthetic.web_site.posts import Comment, numbered, show_comments, show_new

NOBODY = "nobody"


@dataclass
class Issue:
    """Something to be done in a project."""

    number: int
    project: str
    title: str
    author: str
    body: str
    assignee: str = NOBODY
    labels: list[str] = field(default_factory=list)
    is_open: bool = True
    comments: list[Comment] = field(default_factory=list)

    def add_label(self, label: str) -> None:
        """Put a label on it, once."""
        self.labels = sorted({*self.labels, label})


@dataclass
class Tracker:
    """State of the section."""

    user: str
    issues: list[Issue]

    def of(self, project: str) -> list[Issue]:
        """Issues of one project."""
        return [issue for issue in self.issues if issue.project == project]

    def create(self, project: str, title: str, body: str) -> Issue:
        """Open an issue."""
        self.issues.append(Issue(len(self.issues) + 1, project, title, self.user, body))
        return self.issues[-1]


def make_tracker(rng: random.Random, user: str) -> Tracker:
    """Three projects with five issues each."""
    lists = words()
    issues: list[Issue] = []
    for project in lists["project"]:
        for title in rng.sample(lists[f"issue/{project}"], 5):
            labels = sorted(rng.sample(lists["label"], rng.randint(0, 2)))
            assignee = rng.choice((NOBODY, *rng.sample(lists["people"], 3)))
            comments = [
                Comment(rng.choice(lists["people"]), text) for text in rng.sample(lists["comment"], rng.randint(0, 2))
            ]
            author, body = rng.choice(lists["people"]), rng.choice(lists["comment"])
            issues.append(
                Issue(len(issues) + 1, project, title, author, body, assignee, labels, rng.random() < 0.75, comments)
            )
    return Tracker(user, issues)


def show(tracker: Tracker, parts: Sequence[str], page: Page) -> bool:
    """Fill in the page at ``parts``; false if there is none."""
    projects = list(dict.fromkeys(issue.project for issue in tracker.issues))
    match list(parts):
        case []:
            page.heading("Projects")
            for name in projects:
                page.link(name, f"/tracker/{name}")
        case [name] if name in projects:
            page.link("Closed issues", f"/tracker/{name}/closed")
            page.link("New issue", f"/tracker/{name}/new")
            page.heading(f"Open issues of {name}")
            _list([issue for issue in tracker.of(name) if issue.is_open], page)
        case [name, "closed"] if name in projects:
            page.link("Open issues", f"/tracker/{name}")
            page.heading(f"Closed issues of {name}")
            _list([issue for issue in tracker.of(name) if not issue.is_open], page)
        case [name, "new"] if name in projects:
            show_new(f"/tracker/{name}/new", f"New issue in {name}", "Description", "Create issue", page)
        case [name, number] if (found := numbered(tracker.of(name), number)) is not None:
            _show_issue(found, page)
        case _:
            return False
    return True


def act(tracker: Tracker, parts: Sequence[str], fields: Mapping[str, str]) -> str | None:
    """Carry out what a form sends; returns the path that is shown then, or ``None`` if it makes no sense."""
    lists = words()
    match list(parts):
        case [name, "new"] if tracker.of(name) and fields.get("title", "").strip():
            issue = tracker.create(name, fields["title"].strip(), fields.get("body", "").strip())
        case [name, number, verb] if (found := numbered(tracker.of(name), number)) is not None:
            issue, text = found, fields.get("value", "").strip()
            if verb == "state":
                issue.is_open = not issue.is_open
            elif verb == "label" and text in lists["label"]:
                issue.add_label(text)
            elif verb == "assign" and text in (NOBODY, *lists["people"]):
                issue.assignee = text
            elif verb == "comment" and text:
                issue.comments.append(Comment(tracker.user, text))
            else:
                return None
        case _:
            return None
    return f"/tracker/{issue.project}/{issue.number}"


def _list(issues: Sequence[Issue], page: Page) -> None:
    for issue in issues:
        page.link(issue.title, f"/tracker/{issue.project}/{issue.number}")
        page.text(f"#{issue.number}; labels: {', '.join(issue.labels) or 'none'}")
    if not issues:
        page.text("There are none.")


def _show_issue(issue: Issue, page: Page) -> None:
    path = f"/tracker/{issue.project}/{issue.number}"
    page.heading(issue.title)
    page.text(f"#{issue.number}, {'open' if issue.is_open else 'closed'}, by {issue.author}")
    page.text(f"Assigned to: {issue.assignee}")
    page.text(f"Labels: {', '.join(issue.labels) or 'none'}")
    page.text(issue.body)
    page.action("Close issue" if issue.is_open else "Reopen issue", f"{path}/state")
    form = page.form(f"{path}/label")
    page.choice(form, "value", "Label", words()["label"])
    page.button(form, "Add label")
    form = page.form(f"{path}/assign")
    page.choice(form, "value", "Assignee", (NOBODY, *words()["people"]), issue.assignee)
    page.button(form, "Assign")
    show_comments(issue.comments, f"{path}/comment", "value", page)
