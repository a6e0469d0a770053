"""MathProblems: which answers are the same, in bounded work; the forms of published sets; problems made up here."""

from __future__ import annotations

import json
import random
import re
import time
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.contract.base import InvalidAction
from rllib_lmgame.envs.games.mathematics.math_problems.game import MathProblems
from rllib_lmgame.envs.support.mathematics.reading import final_answer
from rllib_lmgame.envs.support.mathematics.results import is_worked_out, read_answer, same_answer
from rllib_lmgame.envs.synthetic.math_problems import FAMILIES, made_problem

PAIRS = [
    (line[0] == "=", *line[2:].split(" ## "))
    for line in (Path(__file__).parent / "answer_pairs.txt").read_text(encoding="utf-8").split("\n")
    if line[:2] in ("= ", "! ")
]


def same(said: str, gold: str, tolerance: Fraction = Fraction(0)) -> bool:
    return same_answer(read_answer(said), read_answer(gold), tolerance)


def test_pairs_are_told_apart() -> None:
    assert len(PAIRS) >= 300 and len(set(PAIRS)) == len(PAIRS)
    assert [pair for pair in PAIRS if same(*pair[1:]) != pair[0]] == []


HOSTILE = [
    "9**9**9", "e^{e^{e^{e^e}}}", "1e9999", "10^{99999}", "2^{8000}*3^{5000}", "1000!!", "(1000!)!", "\\binom{10^9}{5}",
    "\\sin(10^{99999})", "\\sin(e^{e^{20}})", "\\frac" * 180, "(" * 900, "[" * 900, "|" * 900, "-" * 900,
    "1+" * 140 + "1", "x" * 299, "x^" * 149 + "x", "((((x+1)^{99})^{99})^{99})^{99}", "(x+y+z+w+1)^{500}", "1," * 490,
    "(1," * 300, "\\{" * 300, "\\boxed{" * 2000, "\\boxed{" * 2000 + "}" * 2000, "\\text{" * 160, "7<x<8 or " * 60,
    "[0,1]\\cup" * 60, "±" * 30 + "1", "1±1, " * 60, "⟦" * 500, "1/" * 150 + "3", "x/" * 140 + "x", "0^{-1}", "\\ln 0",
    "i^{i^{i^i}}", "\udc80\x00", "٣", "\\" * 900, "x_{" * 200, "\\lfloor 10^{99} \\rfloor", "|" + "x|" * 200,
    "(1.0000000001)^{10^{15}}", "\\exp(-10^{5000})", "\\sinh(999999)^{99}", "\\boxed{1} and " * 1000,
    "answer is:" * 1500, "0.\\overline{" + "9" * 21 + "}", "\\sqrt[64]{1e9999}" * 40, "\\sqrt[3]{1e1200+1}" * 33,
]  # fmt: skip
"""Each would take a computer algebra system, or a reader that goes back over its text, for ever."""


@pytest.mark.parametrize(
    "text",
    [pytest.param(text, marks=pytest.mark.slow) if text.startswith("\\sqrt[") else text for text in HOSTILE],
    ids=lambda text: text[:12],
)
def test_hostile_answers_cost_little_and_are_not_right(text: str) -> None:
    began = time.process_time()
    try:
        answer = read_answer(text)
    except InvalidAction:
        return
    for gold in (
        "5",
        "x^2+1",
        "(1,2)",
        "4, 5, 6",
        "[1,2]",
        "\\begin{pmatrix}1\\\\2\\end{pmatrix}",
        "x<3",
        "y=2x+1",
        "D",
    ):
        assert not same_answer(answer, read_answer(gold)) and not same_answer(read_answer(gold), answer)
    assert same_answer(answer, answer)
    assert time.process_time() - began < 20


@given(st.text(alphabet="0123456789xyie+-*/^_(){}[],.;|<>=≤±∪°% \\\"$abcdefrq'!πC", max_size=60))
def test_every_text_is_read_or_refused(text: str) -> None:
    try:
        answer = read_answer(text)
    except InvalidAction:
        return
    assert same_answer(answer, read_answer(text))
    is_worked_out(answer)
    same_answer(answer, read_answer("x^2 - 1"))


