"""Programming problems made up here: functions whose parameters are drawn, each with the cases that judge it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

from rllib_lmgame.envs.games.code.code_execution.problems import Case, Problem, case_text
from rllib_lmgame.envs.synthetic.programming import numbers, sequences, texts
from rllib_lmgame.envs.synthetic.programming.families import FAMILIES, signature_of, source_of

MODULES = (numbers, sequences, texts)
"""Importing them fills ``FAMILIES``."""

PUBLIC_TESTS, HIDDEN_TESTS, MAX_DRAWS = 3, 12, 200
MOST_ALIKE = 8
"""Cases with the same result, so that a program that always returns it does not pass most tests."""


def generated_problems(rng: random.Random) -> Iterator[Problem]:
    """Endless problems of this package's families; every family equally often."""
    names = sorted(FAMILIES)
    while True:
        name = rng.choice(names)
        yield make_problem(name, tuple(rng.choice(FAMILIES[name].choices()).items()))


@cache
def make_problem(name: str, parameters: tuple[tuple[str, Any], ...]) -> Problem:
    """The problem of a family for given parameters; its cases depend on nothing else."""
    family, values = FAMILIES[name], dict(parameters)
    chance = random.Random(f"code {name} {parameters}")
    cases: dict[str, Case] = {}
    results: Counter[str] = Counter()
    for _ in range(MAX_DRAWS):
        arguments = tuple(maker(chance) for maker in family.inputs)
        case = Case(arguments, family.function(*arguments, **values))
        if repr(arguments) not in cases and results[repr(case.expected)] < MOST_ALIKE:
            cases[repr(arguments)] = case
            results[repr(case.expected)] += 1
        if len(cases) == PUBLIC_TESTS + HIDDEN_TESTS:
            break
    public, hidden = list(cases.values())[:PUBLIC_TESTS], list(cases.values())[PUBLIC_TESTS:]
    shown = "\n".join(f"    {case_text(name, case)}" for case in public)
    statement = f"{signature_of(name, values)}\n\n{family.text.format(**values)}\nExamples:\n{shown}"
    return Problem(f"{name} {values}", name, statement, source_of(name, values), tuple(public), tuple(hidden))
