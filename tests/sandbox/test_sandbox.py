"""The sandbox beside its hostile programs: modes, limits, threads, judging, files."""

from __future__ import annotations

import itertools
import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllib_lmgame.envs.games.code.code_execution.game import _got
from rllib_lmgame.sandbox import confinement, judging, programs
from rllib_lmgame.sandbox.harness import Unknown, decode, encode
from rllib_lmgame.sandbox.judging import call_function, run_tests, same
from rllib_lmgame.sandbox.limits import TIMEOUT, Limits, SandboxError
from rllib_lmgame.sandbox.programs import report_sandbox, run_program
from rllib_lmgame.sandbox.queries.database import Database, QueryLimits, QueryResult, SqlWorker, same_rows
from rllib_lmgame.sandbox.seccomp import FULL, NO_FILES, READ_ONLY, seccomp_filter

PLAIN = st.recursive(
    st.one_of(
        *(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5)),
        *(st.binary(max_size=5), st.complex_numbers(allow_nan=False)),
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=12,
)


def test_a_program_reads_and_writes_and_sees_its_own_files() -> None:
    outcome = run_program(
        "import sys\nprint(sys.stdin.read().upper())\nprint('no', file=sys.stderr)\nsys.exit(3)", stdin="grüße"
    )
    assert (outcome.stdout, outcome.stderr, outcome.exit_code) == ("GRÜSSE\n", "no\n", 3)
    large = run_program("import sys\nprint(len(sys.stdin.read()))", stdin="x" * 300_000)
    assert large.stdout == "300000\n"


def test_an_error_names_the_line_the_same_in_every_mode() -> None:
    program = "def f(x):\n    return 1 / x\nf(0)\n"
    expected = (
        "Error at:\n  line 3, in <module>: f(0)\n  line 2, in f: return 1 / x\nZeroDivisionError: division by zero\n"
    )
    assert {run_program(program, mode=mode).stderr for mode in confinement.MODES if programs.works(mode)} == {expected}


def test_what_is_confined_follows_from_mode_and_bounds_alone() -> None:
    limits = Limits(threads=7, memory_bytes=2**20)
    for mode, server in itertools.product(confinement.MODES, (False, True)):
        job = confinement.job_of(mode, limits, "p", 3, server)
        inside = mode == confinement.BUBBLEWRAP
        assert job["limits"].get("RLIMIT_NPROC") == (7 if inside else None) and job["limits"]["RLIMIT_AS"] == 2**20
        assert job["dies_with_parent"] == (not server) and job["keeps_user"] == server
        assert bool(job["preload"]) == (not inside and not server)
        assert job["filter"] == seccomp_filter(FULL if inside else READ_ONLY if server else NO_FILES)
    command = confinement.command_of(confinement.BUBBLEWRAP, limits, 9, ["/data"])
    assert command[-1] == confinement.BOUND_LAUNCHER and command.count("/data") == 2


def test_processor_time_is_limited_too() -> None:
    outcome = run_program("while True: pass", limits=Limits(wall_s=30.0, cpu_s=1))
    assert outcome.exit_code == -9 and outcome.seconds < 20
    assert outcome.problem() == "it used too much processor time or memory and was stopped"


def test_a_machine_that_confines_nothing_refuses_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_found", [programs.NO_MODE])
    with pytest.raises(SandboxError, match="install bubblewrap"):
        run_program("print(1)")
    assert report_sandbox().refused


def test_a_fall_back_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    if not seccomp_filter(NO_FILES):
        pytest.skip("no seccomp on this machine")
    monkeypatch.setattr(programs, "_found", [])
    monkeypatch.setattr(programs, "_failed", {})
    monkeypatch.setattr(programs.shutil, "which", lambda name: None)
    assert programs.sandbox_mode() == confinement.SECCOMP
    assert "no bwrap on the PATH" in report_sandbox().warning


