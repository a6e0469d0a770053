"""Prompts of several turns are, token for token, what ``apply_chat_template`` makes of them: published templates (the
parts that matter here) and tokenizers of their families, trained on the spot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from byte_tokens import byte_tokenizer, shipped_template

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.contract.session import Observation
from rllib_lmgame.policies.chat.format import ChatFormat, Conversation
from rllib_lmgame.policies.options import LanguageModelOptions

LLAMA_2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = "
    "messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}"
    "{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ "
    "raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if "
    "loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + "
    "'\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if "
    "message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == "
    "'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
ZEPHYR = (  # And TinyLlama.
    "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + "
    "eos_token }}\n{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n{% "
    "elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n"
    "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
)
MISTRAL_1 = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ "
    "raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if "
    "message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == "
    "'assistant' %}{{ message['content'] + eos_token + ' ' }}{% else %}{{ raise_exception('Only user and assistant "
    "roles are supported!') }}{% endif %}{% endfor %}"
)
MISTRAL_3 = (
    "{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content'] %}{%- set loop_messages "
    "= messages[1:] %}{%- else %}{%- set loop_messages = messages %}{%- endif %}{{- bos_token }}{%- for message in "
    "loop_messages %}{%- if message['role'] == 'user' %}{%- if loop.last and system_message is defined %}{{- '[INST] ' "
    "+ system_message + '\n\n' + message['content'] + '[/INST]' }}{%- else %}{{- '[INST] ' + message['content'] + "
    "'[/INST]' }}{%- endif %}{%- elif message['role'] == 'assistant' %}{{- ' ' + message['content']|trim + eos_token "
    "}}{%- endif %}{%- endfor %}"
)
QWEN_3 = shipped_template("qwen3")
GEMMA_2 = shipped_template("gemma")
GEMMA_3 = shipped_template("gemma3")
DEEPSEEK_R1 = shipped_template("deepseek_r1_distill")
COMMAND_R = (
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'system' %}<|START_OF_TURN_TOKEN|>"
    "<|SYSTEM_TOKEN|>{{ message.content }}<|END_OF_TURN_TOKEN|>{% elif message.role == 'user' %}"
    "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>{{ message.content }}<|END_OF_TURN_TOKEN|>{% else %}<|START_OF_TURN_TOKEN|>"
    "<|CHATBOT_TOKEN|><|START_RESPONSE|>{{ message.content }}<|END_RESPONSE|><|END_OF_TURN_TOKEN|>{% endif %}{% endfor "
    "%}{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% if reasoning is defined and not "
    "reasoning %}<|START_THINKING|><|END_THINKING|>{% endif %}{% endif %}"
)
GPT_OSS = shipped_template("gptoss")
CORPUS = (
    "You stand at a wall. Go up, down, left or right.",
    "Your last reply could not be read: the reply has no answer.",
    "Answer as <answer>your action</answer>. Turns left: 3",
    "<|user|> <|assistant|> <|system|> [INST] [/INST] <<SYS>> <</SYS>>",
    "#####\n#_X_#\n#__O#\n#####\n" * 3,
)


@cache
def pieces_of_sentences() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges of a SentencePiece-like BPE with bytes to fall back on."""
    import json

    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    learner.train_from_iterator(CORPUS * 4, trainers.BpeTrainer(vocab_size=300, show_progress=False))
    learnt = json.loads(learner.to_str())["model"]
    first = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    learnt_pieces = sorted(learnt["vocab"], key=learnt["vocab"].__getitem__)
    blanks = ["▁▁", "▁▁▁▁"]
    vocab = {piece: i for i, piece in enumerate(dict.fromkeys([*first, *learnt_pieces, *blanks]))}
    merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in learnt["merges"]]
    return vocab, [*merges, ("▁", "▁"), ("▁▁", "▁▁")]


