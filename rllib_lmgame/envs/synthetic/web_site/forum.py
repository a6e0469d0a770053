"""The forum: threads with votes and comments."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rllib_lmgame.envs.synthetic.web_site.page import Page, words
from rllib_lmgame.envs.synthetic.web_site.posts import Comment, numbered, show_comments, show_new

VOTES = {"up": 1, "down": -1}


@dataclass
class Thread:
    """A discussion; ``vote`` is the player's own, already counted in ``score``."""

    number: int
    forum: str
    title: str
    author: str
    body: str
    score: int
    comments: list[Comment] = field(default_factory=list)
    vote: int = 0

    def cast(self, vote: int) -> None:
        """Vote; the same vote a second time takes it back."""
        vote = 0 if vote == self.vote else vote
        self.score += vote - self.vote
        self.vote = vote


@dataclass
class Forum:
    """State of the section."""

    user: str
    threads: list[Thread]

    def of(self, forum: str) -> list[Thread]:
        """Threads of one forum."""
        return [thread for thread in self.threads if thread.forum == forum]

    def comment(self, thread: Thread, text: str) -> None:
        """Write under a thread."""
        thread.comments.append(Comment(self.user, text))

    def start(self, forum: str, title: str, body: str) -> Thread:
        """Begin a thread."""
        self.threads.append(Thread(len(self.threads) + 1, forum, title, self.user, body, 1))
        return self.threads[-1]


def make_forum(rng: random.Random, user: str) -> Forum:
    """Three forums with four threads each."""
    lists = words()
    others = [name for name in lists["people"] if name != user]
    threads: list[Thread] = []
    for forum in lists["forum"]:
        scores = rng.sample(range(1, 90), 4)
        for title, score in zip(rng.sample(lists[f"thread/{forum}"], 4), scores, strict=True):
            comments = [Comment(rng.choice(others), text) for text in rng.sample(lists["comment"], rng.randint(0, 5))]
            threads.append(
                Thread(
                    len(threads) + 1, forum, title, rng.choice(others), rng.choice(lists["comment"]), score, comments
                )
            )
    return Forum(user, threads)


def show(forum: Forum, parts: Sequence[str], page: Page) -> bool:
    """Fill in the page at ``parts``; false if there is none."""
    names = list(dict.fromkeys(thread.forum for thread in forum.threads))
    match list(parts):
        case []:
            page.heading("Forums")
            for name in names:
                page.link(name, f"/forum/{name}")
        case [name] if name in names:
            page.heading(name)
            page.link("New thread", f"/forum/{name}/new")
            for thread in forum.of(name):
                page.link(thread.title, f"/forum/{name}/{thread.number}")
                page.text(f"by {thread.author}, score {thread.score}")
        case [name, "new"] if name in names:
            show_new(f"/forum/{name}/new", f"New thread in {name}", "Text", "Publish thread", page)
        case [name, number] if (found := numbered(forum.of(name), number)) is not None:
            _show_thread(found, page)
        case _:
            return False
    return True


def act(forum: Forum, parts: Sequence[str], fields: Mapping[str, str]) -> str | None:
    """Carry out what a form sends; returns the path that is shown then, or ``None`` if it makes no sense."""
    match list(parts):
        case [name, "new"] if forum.of(name) and fields.get("title", "").strip():
            thread = forum.start(name, fields["title"].strip(), fields.get("body", "").strip())
            return f"/forum/{name}/{thread.number}"
        case [name, number, "vote", way] if way in VOTES and (found := numbered(forum.of(name), number)) is not None:
            found.cast(VOTES[way])
            return f"/forum/{name}/{number}"
        case [name, number, "comment"] if (
            fields.get("text", "").strip() and (found := numbered(forum.of(name), number)) is not None
        ):
            forum.comment(found, fields["text"].strip())
            return f"/forum/{name}/{number}"
    return None


def _show_thread(thread: Thread, page: Page) -> None:
    path = f"/forum/{thread.forum}/{thread.number}"
    page.heading(thread.title)
    page.text(f"by {thread.author}")
    page.text(f"Score: {thread.score}")
    page.action("Retract upvote" if thread.vote > 0 else "Upvote", f"{path}/vote/up")
    page.action("Retract downvote" if thread.vote < 0 else "Downvote", f"{path}/vote/down")
    page.text(thread.body)
    page.heading(f"Comments ({len(thread.comments)})")
    show_comments(thread.comments, f"{path}/comment", "text", page)
