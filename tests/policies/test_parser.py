"""Reading an action out of any text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllib_lmgame.policies.chat.parser import ReplyParser

pieces = st.lists(
    st.sampled_from(["<answer>", "</answer>", "<think>", "</think>", "up", "down", " ", "\n", "<", "\x00"])
    | st.text(max_size=5),
    max_size=12,
)
modes = st.sampled_from(["off", "optional", "required"])
plain = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<>"), max_size=20)


@given(pieces, modes)
def test_any_text_gives_an_action_or_an_error_never_both(parts: list[str], think: str) -> None:
    parsed = ReplyParser(think=think).parse("".join(parts))
    assert (parsed.action is None) != (parsed.error is None)


@given(plain, plain, modes)
def test_a_well_formed_reply_is_read(action: str, thought: str, think: str) -> None:
    parsed = ReplyParser(think=think).parse(f"<think>{thought}</think>\n<answer>{action}</answer>")
    assert (parsed.action, parsed.think) == (action.strip(), thought.strip())


@given(plain, plain)
def test_two_different_answers_are_an_error_two_equal_ones_are_not(one: str, two: str) -> None:
    parsed = ReplyParser().parse(f"<answer>{one}</answer> or <answer>{two}</answer>")
    assert (parsed.action is None) == (one.strip() != two.strip())


@given(plain)
def test_what_stands_around_the_answer_does_not_matter(noise: str) -> None:
    assert ReplyParser().parse(f"{noise}<answer>up</answer>{noise}").action == "up"


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        ("", "no <answer>"),
        ("up", "no <answer>"),
        ("<answer>up", "not closed"),
        ("<answer>up<answer>down</answer>", "not closed"),
        ("<answer>up</answer><answer>", "not closed"),
        ("</answer>up<answer>", "not closed"),
        ("<think><answer>up</answer>", "no <answer>"),
        ("<think><answer>up</answer></think>", "no <answer>"),
        ("<Answer>up</Answer>", "no <answer>"),
    ],
)
def test_no_guesses(reply: str, error: str) -> None:
    parsed = ReplyParser().parse(reply)
    assert parsed.action is None
    assert error in str(parsed.error)


def test_an_answer_within_the_reasoning_does_not_count() -> None:
    assert ReplyParser().parse("<think>not <answer>up</answer></think><answer>down</answer>").action == "down"


def test_required_reasoning() -> None:
    parser = ReplyParser(think="required")
    assert "no <think>" in str(parser.parse("<answer>up</answer>").error)
    assert parser.parse("<think></think><answer>up</answer>").action == "up"


def test_names_of_the_tags() -> None:
    parser = ReplyParser("move", "plan", "optional")
    parsed = parser.parse("<plan>p</plan><move>up</move>")
    assert (parsed.action, parsed.think) == ("up", "p")
    assert parser.think_end("<plan>p</plan>x") == len("<plan>p</plan>")
    assert parser.think_end("x<plan>p</plan>") is None
    assert parser.think_end("<plan>p") is None


def test_many_tags_are_read_in_one_pass() -> None:
    """100 kB of tags: quadratic work would show as a time-out of the suite."""
    parsed = ReplyParser().parse("<answer>a</answer>" * 6000)
    assert parsed.action == "a"
