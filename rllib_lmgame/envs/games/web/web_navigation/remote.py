"""Tasks on a running site, in WebArena's form.

A file of tasks is JSON lines or one JSON array of objects with ``intent``, ``start_url`` and ``eval``. Checked are
``string_match`` (``exact_match`` and ``must_include``) and ``url_match``; tasks that are checked by a program in the
page or by a language model are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.games.web.web_navigation.http_backend import HttpBackend
from rllib_lmgame.envs.support.answers import same_answer
from rllib_lmgame.envs.support.datasets import check_fields, read_jsonl, readable
from rllib_lmgame.envs.support.json_stream import stream_array

KEY = "env_config.tasks"
PLACEHOLDER = re.compile(r"__[A-Z_]{1,30}__")
CHECKED = {"string_match", "url_match"}
EITHER = " |OR| "


@dataclass(frozen=True)
class RemoteTask:
    """A task on a running site.

    Attributes:
        intent: What is asked.
        start: Path it begins at.
        exact: Answers of which one must be given; empty if any may be.
        included: Texts the answer must hold, all of them.
        paths: Addresses of which one must be open in the end; empty if it does not matter.
    """

    intent: str
    start: str
    exact: tuple[str, ...] = ()
    included: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()

    def solved(self, path: str, answer: str) -> bool:
        """Whether the page that is open and the answer are what was asked for."""
        said = answer.casefold()
        return (
            (not self.exact or any(same_answer(answer, right) for right in self.exact))
            and all(text.casefold() in said for text in self.included)
            and (not self.paths or path.rstrip("/") in {right.rstrip("/") for right in self.paths})
        )


def load_tasks(path: str, backend: HttpBackend, site: str | None) -> list[RemoteTask]:
    """The tasks of a file that can be played and checked here.

    Args:
        path: The file.
        backend: Tells which addresses are of the site; ``__SHOPPING__`` and the like stand for its root.
        site: Keep only tasks whose ``sites`` are this one alone; ``None`` keeps all.

    Raises:
        ConfigError: for a file that cannot be read, or without a single task that can be played; the message names file
            and place.
    """
    tasks, left_out = [], 0
    for where, record in _records(path):
        check_fields(record, {"intent": str, "start_url": str, "eval": dict}, KEY, where)
        task = _task(record, backend, where) if site is None or record.get("sites") == [site] else None
        if task is None:
            left_out += 1
        else:
            tasks.append(task)
    if not tasks:
        raise ConfigError(
            KEY,
            f"{path} has no task that can be played: {left_out} are on other sites or are not checked by "
            f"{' or '.join(sorted(CHECKED))}",
        )
    return tasks


def _records(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if not path.removesuffix(".gz").endswith(".json"):
        yield from (
            (f"{path}, task {number}", record) for number, record in enumerate(read_jsonl(path, {}, KEY), start=1)
        )
        return
    for where, record in stream_array(path, KEY):
        if not isinstance(record, dict):
            raise ConfigError(KEY, f"{where}: expected a JSON object, got {type(record).__name__}")
        yield where, record


def _task(record: dict[str, Any], backend: HttpBackend, where: str) -> RemoteTask | None:
    check = record["eval"]
    kinds = check.get("eval_types")
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        raise ConfigError(KEY, f"{where}: eval.eval_types must be a list of texts such as ['string_match']")
    start = _local(record["start_url"], backend)
    if start is None or not kinds or not set(kinds) <= CHECKED:
        return None
    exact: tuple[str, ...] = ()
    included: tuple[str, ...] = ()
    if "string_match" in kinds:
        answers = check.get("reference_answers")
        if not isinstance(answers, dict) or not answers:
            raise ConfigError(
                KEY, f"{where}: eval.reference_answers must be an object with exact_match or must_include"
            )
        if not answers.keys() <= {"exact_match", "must_include"}:
            return None
        exact = _texts(answers.get("exact_match", []), "exact_match", where)
        included = _texts(answers.get("must_include", []), "must_include", where)
    paths: tuple[str, ...] = ()
    if "url_match" in kinds:
        addresses = str(check.get("reference_url") or "").split(EITHER)
        found = [_local(address, backend) for address in addresses if address]
        paths = tuple(path for path in found if path is not None)
        if not paths:
            return None
    if not (exact or included or paths):
        return None
    return RemoteTask(readable(record["intent"]), start, exact, included, paths)


def _texts(value: Any, name: str, where: str) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(KEY, f"{where}: eval.reference_answers.{name} must be a text or a list of texts")
    return tuple(texts)


def _local(address: str, backend: HttpBackend) -> str | None:
    return backend.local(PLACEHOLDER.sub(lambda _: backend.root, address, count=1) or "/")
