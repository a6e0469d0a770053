"""Hostile programs and queries (``hostile/*.yaml``): all blocked or bounded, and nothing of them is left."""

from __future__ import annotations

import ast
import glob
import os
import sqlite3
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from rllib_lmgame.sandbox import confinement, programs
from rllib_lmgame.sandbox.limits import FINISHED, MEBIBYTE, TIMEOUT, TOO_MUCH_OUTPUT, Limits, ProgramEnd
from rllib_lmgame.sandbox.programs import run_program
from rllib_lmgame.sandbox.queries.database import STOPPED, Database, QueryLimits, QueryResult, SqlWorker

HERE = Path(__file__).parent / "hostile"
REPOSITORY = str(Path(__file__).parents[2])
LIMITS = Limits(wall_s=60.0, cpu_s=5, memory_bytes=256 * MEBIBYTE)
SHORT_S = 0.5
"""Wall-clock limit of programs that can only be stopped by it."""
QUERY_LIMITS = QueryLimits(seconds=0.3)
BEYOND_S = 60.0
"""What a busy machine may take beyond a limit; a program that got away would run for ever."""
MODES = [mode for mode in confinement.MODES if programs.works(mode)]
"""Every mode that works here."""


def cases(name: str) -> list[Any]:
    """Entries of a list, as parameters of a test."""
    return [pytest.param(case, id=case["name"].replace(" ", "-")) for case in yaml.safe_load((HERE / name).read_text())]


def text_of(case: dict[str, Any], key: str) -> str:
    """The text itself, or the value of the short expression that makes it (these are the lists of this folder, not a
    player's).
    """
    return case[key] if key in case else eval(compile(ast.parse(case[f"{key}_python"], mode="eval"), "list", "eval"))


def left_behind() -> list[str]:
    """Sandboxed processes without a parent that would end them, and files with the marker."""
    found = [name for folder in ("/tmp", "/dev/shm", "") for name in glob.glob(f"{folder}/*rllib-hostile-marker*")]
    for status in glob.glob("/proc/[0-9]*/stat"):
        try:
            parent = int(Path(status).read_text().rsplit(")", 1)[1].split()[1])
            command = Path(status).with_name("cmdline").read_text()
        except (OSError, ValueError):
            continue
        if parent in (1, os.getpid()) and "sandbox/launcher.py" in command:
            found.append(status)
    return found


def ending(outcome: ProgramEnd) -> str:
    """The word of the list for how a run ended."""
    if outcome.stop != FINISHED:
        return {TIMEOUT: "timeout", TOO_MUCH_OUTPUT: "output"}[outcome.stop]
    if outcome.exit_code == 0:
        return "blocked" if outcome.stdout.rstrip().endswith("blocked") else "finished"
    if outcome.exit_code is not None and outcome.exit_code < 0:
        return "signal"
    return "memory" if "MemoryError" in outcome.stderr else "error"


@pytest.mark.skipif(not MODES, reason="no means of confinement on this machine")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", cases("programs.yaml"))
def test_program(case: dict[str, Any], mode: str) -> None:
    given = f"PARENT = {os.getpid()}\nMORE_PATHS = [{REPOSITORY!r}]\n"
    limits = replace(LIMITS, wall_s=SHORT_S) if "timeout" in case["ends"] else LIMITS
    before = set(left_behind())  # workers of other tests of this process
    begun = time.monotonic()
    outcome = run_program(given + text_of(case, "program"), limits=limits, mode=mode)
    deadline = begun + limits.wall_s + BEYOND_S
    assert time.monotonic() < deadline
    assert "BREACH" not in outcome.stdout
    assert ending(outcome) in case["ends"], outcome
    assert len(outcome.stdout) <= LIMITS.output_bytes and len(outcome.stderr) <= LIMITS.output_bytes
    while (left := set(left_behind()) - before) and time.monotonic() < deadline:
        time.sleep(0.05)  # the kernel is still ending what it was told to end
    assert not left


@pytest.fixture(scope="module")
def shop() -> Database:
    """A small database."""
    connection = sqlite3.connect(":memory:")
    connection.executescript(
        "CREATE TABLE shop (id INTEGER PRIMARY KEY, name TEXT); CREATE TABLE sale (shop_id INTEGER, amount REAL);"
    )
    connection.executemany("INSERT INTO shop VALUES (?, ?)", [(i, f"shop {i}") for i in range(20)])
    connection.executemany("INSERT INTO sale VALUES (?, ?)", [(i % 20, i / 7) for i in range(500)])
    connection.commit()
    return Database.of_bytes(connection.serialize())


@pytest.fixture(scope="module")
def worker() -> Any:
    """A worker of this module's own."""
    made = SqlWorker()
    yield made
    made.close()


def query_ending(result: QueryResult) -> str:
    """The word of the list for how a query ended."""
    if not result.error:
        return "rows"
    if result.error == STOPPED or "too long" in result.error or "memory" in result.error:
        return "stopped"
    return "large" if "result is too large" in result.error else "refused"


@pytest.mark.parametrize("case", cases("queries.yaml"))
def test_query(case: dict[str, Any], worker: SqlWorker, shop: Database) -> None:
    before = worker.query(shop, "SELECT count(*), sum(length(name)) FROM shop").rows
    begun = time.monotonic()
    limits = QUERY_LIMITS if "stopped" in case["ends"] else replace(QUERY_LIMITS, seconds=BEYOND_S)
    result = worker.query(shop, text_of(case, "query"), limits)
    assert time.monotonic() - begun < limits.seconds + BEYOND_S
    assert query_ending(result) in case["ends"], result
    assert len(result.error) <= 600
    assert worker.query(shop, "SELECT count(*), sum(length(name)) FROM shop").rows == before == ((20, 130),)
    assert not glob.glob("/tmp/*rllib-hostile-marker*")