RATIONALS = st.fractions(min_value=-1000, max_value=1000, max_denominator=1000)


@given(RATIONALS, RATIONALS)
def test_numbers_are_compared_exactly(one: Fraction, other: Fraction) -> None:
    forms = [f"{one}", f"\\frac{{{one.numerator}}}{{{one.denominator}}}", f"{one.numerator} \\div {one.denominator}"]
    forms += [f"\\frac{{{7 * one.numerator}}}{{{7 * one.denominator}}}", f"x = {one}", f"{100 * one}\\%", f"{one} cm"]
    assert all(same(form, f"{one}") for form in forms)
    assert [same(form, f"{other}") for form in forms] == [one == other] * 5 + [other in (one, 100 * one), one == other]


@given(st.lists(st.integers(-6, 6), min_size=2, max_size=4), st.integers(-6, 6))
def test_a_polynomial_is_its_factors(roots: list[int], other: int) -> None:
    """Multiplied out here by hand."""
    coefficients = [1]
    for root in roots:
        shifted = [*coefficients, 0]
        coefficients = [a - root * b for a, b in zip(shifted, [0, *coefficients], strict=True)]
    powers = range(len(coefficients) - 1, -1, -1)
    out = "+".join(f"({c})x^{{{power}}}" for c, power in zip(coefficients, powers, strict=True))
    assert same("".join(f"(x-({root}))" for root in roots), out)
    assert same("".join(f"(x-({root}))" for root in [*roots[1:], other]), out) == (other == roots[0])


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("Thus $x$ is \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"),
        ("\\boxed{1} \\text{ and } \\boxed{2}", "1, 2"),
        ("First \\boxed{1} was wrong, so \\boxed{2}", "2"),
        ("so <answer> 4 </answer>", "4"),
        ("3 + 4 = 7\n#### 7", "7"),
        ("Final Answer: The final answer is $12$. I hope it is correct.", "$12$"),
        ("Therefore the value we want is $x^2 + 1$ here", "x^2 + 1"),
        ("June 20", "June 20"),
    ],
)
def test_the_answer_of_a_longer_reply(reply: str, said: str) -> None:
    assert final_answer(reply) == said


def test_made_up_problems_have_the_answers_they_say() -> None:
    seen = set()
    game = MathProblems(max_turns=2, show_rules=False)
    for seed in range(150):
        question, _ = game.reset(seed=seed)
        seen.add(question)
        answer = game.expert_action() or ""
        _, other = made_problem(random.Random(seed + 10_000))
        assert same(answer, other) or game.step(other)[1] <= 0.0 or "(A)" in question
        if not game.success:
            assert game.step(answer)[1:4] == (1.0, True, False)
    assert len(seen) > 140


NUMBER = r"-?[0-9]+"


@pytest.mark.parametrize("family", ["roots", "inequality", "outside", "divisors", "remainder", "other_base", "part"])
def test_made_up_answers_fit_their_questions(family: str) -> None:
    """Put into the question, worked out by Python."""
    for seed in range(60):
        question, answer = FAMILIES[family](random.Random(seed))
        numbers = [int(number) for number in re.findall(NUMBER, question.replace("- ", "-").replace("+ ", ""))]
        if family == "roots":
            p, q = re.fullmatch(rf"({NUMBER})? ?\\pm \\sqrt{{([0-9]+)}}", answer).groups()  # type: ignore[union-attr]
            left = question.partition("$")[2].partition(" =")[0].replace("x^2", "x**2")
            left = re.sub(r"([0-9])x", r"\1*x", left)
            assert all(abs(eval(left, {"x": int(p or 0) + s * int(q) ** 0.5})) < 1e-9 for s in (1, -1))
        elif family == "inequality":
            low, high = (int(number) for number in re.findall(NUMBER, answer))
            inside = question.partition("|")[2].partition("|")[0]
            width = numbers[-1]
            assert [abs(eval(inside, {"x": x})) <= width for x in (low - 1, low, high, high + 1)] == [0, 1, 1, 0]
            assert (answer[0] == "[") == ("\\le" in question)
        elif family == "outside":
            low, high = (int(number) for number in re.findall(NUMBER, answer))
            left = question.partition("$x$ is $")[2].partition(" >")[0].replace(")(", ")*(")
            assert [eval(left, {"x": x}) > 0 for x in (low - 1, low, high, high + 1)] == [True, False, False, True]
        elif family == "divisors":
            assert [n for n in range(1, 201) if numbers[0] % n == 0] == [int(n) for n in re.findall(NUMBER, answer)]
        elif family == "remainder":
            base, power, modulus = (int(n) for n in re.findall(r"[0-9]+", question)[:3])
            letter = answer[7]
            assert f"({letter}) {base**power % modulus}\n" in question + "\n"
        elif family == "other_base":
            assert int(answer.partition("_")[0], numbers[1]) == numbers[0]
        else:
            assert int(answer[:-2]) * numbers[0] == 100 * numbers[1]