@cache
def sentencepiece(kind: str, extra: tuple[str, ...] = (), piece: str = "") -> Any:
    """A tokenizer that begins texts with a blank: as ``tokenizer.json`` files of the Llama family write it, and as
    Transformers makes it of a vocabulary.

    Args:
        kind: How it is written.
        extra: Special tokens.
        piece: A text that is an ordinary piece of the vocabulary.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import LlamaTokenizer, PreTrainedTokenizerFast

    vocab, merges = pieces_of_sentences()
    parts = [piece[:n] for n in range(1, len(piece) + 1)]
    vocab = {text: i for i, text in enumerate(dict.fromkeys([*vocab, *piece, *parts]))}
    merges = list(dict.fromkeys([*((piece[:n], piece[n]) for n in range(1, len(piece))), *merges]))
    special = [AddedToken(token, special=True, normalized=False) for token in ("<unk>", "<s>", "</s>", *extra)]
    if kind.startswith("llama"):
        tokenizer = LlamaTokenizer(vocab=dict(vocab), merges=merges, legacy=kind == "llama_legacy")
        tokenizer.add_tokens(special[3:], special_tokens=True)
        return tokenizer
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if kind == "prepend":
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=kind, split=False)
    strip = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(strip)
    backend.add_special_tokens(special)
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


KINDS = ("prepend", "first", "llama")
OBSERVATIONS = ("#####\n#_X_#\n#####", "You stand at a wall.", "  two blanks before", "Répondez: 你好", "[1] <2> {3}")
RULES = "Go up, down, left or right."


def chat_of(tokenizer: Any, template: str, **options: Any) -> ChatFormat:
    given = {"format_instructions": False, "context_length": 100_000, "stop_on_answer": False, **options}
    return ChatFormat(tokenizer, LanguageModelOptions(chat_template=template, **given))


def rendered(chat: ChatFormat, messages: Sequence[dict[str, str]], *, generate: bool) -> list[int]:
    """What Transformers makes of a conversation."""
    arguments = {"chat_template": chat.template, "return_dict": False, **chat.options.chat_template_kwargs}
    return list(chat.tokenizer.apply_chat_template(messages, add_generation_prompt=generate, **arguments))


def check_turns(
    chat: ChatFormat,
    observations: Sequence[str] = OBSERVATIONS,
    *,
    rules: str = RULES,
    joined: bool = False,
    replies: Callable[[int], str] = lambda turn: f"<answer>{turn}</answer>",
    shown: Callable[[str], str] = lambda reply: reply,
    sampled: Callable[[list[int], list[int]], list[int]] = lambda prompt, whole: whole[len(prompt) :],
) -> list[bool]:
    """Play some turns and compare every prompt; returns which of them began a row.

    Args:
        joined: The template has no system role: the rules stand in the first user message.
        replies: The text of a turn's reply.
        shown: What later prompts show of it.
        sampled: Ids of a reply, from the prompt and from the conversation that ends with it.
    """
    conversation = Conversation(chat, rules)
    messages = [] if joined or not rules else [{"role": "system", "content": rules}]
    rows = []
    for turn, observation in enumerate(observations):
        prompt = conversation.prompt(Observation(observation))
        rows.append(prompt.new_row)
        first = f"{rules}\n\n{observation}" if joined and turn == 0 else observation
        messages.append({"role": "user", "content": first})
        assert prompt.ids == rendered(chat, messages, generate=True), f"turn {turn}"
        answered = [*messages, {"role": "assistant", "content": replies(turn)}]
        ids = sampled(prompt.ids, rendered(chat, answered, generate=False))
        ids = ids[: ids.index(chat.end_id) + 1]
        assert conversation.reply(np.asarray(ids, np.int32)).action == str(turn)
        assert chat.decode(ids).strip().endswith(replies(turn))
        messages.append({"role": "assistant", "content": shown(replies(turn))})
    return rows


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("template", "joined"), [(LLAMA_2, False), (ZEPHYR, False), (MISTRAL_1, True)], ids=["llama2", "zephyr", "mistral"]
)
def test_sentencepiece_prompts_have_no_stray_blank(kind: str, template: str, joined: bool) -> None:
    assert check_turns(chat_of(sentencepiece(kind), template), joined=joined) == [True, False, False, False, False]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("template", [LLAMA_2, ZEPHYR], ids=["llama2", "zephyr"])
def test_replies_are_written_as_the_template_writes_them(kind: str, template: str) -> None:
    """The data of supervised learning, and the moves among which a constrained reply chooses."""
    chat = chat_of(sentencepiece(kind), template)
    messages = [{"role": "user", "content": "x"}]
    prompt = rendered(chat, messages, generate=True)
    whole = rendered(chat, [*messages, {"role": "assistant", "content": "<answer>up</answer>"}], generate=False)
    reply = chat.reply_ids("up")
    assert [*prompt, *reply] == whole[: len(prompt) + len(reply)]
    assert reply[-1] == chat.end_id and chat.choice_ids("up") == tuple(reply)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tag", ["special", "added", "piece"])
def test_a_reply_stops_at_a_closing_tag_that_is_one_token(kind: str, tag: str) -> None:
    from tokenizers import AddedToken

    tokenizer = sentencepiece(kind, (f"<{tag}>",), "</answer>" if tag == "piece" else "")
    if tag != "piece":
        token = AddedToken("</answer>", special=tag == "special", normalized=False)
        tokenizer.add_tokens([token], special_tokens=tag == "special")
    chat = chat_of(tokenizer, ZEPHYR, stop_on_answer=True)
    closing = tokenizer.convert_tokens_to_ids("</answer>")
    assert chat.closing_ids == {"</answer>": closing} and closing in chat.stop_token_ids
    assert chat.reply_ids("up").count(closing) == 1 and chat.reply_ids("up")[-1] == closing
    assert chat.reply_format.parse(chat.read(chat.reply_ids("up"))).action == "up"


# -- templates with rules of their own --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["prepend", "first", "llama"])
def test_a_system_prompt_that_would_move_stays_in_the_first_message(kind: str) -> None:
    """Mistral's template shows it in the last user message; then no prompt would continue the last one."""
    tokenizer = sentencepiece(kind, ("[INST]", "[/INST]"))
    chat = chat_of(tokenizer, MISTRAL_3)
    end = tokenizer.convert_tokens_to_ids("[/INST]")
    cut = {"sampled": lambda prompt, whole: whole[len(whole) - whole[::-1].index(end) :]}
    assert check_turns(chat, joined=True, **cut) == check_turns(chat, rules="", **cut) == [True, *[False] * 4]


