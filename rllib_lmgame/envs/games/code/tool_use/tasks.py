"""Tasks that need tools: a question, texts to search, files, the answer, and calls that lead to it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.games.code.tool_use.calls import ToolCall
from rllib_lmgame.envs.support.datasets import check_fields, readable
from rllib_lmgame.envs.support.json_stream import stream_records

KEY = "env_config.data"


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        question: In words.
        plan: Calls that solve it, the last one being ``submit``.
        answer: What must be submitted.
        texts: What the search tool searches.
        files: Path and content of every file there is.
        subjects: Words worth searching for that the question names.
        written: A file that must exist with this content (but for white space at its ends) when the
            answer is submitted.
    """

    question: str
    plan: tuple[ToolCall, ...]
    answer: str
    texts: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    subjects: tuple[str, ...] = ()
    written: tuple[str, str] | None = None


def same_call(one: ToolCall, other: ToolCall) -> bool:
    """Whether two calls are one, a number being its text."""
    return one.name == other.name and _texts(one) == _texts(other)


def _texts(call: ToolCall) -> dict[str, str]:
    return {name: str(value) for name, value in call.arguments.items()}


@lru_cache(maxsize=4)
def load_tasks(path: str, tools: tuple[str, ...]) -> tuple[Task, ...]:
    """Tasks of a file: records with ``question``, ``answer``, and perhaps ``calls`` (``name``, ``arguments``); read
    once per process.

    Raises: ConfigError: names file and record of what is wrong.
    """
    found = []
    for where, record in stream_records(path, {"question": str, "answer": (str, int, float)}, KEY):
        calls = record.get("calls") or []
        if not isinstance(calls, list):
            raise ConfigError(KEY, f"{where}: calls must be a list")
        for call in calls:
            if not isinstance(call, dict):
                raise ConfigError(KEY, f"{where}: a call is {type(call).__name__}; expected an object")
            check_fields(call, {"name": str, "arguments": dict}, KEY, where)
            if call["name"] not in tools:
                raise ConfigError(KEY, f"{where}: there is no tool {call['name']!r}; there are {', '.join(tools)}")
        answer = readable(str(record["answer"]))
        plan = (*(ToolCall(call["name"], call["arguments"]) for call in calls), submit(answer))
        found.append(Task(readable(record["question"]), plan, answer))
    if not found:
        raise ConfigError(KEY, f"{path} holds no tasks; expected records with `question` and `answer`")
    return tuple(found)


def submit(answer: str) -> ToolCall:
    """The last call of a plan."""
    return ToolCall("submit", {"answer": answer})


def calculator(expression: str) -> ToolCall:
    """A call of the calculator."""
    return ToolCall("calculator", {"expression": expression})


def search(query: str) -> ToolCall:
    """A call of the search tool."""
    return ToolCall("search", {"query": query})


def read_file(path: str) -> ToolCall:
    """A call that reads a file."""
    return ToolCall("read_file", {"path": path})


def python(code: str) -> ToolCall:
    """A call that runs a program."""
    return ToolCall("python", {"code": code})
