"""Chat templates are rendered in a process of their own, with limits of time and memory.

A template is a program, often a stranger's. Jinja's sandbox keeps it from all but processor and memory. Two loops of
99,999 rounds, ``9 ** (9 ** 9)`` (worked out when compiled) or ``'a' * 10 ** 10`` would hold a command for ever, and no
thread can interrupt most of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

CPU_LIMIT_S = 5
"""Seconds of processor time for all conversations together; a template of today takes milliseconds."""
CPU_LIMIT_EACH_S = 0.1
"""Additional seconds for each conversation of a data set; one of thirty messages takes .001 s."""
WALL_LIMIT_S = 180
"""Seconds until the process is given up, however busy the machine is."""
MEMORY_LIMIT = 512 * 2**20
"""Bytes that a template may allocate in addition to the process itself."""
MAX_TEXT = 2**20
"""Longest template, and longest text one makes of a conversation, in characters."""
_CODE = "from rllib_lmgame.policies.chat.rendering import main; main()"

Messages = Sequence[Mapping[str, Any]]

Job = tuple[Messages, Mapping[str, Any]]
"""A conversation and its own template arguments."""


class Rendered(NamedTuple):
    """What a template makes of one conversation: a text, or why there is none."""

    text: str
    problem: str = ""


class RenderingStopped(ValueError):
    """The template took more than it may, or the process that rendered it ended."""


def render(template: str, jobs: Sequence[Job], variables: Mapping[str, Any]) -> tuple[Rendered, ...]:
    """Conversations as Transformers' ``apply_chat_template(tokenize=False, add_generation_prompt=True)`` writes them.

    ``variables``: special tokens, and arguments of one's own. Raises: RenderingStopped: it takes more than it may.
    """
    _check_length(template)
    return _remembered(pickle.dumps((template, [*jobs], {**variables}, 0.0)))


def render_data(template: str, jobs: Sequence[Job], variables: Mapping[str, Any]) -> tuple[Rendered, ...]:
    """As :func:`render`, of many conversations that are not rendered again."""
    _check_length(template)
    return _render(pickle.dumps((template, [*jobs], {**variables}, CPU_LIMIT_EACH_S * len(jobs))))


def _check_length(template: str) -> None:
    if len(template) > MAX_TEXT:
        raise RenderingStopped(f"it has {len(template):,} characters, more than {MAX_TEXT:,}")


@lru_cache(maxsize=64)
def _remembered(job: bytes) -> tuple[Rendered, ...]:
    return _render(job)


def _render(job: bytes) -> tuple[Rendered, ...]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _CODE],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        said, complaint = process.communicate(job, timeout=WALL_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise RenderingStopped(f"it was not rendered within {WALL_LIMIT_S} s") from None
    finally:
        process.kill()
        process.wait()
    if process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise RenderingStopped(f"rendering it took more than {CPU_LIMIT_S} s, or more memory than there is")
    if process.returncode:
        last = complaint.decode(errors="replace").strip().rpartition("\n")[2][:300]
        raise RenderingStopped(f"rendering it ended with status {process.returncode}: {last}")
    answer = said.rstrip().rpartition(b"\n")[2]  # What stands before was printed while Python started.
    try:
        return tuple(Rendered(*pair) for pair in json.loads(answer))
    except (ValueError, TypeError):
        shown = ascii(answer.decode(errors="replace")[:100])
        raise RenderingStopped(f"the process that rendered it answered {shown} instead of texts") from None


def main() -> None:
    """The process that renders: reads the job, writes the texts as its last line."""
    answers = os.dup(1)
    os.dup2(2, 1)  # What a package prints while it is imported is no answer.
    import transformers.utils.chat_template_utils  # noqa: F401 -- before the limits

    template, jobs, variables, more_s = pickle.load(sys.stdin.buffer)
    _limit_this_process(more_s)
    found = rendered_here(template, jobs, variables)
    with open(answers, "w", encoding="ascii") as file:
        file.write(f"\n{json.dumps(found)}\n")


def rendered_here(template: str, jobs: Sequence[Job], variables: Mapping[str, Any]) -> tuple[Rendered, ...]:
    """The same in this process, without limits."""
    from transformers.utils.chat_template_utils import render_jinja_template

    found = []
    for messages, own in jobs:
        try:
            arguments = {"add_generation_prompt": True, **variables, **own}
            (text,), _ = render_jinja_template(conversations=[messages], chat_template=template, **arguments)
            found.append(Rendered("", problem) if (problem := _text_problem(text)) else Rendered(text))
        except MemoryError:
            found.append(Rendered("", f"rendering it takes more than {MEMORY_LIMIT >> 20} MiB of memory"))
        except Exception as error:
            said = str(error)[:1000].encode(errors="backslashreplace").decode()
            found.append(Rendered("", said or type(error).__name__))
    return tuple(found)


def _text_problem(text: str) -> str:
    if len(text) > MAX_TEXT:
        return f"it makes {len(text):,} characters of a short conversation, more than {MAX_TEXT:,}"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"it writes {text[error.start]!a}, half of a character, which UTF-8 cannot hold"
    return ""


def _limit_this_process(more_s: float) -> None:
    import resource

    with contextlib.suppress(OSError, ValueError):  # Where the system has no such limit, those of time are left.
        with open("/proc/self/statm", encoding="ascii") as file:
            own = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (own + MEMORY_LIMIT, own + MEMORY_LIMIT))
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    limit = int(used + more_s) + 1 + CPU_LIMIT_S
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
