"""The fifteen tasks of AgentGym's servers, and how each is spoken to: one table.

Two families of dialects. Of both, ``POST /create`` begins a session, ``/reset`` an item, ``/step`` hands in an action.

* ``id``: the answer to ``create`` is ``{"id"}``, ``reset`` answers with the first observation.
* ``env_idx``: the answer to ``create`` is a bare number (WebArena's ``{"env_idx"}``), and ``GET /observation`` has the
  first observation.

Read in the clients of AgentGym (https://github.com/WooooDyy/AgentGym, commit 3ef9235).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

SCHEME = "agentgym"
"""Games on these servers are called ``agentgym:TASK``."""

ITEM = "{item}"
"""Where the number of the item stands in the body of ``reset``."""


def as_it_is(action: str) -> str:
    """The action alone."""
    return action


def plain_words(action: str) -> str:
    """Letters, digits, commas and single spaces: nothing else reaches TextCraft and BabyAI."""
    return " ".join(re.sub(r"[^A-Za-z0-9, ]+", "", action).split())


def sql(action: str) -> str:
    """The statement, without the marks of a block."""
    return action.split("```sql")[-1].split("```")[0].strip()


def marked(action: str, mark: str, form: str) -> str:
    """The action in the form in which the server looks for it in a whole reply, unless it has it."""
    return action if mark in action else form.format(action)


named_action = partial(marked, mark="Action:", form="Action: {}")
fenced_action = partial(marked, mark="```", form="```{}```")


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        summary: What it is, in one line.
        start: The command that starts its server; ``--port`` follows.
        package: Folder of AgentGym that has the server.
        turns: Replies of an episode, as AgentGym has it.
        reset: Body of ``reset`` beside the session; :data:`ITEM` stands for the number of the item.
        key: What requests call the session.
        created: Field of the answer to ``create`` that is the session; empty: the answer is it.
        path: Behind the server's address.
        create: Body of ``create``.
        first: Fields of the answer to ``reset`` that are the first observation, a line each; none: it is asked for.
        text: Field of the answer to ``step`` that is the observation.
        value: Field that is the reward.
        done: Field that says whether the item is over.
        sums: Rewards of steps are added up. Else the last one is the score, and a step is paid by how much it changes.
        paid_at_end: A reward counts only if the item is over.
        scale: Of the server's rewards, so that a score of 1 is the best.
        wins_above: Scores above it are a success.
        closes: Whether the server knows ``close``.
        most_sessions: Sessions that the server has; then it gives out old ones again.
        form: Reply format (``language_model.reply_format``) that is AgentGym's.
        sent: An action as the server takes it.
    """

    summary: str
    start: str
    package: str
    turns: int
    reset: Mapping[str, Any]
    key: str = "id"
    created: str = "id"
    path: str = ""
    create: Mapping[str, Any] | None = None
    first: tuple[str, ...] = ("observation",)
    text: str = "observation"
    value: str = "reward"
    done: str = "done"
    sums: bool = False
    paid_at_end: bool = False
    scale: float = 1.0
    wins_above: float = 0.99
    closes: bool = False
    most_sessions: int | None = None
    form: str = "react"
    sent: Callable[[str], str] = field(default=as_it_is)


_env_idx = partial(Task, key="env_idx", created="", first=())
"""A task of the second family."""


def _tool(summary: str, name: str, turns: int) -> Task:
    return _env_idx(summary, name, "agentenv-tool", turns, {"id": ITEM}, create={"id": 0}, sent=named_action)


TASKS: Mapping[str, Task] = {
    "textcraft": Task(
        "Craft a thing of Minecraft from what can be found.",
        "textcraft",
        "agentenv-textcraft",
        20,
        {"data_idx": ITEM},
        create={},
        closes=True,
        sent=plain_words,
    ),
    "babyai": Task(
        "Do what a sentence says in a grid of rooms.",
        "babyai",
        "agentenv-babyai",
        20,
        {"data_idx": ITEM},
        value="score",
        wins_above=0.0,
        closes=True,
        sent=plain_words,
    ),
    "sciworld": Task(
        "A science experiment in a simulated house.",
        "sciworld",
        "agentenv-sciworld",
        30,
        {"data_idx": ITEM},
        first=("task_description", "observation"),
        value="score",
        scale=100.0,
        closes=True,
    ),
    "alfworld": Task(
        "Find, heat, clean and place things in a household.",
        "alfworld",
        "agentenv-alfworld",
        30,
        {"game": ITEM, "world_type": "Text"},
    ),
    "maze": Task(
        "Walk to the goal of a maze.",
        "lmrlgym",
        "agentenv-lmrlgym",
        15,
        {"game": ITEM},
        path="/maze",
        sums=True,
        scale=15.0,
    ),
    "wordle": Task(
        "Guess a word of five letters.", "lmrlgym", "agentenv-lmrlgym", 8, {"seed": ITEM}, path="/wordle", sums=True
    ),
    "webshop": _env_idx(
        "Find and buy a product that fits a description.",
        "webshop",
        "agentenv-webshop",
        10,
        {"session_id": ITEM},
        text="state",
        most_sessions=8000,
    ),
    "sqlgym": _env_idx(
        "Answer a question about a database of BIRD with an SQL query.",
        "sqlgym",
        "agentenv-sqlgym",
        1,
        {"item_id": ITEM},
        text="state",
        most_sessions=8,
        sent=sql,
    ),
    "webarena": _env_idx(
        "Do a task on a web site.",
        "webarena",
        "agentenv-webarena",
        15,
        {"seed": 0, "idx": ITEM},
        created="env_idx",
        done="terminated",
        paid_at_end=True,
        closes=True,
        form="fence",
        sent=fenced_action,
    ),
    "searchqa": _env_idx(
        "Answer a question by searching Wikipedia.",
        "searchqa",
        "agentenv-searchqa",
        5,
        {"id": ITEM},
        create={"id": 0},
        closes=True,
        form="tags",
    ),
    "weather": _tool("Answer questions about the weather with tools.", "weather", 10),
    "movie": _tool("Answer questions about films with tools.", "movie", 12),
    "todo": _tool("Look after a list of tasks with tools.", "todo", 15),
    "academia": _tool("Answer questions about papers and authors with tools.", "academia", 12),
    "sheet": _tool("Change a spreadsheet with tools.", "sheet", 15),
}
