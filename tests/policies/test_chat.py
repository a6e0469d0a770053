"""The chat format: exact tokens for every template, texts that never become structure, replies of any kind."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import build
from rllib_lmgame.envs.contract.session import Observation
from rllib_lmgame.policies.chat.format import ChatFormat, Conversation
from rllib_lmgame.policies.options import LanguageModelOptions

STYLES = ("chatml", "llama3", "gemma", "mistral", "zephyr", "qwen3")
quick = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
texts = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Z"], exclude_characters="<>[]|"), min_size=1, max_size=30
)


def reply_of(chat: ChatFormat, text: str) -> np.ndarray:
    return np.asarray([*chat.encode(text), chat.end_id], np.int32)


def special(chat: ChatFormat, text: str) -> list[int]:
    """Ids of text in which special tokens are special."""
    return list(chat.tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("style", [*STYLES, "opens_thinking", "unmarked"])
@given(contents=st.lists(texts, min_size=6, max_size=6), history=st.sampled_from(["keep", "strip_think"]))
@quick
def test_prompt_is_previous_prompt_reply_and_delta(chat_of, style: str, contents: list[str], history: str) -> None:
    conversation = Conversation(chat_of(style, history=history, think="optional"), contents[0])
    before: list[int] = []
    for turn in range(3):
        prompt = conversation.prompt(Observation(contents[turn]))
        if prompt.new_row:
            assert prompt.delta.tolist() == prompt.ids
        else:
            assert prompt.ids == [*before, *prompt.delta.tolist()]
        assert prompt.delta.dtype == np.int32
        reply = np.asarray(np.random.default_rng(turn).integers(0, 256, 7), np.int32)
        conversation.reply(reply)
        before = [*prompt.ids, *reply.tolist()]


@pytest.mark.parametrize("style", STYLES)
def test_a_reply_is_closed_once(chat_of, style: str) -> None:
    """With or without its end token (cut off at ``max_tokens``, or stopped at the answer tag) the same conversation
    follows.
    """
    chat = chat_of(style)
    text, user = chat.encode("up"), chat.message(Observation("next"))
    assert [*text, *chat.continuation_ids(text, user)] == [
        *text,
        chat.end_id,
        *chat.continuation_ids([*text, chat.end_id], user),
    ]


def test_default_template_for_a_tokenizer_without_one(tokenizer_of, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        chat = ChatFormat(
            tokenizer_of(template=None, special=[], eos="</s>"), LanguageModelOptions(format_instructions=False)
        )
    assert "no chat template" in caplog.text
    conversation = Conversation(chat, "rules")
    first = conversation.prompt(Observation("a"))
    conversation.reply(reply_of(chat, "up"))
    second = conversation.prompt(Observation("b"))
    assert chat.tokenizer.decode(first.ids) == "### system\nrules\n### user\na\n### assistant\n"
    assert chat.tokenizer.decode(second.ids).endswith("### assistant\nup</s>### user\nb\n### assistant\n")


@pytest.mark.parametrize(
    ("template", "wrong"),
    [
        ("{{ raise_exception('broken') }}", "broken"),
        ("{% for m in messages %}{{ m['content'] }}{{ m['content'] }}{% endfor %}", "2 times"),
        ("{% for m in messages %}nothing{% endfor %}", "0 times"),
        ("{% for m in messages %}", "cannot be used"),
        ("{{ messages[-1]['content'] }}", "0 times"),
    ],
)
def test_a_template_that_cannot_be_used_is_a_configuration_error(tokenizer_of, template: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"config\.language_model\.chat_template") as error:
        ChatFormat(tokenizer_of(template=template, special=[], eos="</s>"), LanguageModelOptions())
    assert wrong in str(error.value)


def test_template_from_the_options_and_from_a_file(tokenizer_of, tmp_path) -> None:
    text = "{% for m in messages %}[{{ m['content'] }}]{% endfor %}>"
    (tmp_path / "own.jinja").write_text(text)
    (tmp_path / "marked.jinja").write_text(text, encoding="utf-8-sig")
    (tmp_path / "latin.jinja").write_bytes(b"\xe9")
    (tmp_path / "folder.jinja").mkdir()
    for source in (text, str(tmp_path / "own.jinja"), str(tmp_path / "marked.jinja")):
        chat = ChatFormat(tokenizer_of("zephyr"), LanguageModelOptions(chat_template=source, format_instructions=False))
        assert chat.tokenizer.decode(Conversation(chat, "s").prompt(Observation("u")).ids) == "[s][u]>"
    for name, said in (("none", "No such file"), ("folder", "Is a directory"), ("latin", "cannot be read: 'utf-8'")):
        with pytest.raises(ConfigError, match=said):
            ChatFormat(tokenizer_of("zephyr"), LanguageModelOptions(chat_template=str(tmp_path / f"{name}.jinja")))


def test_a_tokenizer_without_any_end_token_is_a_configuration_error(tokenizer_of) -> None:
    with pytest.raises(ConfigError, match="no end-of-sequence token"):
        ChatFormat(tokenizer_of(template=None, special=[]), LanguageModelOptions())


@pytest.mark.parametrize("note", ["{left}", "{", "{turns_left!r}"])
def test_a_turn_suffix_that_cannot_be_filled_in_is_a_configuration_error(note: str) -> None:
    with pytest.raises(ConfigError, match=r"config\.language_model\.turn_suffix.*\{turns_left\} is all it may hold"):
        build(LanguageModelOptions, {"turn_suffix": note}, "config.language_model")


def shown(chat: ChatFormat, observation: Observation, note: str | None = None) -> str:
    """The text of a user message."""
    return "".join(part.text for part in chat.message(observation, note))


def test_user_message(chat_of) -> None:
    chat = chat_of("chatml", format_instructions=True, think="optional")
    text = shown(chat, Observation("{board}", turns_left=3), "no answer")
    assert text.split("\n") == [
        "Your last reply could not be read: no answer.",
        "{board}",
        "Turns left: 3",
        "Write your reasoning and your reply between tags: <think>your reasoning</think><answer>your reply</answer>. "
        "The reply alone is played.",
    ]
    assert shown(chat_of("chatml", turn_suffix=""), Observation("x", turns_left=3)) == "x"


def test_system_prompt_of_the_options(chat_of) -> None:
    shown = {
        p: Conversation(chat_of("zephyr", system_prompt=p), "rules").prompt(Observation("u")).ids
        for p in (None, "mine", "")
    }
    decode = chat_of("zephyr").tokenizer.decode
    assert decode(shown[None]).startswith("<|system|>\nrules</s>")
    assert decode(shown["mine"]).startswith("<|system|>\nmine</s>")
    assert decode(shown[""]).startswith("<|user|>\nu</s>")


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("history", ["keep", "window"])
def test_rules_in_a_first_user_message_are_answered_before_the_game_speaks(chat_of, style: str, history: str) -> None:
    chat = chat_of(style, conversation_start="user", history=history)
    conversation = Conversation(chat, "The rules.")
    begun = [{"role": "user", "content": "The rules."}, {"role": "assistant", "content": "OK."}]
    prompt = conversation.prompt(Observation("A board."))
    messages = [*begun, {"role": "user", "content": "A board."}]
    assert prompt.ids == chat.tokenizer.apply_chat_template(
        messages, tokenize=True, add_generation_prompt=True, return_dict=False
    )
    conversation.reply(reply_of(chat, "up"))
    after = conversation.prompt(Observation("Another one."))
    assert after.ids[: len(prompt.ids)] == prompt.ids if history == "keep" else after.new_row
    assert chat.tokenizer.decode(after.ids).count("The rules.") == 1


# -- replies ---------------------------------------------------------------------------------------------------------


def test_control_tokens_in_the_middle_of_a_reply_are_text_to_the_parser(chat_of) -> None:
    chat = chat_of("chatml")
    start = special(chat, "<|im_start|>")
    conversation = Conversation(chat, "s")
    first = conversation.prompt(Observation("u"))
    reply = np.asarray([*chat.encode("<answer>up"), *start, *chat.encode("</answer>"), chat.end_id], np.int32)
    assert conversation.reply(reply).action == "up<|im_start|>"
    second = conversation.prompt(Observation("v"))
    assert second.ids == [*first.ids, *reply.tolist(), *second.delta.tolist()]


def test_a_reply_of_bytes_that_are_no_text(chat_of) -> None:
    chat = chat_of("chatml")
    bad = chat.tokenizer.convert_tokens_to_ids(["ÿ", "Ħ"])
    conversation = Conversation(chat, "s")
    conversation.prompt(Observation("u"))
    parsed = conversation.reply(np.asarray([*bad, *chat.encode("<answer>up</answer>"), *bad], np.int32))
    assert parsed.action == "up"
    assert conversation.prompt(Observation("v")).max_tokens > 0


@pytest.mark.parametrize("ids", [[], ["end"]])
def test_an_empty_reply(chat_of, ids: list[str]) -> None:
    chat = chat_of("chatml")
    conversation = Conversation(chat, "s")
    first = conversation.prompt(Observation("u"))
    reply = np.asarray([chat.end_id for _ in ids], np.int32)
    parsed = conversation.reply(reply)
    assert parsed.action is None and parsed.error
    second = conversation.prompt(Observation("v"))
    assert (
        chat.tokenizer.decode(second.ids).count("<|im_end|>")
        == chat.tokenizer.decode(first.ids).count("<|im_end|>") + 2
    )


@pytest.mark.parametrize(
    ("prefill", "think"),
    [
        ("<think>", "required"),
        ("<answer>", "off"),
        ("<ans", "off"),
        ("<think>Let me see.", "optional"),
        ("Well: ", "off"),
        ("<think></think>", "required"),
    ],
)
def test_prefill_begins_every_reply_and_is_not_sampled(chat_of, prefill: str, think: str) -> None:
    chat = chat_of("chatml", reply_prefill=prefill, think=think)
    conversation = Conversation(chat, "s")
    for text in ("u", "v"):
        assert chat.tokenizer.decode(conversation.prompt(Observation(text)).ids).endswith("assistant\n" + prefill)
        reply = np.asarray(chat.reply_ids("up"), np.int32)
        assert not chat.decode(reply).startswith(prefill)
        assert conversation.reply(reply).action == "up"


@pytest.mark.parametrize(("prefill", "think"), [("<answer>down</answer>", "off"), ("Well: ", "required")])
def test_a_prefill_that_no_good_reply_begins_with(chat_of, prefill: str, think: str) -> None:
    with pytest.raises(ConfigError, match="reply_prefill"):
        chat_of("chatml", reply_prefill=prefill, think=think).reply_ids("up")


# -- history ---------------------------------------------------------------------------------------------------------


def test_window_shows_the_last_turns(chat_of) -> None:
    chat = chat_of("zephyr", history="window", history_window=2)
    conversation = Conversation(chat, "s")
    for turn in range(4):
        prompt = conversation.prompt(Observation(f"see{turn}"))
        assert prompt.new_row and prompt.delta.tolist() == prompt.ids
        conversation.reply(reply_of(chat, f"say{turn}"))
    shown = chat.tokenizer.decode(prompt.ids)
    assert (
        shown == "<|system|>\ns</s>\n<|user|>\nsee2</s>\n<|assistant|>\nsay2</s>\n<|user|>\nsee3</s>\n<|assistant|>\n"
    )


def test_strip_think_drops_reasoning_and_begins_a_row_only_then(chat_of) -> None:
    chat = chat_of("chatml", history="strip_think", think="optional")
    conversation = Conversation(chat, "s")
    replies = ["<answer>a</answer>", "<think>long thought</think><answer>b</answer>", "<answer>c</answer>"]
    rows = []
    for turn, text in enumerate(replies):
        prompt = conversation.prompt(Observation(f"see{turn}"))
        rows.append(prompt.new_row)
        conversation.reply(reply_of(chat, text))
    last = conversation.prompt(Observation("end"))
    assert rows == [True, False, True] and not last.new_row
    assert "thought" not in chat.tokenizer.decode(last.ids)
    expected = [
        ("user", "see0"),
        ("assistant", replies[0]),
        ("user", "see1"),
        ("assistant", "<answer>b</answer>"),
        ("user", "see2"),
        ("assistant", replies[2]),
        ("user", "end"),
    ]
    messages = [{"role": "system", "content": "s"}, *({"role": role, "content": text} for role, text in expected)]
    assert last.ids == chat.tokenizer.apply_chat_template(
        messages, tokenize=True, add_generation_prompt=True, return_dict=False
    )


@pytest.mark.parametrize(
    ("style", "prefill"), [("opens_thinking", ""), ("chatml", "<think>"), ("chatml", "<think>Well, ")]
)
def test_stripping_takes_away_the_opening_that_the_prompt_gave(chat_of, style: str, prefill: str) -> None:
    chat = chat_of(style, history="strip_think", think="required", reply_prefill=prefill)
    conversation = Conversation(chat, "s")
    conversation.prompt(Observation("u"))
    conversation.reply(reply_of(chat, "hmm</think><answer>up</answer>"))
    shown = chat.tokenizer.decode(conversation.prompt(Observation("v")).ids)
    assert "<|im_start|>assistant\n<answer>up</answer><|im_end|>\n<|im_start|>user\nv" in shown
    assert shown.count("<think>") == 1  # That of the reply to come.


def test_stripping_inside_a_token_keeps_what_follows_the_tag(tokenizer_of) -> None:
    """A token may spell the end of the closing tag and the beginning of the answer."""
    tokenizer = tokenizer_of(template=None, special=[], eos="</s>", plain=["k><answer"])
    options = {"history": "strip_think", "think": "optional", "format_instructions": False}
    chat = ChatFormat(tokenizer, LanguageModelOptions(**options))
    reply = np.asarray(
        [*chat.encode("<think>hm</thin"), *chat.encode("k><answer"), *chat.encode(">up</answer>")], np.int32
    )
    conversation = Conversation(chat, "s")
    first = conversation.prompt(Observation("u"))
    assert conversation.reply(reply).action == "up"
    second = conversation.prompt(Observation("v"))
    assert second.new_row
    assert second.ids[: len(first.ids)] == first.ids
    assert chat.tokenizer.decode(second.ids[len(first.ids) :]).startswith("<answer>up</answer>")
    other = ChatFormat(tokenizer, LanguageModelOptions(think_tag="thin", **options))
    assert Conversation(other, "s")._without_think(reply) is None


# -- budgets ---------------------------------------------------------------------------------------------------------


def test_budgets_are_known_before_sampling(chat_of) -> None:
    chat = chat_of("zephyr", max_tokens_per_turn=20, max_tokens_per_episode=30, context_length=150, answer_tag="a")
    assert chat.shortest_reply == len(chat.reply_ids("u")) <= 10
    conversation = Conversation(chat, "")
    first = conversation.prompt(Observation("u"))
    assert first.max_tokens == 20 and not first.out_of_context
    conversation.reply(np.zeros(20, np.int32))
    second = conversation.prompt(Observation("v"))
    assert second.max_tokens == 10 and not second.out_of_context
    conversation.reply(np.zeros(10, np.int32))
    third = conversation.prompt(Observation("w"))
    assert third.max_tokens == 0 and not third.out_of_context


@given(
    length=st.integers(8, 200),
    turns=st.lists(st.integers(0, 40), min_size=1, max_size=6),
    least=st.sampled_from([None, 1, 12]),
)
@quick
def test_prompt_and_reply_never_exceed_the_context(chat_of, length: int, turns: list[int], least: int | None) -> None:
    """A reply is asked for only where the context has the room that it must have; what does not fit of a prompt is its
    end.
    """
    conversation = Conversation(
        chat_of("zephyr", max_tokens_per_turn=30, min_tokens_per_turn=least, context_length=length), "rules"
    )
    for wanted in turns:
        prompt = conversation.prompt(Observation("see"))
        assert len(prompt.ids) + prompt.max_tokens <= max(length, len(prompt.ids))
        if prompt.max_tokens < 1:
            assert prompt.out_of_context and length - len(prompt.ids) < (least or 30)
            fitted = prompt.fitted(length)
            assert (
                fitted.ids == prompt.ids[:length]
                and fitted.ids[len(fitted.ids) - len(fitted.delta) :] == fitted.delta.tolist()
            )
            assert len(prompt.ids) - len(prompt.delta) == len(fitted.ids) - len(fitted.delta)
            break
        assert (least or 30) <= prompt.max_tokens <= 30
        conversation.reply(np.zeros(min(wanted, prompt.max_tokens), np.int32))


@pytest.mark.parametrize("style", ["chatml", "llama3", "mistral"])
@pytest.mark.parametrize("text", ["<answer>Up</answer>", "né 😀😀 ", "", "  two", "\u202e"])
def test_lengths_of_tokens_add_up_to_the_text(style, text, chat_of):
    chat = chat_of(style)
    ids = [*chat.encode(text), chat.end_id]
    lengths = chat.lengths(ids)
    assert len(lengths) == len(ids) and sum(lengths) == len(chat.decode(ids)) and lengths[-1] == 0
    assert min(lengths) >= 0
    for cut in range(len(ids)):  # A reply may be cut within a character.
        assert sum(chat.lengths(ids[:cut])) == len(chat.decode(ids[:cut]))
