"""ReasoningGym: pure functions of the seed, nothing evaluated, every generator."""

from __future__ import annotations

import hashlib
import math
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("reasoning_gym")

from reasoning_gym.factory import DATASETS

from rllib_lmgame.envs.games.adapted.reasoning_tasks import (
    EVALUATED_AS_FORMULAS,
    EVALUATED_AS_LITERALS,
    ReasoningGym,
    may_be_scored,
)
from tests.envs.begun import begun

TASKS = sorted(set(DATASETS) - {"composite"})
HANDFUL = [
    "chain_sum", "countdown", "isomorphic_strings", "list_functions", "pool_matrix", "ransom_note", "spiral_matrix",
    "word_sorting",
]  # fmt: skip
NO_EXPERT = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
"""Tasks whose items hold no answer that their scorer gives 1."""

GARBAGE = [
    "zzz", "42", "-1", "1e999999999", "9" * 5000, "9**9**9**9", "[" * 3000, "(" * 3000, "[]", "{}", "null", '{"a": 1}',
    "[[1, 2], [3]]", "nan", "1/0", "\udc80\x00", "a " * 4000, "0 1\n1 0", "R U R' U'", "x = 1", "None",
    "sin(x)*cos(x)", "٣", "1j", "10:30", "yes", "C4",
]  # fmt: skip


def digest(tasks: list[str]) -> str:
    """Hash of the first questions of some tasks."""
    found = hashlib.sha256()
    for task in tasks:
        game = ReasoningGym(task=task, size=50, show_rules=False)
        for seed in range(3):
            found.update(game.reset(seed=seed)[0].encode(errors="replace"))
    return found.hexdigest()


def digest_elsewhere(tasks: list[str], salt: str) -> str:
    code = "import sys; from test_reasoning_tasks import digest; print('\\n' + digest(sys.argv[1:]))"
    path = os.pathsep.join([str(Path(__file__).parent), *(entry for entry in sys.path if entry)])
    env = {**os.environ, "PYTHONHASHSEED": salt, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, "-c", code, *tasks], env=env, capture_output=True, text=True, check=True
    ).stdout.split()[-1]


def run_through(task: str) -> int:
    """Play a task with garbage and with its expert; returns the levels its expert solves."""
    game = ReasoningGym(task=task, split="all", size=50, max_turns=1000, max_invalid_actions=None)
    state, np_state = random.getstate(), np.random.get_state()[1].copy()
    solved = 0
    for seed in range(3):
        observation, _ = game.reset(seed=seed)
        assert 10 < len(observation) <= 16_384
        answer = game.expert_action()
        for text in GARBAGE:
            _, reward, terminated, _, _ = game.step(text)
            assert 0.0 <= reward <= 1.0
            if terminated:
                game.reset(seed=seed)
        assert game.reset(seed=seed)[0] == observation and game.expert_action() == answer
        if answer is not None:
            _, reward, terminated, _, info = game.step(answer)
            assert (reward, terminated, info["success"]) == (1.0, True, True)
            solved += 1
    assert random.getstate() == state and (np.random.get_state()[1] == np_state).all()
    return solved


@pytest.mark.parametrize("task", HANDFUL)
def test_a_handful_of_generators(task: str) -> None:
    assert run_through(task) == 3


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_every_generator(task: str) -> None:
    solved = run_through(task)
    assert solved == 0 if task in NO_EXPERT else solved >= 1


@pytest.mark.slow
def test_every_generator_in_another_process() -> None:
    assert digest_elsewhere(TASKS, "1") == digest_elsewhere(TASKS, "2") == digest(TASKS)


