"""ToolUse: calls, tools, the calculator, tasks."""

from __future__ import annotations

import json
import random
import re
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rllib_lmgame.envs.contract.base import InvalidAction
from rllib_lmgame.envs.games.code.tool_use.calculator import CalculatorError, calculate
from rllib_lmgame.envs.games.code.tool_use.calls import read_call
from rllib_lmgame.envs.games.code.tool_use.game import ToolUse
from rllib_lmgame.envs.games.code.tool_use.generated import FAMILIES
from rllib_lmgame.envs.games.code.tool_use.tasks import Task, submit
from rllib_lmgame.envs.support.answers import same_answer
from tests.envs.begun import begun

NUMBERS = st.integers(0, 99).map(str)
SUMS = st.recursive(
    NUMBERS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%", "/"]), inner).map(
            lambda parts: f"({' '.join(parts)})"
        ),
        inner.map(lambda text: f"-{text}"),
        st.tuples(inner, st.sampled_from(["**2", "**0", "**3"])).map("".join),
    ),
    max_leaves=6,
)


SAY_5 = Task(
    "Say 5.",
    (submit("5"),),
    "5",
    ("Ashford has 7 sheep.", "Dunwick has 9 goats."),
    (("a.txt", "one\n"), ("b/c.txt", "two\n")),
)
CALL = '{"name": "calculator", "arguments": {"expression": "1"}}'


def call(name: str, **arguments: object) -> str:
    """A reply."""
    return json.dumps({"name": name, "arguments": arguments})


def game(task: Task | None = None, **config: object) -> ToolUse:
    """A game with a task set by hand."""
    return begun(ToolUse(show_rules=False, **config), level=task or SAY_5)


@given(SUMS)
@example("9**3**3**3")
def test_the_calculator_agrees_with_python(expression: str) -> None:
    exact = re.sub(r"(?<!\*)\b(\d+)\b", r"Fraction(\1)", expression)
    try:
        found = calculate(expression)
    except CalculatorError as error:
        if "zero" in str(error):
            with pytest.raises(ZeroDivisionError):
                eval(exact, {"Fraction": Fraction})
        else:  # Python would take its time for a tower of powers.
            assert re.search("too|exponent", str(error))
        return
    expected = Fraction(eval(exact, {"Fraction": Fraction}))
    assert (
        found == str(expected)
        if expected.denominator == 1
        else float(found) == pytest.approx(float(expected), rel=1e-11)
    )


@pytest.mark.parametrize(
    "reply",
    [
        '{"name": "calculator", "arguments": {"expression": "1"}}',
        '  {"arguments": {"expression": "1"}, "name": "calculator"}\n',
        '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1"}}\n</tool_call>',
        'I will compute it.\n<tool_call>{"name": "calculator", "arguments": {"expression": "1"}}',
        '```json\n{"name": "calculator", "arguments": {"expression": "1"}}\n```',
        '{"name": "calculator", "arguments": "{\\"expression\\": \\"1\\"}"}',
        '{"name": "calculator", "parameters": {"expression": "1"}}',
        f"<tool_call>{CALL}</tool_call><tool_call>{CALL}",
    ],
)
def test_forms_of_a_call(reply: str) -> None:
    found = read_call(reply)
    assert (found.name, found.arguments) == ("calculator", {"expression": "1"})


@pytest.mark.parametrize(
    "reply",
    [
        *(
            "", "calculator(1)", "[1]", "{", '{"name": 3, "arguments": {}}', '{"name": "calculator", "arguments": [1]}',
            '{"name": "calculator"} and more',
        ),
        *(
            '{"a":' * 8000,
            "[" * 16000,
            '{"name": "x", "arguments": ' + "[" * 5000 + "]" * 5000 + "}",
            '{"name": "x", "arguments": {"a": NaN}}',
        ),
        *(
            '{"name": "x", "arguments": {"a": ' + "1" * 9000 + "}}",
            "<tool_call>",
            "<tool_call></tool_call>",
            "```json\n```",
        ),
        '<tool_call>{"name": "a", "arguments": {}}</tool_call><tool_call>{"name": "b", "arguments": {}}</tool_call>',
    ],
)  # fmt: skip
def test_what_is_no_call(reply: str) -> None:
    with pytest.raises(InvalidAction):
        read_call(reply)


def test_tools_answer() -> None:
    played = game(max_turns=20)
    said = lambda reply: played.step(reply)[0].split("\n", 2)[2]  # noqa: E731
    assert said(call("calculator", expression="6 * 7")) == "42"
    assert said(call("calculator", expression="1 / 0")) == "Error: division by zero"
    assert said(call("search", query="goats")) == "[1] Dunwick has 9 goats."
    assert said(call("search", query="\ud800")) == "Nothing was found."
    assert said(call("list_files")) == "a.txt\nb/\nb/c.txt"
    assert said(call("read_file", path="b/c.txt")) == "two\n"
    assert said(call("write_file", path="d.txt", content="x")) == "Wrote d.txt."
    assert said(call("read_file", path="../../etc/passwd")).startswith("Error: '..' is not allowed")
    assert said(call("read_file", path="/etc/passwd")).startswith("Error: '/etc/passwd' is absolute")
    assert said(call("python", code="print(sum(range(5)))")) == "10"
    assert said(call("python", code="1 / 0")) == "Error: ZeroDivisionError: division by zero"
    assert said(call("python", code="print(open('a.txt').read())")).startswith("Error: ")
    assert len(said(call("python", code="print('x' * 9999)"))) < 2100


@pytest.mark.parametrize(
    ("given_answer", "expected", "same"),
    [
        ("1,234", "1234", True),
        ("7.50", "7.5", True),
        ("Arn", "arn", True),
        ("The Arn", "Arn", False),
        ("9" * 300, "9", False),
        ("", "0", False),
        ("٣", "3", False),
    ],
)
def test_answers(given_answer: str, expected: str, same: bool) -> None:
    assert same_answer(given_answer, expected) is same


def test_every_family_says_what_it_wants_and_hides_the_answer() -> None:
    for family in FAMILIES:
        for seed in range(30):
            task = family(random.Random(seed))
            assert task.plan[-1].name == "submit" and 2 <= len(task.plan) <= 8
            assert task.answer == "done" or task.answer not in task.question.replace(",", "").split()
            played = game(task)
            assert not any(f'"{task.answer}"' in action for action in played.legal_actions())