def test_the_weaker_mode_works_without_files_but_with_the_usual_modules() -> None:
    if not seccomp_filter(NO_FILES):
        pytest.skip("no seccomp on this machine")
    program = f"import {', '.join(confinement.PRELOADED)}\nprint(math.gcd(12, 18), re.sub('a', 'b', 'aa'))"
    assert run_program(program, mode=confinement.SECCOMP).stdout == "6 bb\n"


def test_a_sandbox_that_cannot_be_set_up_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confinement, "interpreter", lambda: "/no/python")
    with pytest.raises(SandboxError, match="/no/python"):
        run_program("print(1)", mode=confinement.SECCOMP)


def test_many_threads_at_once() -> None:
    before, threads = set(os.listdir("/proc/self/fd")), threading.active_count()
    with ThreadPoolExecutor(6) as pool:
        outcomes = list(pool.map(lambda i: run_program(f"print({i} * 2)", limits=Limits(wall_s=60.0)), range(18)))
    assert [outcome.stdout for outcome in outcomes] == [f"{2 * i}\n" for i in range(18)]
    assert len(os.listdir("/proc/self/fd")) <= len(before) + 1
    assert threading.active_count() <= threads


@given(PLAIN)
def test_values_come_back_as_they_were(value: Any) -> None:
    assert decode(encode(value)) == value


def test_values_that_cannot_be_sent_equal_nothing() -> None:
    odd = decode(encode([1, object(), {2, 3}, 2**9000, frozenset({1})]))
    assert isinstance(odd[1], Unknown) and odd[1] != odd[1]
    assert odd[2:] == [{2, 3}, 2**9000, {1}]
    deep: list[Any] = []
    for _ in range(500):
        deep = [deep]
    assert "nested" in repr(decode(encode(deep)))
    broken = [{}, {"int": "x"}, {"tuple": 3}, {"dict": [1]}, {"set": [[1]]}, {"a": 1, "b": 2}, {"nothing": 1}]
    assert all(isinstance(decode(value), Unknown) for value in (*broken, {"bytes": "zz"}))


def test_same_is_pythons_equality_with_a_rounding_error() -> None:
    assert same([0.1 + 0.2, {"a": (1, 2.0)}], [0.3, {"a": (1.0, 2)}])
    assert same(float("inf"), float("inf")) and same(3, 3.0)
    for one, other in (([1, 2], (1, 2)), ("1", 1), (1.0, "1"), (10**400, 1.0), (1.0, 1.001)):
        assert not same(one, other)


def test_calls_are_judged_one_by_one() -> None:
    source = "def f(x):\n    print('noise')\n    if x == 2:\n        raise ValueError('two')\n    return x * 2\n"
    answers = call_function(source, "f", [[1], [2], ["a"]]).answers
    found = [(answer.value, answer.error) for answer in answers]
    assert found == [(2, ""), (None, "ValueError: two (line 4)"), ("aa", "")]


def test_a_program_cannot_tell_of_calls_to_come() -> None:
    spy = (
        "import sys\ndef f(x):\n    frame, seen = sys._getframe(), []\n    while frame:\n        "
        "seen.append(repr(frame.f_locals))\n        frame = frame.f_back\n    raise ValueError(str(['SEC' + 'RET' in "
        "text for text in seen]))"
    )
    first, second = call_function(spy, "f", [["public"], ["SECRET"]]).answers
    assert first.error.startswith("ValueError: [False, False") and "True" not in first.error
    assert "True" in second.error  # what it is called with it knows, and nobody is shown
    reader = "import sys\ndef f(x):\n    return sys.stdin.read()"
    assert [answer.value for answer in call_function(reader, "f", [["public"], ["SECRET"]]).answers] == ["", ""]


def test_a_large_call_arrives_whole() -> None:
    answers = call_function("f = len", "f", [["x" * 300_000], ["y" * 200_000], [""]]).answers
    assert [answer.value for answer in answers] == [300_000, 200_000, 0]