@pytest.mark.parametrize(
    ("template", "joined", "tokenizer"),
    [
        (
            GEMMA_2,
            True,
            lambda: byte_tokenizer(["<start_of_turn>", "<end_of_turn>", "<bos>"], eos="<eos>", bos="<bos>"),
        ),
        (
            GEMMA_3,
            False,
            lambda: byte_tokenizer(["<start_of_turn>", "<end_of_turn>", "<bos>"], eos="<eos>", bos="<bos>"),
        ),
        (LLAMA_2, False, lambda: sentencepiece("prepend")),
    ],
    ids=["gemma2", "gemma3", "llama2"],
)
def test_blanks_that_a_template_trims_are_not_shown(template: str, joined: bool, tokenizer: Callable[[], Any]) -> None:
    chat = chat_of(tokenizer(), template)
    check_turns(chat, ["\n x\n", " #\n#\n ", "\t", "y \n"], rules="\n rules \n", joined=joined)


def qwen_3() -> Any:
    return byte_tokenizer(["<|im_start|>", "<|im_end|>"], eos="<|im_end|>", plain=("<think>", "</think>"))


def test_reasoning_is_taken_off_as_the_template_does() -> None:
    chat = chat_of(qwen_3(), QWEN_3, history="strip_think", think="required")
    rows = check_turns(chat, replies=lambda turn: f"<think>\nhm {turn}\n</think>\n\n<answer>{turn}</answer>")
    assert rows == [True] * 5


def test_what_a_game_says_passes_for_no_response_of_a_tool() -> None:
    """Qwen3's template keeps the reasoning before messages that are one; a game has no say in that."""
    chat = chat_of(qwen_3(), QWEN_3, history="strip_think", think="required")
    observations = ["x", "<tool_response>shut</tool_response>", "<tool_response>open</tool_response>"]
    reply = "<think>\nhm\n</think>\n\n<answer>up</answer>"
    conversation, messages = Conversation(chat, RULES), [{"role": "system", "content": RULES}]
    asked = list[int]()
    for text in observations:
        messages.append({"role": "user", "content": text})
        assert conversation.prompt(Observation(text)).ids == rendered(chat, messages, generate=True)
        conversation.reply(np.asarray(chat.tokenizer.encode(reply + "<|im_end|>", add_special_tokens=False), np.int32))
        messages.append({"role": "assistant", "content": reply.rpartition("\n\n")[2]})
    assert "hm" not in chat.tokenizer.decode(asked)
    thinking = [{**message, "content": reply} if message["role"] == "assistant" else message for message in messages]
    assert "hm" in chat.tokenizer.decode(rendered(chat, thinking[:4], generate=True)), "of a tool the template keeps it"


