"""What is learnt of a conversation is, token for token, what the model's own chat template makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from byte_tokens import byte_tokenizer
from test_published_templates import (
    CHANNELS,
    COMMAND_R,
    COMMAND_R_TOKENS,
    GEMMA_2,
    GEMMA_3,
    GPT_OSS,
    GPT_OSS_TOKENS,
    LLAMA_2,
    MAGISTRAL,
    MAGISTRAL_TOKENS,
    MISTRAL_1,
    QWEN_3,
    ZEPHYR,
    chat_of,
    qwen_3,
    rendered,
    sentencepiece,
)

from rllib_lmgame.policies.chat.format import ChatFormat
from rllib_lmgame.policies.chat.transcripts import Said, Transcript, TranscriptWriter


def gemma() -> Any:
    return byte_tokenizer(["<start_of_turn>", "<end_of_turn>", "<bos>"], eos="<eos>", bos="<bos>")


def deepseek() -> Any:
    return byte_tokenizer(
        ["<｜User｜>", "<｜Assistant｜>"],
        eos="<｜end▁of▁sentence｜>",
        bos="<｜begin▁of▁sentence｜>",
        plain=("<think>", "</think>"),
    )


Make = Callable[[], Any]
TEMPLATES: dict[str, tuple[Make, str, list[bool]]] = {  # Tokenizer, template, which of three learnt turns begin a row.
    "gemma2": (gemma, GEMMA_2, [True, False, False]),
    "gemma3": (gemma, GEMMA_3, [True, False, False]),
    "llama2": (lambda: sentencepiece("prepend"), LLAMA_2, [True, False, False]),
    "zephyr": (lambda: sentencepiece("llama"), ZEPHYR, [True, False, False]),
    "mistral1": (lambda: sentencepiece("first"), MISTRAL_1, [True, False, False]),
    "magistral": (lambda: byte_tokenizer([*MAGISTRAL_TOKENS], eos="</s>", bos="<s>"), MAGISTRAL, [True, False, False]),
    "command_r": (
        lambda: byte_tokenizer([*COMMAND_R_TOKENS], eos="<|END_OF_TURN_TOKEN|>", bos="<BOS_TOKEN>"),
        COMMAND_R,
        [True, False, False],
    ),
    "qwen3": (qwen_3, QWEN_3, [True, True, True]),
    "gpt_oss": (lambda: byte_tokenizer([*GPT_OSS_TOKENS], eos="<|return|>"), GPT_OSS, [True, True, True]),
}


def talk(*, system: bool = True, learnt: tuple[int, ...] = (0, 1, 2), reply: str = "go {}") -> Transcript:
    """Three exchanges, of which some are learnt."""
    said = [Said("system", "You walk.")] if system else []
    for turn in range(3):
        said.append(Said("user", f"room {turn}\n#_X"))
        said.append(Said("assistant", reply.format(turn), weight=float(turn in learnt)))
    return Transcript(tuple(said))


def messages_of(chat: ChatFormat, transcript: Transcript) -> list[dict[str, str]]:
    messages = [{"role": said.role, "content": said.text} for said in transcript.messages]
    if chat.pieces.middle is None and messages[0]["role"] == "system":
        rules, first, *rest = messages
        messages = [{"role": "user", "content": f"{rules['content']}\n\n{first['content']}"}, *rest]
    return messages


def format_of(model: str) -> ChatFormat:
    make, template, _ = TEMPLATES[model]
    return chat_of(make(), template, **({"think_tag": CHANNELS} if model == "gpt_oss" else {}))


def written(chat: ChatFormat, transcript: Transcript) -> list[Any]:
    (turns,) = TranscriptWriter(chat).write([transcript])
    assert isinstance(turns, list), turns
    return turns


@pytest.mark.parametrize("system", [True, False])
@pytest.mark.parametrize("model", TEMPLATES)
def test_masks_are_right_token_by_token(model: str, system: bool) -> None:
    """Before each learnt reply stands the template's prompt; both together are the template's conversation."""
    new_rows = TEMPLATES[model][2]
    chat, transcript = format_of(model), talk(system=system)
    messages, row = messages_of(chat, transcript), []
    turns = written(chat, transcript)
    assert [turn.new_row for turn in turns] == new_rows
    places = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    for place, turn in zip(places, turns, strict=True):
        row = [*([] if turn.new_row else row), *turn.prompt_ids.tolist()]
        assert row == rendered(chat, messages[:place], generate=True)
        row += turn.reply_ids.tolist()
        whole = rendered(chat, messages[: place + 1], generate=False)
        assert row == whole[: len(row)]
        assert row[-1] in chat.special_ids and not chat.special_ids & set(turn.reply_ids[:-1].tolist())
        assert chat.tokenizer.decode(turn.reply_ids[:-1]).strip().endswith(messages[place]["content"])
        assert not chat.tokenizer.decode(whole[len(row) :]).strip(" \n").replace(chat.tokenizer.eos_token, "")
