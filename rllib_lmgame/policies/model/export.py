"""A policy's Hugging Face directory: `from_pretrained` and vLLM load it, and talk to it as it was trained.

Its model card (`README.md`) has the settings with which it plays.
"""

from __future__ import annotations

import copy
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from rllib_lmgame.base.errors import CheckpointError
from rllib_lmgame.base.group import as_mapping
from rllib_lmgame.base.storage import expanded, follow_umask
from rllib_lmgame.base.text import first_line
from rllib_lmgame.policies.chat.format import ChatFormat
from rllib_lmgame.policies.model.files import INDEX_FILE
from rllib_lmgame.policies.model.gguf_files import PRETRAINED
from rllib_lmgame.policies.options import LanguageModelOptions
from rllib_lmgame.telemetry.quiet import no_bars_for

logger = logging.getLogger(__name__)

GENERATION_FILE = "generation_config.json"
MAX_FILE_SIZE = "5GB"
"""Of a file of weights; as much is in memory while it is written."""


def save_policy(
    model: Any,
    tensors: Mapping[str, Tensor],
    like: Mapping[str, Tensor],
    directory: Path,
    *,
    tokenizer: str,
    options: LanguageModelOptions,
    played: Played | None = None,
) -> None:
    """Write configuration, safetensors, tokenizer with template, what ends a reply, and the card.

    ``tensors`` have the names of the checkpoint and are read in their order, those of one file at a time; ``like``
    says of which shapes and dtypes they are.

    Raises: CheckpointError: naming the file that cannot be written; FileNotFoundError: the tokenizer has gone.
    """
    directory.mkdir(parents=True, exist_ok=True)
    _save_weights(model, tensors, like, directory)
    chat = save_tokenizer(tokenizer, directory, options)
    with _written(directory / GENERATION_FILE):
        _save_generation(model, chat, directory / GENERATION_FILE)
    if chat is not None and played is not None:
        with _written(directory / CARD_FILE):
            (directory / CARD_FILE).write_text(model_card(options, played), encoding="utf-8")


def _save_weights(model: Any, tensors: Mapping[str, Tensor], like: Mapping[str, Tensor], directory: Path) -> None:
    from huggingface_hub import split_torch_state_dict_into_shards
    from safetensors.torch import save_file
    from transformers import GenerationConfig

    own = model.generation_config
    model.generation_config = GenerationConfig()  # Its own is copied as it is, and not judged.
    try:
        with _written(directory / "config.json"), no_bars_for(directory):
            model.save_pretrained(directory, state_dict={})
    finally:
        model.generation_config = own
    files = split_torch_state_dict_into_shards(
        dict(like), filename_pattern="model{suffix}.safetensors", max_shard_size=MAX_FILE_SIZE
    )
    for file, names in files.filename_to_tensors.items():
        with _written(directory / file):
            held = {name: tensors[name].detach().cpu().contiguous() for name in names}
            save_file(held, directory / file, {"format": "pt"})
            follow_umask(directory / file)
    if files.is_sharded:
        with _written(directory / INDEX_FILE):
            index = {"metadata": files.metadata, "weight_map": files.tensor_to_filename}
            (directory / INDEX_FILE).write_text(json.dumps(index, indent=2))


def _save_generation(model: Any, chat: ChatFormat | None, file: Path) -> None:
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
        raise FileNotFoundError(f"{source}, which held the model's tokenizer, has been removed")
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


CARD_FILE = "README.md"

_CARD = """---
library_name: transformers
pipeline_tag: text-generation
{origin}---
# A language model that plays text games

Trained with rllib-lmgame. It plays as it was trained if it is asked as it was trained. The chat template is the
tokenizer's, and `generation_config.json` ends a reply where it ended in training. Save the other settings as
`settings.json` for `rllib play GAME --players hf:DIR --config "$(cat settings.json)"`:

```json
{settings}
```

Games and their options:

```json
{games}
```
"""
OF_TRAINING = (
    *("model", "tiny", "tokenizer", "dtype", "attn_implementation", "gradient_checkpointing", "trust_remote_code"),
    *("chat_template", "value_model", "freeze_backbone_for_value", "lora"),
)
"""Options that a card does not show, since they do not change how the model is talked to."""
LICENCE = ("license", "license_name", "license_link")
"""Keys of a card's front matter that say on which terms the model may be passed on."""
_PLAIN = re.compile(r"[A-Za-z0-9][\w./:@-]{0,199}", re.ASCII)


@dataclass(frozen=True)
class Played:
    """What a policy was trained on: games with their configurations, and how replies were sampled (temperature 0:
    greedily).
    """

    games: Sequence[tuple[str, Mapping[str, Any]]]
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    constrained_decoding: bool = False


def model_card(options: LanguageModelOptions, played: Played) -> str:
    """The card's text. Settings, perhaps a stranger's, are lines of JSON in ASCII, none of which begins as Markdown."""
    said = {key: value for key, value in as_mapping(options).items() if key not in OF_TRAINING}
    sampling = {key: getattr(played, key) for key in ("temperature", "top_p", "top_k")}
    rollouts = {"constrained_decoding": played.constrained_decoding}
    return _CARD.format(
        origin="".join(f"{key}: {value}\n" for key, value in origin_of(options.model).items()),
        settings=_json({"language_model": said, "inference": sampling, "text_rollouts": rollouts}),
        games=_json(played.games),
    )


def origin_of(model: str) -> dict[str, str]:
    """``base_model`` and the keys :data:`LICENCE` of what was trained, as far as is known here: of a model known by
    name, of a directory from its own card, of the hub from what was fetched.
    """
    from huggingface_hub import try_to_load_from_cache

    known = PRETRAINED.get(model)
    if known is not None:
        return {"base_model": known.hub, "license": known.license_id, "license_link": known.terms}
    place = expanded(model)
    if place.is_dir():
        cards = (place / CARD_FILE, place / "hf" / CARD_FILE)
        return front_matter(next((card for card in cards if card.is_file()), None))
    if re.fullmatch(r"[\w.-]+/[\w.-]+", model) is None:
        return {}
    with suppress(ValueError):  # No id of the hub: a directory that is not here.
        fetched = try_to_load_from_cache(model, CARD_FILE)
        return {**front_matter(Path(fetched) if isinstance(fetched, str) else None), "base_model": model}
    return {}


def front_matter(card: Path | str | None) -> dict[str, str]:
    """``base_model`` and licence in a card, given as its file or text; what is no plain word is left out."""
    import yaml

    try:
        text = card.read_text(encoding="utf-8") if isinstance(card, Path) else card or ""
        found = re.match(r"---\n(.*?)\n---", text, re.DOTALL)
        said = yaml.safe_load(found[1]) if found else {}
    except (OSError, ValueError, RecursionError, yaml.YAMLError):  # ValueError: text that is none, a day 2024-13-45.
        return {}
    plain = {key: said[key] for key in ("base_model", *LICENCE) if isinstance(said, dict) and key in said}
    return {key: value for key, value in plain.items() if isinstance(value, str) and _PLAIN.fullmatch(value)}


def _json(value: Any) -> str:
    return json.dumps(value, default=str, indent=1)