@pytest.mark.parametrize("reply_format", ["tags", "boxed"])
def test_reasoning_that_the_template_opens_is_taken_off(reply_format: str) -> None:
    """DeepSeek-R1's: the prompt ends in an open reasoning, and earlier replies are shown without theirs."""
    tokenizer = byte_tokenizer(
        ["<｜User｜>", "<｜Assistant｜>"],
        eos="<｜end▁of▁sentence｜>",
        bos="<｜begin▁of▁sentence｜>",
        plain=("<think>", "</think>"),
    )
    options = {"think": "required"} if reply_format == "tags" else {"think": "optional", "reply_format": reply_format}
    chat = chat_of(tokenizer, DEEPSEEK_R1, history="strip_think", **options)
    answer = chat.reply_format.write(None, "up")
    conversation, messages = Conversation(chat, RULES), [{"role": "system", "content": RULES}]
    for text in OBSERVATIONS:
        messages.append({"role": "user", "content": text})
        prompt = conversation.prompt(Observation(text))
        assert prompt.ids == rendered(chat, messages, generate=True)
        assert tokenizer.decode(prompt.ids).endswith("<think>\n")
        ids = tokenizer.encode(f"hm {text}\n</think>\n\n{answer}{tokenizer.eos_token}", add_special_tokens=False)
        parsed = conversation.reply(np.asarray(ids, np.int32))
        assert (parsed.action, parsed.think) == ("up", f"hm {text}".strip())
        messages.append({"role": "assistant", "content": f"<think>\nhm {text}\n</think>\n\n{answer}"})
    assert chat.decode(chat.reply_ids("up", "hm")) == f"hm</think>{answer}"


COMMAND_R_TOKENS = (
    *("<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>"),
    *("<|CHATBOT_TOKEN|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_THINKING|>", "<|END_THINKING|>"),
)
GPT_OSS_TOKENS = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>")
CHANNELS = "<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>"
REASONING: dict[str, tuple[Callable[[], Any], str, str, str, str]] = {
    # Tokenizer, template, think_tag, a reply, where it ends.
    "command_r": (
        lambda: byte_tokenizer([*COMMAND_R_TOKENS], eos="<|END_OF_TURN_TOKEN|>", bos="<BOS_TOKEN>"),
        COMMAND_R,
        "<|START_THINKING|>",
        "<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|><answer>up</answer>",
        "<|END_RESPONSE|>",
    ),
    "gpt_oss": (
        lambda: byte_tokenizer([*GPT_OSS_TOKENS], eos="<|return|>"),
        GPT_OSS,
        CHANNELS,
        CHANNELS.replace("...", "hm") + "<answer>up</answer>",
        "<|return|>",
    ),
}


@pytest.mark.parametrize("model", REASONING)
def test_reasoning_between_control_tokens(model: str) -> None:
    make, template, tag, reply, end = REASONING[model]
    tokenizer = make()
    with pytest.raises(ConfigError, match=r"language_model\.think_tag: .* has control tokens for its reasoning; set"):
        chat_of(tokenizer, template, think="optional")
    chat = chat_of(tokenizer, template, think="required", think_tag=tag, format_instructions=True)
    ids = tokenizer.encode(reply + end, add_special_tokens=False)
    assert not set(ids[:-1]) & set(chat.stop_token_ids) and ids[-1] in chat.stop_token_ids
    assert chat.reply_ids("up", "hm") == ids
    conversation = Conversation(chat, "x")
    first = conversation.prompt(Observation(f"say {reply}"))
    marks = [i for i in ids if i in chat.sanitizer.vocabulary.control or i in chat.sanitizer.vocabulary.tags.values()]
    clean = Conversation(chat, "x").prompt(Observation("y")).ids
    assert [first.ids.count(i) for i in marks] == [clean.count(i) for i in marks], "no mark from a game's text"
    parsed = conversation.reply(np.asarray(ids, np.int32))
    assert (parsed.action, parsed.think) == ("up", "hm")
    assert conversation.prompt(Observation("y")).ids[: len(first.ids) + len(ids)] == [*first.ids, *ids]


def test_reasoning_between_control_tokens_is_taken_off() -> None:
    make, template, tag, reply, end = REASONING["command_r"]
    chat = chat_of(make(), template, think="required", think_tag=tag, history="strip_think")
    conversation = Conversation(chat, RULES)
    messages = [{"role": "system", "content": RULES}]
    for text in OBSERVATIONS:
        messages.append({"role": "user", "content": text})
        assert conversation.prompt(Observation(text)).ids == rendered(chat, messages, generate=True)
        messages.append({"role": "assistant", "content": "<answer>up</answer>"})
        conversation.reply(np.asarray(chat.tokenizer.encode(reply + end, add_special_tokens=False), np.int32))


def test_a_reply_without_reasoning_begins_as_the_template_says() -> None:
    make, template, *_ = REASONING["command_r"]
    chat = chat_of(make(), template, chat_template_kwargs={"reasoning": False})
    assert chat.decode(chat.reply_ids("up")) == "<|START_RESPONSE|><answer>up</answer>"
    assert check_turns(chat_of(make(), template)) == [True, *[False] * 4]
