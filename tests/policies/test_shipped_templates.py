"""What is read of a model's replies, and what is learnt of conversations, for the chat templates that TRL ships and
three of our own: everything is tried once through each template and read back.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import numpy as np
import pytest
from byte_tokens import SHIPPED, byte_tokenizer, shipped_template

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.endpoints.completions import ChatReply, RequestError, read_request
from rllib_lmgame.inference.engines.stop_strings import StopStrings
from rllib_lmgame.policies.chat.api_conversations import APIConversation
from rllib_lmgame.policies.chat.chat_datasets import LearntTurn, Message, Transcript, TranscriptWriter
from rllib_lmgame.policies.chat.format import ChatFormat
from rllib_lmgame.policies.chat.template import TemplateError
from rllib_lmgame.policies.chat.tool_calls import read_calls
from rllib_lmgame.policies.options import LanguageModelOptions

CHATML = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}{% for m in messages %}<|im_start|>"
    "{{ m.role }}\nCONTENT<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTROL = (  # Gemma's reasoning within marks that are control tokens, shown in every reply.
    "{% if m.reasoning_content %}<|deliberate>{{ m.reasoning_content }}<deliberate|>{% endif %}{{ m.content }}"
)
JSON_TEXT = (  # Arguments as a text, which DeepSeek's templates take, between Qwen's tags.
    '{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ \'{"name": "\' + c.function.name + '
    "'\", \"arguments\": ' + c.function.arguments + '}' }}</tool_call>{% endfor %}"
)
OWN = {
    "own_control": CHATML.replace("CONTENT", CONTROL),
    "own_json_text": CHATML.replace("CONTENT", JSON_TEXT),
    "own_plain": CHATML.replace("CONTENT", "{{ m.content }}"),
}
SHIPPED_TEMPLATES = {  # But those that are the same with marks for masks.
    path.stem: shipped_template(path.stem) for path in sorted(SHIPPED.glob("*.jinja")) if "_training" not in path.stem
}
PICTURES = {"idefics3", "llava_next", "smolvlm"}  # These take lists of parts alone.
TEMPLATES = {name: text for name, text in (SHIPPED_TEMPLATES | OWN).items() if name not in PICTURES}
CALLS = {
    *("qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_vl", "own_json_text"),  # JSON
    *("qwen3_5_think", "qwen3_5_nothink", "qwen3_6", "qwen3_8"),  # <function=look><parameter=where>
    *("nemotron_3_nano", "nemotron_3_super", "nemotron_3_ultra", "nemotron_3_5_lightning"),
}
CHANNELS = "<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>"
TAGS = {name: "<|channel>thought...<channel|>" for name in TEMPLATES if "gemma4" in name or name == "diffusion_gemma"}
TAGS |= {"gptoss": CHANNELS, "own_control": "<|deliberate>...<deliberate|>"}
TAGS["muse_glimmer"] = "to=self<|message|>...<|eom|><|start|>assistant to=user<|message|>"
ENDS = ("<|return|>", "<|im_end|>", "<|eot_id|>", "<|end|>", "<|eot|>", "<turn|>", "<|END_OF_TURN_TOKEN|>")
WRITTEN = re.compile(
    r"<\|[^<>|\n'\"]+\|>|<\|[a-z_]+>|<[a-z_]+\|>|<[a-z]+_of_[a-z]+>|<｜[^<>]+｜>|\[/?[A-Z_]{3,}\]|\[gMASK\]|<sop>"
)
PLAIN = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
LOOK: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks.",
        "parameters": {
            "type": "object",
            "properties": {
                "where": {"type": "string", "description": "where"},
                "times": {"type": "integer", "description": "how often"},
            },
            "required": ["where"],
        },
    },
}
ARGUMENTS = {"where": 'under the "mat"\nand beside it', "times": 3}


@cache
def tokenizer_of(name: str) -> Any:
    template = TEMPLATES[name]
    control = list(dict.fromkeys(WRITTEN.findall(template)))
    end = next((mark for mark in ENDS if mark in control), "</s>")
    plain = [mark for mark in PLAIN if mark in template]
    return byte_tokenizer(control, eos=end, bos="<bos>" if "bos_token" in template else None, plain=plain)


def chat_of(name: str, **options: Any) -> ChatFormat:
    given = {"context_length": 100_000, "think_tag": TAGS.get(name, "think"), "format_instructions": False, **options}
    return ChatFormat(tokenizer_of(name), LanguageModelOptions(chat_template=TEMPLATES[name], **given))


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def end_of(chat: ChatFormat, ids: list[int]) -> int:
    """Tokens of a reply up to the one with which an engine ends it."""
    ends, texts = chat.ends, StopStrings("nowhere")
    texts.__dict__["tokenizer"] = chat.tokenizer
    for n in range(1, len(ids) + 1):
        if ids[n - 1] in ends["stop_token_ids"] or texts.ended(ids[:n], ends["stop_strings"], ends["reasoning"]):
            return n
    return len(ids)


REPLIES = {  # Reasoning that names what ends a reply, and the reply.
    "tags": ("The form is <answer>...</answer>; up is a wall, so down.", "<answer>down</answer>"),
    "react": ("First\nObservation: a wall.\nAction: up is no use", "Thought:\nso\n\nAction:\ndown\nObservation:"),
    "function_calling": (
        "I write <tool_call>{}</tool_call>",
        '<tool_call>{"name": "act", "arguments": {"action": "down"}}</tool_call>',
    ),
}


REASONING = [name for name in TEMPLATES if TAGS.get(name, "<think>").partition("...")[0] in TEMPLATES[name]]


@pytest.mark.parametrize("reply_format", REPLIES)
@pytest.mark.parametrize(
    ("name", "think"),
    [*((name, "required") for name in TEMPLATES), *(pytest.param(n, "off", marks=pytest.mark.slow) for n in REASONING)],
)
def test_a_reply_ends_behind_its_reasoning(name: str, reply_format: str, think: str) -> None:
    chat = chat_of(name, reply_format=reply_format, think=think)
    thought, answer = REPLIES[reply_format]
    form = chat.reply_format
    whole = f"{form.think_opening}\n{thought}\n{form.think_closing}\n\n{answer}"
    begun = chat.reply_prefix if chat.reply_prefix.startswith(form.think_opening) else ""
    ids = chat.sanitizer.encode_own(f"{whole.removeprefix(begun)} and more")
    reply = ids[: end_of(chat, ids)]
    assert chat.read(reply) == whole if begun or not chat.reply_prefix else chat.decode(reply) == whole
    if chat.stop_strings:  # As the model card's program asks.
        assert next(n for n in range(1, len(ids) + 1) if chat.ended(ids[:n])) == len(reply)
    parsed = form.parse(whole)
    assert (parsed.action, parsed.think) == ("down", thought)
    bare = chat.sanitizer.encode_own(f"{answer} and more")
    if not chat.reply_prefix:
        assert chat.decode(bare[: end_of(chat, bare)]) == answer, "without reasoning it ends at once"


@pytest.mark.parametrize("name", sorted({*TAGS} - {"gptoss"}))
def test_marks_of_the_reasoning_are_asked_for_and_end_no_reply(name: str) -> None:
    with pytest.raises(
        ConfigError, match=r"control tokens for its reasoning; set think_tag: '" + re.escape(TAGS[name])
    ):
        chat_of(name, think="optional", think_tag="think")
    chat = chat_of(name, think_tag="think")  # Whatever it thinks of its own accord comes to its end.
    opening, closing = TAGS[name].split("...")
    ids = chat.tokenizer.encode(f"{opening}\nhm{closing}<answer>up", add_special_tokens=False)
    assert not chat.special_ids & set(ids) and chat.end_id in chat.special_ids


@pytest.mark.parametrize("name", TEMPLATES)
def test_open_reasoning_in_prompts_is_told(name: str, caplog: pytest.LogCaptureFixture) -> None:
    chat = chat_of(name, think="off")
    told = "opens a reasoning" in caplog.text
    prompt = chat.decode(chat.opening_ids((), chat.message(observation("x"))))
    assert told == prompt.rstrip().endswith("<think>")


def observation(text: str) -> Any:
    from rllib_lmgame.envs.contract.session import Observation

    return Observation(text)


def taken(talk: APIConversation, ids: list[int]) -> ChatReply:
    """What a program gets of a reply, which it has got."""
    answer = talk.read(np.asarray(ids, np.int32))
    talk.reply(np.asarray(ids, np.int32))
    return answer


def called(name: str) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": name}}


@pytest.mark.parametrize("name", TEMPLATES)
def test_calls_are_read_as_the_template_writes_them_or_refused(name: str) -> None:
    """What the template makes of a call is sampled, and comes back as that call; so does the next request."""
    chat = chat_of(name)
    talk = APIConversation(chat.for_program())
    asked = read_request({"messages": [user("Where?")], "tools": [LOOK]})
    if name not in CALLS:
        with pytest.raises(RequestError, match=r"does not offer tools with calls between <tool_call> .*: it "):
            talk.prompt(asked)
        return
    prompt = chat.tokenizer.decode(talk.prompt(asked).ids)
    as_text = name == "own_json_text"
    call = called(json.dumps(ARGUMENTS) if as_text else ARGUMENTS)  # type: ignore[arg-type]
    said = {"role": "assistant", "content": "", "tool_calls": [call], "reasoning_content": "Say look"}
    (whole,) = chat.rendered([([user("Where?"), said], {"tools": [LOOK], "add_generation_prompt": False})])
    closed = prompt.endswith("</think>\n\n")
    assert whole.text.startswith(prompt) or closed
    reply = whole.text.rpartition("</think>\n\n")[2] if closed else whole.text[len(prompt) :]
    ids = chat.tokenizer.encode(reply, add_special_tokens=False)
    message = taken(talk, ids[: ids.index(chat.end_id) + 1]).message()
    (back,) = message["tool_calls"]
    assert back["function"]["name"] == "look" and json.loads(back["function"]["arguments"]) == ARGUMENTS
    assert message["content"] is None and talk.answer.finish_reason == "tool_calls"
    if chat.pieces.reasoning and not closed:
        assert message["reasoning_content"] == "Say look"
    seen = {"role": "tool", "tool_call_id": back["id"], "content": "A key."}
    again = talk.prompt(read_request({"messages": [user("Where?"), message, seen], "tools": [LOOK]}))
    assert not again.new_row and "A key." in chat.tokenizer.decode(again.delta)


CALL = '<tool_call>\n{"name": "look", "arguments": {"where": "door"}}\n</tool_call>'
XML = "<tool_call>\n<function=look>\n<parameter=where>\ndoor\n</parameter>\n</function>\n</tool_call>"


@pytest.mark.parametrize("call", [CALL, XML], ids=["json", "xml"])
@pytest.mark.parametrize("name", ["qwen3", "qwen3_5_think"])
def test_what_is_only_thought_of_is_no_call(name: str, call: str) -> None:
    chat = chat_of(name).for_program()
    opened = chat.reply_prefix

    def answer(text: str, end: bool) -> Any:
        talk = APIConversation(chat)
        talk.prompt(read_request({"messages": [user("Where?")], "tools": [LOOK]}))
        return taken(talk, [*chat.encode(text.removeprefix(opened)), *([chat.end_id] if end else [])])

    cut = answer(f"<think>\nI could do {call}", end=False)
    assert (cut.content, cut.calls, cut.finish_reason) == ("", (), "length")
    assert cut.reasoning == f"I could do {call}"
    named = answer(f"<think>\nI write <tool_call>, or {call}.\n</think>\n\n{call}", end=True)
    assert [(each, json.loads(arguments)) for _, each, arguments in named.calls] == [("look", {"where": "door"})]
    assert named.content == "" and named.finish_reason == "tool_calls"
    spoken = answer("<think>\nhm\n</think>\n\nAt the door.", end=True)
    assert spoken.message() == {"role": "assistant", "content": "At the door.", "reasoning_content": "hm"}


def test_a_reply_is_found_with_and_without_its_reasoning() -> None:
    talk = APIConversation(chat_of("qwen3").for_program())
    chat, messages = talk.chat, [user("Where?")]
    for thought in ("one", "two"):  # Two tries of the same request that say the same.
        first = talk.prompt(read_request({"messages": messages}))
        taken(talk, [*chat.encode(f"<think>\n{thought}\n</think>\n\nThere."), chat.end_id])
    for sent, shown in (({"reasoning_content": "one"}, "one"), ({"reasoning_content": "two"}, "two"), ({}, "two")):
        said = {"role": "assistant", "content": "There.", **sent}
        prompt = talk.prompt(read_request({"messages": [*messages, said, user("And?")]}))
        assert chat.tokenizer.decode(prompt.ids[len(first.ids) :]).startswith(f"<think>\n{shown}\n</think>")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("<parameter=n>\n3\n</parameter>", {"n": 3}),
        ("<parameter=n>\nmany\n</parameter>", {"n": "many"}),
        ("<parameter=s>\n3\n</parameter>", {"s": "3"}),
        ("<parameter=o>\nTrue\n</parameter>", {"o": True}),
        ('<parameter=o>\n[1, {"a": null}]\n</parameter>', {"o": [1, {"a": None}]}),
        ("<parameter=unknown>\n3\n</parameter>", {"unknown": "3"}),
        ("<parameter=s>\n two\nlines </tool_call>\n</parameter>", {"s": " two\nlines </tool_call>"}),
    ],
)
def test_arguments_have_the_kinds_that_the_tool_says(written: str, expected: dict[str, Any]) -> None:
    either = {"anyOf": [{"type": "boolean"}, {"type": "array"}]}
    kinds = {"n": {"type": "integer"}, "s": {"type": "string"}, "o": either}
    tool = {"function": {"name": "f", "parameters": {"properties": kinds}}}
    text, calls = read_calls(
        f"Now:\n<tool_call>\n<function=f>\n{written}\n</function>\n</tool_call>", json.dumps([tool])
    )
    assert text == "Now:" and [json.loads(arguments) for _, _, arguments in calls] == [expected]


def written(name: str, *said: Message, tools: tuple[Any, ...] = ()) -> list[LearntTurn]:
    chat = chat_of(name)
    (turns,) = TranscriptWriter(chat).write([Transcript(said, tools)])
    if isinstance(turns, TemplateError):
        raise turns
    return turns


@pytest.mark.parametrize("name", TEMPLATES)
def test_rows_are_what_the_template_writes_token_by_token(name: str) -> None:
    """Nothing stands there twice, and each reply ends with one token that ends it."""
    chat = chat_of(name)
    said = [("user", "one"), ("assistant", "first"), ("user", "two"), ("assistant", "second")]
    turns = written(name, *(Message(role, text, float(role == "assistant")) for role, text in said))
    messages = [{"role": role, "content": text} for role, text in said]
    (whole,) = chat.rendered([(messages, {"add_generation_prompt": False})])
    row = list[int]()
    for turn in turns:
        row = [*([] if turn.new_row else row), *turn.prompt_ids.tolist(), *turn.reply_ids.tolist()]
        assert turn.reply_ids[-1] in chat.special_ids and not chat.special_ids & set(turn.reply_ids[:-1].tolist())
    if not any(turn.new_row for turn in turns[1:]) and whole.text.startswith(chat.tokenizer.decode(row[:-1])):
        rest = chat.tokenizer.encode(whole.text, add_special_tokens=False)[len(row) :]
        assert row[:-1] == chat.tokenizer.encode(whole.text, add_special_tokens=False)[: len(row) - 1]
        assert not set(rest) - {*chat.tokenizer.encode("\n"), *chat.special_ids, chat.tokenizer.eos_token_id}


@pytest.mark.parametrize("name", TEMPLATES)
def test_calls_and_reasoning_are_learnt_or_it_is_an_error(name: str) -> None:
    call = {"tool_calls": [called(ARGUMENTS)]}  # type: ignore[arg-type]
    asked, told = Message("user", "Where?"), Message("tool", "A key.", more={"name": "look", "tool_call_id": "call_1"})
    chat = chat_of(name)
    try:
        first, second = written(
            name, asked, Message("assistant", "", 1.0, call), told, Message("assistant", "Done.", 1.0), tools=(LOOK,)
        )
    except TemplateError as error:
        assert name not in CALLS, error
    else:
        text = chat.tokenizer.decode
        shown = text(first.reply_ids)
        assert all(part in shown for part in ("look", "mat", "beside it", "3")), shown
        assert "A key." in text(second.prompt_ids) and "Done." in text(second.reply_ids)
        assert sum(i in chat.special_ids for i in first.reply_ids.tolist()) == 1
        row = text([*first.prompt_ids, *first.reply_ids, *(() if second.new_row else second.prompt_ids)])
        for role in ("<|observation|><|observation|>", "<|user|><|user|>"):
            assert role not in row
    try:
        (turn,) = written(name, asked, Message("assistant", "There.", 1.0, {"reasoning_content": "hm, a key"}))
    except TemplateError as error:
        assert "does not show the reasoning of a reply; write it between" in str(error)
    else:
        assert "hm, a key" in chat.tokenizer.decode(turn.reply_ids)


def test_rules_that_come_later_are_shown_or_it_is_an_error() -> None:
    """Whether a conversation is written turn by turn or, where it is long, cut out of one rendering."""
    talk = [
        Message(role, f"{role} {n}", float(role == "assistant")) for n in range(5) for role in ("user", "assistant")
    ]
    later = Message("system", "Now be rude.")
    for name in ("gptoss", "qwen3_vl"):
        for said in ((*talk[:2], later, *talk[2:4]), (*talk[:2], later, *talk[2:])):
            with pytest.raises(TemplateError, match="it does not show what system says"):
                written(name, *said)
    first, *_ = written("qwen3", Message("system", "Be brief. /no_think"), *talk[:2], later, *talk[2:])
    assert "Be brief." in chat_of("qwen3").tokenizer.decode(first.prompt_ids)


def test_tools_are_not_shown_by_a_call_of_them() -> None:
    call = {"tool_calls": [called(ARGUMENTS)]}  # type: ignore[arg-type]
    said = [
        Message("user", "Where?"),
        Message("assistant", "", 1.0, call),
        Message("tool", "A key."),
        Message("assistant", "x", 1.0),
    ]
    with pytest.raises(TemplateError, match="it does not show the tool 'look'"):
        written("deepseekv3", *said, tools=(LOOK,))


def test_arguments_are_written_in_the_form_that_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A template that writes out whatever it is given shows a mapping as Python does, and a text as it is."""
    plain = JSON_TEXT.replace("' + c.function.arguments + '}'", "' }}{{ c.function.arguments }}{{ '}'")
    assert plain != JSON_TEXT
    monkeypatch.setitem(TEMPLATES, "own_any", CHATML.replace("CONTENT", plain))
    assert chat_of("own_any").call_form[:2] == ("", True)
    call = {"tool_calls": [called(ARGUMENTS)]}  # type: ignore[arg-type]
    (turn,) = written("own_any", Message("user", "Where?"), Message("assistant", "", 1.0, call), tools=(LOOK,))
    _, ((_, _, read),) = read_calls(chat_of("own_any").decode(turn.reply_ids))
    assert json.loads(read) == ARGUMENTS
