"""Reading an action out of any text, and which legal actions a tokenizer can spell: those alone are choices."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.inference.engines.threaded import choices_error
from rllib_lmgame.inference.protocol import GenerationRequest, SamplingSpec, allowed_tokens
from rllib_lmgame.policies.chat.format import ChatFormat
from rllib_lmgame.policies.chat.reply_formats import Tags
from rllib_lmgame.policies.options import LanguageModelOptions

modes = st.sampled_from(["off", "optional", "required"])
plain = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<>"), max_size=20)


def tags(**options: Any) -> Tags:
    return Tags().of_model(LanguageModelOptions(**options))


@given(plain, plain)
def test_two_different_answers_are_an_error_two_equal_ones_are_not(one: str, two: str) -> None:
    parsed = tags().parse(f"<answer>{one}</answer> or <answer>{two}</answer>")
    assert (parsed.action is None) == (one.strip() != two.strip())


@given(plain)
def test_what_stands_around_the_answer_does_not_matter(noise: str) -> None:
    assert tags().parse(f"{noise}<answer>up</answer>{noise}").action == "up"


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
    parsed = tags().parse(reply)
    assert parsed.action is None
    assert error in str(parsed.error)


def test_an_answer_within_the_reasoning_does_not_count() -> None:
    assert tags().parse("<think>not <answer>up</answer></think><answer>down</answer>").action == "down"


def test_names_of_the_tags() -> None:
    parser = tags(answer_tag="move", think_tag="plan", think="optional")
    parsed = parser.parse("<plan>p</plan><move>up</move>")
    assert (parsed.action, parsed.think) == ("up", "p")
    assert parser.think_end("<plan>p</plan>x") == len("<plan>p</plan>")
    assert parser.think_end("x<plan>p</plan>") is None
    assert parser.think_end("<plan>p") is None


@given(plain, st.sampled_from(["search", "answer"]), modes)
def test_of_several_tags_the_game_is_told_which(action: str, name: str, think: str) -> None:
    parser = tags(answer_tag=["search", "answer"], think=think)
    said = f"<{name}>{action.strip()}</{name}>"
    assert parser.parse(f"<think>t</think>\n<{name}>{action}</{name}>").action == said
    assert parser.parse(parser.write("t" if think != "off" else None, said)).action == said
    assert parser.say("up", None) == "<search>up</search>" and parser.stops == ("</search>", "</answer>")


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        ("up", "no <search>...</search> or <answer>...</answer>"),
        ("<search>up</answer>", "<search> is not closed by </search>"),
        ("<search>a<answer>b</answer></search>", "<search> is not closed"),
        ("<search>a</search><answer>a</answer>", "2 different answers"),
        ("<think><answer>up</answer></think>", "no <search>"),
    ],
)
def test_several_tags_are_no_guess_either(reply: str, error: str) -> None:
    assert error in str(tags(answer_tag=["search", "answer"]).parse(reply).error)


def test_no_tag_is_no_form() -> None:
    with pytest.raises(ConfigError, match="answer_tag: must name a tag"):
        tags(answer_tag=[])


LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 </>#\n._:-'"


def chat_of_letters(stop_on_answer: bool = False) -> ChatFormat:
    """Chat with a tokenizer of single characters: no others can be spelt, and compatible forms are made one."""
    vocabulary = {"[UNK]": 0, "<s>": 1, "</s>": 2} | {letter: number for number, letter in enumerate(LETTERS, 3)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="[UNK]"))
    tokenizer.decoder, tokenizer.normalizer = decoders.Fuse(), normalizers.NFKC()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", bos_token="<s>", eos_token="</s>")
    return ChatFormat(fast, LanguageModelOptions(stop_on_answer=stop_on_answer))


CHATS = [chat_of_letters(), chat_of_letters(stop_on_answer=True)]
ODD = [
    *("", "a", "ab", " a", "a  b", "♞", "♘", "é", "①", "ﬁ", "a\u00a0b", "</answer>", "x</answer>y", "<answer>", "</s>"),
    *("[UNK]", "### user", "\ud800", "\x00"),
]


@settings(deadline=None, max_examples=40)
@given(
    chat=st.sampled_from(CHATS),
    actions=st.lists(st.one_of(st.sampled_from(ODD), st.text(LETTERS, max_size=4), st.text(max_size=3)), max_size=8),
)
def test_a_choice_is_read_as_the_action_it_stands_for(chat: ChatFormat, actions: list[str]) -> None:
    """Prefixes of one another, duplicates, what cannot be spelt: the engines take the rest, and each reply says one
    action.
    """
    found = {action: ids for action in actions if (ids := chat.choice_ids(action)) is not None}
    assert found.keys() >= {action for action in actions if action.isascii() and action.isalnum()}
    for action, ids in found.items():
        assert chat.reply_format.parse(chat.read(ids)).action == action.strip()
        assert len(allowed_tokens(tuple(found.values()), ids).counts) == len(ids)
        assert not any(text in chat.decode(ids[:n]) for text in chat.stop_strings for n in range(len(ids)))
    request = GenerationRequest("", [1], SamplingSpec(100, **chat.ends), tuple(found.values()) or None)
    assert choices_error(request) is None


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("action", ["♞", "é", "①", "ﬁ", "x</answer>y", "[UNK]"])
def test_what_cannot_be_spelt_is_no_choice(chat: ChatFormat, action: str) -> None:
    assert chat.choice_ids(action) is None
    assert chat.choice_ids("a b") is not None
