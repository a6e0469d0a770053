"""The limit: how many programs run at once, who is let in, what a wait costs; and what it is for."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rllib_lmgame.envs.games.code.code_execution.game import CodeExecution
from rllib_lmgame.sandbox import concurrency_limit, judging, process
from rllib_lmgame.sandbox.concurrency_limit import ConcurrencyLimit, lock_folder, machine_limit
from rllib_lmgame.sandbox.judging import call_function
from rllib_lmgame.sandbox.limits import Limits, SandboxBusyError, SandboxError
from rllib_lmgame.sandbox.programs import run_program, sandbox_mode
from rllib_lmgame.sandbox.queries.database import Database
from rllib_lmgame.sandbox.queries.pool import MAX_IDLE, SqlPool

LOOP = "while True: pass"


@pytest.fixture
def two_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path) -> Iterator[list[int]]:
    """A machine that runs two programs at once, with a limit of its own; the numbers that ran together, as supervised
    runs began.
    """
    monkeypatch.setenv(concurrency_limit.SLOTS, "2")
    monkeypatch.setattr(concurrency_limit, "lock_folder", lambda: tmp_path)
    concurrency_limit._limit.cache_clear()
    sandbox_mode()  # found by running programs
    running: list[int] = []
    seen: list[int] = []
    for module in (process, judging):
        real = module.supervise

        def counted(*args: Any, real: Any = real, **kwargs: Any) -> Any:
            running.append(1)
            seen.append(len(running))
            try:
                return real(*args, **kwargs)
            finally:
                running.pop()

        monkeypatch.setattr(module, "supervise", counted)
    yield seen
    concurrency_limit._limit.cache_clear()


def test_right_programs_beside_24_looping_ones_are_right(two_at_once: list[int]) -> None:
    def play(i: int) -> Any:
        if i < 24:
            return call_function(LOOP, "f", [[1]], Limits(wall_s=0.05)).answers[0].error
        return call_function("def f(x):\n    return x + 1", "f", [[i]], Limits(wall_s=60.0)).answers[0].value

    with ThreadPoolExecutor(26) as pool:
        answers = list(pool.map(play, range(26)))
    assert answers == ["it ran too long and was stopped"] * 24 + [25, 26]
    assert max(two_at_once) == 2 and len(two_at_once) == 26


@pytest.mark.slow
def test_right_programs_that_need_their_time_score_one_beside_24_looping_games() -> None:
    work = "```python\nimport time\nwhile time.process_time() < 0.5: pass\n"
    working = threading.Barrier(26)

    def play(i: int) -> float:
        game = CodeExecution(max_turns=1, run_seconds=1)
        game.reset(seed=i)
        working.wait()
        return game.step(
            f"```python\n{LOOP}\n```" if i < 24 else str(game.expert_action()).replace("```python\n", work)
        )[1]

    with ThreadPoolExecutor(26) as pool:
        rewards = list(pool.map(play, range(26)))
    assert rewards == [pytest.approx(0.05)] * 24 + [1.0, 1.0]


def test_a_programs_clock_begins_when_it_is_let_in(two_at_once: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    real = process.Process
    monkeypatch.setattr(process, "Process", lambda *args, **kwargs: started.append("program") or real(*args, **kwargs))
    with ThreadPoolExecutor(1) as pool:
        with machine_limit().admitted(), machine_limit().admitted():
            waiting = pool.submit(run_program, "print('in')", limits=Limits(wall_s=60.0))
            while not machine_limit()._turn.locked():
                time.sleep(0.001)
            assert not started
        assert waiting.result().stdout == "in\n" and started


def test_slow_queries_do_not_keep_others_from_a_worker(two_at_once: list[int]) -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (a)")
    database = Database.of_bytes(connection.serialize())
    pool = SqlPool()
    try:
        with machine_limit().admitted(), ThreadPoolExecutor(6) as threads:
            found = list(threads.map(lambda i: pool.query(database, f"SELECT {i}").rows, range(30)))
            assert found == [((i,),) for i in range(30)]
            assert len(pool._idle) == 1  # one slot was left
        with ThreadPoolExecutor(2) as threads:
            both = threading.Barrier(2)
            real, taken = pool._take, []
            pool._take = lambda wanted: (taken.append(real(wanted)), both.wait(), taken[-1])[-1]  # type: ignore[method-assign]
            assert len({*threads.map(lambda i: pool.query(database, f"SELECT {i}").rows, range(2))}) == 2
            assert len(set(taken)) == 2 == len(pool._idle)
            pool._take = real  # type: ignore[method-assign]
        extra = [pool._take(database) for _ in range(MAX_IDLE + 3)]
        for worker in extra:
            pool._give_back(worker)
        assert len(pool._idle) == MAX_IDLE
    finally:
        pool.close()
    assert not pool._idle


CHILD = """
import os, sys, threading, time
from pathlib import Path
from rllib_lmgame.sandbox.concurrency_limit import ConcurrencyLimit
folder, marks = Path(sys.argv[1]), Path(sys.argv[2])
limit = ConcurrencyLimit(folder, 2, 600.0)
def run(number):
    for turn in range(8):
        with limit.admitted():
            mark = marks / f"{os.getpid()}-{number}"
            mark.touch()
            os.write(1, f"{len(list(marks.iterdir()))}\\n".encode())
            time.sleep(0.002)
            mark.unlink()
threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
if len(sys.argv) > 3:
    with limit.admitted():
        print("holds", flush=True)
        time.sleep(600)
"""


def child(*args: str) -> subprocess.Popen[str]:
    """A process that goes through the limit with four threads."""
    return subprocess.Popen([sys.executable, "-c", CHILD, *args], stdout=subprocess.PIPE, text=True)


def test_processes_share_the_gate_and_one_that_is_killed_gives_its_slot_back(tmp_path) -> None:
    folder, marks = tmp_path / "limit", tmp_path / "marks"
    folder.mkdir()
    marks.mkdir()
    one, two = child(str(folder), str(marks)), child(str(folder), str(marks), "stay")
    assert one.stdout is not None and two.stdout is not None
    said = one.stdout.read().split()
    while (line := two.stdout.readline().strip()) != "holds":
        said.append(line)
    assert one.wait() == 0 and len(said) == 64 and max(map(int, said)) == 2
    limit = ConcurrencyLimit(folder, 2, 0.0)
    with limit.admitted(), pytest.raises(SandboxBusyError), limit.admitted():
        pass
    two.kill()
    two.wait()
    with limit.admitted(), limit.admitted():
        pass
    two.stdout.close()
    one.stdout.close()


def test_a_wait_that_ends_says_what_to_change_and_holds_nothing(tmp_path) -> None:
    limit = ConcurrencyLimit(tmp_path, 2, 0.0)
    with (
        limit.admitted(),
        limit.admitted(),
        pytest.raises(SandboxBusyError, match="RLLIB_LMGAME_SANDBOX_PROGRAMS"),
        limit.admitted(),
    ):
        pass
    with limit.admitted(), limit.admitted():
        pass


def test_a_folder_of_somebody_else_is_refused(tmp_path) -> None:
    folder = lock_folder(tmp_path)
    assert lock_folder(tmp_path) == folder and folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with pytest.raises(SandboxError, match="this user alone"):
        lock_folder(tmp_path)
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(SandboxError, match="not a directory"):
        lock_folder(tmp_path)


@pytest.mark.parametrize("value", ["0", "many"])
def test_a_setting_that_is_no_number_is_named(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(concurrency_limit.SLOTS, value)
    with pytest.raises(SandboxError, match=f"{concurrency_limit.SLOTS} is '{value}'"):
        machine_limit()


def test_cores_and_memory_say_how_many_programs_run(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency_limit, "usable_cores", lambda: 64)
    monkeypatch.setattr(concurrency_limit, "lock_folder", lambda: tmp_path)
    monkeypatch.delenv(concurrency_limit.SLOTS, raising=False)
    for text, slots in (("max", None), (str(6 << 30), 3), ("1000", 1)):
        (tmp_path / "memory.max").write_text(text + "\n")
        monkeypatch.setattr(concurrency_limit, "_MEMORY_LIMITS", (str(tmp_path / "memory.max"), "/not/here"))
        concurrency_limit._limit.cache_clear()
        assert machine_limit().slots == slots or (slots is None and machine_limit().slots >= 1)
    concurrency_limit._limit.cache_clear()