def file_of(tmp_path: Path, name: str, *rows: object) -> str:
    path = tmp_path / name
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return str(path)


FORMS = {
    "math500": ({"problem": "P", "solution": "So \\boxed{\\frac12}.", "answer": "\\frac{1}{2}", "level": 2}, "0.5"),
    "aime24": ({"id": 60, "problem": "P", "solution": "\\boxed{204}"}, "204"),
    "aime25": ({"problem": "P", "answer": 70}, "70"),
    "amc23": ({"id": 0, "question": "P", "answer": 27.0}, "27"),
    "minerva": ({"question": "P", "answer": "4.5e33"}, "4.5 \\times 10^{33}"),
    "gsm8k": ({"question": "P", "answer": "1+1=<<1+1=2>>2\n#### 2"}, "2"),
    "letters": ({"question": "P", "options": ["7", "8", "9"], "answer": "B"}, "(B)"),
    "places": ({"question": "P", "choices": ["7", "8", "9"], "answer": 1}, "8"),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_published_forms_are_read(tmp_path: Path, form: str) -> None:
    row, right = FORMS[form]
    path = file_of(tmp_path, "problems.jsonl", row)
    game = MathProblems(data=path, split="all", show_rules=False, max_turns=2)
    assert game.reset(seed=0)[0].split("\n")[0] == "P"
    assert game.step("12345")[:4] == ("Incorrect. Please think again.", 0.0, False, False)
    assert game.step(right)[1:4] == (1.0, True, False)
    game.reset(seed=0)
    assert game.step(game.expert_action() or "")[1] == 1.0


def test_a_named_set_keeps_its_publishers_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLLIB_LMGAME_DATA", str(tmp_path))
    folder = tmp_path / "math500"
    folder.mkdir()
    file = Path(
        file_of(folder, "test.jsonl", *({"problem": f"What is {n} + 1?", "answer": f"{n + 1}"} for n in range(9)))
    )
    about = {"parts": ["test"], "files": {"test.jsonl": {"bytes": file.stat().st_size, "sha256": "0" * 64}}}
    (folder / "SOURCE.json").write_text(json.dumps(about))
    game = MathProblems(data="data:math500", split="test", show_rules=False)
    assert len({game.reset(seed=seed)[0] for seed in range(200)}) == 9
    with pytest.raises(ConfigError, match="to 'test' or 'all'"):
        MathProblems(data="data:math500")


def test_the_sum_itself_is_no_answer(tmp_path: Path) -> None:
    path = file_of(tmp_path, "a.jsonl", {"question": "What is 2^10 + 1/2?", "answer": "1024.5"})
    game = MathProblems(data=path, split="all", max_turns=9, max_invalid_actions=None)
    game.reset(seed=0)
    for said in ("2^10 + 1/2", "2^{10}+0.5", "1024+1/2", "x = 1024+1/2", "\\sqrt{1049600.25}"):
        assert game.step(said)[4]["invalid_action"]
    assert game.step("2^10 + 1/2 = 1024.5")[1] == 1.0
    game.reset(seed=0)
    assert game.step("1024 1/2")[1] == 1.0
    free = MathProblems(data=path, split="all", worked_out=False)
    free.reset(seed=0)
    assert free.step("2^10 + 1/2")[1] == 1.0
