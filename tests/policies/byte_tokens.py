"""A tokenizer without merges, for tests that are about control tokens and templates."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def byte_tokenizer(
    special: Sequence[str],
    template: str | None = None,
    eos: str | None = None,
    bos: str | None = None,
    plain: Sequence[str] = (),
) -> Any:
    """Every byte is a token, so no token ever spans the end of a text; beside them the control tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    names = dict.fromkeys([*special, *(t for t in (bos, eos) if t)])
    backend.add_special_tokens([AddedToken(t, special=True) for t in names])
    backend.add_tokens([AddedToken(t, special=False, normalized=False) for t in plain])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=bos, eos_token=eos)
    tokenizer.chat_template = template
    return tokenizer


SHIPPED = Path(find_spec("trl").origin).with_name("chat_templates")  # type: ignore[union-attr, arg-type]
"""The chat templates that TRL ships, a ``.jinja`` file each."""


def shipped_template(name: str) -> str:
    return (SHIPPED / f"{name}.jinja").read_text(encoding="utf-8")
