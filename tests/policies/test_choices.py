"""Which legal actions a tokenizer can spell: those alone are choices where only legal moves are allowed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from rllib_lmgame.inference.engines.core import choices_error
from rllib_lmgame.inference.protocol import GenerationRequest, SamplingSpec, allowed_tokens
from rllib_lmgame.policies.chat.format import ChatFormat
from rllib_lmgame.settings.sections.language_model import LanguageModelOptions

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 </>#\n._:-'"


def chat_of_letters(stop_at_answer: bool = False) -> ChatFormat:
    """Chat with a tokenizer of single characters: no others can be spelt, and compatible forms are made one."""
    vocabulary = {"[UNK]": 0, "<s>": 1, "</s>": 2} | {letter: number for number, letter in enumerate(LETTERS, 3)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="[UNK]"))
    tokenizer.decoder, tokenizer.normalizer = decoders.Fuse(), normalizers.NFKC()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", bos_token="<s>", eos_token="</s>")
    return ChatFormat(fast, LanguageModelOptions(stop_at_answer=stop_at_answer))


CHATS = [chat_of_letters(), chat_of_letters(stop_at_answer=True)]
ODD = [
    "",
    "a",
    "ab",
    " a",
    "a  b",
    "♞",
    "♘",
    "é",
    "①",
    "ﬁ",
    "a\u00a0b",
    "</answer>",
    "x</answer>y",
    "<answer>",
    "</s>",
    "[UNK]",
    "### user",
    "\ud800",
    "\x00",
]


@settings(deadline=None)
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
        assert chat.parser.parse(chat.read(ids)).action == action.strip()
        assert len(allowed_tokens(tuple(found.values()), ids).counts) == len(ids)
    request = GenerationRequest(
        "", [1], SamplingSpec(100, stop_token_ids=chat.stop_token_ids), tuple(found.values()) or None
    )
    assert choices_error(request, vocab_size=len(LETTERS) + 3, context_length=1000) is None


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("action", ["♞", "é", "①", "ﬁ", "x</answer>y", "[UNK]"])
def test_what_cannot_be_spelt_is_no_choice(chat: ChatFormat, action: str) -> None:
    assert chat.choice_ids(action) is None
    assert chat.choice_ids("a b") is not None
