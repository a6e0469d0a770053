"""GSM8K: reading answers, made-up problems, the published file's form."""

from __future__ import annotations

import json
import random
import re
from fractions import Fraction

import pytest

from rllib_lmgame.envs.contract.base import InvalidAction
from rllib_lmgame.envs.games.mathematics.gsm8k import GSM8K
from rllib_lmgame.envs.support.answers import number_text, read_number
from rllib_lmgame.envs.synthetic.word_problems import FAMILIES, MAX_STEPS, word_problem

READ = {
    "42": 42,
    "+42": 42,
    "−3": -3,
    "minus 3": -3,
    "$-3": -3,
    "x = -3": -3,
    "1,234": 1234,
    "1,234,567": 1234567,
    "1{,}234": 1234,
    "42.00": 42,
    ".5": Fraction(1, 2),
    "1/2": Fraction(1, 2),
    "6/3": 2,
    "1 1/2": Fraction(3, 2),
    "½": Fraction(1, 2),
    r"\frac{3}{4}": Fraction(3, 4),
    r"\frac{-1}{2}": Fraction(-1, 2),
    "I have 3 apples, so <answer>16</answer>": 16,
    "<answer>I have 3, so #### 16</answer>": 16,
    "3 apples, so <Answer>16": 16,
    r"\boxed{42}": 42,
    r"3 + 4 = \boxed{7}": 7,
    r"\$5": 5,
    "**42**": 42,
    "4.2e3": 4200,
    "42 apples": 42,
    "25%": 25,
    "#### 42": 42,
    "3 * 4 = 12 boxes\n12 - 2 = 10\n#### 10": 10,
    "The answer is 42, so 42 apples": 42,
    "12/4 = 3": 3,
    "x2 is 5": 5,
}


REFUSED = [
    "", "forty-two", "3 or 4", "First 3 * 4 = 12, then 12 + 5 = 17", "10-3", "1,23", "1.234,50", "1.2.3", "1/0",
    "3:30", "#### 3\n#### 4", "<answer>3</answer><answer>4</answer>", "<answer></answer> 3", "####", "٣", "4٣",
    "x2", "2²", "nan", "inf", "9" * 31, "\udc80",
]  # fmt: skip


def test_answers_are_read_as_a_person_reads_them() -> None:
    assert {text: read_number(text) for text in READ} == READ


def test_what_is_no_answer_or_ambiguous_is_refused() -> None:
    for text in REFUSED:
        with pytest.raises(InvalidAction):
            read_number(text)
            pytest.fail(f"{text!r} was read")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Fraction(5), "5"),
        (Fraction(-7, 2), "-3.5"),
        (Fraction(1, 3), "1/3"),
        (Fraction(-1, 8), "-0.125"),
        (Fraction(1, 20), "0.05"),
        (1234, "1234"),
    ],
)
def test_numbers_are_written_so_that_they_are_read_again(value: Fraction, text: str) -> None:
    assert number_text(value) == text
    assert read_number(text) == value


def file_of(tmp_path, *rows: object) -> str:
    path = tmp_path / "problems.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return str(path)


def test_the_published_form_is_read_and_split(tmp_path) -> None:
    rows = [
        {"question": f"What is {n} + 1?", "answer": f"{n}+1=<<{n}+1={n + 1}>>{n + 1}\n#### {n + 1:,}"}
        for n in range(1000, 1100)
    ]
    path = file_of(tmp_path, *rows[:50], "", *rows[50:])
    seen = {}
    for split in ("train", "validation", "test", "all"):
        game = GSM8K(data=path, split=split, show_rules=False)
        seen[split] = {game.reset(seed=seed)[0] for seed in range(1200)}
        assert game.step(game.expert_action() or "")[1] == 10.0
    assert len(seen["all"]) == 100
    assert seen["train"] | seen["validation"] | seen["test"] == seen["all"]
    assert not seen["train"] & seen["test"]


CALCULATION = re.compile(r"(-?[0-9.]+) ([-+*/]) (-?[0-9.]+) = (-?[0-9.]+)")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_worked_solution_adds_up(family: str) -> None:
    for seed in range(200):
        steps = 1 + seed % MAX_STEPS
        problem = word_problem(random.Random(seed), family, steps)
        *lines, tail = problem.solution.split("\n")
        assert len(lines) == steps and problem.question.endswith("?") and "{" not in problem.question + problem.solution
        for line in lines:
            found = CALCULATION.search(line)
            assert found, line
            left, sign, right, result = Fraction(found[1]), found[2], Fraction(found[3]), Fraction(found[4])
            assert {"+": left + right, "-": left - right, "*": left * right, "/": left / (right or 1)}[sign] == result
        assert tail == f"#### {found[4]}" and problem.answer == result
        assert problem.answer > 0 or family == "temperature"
        # Whoever reads the question knows every number that is not itself a result.
        told = {
            Fraction(number.replace(",", "")) for number in re.findall(r"[0-9][0-9,]*(?:\.[0-9]+)?", problem.question)
        }
        results: set[Fraction] = set()
        for line in lines:
            left, right, result = (Fraction(CALCULATION.search(line)[i]) for i in (1, 3, 4))
            spoken = told | results | {Fraction(n, 100) for n in told} | {Fraction(2), Fraction(3)}
            assert abs(left) in spoken | {abs(n) for n in results} and abs(right) in spoken | {
                abs(n) for n in results
            }, (problem, line)
            results.add(result)


def test_the_experts_thought_is_the_solution_in_words(tmp_path) -> None:
    file = tmp_path / "gsm8k.jsonl"
    file.write_text(
        json.dumps(
            {
                "question": "How much?",
                "answer": "She makes 9 * 2 = $<<9*2=18>>18 a day.\nThat is $<<18=18>>18.\n#### 18",
            }
        )
    )
    game = GSM8K(data=str(file), split="all")
    game.reset(seed=0)
    assert game.expert_thought() == "She makes 9 * 2 = $18 a day.\nThat is $18."