@pytest.mark.parametrize("task", sorted(EVALUATED_AS_LITERALS | EVALUATED_AS_FORMULAS))
def test_no_answer_is_evaluated(task: str, tmp_path: Path) -> None:
    """The scorers of these tasks call ``eval`` or sympy's reader; a call in an answer must never be made."""
    target = tmp_path / "made"
    game = begun(ReasoningGym(task=task, size=50, max_turns=100, max_invalid_actions=None))
    for text in (
        f"open({str(target)!r}, 'w')",
        f"[open({str(target)!r}, 'w')]",
        f"__import__('os').mkdir({str(target)!r})",
        "exit()",
        "print(2)",
        "factorial(9999999)",
        "9**9**9**9",
    ):
        assert not may_be_scored(task, text)
        game.step(text)
    assert not target.exists()
    game.reset(seed=0)
    assert may_be_scored(task, str(game._entry["answer"]).strip()) or "Integral" in game._entry["answer"]


def numbers_in(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"-?[0-9]+", text)]


def in_base(number: int, base: int) -> str:
    digits = ""
    while number or not digits:
        number, digit = divmod(number, base)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits


def converted(question: str) -> str:
    named = {"binary": 2, "hexadecimal": 16}
    base, number, other = re.findall(r"the (\S+) number (\w+) to (\S+)", question)[0]
    first, second = (named.get(base) or int(base.removeprefix("base-")) for base in (base, other))
    return in_base(int(number, first), second)


def sorted_words(question: str) -> str:
    order, words = re.findall(r"in (ascending|descending) order .*: (.*)", question)[-1]
    return ", ".join(sorted(words.split(", "), reverse=order == "descending"))


def isomorphic(question: str) -> str:
    first, second = question.split()[-2:]
    return str(len(set(zip(first, second, strict=True))) == len(set(first)) == len(set(second)))


def primes_between(question: str) -> str:
    low, high = numbers_in(question)
    return str(
        sum(number > 1 and all(number % d for d in range(2, math.isqrt(number) + 1)) for number in range(low, high + 1))
    )


def powered(question: str) -> str:
    base, exponent = re.findall(r"Compute (-?[0-9.]+)\^(-?[0-9]+)", question)[0]
    return f"{float(base) ** int(exponent):.2e}"


def letters(question: str) -> str:
    letter, text = re.findall(r'letter "(.)" appear in the text: "(.*)"', question)[0]
    return str(text.lower().count(letter.lower()))


ANSWERS: dict[str, Callable[[str], str]] = {
    "chain_sum": lambda question: str(sum(numbers_in(question.split(":")[1].replace("- ", "-")))),
    "gcd": lambda question: str(math.gcd(*numbers_in(question.split(":")[1]))),
    "lcm": lambda question: str(math.lcm(*numbers_in(question.split(":")[1]))),
    "count_bits": lambda question: str(numbers_in(question)[-1].bit_count()),
    "letter_counting": letters,
    "base_conversion": converted,
    "spell_backward": lambda question: question.split()[-1][::-1],
    "word_sorting": sorted_words,
    "isomorphic_strings": isomorphic,
    "count_primes": primes_between,
    "power_function": powered,
}
"""Worked out from the question alone, in the form it asks for."""


@pytest.mark.parametrize("task", ANSWERS)
def test_known_answers_pay_what_the_rules_say(task: str) -> None:
    game = ReasoningGym(task=task, size=50, split="all", show_rules=False)
    for seed in range(5):
        question, _ = game.reset(seed=seed)
        _, reward, ended, cut, info = game.step(ANSWERS[task](question))
        assert (reward, ended, cut, info["success"]) == (1.0, True, False, True), question
        game.reset(seed=seed)
        _, reward, ended, cut, info = game.step("none of these")
        assert 0 <= reward < 0.5 and (ended, cut, info["success"]) == (True, False, False)


def test_an_integral_is_no_answer_to_itself() -> None:
    assert not may_be_scored("intermediate_integration", "Integral(x**3*cos(x), x)")
    assert may_be_scored("intermediate_integration", "x**3*sin(x) + 3*x**2*cos(x) - 6*x*sin(x) - 6*cos(x) + C")
    assert may_be_scored("intermediate_integration", "2*(10 - 4*x)**(3/2)/3 + C")
