"""Programming problems, read from the files of HumanEval and MBPP."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.games.code.code_execution.evalplus import with_stand_in
from rllib_lmgame.envs.support.datasets import check_fields, once_per_file
from rllib_lmgame.envs.support.json_stream import stream_records

DATA = "env_config.data"
HUMANEVAL: dict[str, type | tuple[type, ...]] = {"prompt": str, "test": str, "entry_point": str}
MBPP: dict[str, type | tuple[type, ...]] = {"test_list": list}
BUILTINS: tuple[Any, ...] = (set, sorted, list, tuple, len, abs, round, dict, str, int, float, sum, isinstance, type)


@dataclass(frozen=True)
class Case:
    """One call with what it must return."""

    arguments: tuple[Any, ...]
    expected: Any


@dataclass(frozen=True)
class Problem:
    """A problem, judged by calls (``public`` and ``hidden``) or by test code (``tests``).

    Attributes:
        name: Of the task.
        entry: Function to be written.
        statement: What the player reads.
        reference: A program that solves it; empty if none is known.
        public: Cases the player is shown.
        hidden: Cases that count.
        tests: ``assert`` statements about ``entry``.
        public_tests: Those of them the player is shown.
        prelude: Code the tests need.
    """

    name: str
    entry: str
    statement: str
    reference: str
    public: tuple[Case, ...] = ()
    hidden: tuple[Case, ...] = ()
    tests: str = ""
    public_tests: tuple[str, ...] = ()
    prelude: str = ""


def case_text(entry: str, case: Case) -> str:
    """A case as Python would check it."""
    return f"{entry}({', '.join(map(repr, case.arguments))}) == {case.expected!r}"


@once_per_file
def read_problems(path: str) -> tuple[Problem, ...]:
    """Problems of a file (Parquet, JSONL or a JSON array, ``.gz`` or plain) in the form of HumanEval or MBPP. HumanEval
    has ``prompt``, ``entry_point``, ``test``, ``canonical_solution``; MBPP, all of it or sanitized, has ``text`` or
    ``prompt``, ``test_list``, ``code``, ``test_setup_code`` or ``test_imports``, ``challenge_test_list``. EvalPlus adds
    a ``test`` to these, which then counts in place of the lists.

    Raises: ConfigError: names the file, the line and what is wrong with it.
    """
    problems = tuple(
        _mbpp(record, where) if "test_list" in record else _human_eval(record, where)
        for where, record in stream_records(path, {}, DATA)
    )
    if not problems:
        raise ConfigError(DATA, f"{path} holds no problems")
    return problems


def _human_eval(record: dict[str, Any], where: str) -> Problem:
    check_fields(record, HUMANEVAL, DATA, where)
    entry, prompt = record["entry_point"], record["prompt"]
    solution = record.get("canonical_solution")
    tests, prelude = with_stand_in(f"{record['test']}\ncheck({entry})\n", prompt)
    return Problem(
        str(record.get("task_id", where)),
        entry,
        f"Complete this function; write it out in full, with what it needs.\n{prompt.rstrip()}",
        prompt + solution if isinstance(solution, str) and solution else "",
        tests=tests,
        prelude=prelude,
    )


def _mbpp(record: dict[str, Any], where: str) -> Problem:
    check_fields(record, MBPP, DATA, where)
    tests = record["test_list"] + (record.get("challenge_test_list") or [])
    if not tests or not all(isinstance(test, str) for test in tests):
        raise ConfigError(DATA, f"{where}: field 'test_list' must hold texts, one at least")
    text = record.get("text") or record.get("prompt")
    if not isinstance(text, str):
        raise ConfigError(DATA, f"{where}: field 'text' (or 'prompt') is missing")
    entry = _function_of(tests[0], where)
    setup = [record.get("test_setup_code") or "", *(record.get("test_imports") or [])]
    statement = f"{text.strip()}\nThe function is called {entry}. Example:\n    {tests[0]}"
    code, more = record.get("code"), record.get("test")
    counted = more if isinstance(more, str) and more.strip() else "\n".join(tests)
    counted, prelude = with_stand_in(counted, "\n".join(setup))
    return Problem(
        str(record.get("task_id", where)),
        entry,
        statement,
        code if isinstance(code, str) else "",
        tests=counted,
        public_tests=(tests[0],),
        prelude=prelude,
    )


def _function_of(test: str, where: str) -> str:
    """Name of the function an assertion is about: the innermost first call that is not a builtin."""
    try:
        calls = [
            node.func.id
            for node in ast.walk(ast.parse(test))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        ]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(DATA, f"{where}: the first test is not Python: {test[:80]!r}") from error
    for name in calls:
        if name not in {function.__name__ for function in BUILTINS}:
            return name
    raise ConfigError(DATA, f"{where}: the first test calls no function: {test[:80]!r}")