@pytest.mark.parametrize(
    "cheat",
    [
        "import sys\nprint('{\"value\": 1}')\nsys.exit(0)",
        (
            "import os\nfor d in range(1, 20):\n    try:\n"
            '        os.write(d, b\'{"compiles": true}\\n{"passed": 5, "total": 5}\\n\')\n'
            "    except OSError:\n        pass\nos._exit(0)"
        ),
        (
            "class Yes:\n    def __eq__(self, other):\n        return True\n    __hash__ = None\ndef f(x):\n    "
            "return Yes()"
        ),
        (
            "class Yes(int):\n    def __eq__(self, other):\n        return True\n    __hash__ = None\ndef f(x):\n    "
            "return Yes(0)"
        ),
        (
            'import builtins, json\njson.dumps = lambda *a, **k: \'{"value": 1, "passed": 5, "total": 5}\'\ndef '
            "f(x):\n    return 0"
        ),
        "import sys\nfor module in list(sys.modules.values()):\n    for key in ('expected', 'tally', 'job'):\n       "
        " setattr(module, key, 1)\ndef f(x):\n    return 0",
        "def f(x):\n    raise SystemExit(0)",
        "def f(x):\n    import os\n    os._exit(0)",
    ],
)
def test_forged_results_do_not_win(cheat: str) -> None:
    answers = call_function(cheat, "f", [[5], [6]], Limits(wall_s=20.0)).answers
    assert not any(
        same(answer.value, expected) for answer, expected in zip(answers, (10, 12), strict=True) if not answer.error
    )
    tally = run_tests(cheat, "f", "assert f(5) == 10\nassert f(6) == 12", limits=Limits(wall_s=20.0))
    assert tally.passed == 0


def test_test_code_runs_apart_from_the_program() -> None:
    tests = (
        "def check(candidate):\n    assert candidate([1, 2]) == (3, 'x')\n    for i in range(3):\n        assert "
        "candidate([i])[0] == i\n    assert candidate([1]) == 0, 'no'\ncheck(f)"
    )
    tally = run_tests("def f(xs):\n    return sum(xs), 'x'", "f", tests)
    assert (tally.compiles, tally.passed, tally.total) == (True, 4, 5)
    assert run_tests("def f(:", "f", tests).compiles is False
    helped = run_tests(
        "def f(x):\n    return x + 1", "f", "assert twice(f(1)) == 4", prelude="def twice(x):\n    return 2 * x\n"
    )
    assert (helped.passed, helped.total) == (1, 1)
    assert "ended" in run_tests("import os\nos._exit(0)", "f", tests).problem


TESTS = """
def check(candidate):
    '''Says what is checked.'''
    assert candidate(1) == 2
    value, (other, *rest) = candidate(-1), (1, 2)
    assert value == 0, "no"
    assert other == 1
    for i in range(3):
        step = candidate(i - 1)
        assert step == i
    if candidate(-1) == 0:
        assert candidate(2) == 3
        assert candidate(3) == 4
    try:
        assert candidate("x")
        later = candidate(-1)
        assert False
    except Exception:
        pass
    assert candidate(5) == 6
def twice(x):
    return 2 * candidate(x)
check(f)
assert twice(-1) == 0
assert twice(2) == 6
"""


@pytest.mark.parametrize(
    ("source", "passed", "total"),
    [
        ("def f(x):\n    return x + 1 if x != 'x' else 1", 12, 12),
        ("def f(x):\n    return x + 1 if x not in ('x', 5) else 1", 11, 12),
        ("def f(x):\n    if x == 5:\n        raise KeyError(x)\n    return x + 1 if x != 'x' else 1", 11, 12),
        # -1 raises between assertions: that ends the tests, and none is passed
        ("def f(x):\n    if x == -1:\n        raise KeyError(x)\n    return x + 1 if x != 'x' else 1", 0, 2),
        ("import os\nos._exit(0)", 0, 2),
    ],
)
def test_assertions_are_counted_and_an_error_between_them_passes_none(source: str, passed: int, total: int) -> None:
    tally = run_tests(source, "f", TESTS, limits=Limits(wall_s=60.0))
    assert (tally.passed, tally.total) == (passed, total)


