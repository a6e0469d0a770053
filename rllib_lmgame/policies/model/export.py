"""A policy's Hugging Face directory: `from_pretrained` and vLLM load it, and talk to it as it was trained."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from rllib_lmgame.base.errors import CheckpointError
from rllib_lmgame.base.storage import follow_umask
from rllib_lmgame.base.text import first_line
from rllib_lmgame.policies.chat.format import ChatFormat
from rllib_lmgame.policies.model.card import CARD_FILE, Played, model_card
from rllib_lmgame.policies.model.files import weight_files
from rllib_lmgame.policies.options import LanguageModelOptions
from rllib_lmgame.telemetry.quiet import no_bars_for

logger = logging.getLogger(__name__)

GENERATION_FILE = "generation_config.json"


def save_policy(
    model: Any,
    tensors: Mapping[str, torch.Tensor],
    directory: Path,
    *,
    tokenizer: str,
    options: LanguageModelOptions,
    played: Played | None = None,
) -> None:
    """Write configuration, safetensors (``tensors`` on the CPU), tokenizer with template, what ends a reply, and the
    card.

    Raises: CheckpointError: naming the file that cannot be written; FileNotFoundError: the tokenizer has gone.
    """
    directory.mkdir(parents=True, exist_ok=True)
    _save_weights(model, tensors, directory)
    chat = save_tokenizer(tokenizer, directory, options)
    with _written(directory / GENERATION_FILE):
        _save_generation(model, chat, directory / GENERATION_FILE)
    if chat is not None and played is not None:
        with _written(directory / CARD_FILE):
            (directory / CARD_FILE).write_text(model_card(options, played), encoding="utf-8")


def _save_weights(model: Any, tensors: Mapping[str, torch.Tensor], directory: Path) -> None:
    from transformers import GenerationConfig

    with _written(directory / "config.json"):
        model.config.save_pretrained(directory)
    own = model.generation_config
    model.generation_config = GenerationConfig()  # Its own is copied as it is, and not judged.
    try:
        with _written(directory / "model.safetensors"), no_bars_for(directory):
            model.save_pretrained(directory, state_dict=dict(tensors), max_shard_size="5GB")
            for file in weight_files(directory):
                follow_umask(file)
    finally:
        model.generation_config = own


def _save_generation(model: Any, chat: ChatFormat | None, file: Path) -> None:
    """The model's own, whatever stands in it, with the tokens that end a reply."""
    from transformers import GenerationConfig

    config = copy.deepcopy(model.generation_config or GenerationConfig())
    if chat is not None:
        own = config.eos_token_id
        ends = [chat.end_id, *chat.closing_ids.values(), *(own if isinstance(own, list) else [own])]
        config.eos_token_id = list(dict.fromkeys(token for token in ends if token is not None))
        config._from_model_config = False  # Or it would be made anew from config.json, without these.
    config.to_json_file(file)


def save_tokenizer(source: str, directory: Path, options: LanguageModelOptions) -> ChatFormat | None:
    """Save the tokenizer of ``source`` with the chat template in use; returns its chat format, ``None`` without one
    (logged).

    Raises: FileNotFoundError: the directory has gone since the model was loaded; CheckpointError: it cannot be written.
    """
    from transformers import AutoTokenizer

    if Path(source).is_absolute() and not Path(source).is_dir():
        raise FileNotFoundError(
            f"{source}, which holds the model's tokenizer, has been removed; keep it while the run goes on"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=options.trust_remote_code)
    except (OSError, ValueError) as error:
        logger.warning("%s holds no tokenizer to export: %s", source, first_line(error))
        return None
    chat = ChatFormat(tokenizer, options)
    named = tokenizer.chat_template
    tokenizer.chat_template = named | {"default": chat.template} if isinstance(named, dict) else chat.template
    with _written(directory / "tokenizer_config.json"):
        tokenizer.save_pretrained(directory)
    return chat


@contextmanager
def _written(file: Path) -> Iterator[None]:
    """An error inside says in one line that ``file`` cannot be written, and why."""
    try:
        yield
    except Exception as error:  # A stranger's file fails in many ways.
        if isinstance(error, OSError) and error.filename is not None:
            file = Path(error.filename)
        why = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(f"{file.parent.name}/{file.name} cannot be written: {why}") from error
