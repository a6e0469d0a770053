"""Tokenizers built on the spot, with chat templates in the manner of well-known models."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rllib_lmgame.envs import make_session
from rllib_lmgame.policies.chat.corpus import game_corpus
from rllib_lmgame.policies.model.tiny import build_tiny_model
from rllib_lmgame.policies.options import LanguageModelOptions

sys.path.insert(0, str(Path(__file__).parent))

from byte_tokens import byte_tokenizer, shipped_template

CHATML = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% "
    "endif %}{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor "
    "%}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = shipped_template("llama3")
GEMMA = shipped_template("gemma")
MISTRAL = (
    "{% set system = '' %}{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}{% set system = "
    "m['content'] + '\n\n' %}{% elif m['role'] == 'user' %}{{ '[INST] ' + (messages[0]['content'] + '\n\n' if "
    "loop.index0 == 1 and messages[0]['role'] == 'system' else '') + m['content'] + ' [/INST]' }}{% else %}{{ ' ' + "
    "m['content'] + eos_token }}{% endif %}{% endfor %}"
)
ZEPHYR = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + eos_token + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
QWEN3 = shipped_template("qwen3")
OPENS_THINKING = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)

STYLES: dict[str, dict[str, Any]] = {
    "chatml": {"template": CHATML, "special": ["<|im_start|>", "<|im_end|>"], "eos": "<|im_end|>"},
    "llama3": {
        "template": LLAMA3,
        "special": ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        "bos": "<|begin_of_text|>",
        "eos": "<|eot_id|>",
    },
    "gemma": {"template": GEMMA, "special": ["<start_of_turn>", "<end_of_turn>"], "bos": "<bos>", "eos": "<eos>"},
    "mistral": {"template": MISTRAL, "special": ["[INST]", "[/INST]"], "bos": "<s>", "eos": "</s>"},
    "zephyr": {"template": ZEPHYR, "special": [], "bos": "<s>", "eos": "</s>"},
    "qwen3": {"template": QWEN3, "special": ["<|im_start|>"], "plain": ["<think>", "</think>"], "eos": "<|im_end|>"},
    "opens_thinking": {
        "template": OPENS_THINKING,
        "special": ["<|im_start|>"],
        "plain": ["<think>", "</think>"],
        "eos": "<|im_end|>",
    },
    "unmarked": {"template": CHATML, "special": [], "plain": ["<|im_start|>", "<|im_end|>"], "eos": "<|endoftext|>"},
}


@pytest.fixture(scope="session")
def tokenizer_of() -> Callable[..., Any]:
    """A tokenizer by style name, or by the arguments of ``byte_tokenizer``."""
    made: dict[str, Any] = {}

    def build(style: str | None = None, **arguments: Any) -> Any:
        if style is None:
            return byte_tokenizer(**arguments)
        if style not in made:
            made[style] = byte_tokenizer(**STYLES[style])
        return made[style]

    return build


@pytest.fixture
def chat_of(tokenizer_of: Callable[..., Any]) -> Callable[..., Any]:
    """A chat format by style and options."""
    from rllib_lmgame.policies.chat.format import ChatFormat

    def build(style: str = "chatml", **options: Any) -> Any:
        return ChatFormat(tokenizer_of(style), LanguageModelOptions(**{"format_instructions": False, **options}))

    return build


@pytest.fixture(scope="session")
def sokoban_corpus() -> list[str]:
    """Texts of Sokoban."""
    return game_corpus(make_session("lmgame/Sokoban-v0", {}), episodes=16)


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory, sokoban_corpus: list[str]) -> Path:
    """A tiny model on disk."""
    return build_tiny_model(tmp_path_factory.mktemp("tiny"), sokoban_corpus)


@pytest.fixture(scope="session")
def tiny_tokenizer(tiny_dir: Path) -> Any:
    """Its tokenizer, as anybody would load it."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_dir)