@pytest.mark.parametrize(("source", "passed"), [("def f(x):\n    return x + 1", 2), ("def f(x):\n    return x", 0)])
def test_assertions_that_all_stand_in_a_try_are_counted(source: str, passed: int) -> None:
    tests = "for x in (1, 2):\n    try:\n        assert f(x) == x + 1\n    except KeyError:\n        pass\n"
    tally = run_tests(source, "f", tests, limits=Limits(wall_s=60.0))
    assert tally.passed == passed and tally.total == max(passed, 1)


def test_each_case_of_evalplus_is_an_assertion() -> None:
    tests = "def assertion(out, exp):\n    assert out == exp\nfor x in range(4):\n    assertion(f(x), x + 1)\n"
    for source, passed in (("def f(x):\n    return x + 1", 4), ("def f(x):\n    return (x + 1) // (x != 2)", 3)):
        tally = run_tests(source, "f", tests, limits=Limits(wall_s=60.0))
        assert (tally.passed, tally.total) == (passed, 4)


MESSAGES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from([10**400, -(10**400), 10**4000]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["int", "float", "complex", "bytes", "set", "dict", "tuple", "other", "value"]),
            inner,
            max_size=2,
        ),
    ),
    max_leaves=8,
)


@given(
    st.lists(
        st.dictionaries(st.sampled_from(["value", "raised", "compiles", "problem"]), MESSAGES, max_size=3), max_size=4
    ),
    MESSAGES,
)
def test_whatever_a_program_writes_is_an_answer_that_can_be_compared(
    messages: list[dict[str, Any]], expected: Any
) -> None:
    answers = judging._answers("\n".join(map(json.dumps, messages)), 2, "it ended")
    assert len(answers.answers) == 2
    for answer in answers.answers:
        for other in (expected, 0.5, 1 + 1j, (1, {"a"})):
            assert {same(answer.value, other), same(other, answer.value)} <= {True, False}
        assert isinstance(_got(answer), str)


def test_a_number_too_large_for_a_float_is_a_wrong_answer() -> None:
    said = b'{"compiles": true}\n{"value": {"float": ' + b"9" * 400 + b"}}\n"
    cheat = (
        f"import os\nfor d in range(1, 20):\n    try:\n        os.write(d, {said!r})\n    except OSError:\n        "
        "pass\ndef f(x):\n    return 0"
    )
    assert not same(call_function(cheat, "f", [[5]], Limits(wall_s=60.0)).answers[0].value, 10.0)


def test_a_value_that_cannot_be_sent_passes_no_assertion() -> None:
    program = "def f(x):\n    return [object, {1: (0, object())}][x]"
    tests = "assert f(0) != 2\nassert f(0)\nassert f(0) is not None\nassert f(0) not in (1, 2)\nassert f(1)[1][0] == 0"
    tally = run_tests(program, "f", tests, limits=Limits(wall_s=60.0))
    assert (tally.passed, tally.total) == (0, 5) and "cannot be sent" in tally.problem


LINES_OF_THE_HARNESS = """import os, sys
frame = sys._getframe()
while not hasattr(frame.f_locals.get("lines"), "receive"):
    frame = frame.f_back
lines = frame.f_locals["lines"]
"""


@pytest.mark.parametrize("said", ["x", '{"compiles": true}\\n{"value": 1}\\n[]'])
def test_a_program_that_hears_of_later_calls_is_not_quoted(said: str) -> None:
    spy = (
        f"os.write(lines._writes, b'{said}\\n' * 2)\nos.write(2, b''.join(lines._reads.readline() for _ in "
        "range(2)))\nos._exit(1)\n"
    )
    answers = call_function(LINES_OF_THE_HARNESS + spy, "f", [["public"], ["SECRET"], ["SECRET"]], Limits(wall_s=60.0))
    assert "SECRET" not in repr(answers) and answers.answers[-1].error == judging.UNREADABLE


