"""What the forum and the issue tracker have in common: numbered posts with comments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from rllib_lmgame.envs.synthetic.web_site.page import Page


@dataclass
class Comment:
    """What somebody wrote under a thread or an issue."""

    author: str
    text: str


class Numbered(Protocol):
    """A thread or an issue."""

    number: int


Post = TypeVar("Post", bound=Numbered)


def numbered(posts: Iterable[Post], number: str) -> Post | None:
    """The post whose number stands in an address."""
    return next((post for post in posts if str(post.number) == number), None)


def show_comments(comments: Sequence[Comment], address: str, field: str, page: Page) -> None:
    """The comments, and the form that sends another one to ``address``."""
    for comment in comments:
        page.text(f"{comment.author}: {comment.text}")
    form = page.form(address)
    page.textbox(form, field, "Comment")
    page.button(form, "Post comment")


def show_new(address: str, heading: str, text_label: str, button: str, page: Page) -> None:
    """The form of a new post."""
    page.heading(heading)
    form = page.form(address)
    page.textbox(form, "title", "Title")
    page.textbox(form, "body", text_label)
    page.button(form, button)
