"""A tiny language model, built on the spot: Qwen2 architecture, a small tokenizer, a real chat template.

It needs no download and trains on two CPU cores. It is an ordinary Hugging Face directory, which `from_pretrained`,
vLLM and DeepSpeed load like any other.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import build
from rllib_lmgame.policies.chat.template import TINY_CHAT_TEMPLATE
from rllib_lmgame.policies.options import TinyModelOptions
from rllib_lmgame.telemetry.quiet import no_bars_for

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, Qwen2Config

SPECIAL_TOKENS = ("<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
WHOLE_TOKENS = ("<answer>", "</answer>", "<think>", "</think>", " || ")
WORD_PATTERN = r" ?[A-Z]?[a-z]+|."
"""Pieces in which merges are learnt: a word may become one token; other characters, so grid cells, stand alone."""
NUMBER = r"[0-9]{1,3}"
NUMBERED_MARK = rf"[A-Z#_√]{NUMBER}"
BOARD_ROW = re.compile(rf"({NUMBERED_MARK}|{NUMBER})( {NUMBERED_MARK}| {NUMBER})+")
"""A row of a board whose cells show their numbers, behind a mark (`X5`) or, where empty, alone."""


def build_tiny_model(directory: str | Path, corpus: Iterable[str], overrides: Mapping[str, Any] | None = None) -> Path:
    """Write a tiny random model with its tokenizer into ``directory``, and return it.

    Words of ``corpus`` become tokens; the same texts give the same tokenizer. ``overrides`` are fields of
    :class:`TinyModelOptions`. Raises: ConfigError: one is unknown, or its value out of range.
    """
    import torch
    from transformers import Qwen2ForCausalLM

    options = check_shape(overrides or {}, "language_model.tiny")
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer(corpus, options.vocab_size, options.max_position_embeddings)
    tokens = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    config = tiny_config(options, vocab_size=len(tokenizer), **tokens)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        model = Qwen2ForCausalLM(config)
    with no_bars_for(directory):
        model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def tiny_config(options: TinyModelOptions, **others: Any) -> Qwen2Config:
    """The configuration of a tiny model; ``others`` are more fields, or other values."""
    from transformers import Qwen2Config

    shape = {
        "vocab_size": options.vocab_size,
        "hidden_size": options.hidden_size,
        "num_hidden_layers": options.num_layers,
        "num_attention_heads": options.num_heads,
        "num_key_value_heads": options.num_kv_heads or options.num_heads,
        "intermediate_size": options.intermediate_size,
        "max_position_embeddings": options.max_position_embeddings,
        "tie_word_embeddings": options.tie_word_embeddings,
        "initializer_range": options.initializer_range or options.hidden_size**-0.5,
        "dtype": "float32",
    }
    return Qwen2Config(**{**shape, **others})


def check_shape(overrides: Mapping[str, Any], path: str) -> TinyModelOptions:
    """The shape with ``overrides`` on top of the defaults.

    Raises: ConfigError: an unknown override, a value out of range, or numbers that do not fit; ``path`` is their key.
    """
    options = build(TinyModelOptions, dict(overrides), path)
    width, heads = options.hidden_size, options.num_heads
    if width % (2 * heads):
        fitting = [n for n in range(heads, 0, -1) if width % (2 * n) == 0]
        hint = f"; set num_heads: {fitting[0]} beside it" if fitting and "num_heads" not in overrides else ""
        raise ConfigError(f"{path}.num_heads", f"hidden_size={width} is no even multiple of num_heads={heads}{hint}")
    if options.num_kv_heads is not None and heads % options.num_kv_heads:
        raise ConfigError(f"{path}.num_kv_heads", f"num_heads={heads} is not a multiple of it")
    return options


def build_tokenizer(corpus: Iterable[str], vocab_size: int, max_length: int) -> PreTrainedTokenizerBase:
    r"""A byte-level BPE tokenizer in Qwen2's format, with merges for the words (and non-ASCII symbols) of the corpus.

    Walls that span a line end (`#\n#`) and full wall rows are single tokens: a 6x6 grid takes 21 tokens instead of 41.
    So is a mark with its cell's number (`X5`) in a row of a board.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import Qwen2Tokenizer

    texts = list(corpus)
    learner = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(WORD_PATTERN), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    learner.pre_tokenizer = pre_tokenizers.Sequence([words, byte_level])
    learner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    room = vocab_size - len(alphabet) - len(SPECIAL_TOKENS)
    whole = [*WHOLE_TOKENS, *wall_tokens(texts)][:room]
    left = room - len(whole)
    whole += mark_tokens(texts, left // 2)  # The other half is for words, those of replies among them.
    trainer = trainers.BpeTrainer(
        vocab_size=max(vocab_size - len(whole) - len(SPECIAL_TOKENS), len(alphabet)),
        initial_alphabet=alphabet,
        min_frequency=2,
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer)
    learnt = json.loads(learner.to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=learnt["vocab"],
        merges=[tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in learnt["merges"]],
        eos_token="<|end|>",
        pad_token="<|pad|>",
        unk_token="<|pad|>",
        extra_special_tokens=["<|system|>", "<|user|>", "<|assistant|>"],
        model_max_length=max_length,
    )
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in whole])
    tokenizer.chat_template = TINY_CHAT_TEMPLATE
    return tokenizer


def wall_tokens(texts: Iterable[str]) -> list[str]:
    """Wall runs over a line end in grids drawn with `#`: between two rows, after a full row, before a full row."""
    rows = sorted({line for text in texts for line in text.split("\n") if len(line) >= 3 and set(line) == {"#"}})
    return ["#\n#", *(f"{row}\n#" for row in rows), *(f"#\n{row}" for row in rows)] if rows else []


def mark_tokens(texts: Iterable[str], most: int) -> list[str]:
    """The ``most`` frequent marks with their cell's number in rows like `X1 2 O3`; empty cells' numbers are left."""
    marks: Counter[str] = Counter()
    for text in texts:
        for begin, row in re.findall(r"(\A|\n)(.*)", text):
            if BOARD_ROW.fullmatch(row):
                marks.update(re.findall(rf"[ \n]?{NUMBERED_MARK}", begin + row))
    return sorted(mark for mark, _ in Counter(dict(sorted(marks.items()))).most_common(max(0, most)))