def test_an_answer_that_would_keep_this_process_busy_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tens of thousands of numbers that share one hash, in a set."""
    one_hash = ",".join(str(i * (2**61 - 1)) for i in range(20_000))
    monkeypatch.setattr(judging, "decode", len)  # not with such a text
    answer = judging._answers(f'{{"compiles": true}}\n{{"value": {{"set": [{one_hash}]}}}}\n', 1, "").answers[0]
    assert answer.error == judging.TOO_LONG


def test_sql_worker_reads_files_below_its_root_and_never_writes_them(tmp_path: Path) -> None:
    file = tmp_path / "gold.sqlite"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE t (a INTEGER, b TEXT, c BLOB)")
        connection.execute("INSERT INTO t VALUES (1, 'x', x'00ff'), (2, NULL, NULL)")
    connection.close()
    content = file.read_bytes()
    worker = SqlWorker(str(tmp_path))
    try:
        database = Database.of_file(file)
        assert worker.query(database, "SELECT * FROM t").rows == ((1, "x", b"\x00\xff"), (2, None, None))
        assert worker.query(database, "DELETE FROM t").error
        assert worker.query(database, "SELECT 9e999, -9e999").rows == ((float("inf"), float("-inf")),)
        with pytest.raises(SandboxError, match=r"missing\.sqlite"):
            worker.query(Database.of_file(tmp_path / "missing.sqlite"), "SELECT 1")
    finally:
        worker.close()
    assert file.read_bytes() == content and sorted(path.name for path in tmp_path.iterdir()) == ["gold.sqlite"]


def test_sql_worker_starts_again_after_it_was_killed() -> None:
    worker = SqlWorker()
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (a)")
    database = Database.of_bytes(connection.serialize())
    try:
        assert worker.query(database, "SELECT 1").rows == ((1,),)
        assert worker._process is not None
        worker._process.kill()
        assert worker.query(database, "SELECT 2").rows == ((2,),)
        begun = time.monotonic()
        assert worker.query(database, "SELECT printf('%.*c', 2000000000, 'x')", QueryLimits(seconds=0.1)).error
        assert time.monotonic() - begun < 60, "the query alone would take minutes"
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda i: worker.query(database, f"SELECT {i}").rows, range(40)))
        assert found == [((i,),) for i in range(40)]
    finally:
        worker.close()


HOLDER = """
import sqlite3
from rllib_lmgame.sandbox.queries.database import Database, QueryLimits, SqlWorker
worker = SqlWorker()
connection = sqlite3.connect(":memory:")
connection.execute("CREATE TABLE t (a)")
database = Database.of_bytes(connection.serialize())
worker.query(database, "SELECT 1")
print(worker._process.popen.pid, flush=True)
endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
worker.query(database, endless, QueryLimits(seconds=10_000))
"""


def test_a_query_ends_with_the_process_that_asked_it() -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        worker = Path("/proc", str(int(holder.stdout.readline())), "stat")
        time.sleep(0.2)  # if the query has not begun by then, its worker reads the end of its input
        holder.kill()
    deadline = time.monotonic() + 60
    while worker.exists() and worker.read_text().rsplit(")", 1)[1].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_rows_are_compared_as_a_multiset() -> None:
    one = QueryResult(rows=((1, "a"), (1, "a"), (2.0, None)))
    assert same_rows(one, QueryResult(rows=((2, None), (1, "a"), (1.0, "a"))))
    assert not same_rows(one, QueryResult(rows=((2, None), (1, "a"))))
    assert not same_rows(one, QueryResult(rows=(("a", 1), ("a", 1), (None, 2))))
    assert same_rows(QueryResult(rows=((0.1 + 0.2,),)), QueryResult(rows=((0.3,),)))
    assert not same_rows(QueryResult(error="no"), QueryResult(error="no"))


def test_a_run_that_never_ends_is_stopped_in_time() -> None:
    outcome = run_program("import time\nprint('here', flush=True)\ntime.sleep(60)", limits=Limits(wall_s=2.0))
    assert (outcome.stop, outcome.exit_code, outcome.stdout) == (TIMEOUT, None, "here\n")
    assert outcome.seconds < 40
