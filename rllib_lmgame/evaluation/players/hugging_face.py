"""A Hugging Face model as it is, without a run."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from rllib_lmgame.algorithms.checkpoints.manifest import file_hash
from rllib_lmgame.errors import ConfigError
from rllib_lmgame.evaluation.players.language_model import LocalModel, ModelOptions
from rllib_lmgame.evaluation.players.settings import PlayerSettings
from rllib_lmgame.policies.model.files import DATA_ENDINGS, check_model, model_directory, tokenizer_source
from rllib_lmgame.policies.scripted import HUGGING_FACE
from rllib_lmgame.settings.schema import build
from rllib_lmgame.settings.sections.inference import InferenceOptions
from rllib_lmgame.settings.sections.language_model import LanguageModelOptions
from rllib_lmgame.settings.sections.text_rollouts import TextRolloutOptions
from rllib_lmgame.storage import expanded


class HuggingFacePlayer(LocalModel):
    """The model of ``hf:DIR_OR_ID``.

    Raises:
        ConfigError: if there is no such model, it is incomplete, or a setting is wrong.
    """

    def __init__(self, name: str, source: str, settings: PlayerSettings) -> None:
        model = source.removeprefix(HUGGING_FACE)
        if not model:
            raise ConfigError(settings.flag, f"{source!r} names no model; write hf:DIR or hf:ORGANISATION/MODEL")
        path = expanded(model)
        directory = str(path) if path.exists() else model
        check_model(directory, settings.flag)
        super().__init__(name, source, directory, options_of(settings, directory), settings)

    def identity(self) -> dict[str, Any]:
        """See :class:`Player`: another model in the same directory is another player. What a hub id stands for is not
        looked at.
        """
        model, tokenizer = (
            model_directory(self.directory),
            tokenizer_source(self.options.language_model, self.directory),
        )
        own = {"model_files": files_digest(Path(model))} if Path(model).is_dir() else {}
        if tokenizer != model and Path(tokenizer).is_dir():
            own["tokenizer_files"] = files_digest(Path(tokenizer))
        return {**super().identity(), **own}


def files_digest(directory: Path) -> str:
    """Hash of the files in a Hugging Face directory that say what its model does: configuration, tokenizer, chat
    template, weights.
    """
    paths = sorted(path for path in directory.iterdir() if path.is_file() and path.suffix in DATA_ENDINGS)
    listed = "\n".join(f"{file_hash(path)} {path.name}" for path in paths if path.suffix != ".md")
    return hashlib.blake2b(listed.encode(), digest_size=16).hexdigest()


def options_of(settings: PlayerSettings, model: str) -> ModelOptions:
    """What ``--config`` says of models that have no run.

    Raises:
        ConfigError: naming the key that is wrong.
    """
    sections = settings.sections
    language_model = {**sections.get("language_model", {}), "model": model}
    return ModelOptions(
        build(LanguageModelOptions, language_model, "--config.language_model"),
        build(InferenceOptions, sections.get("inference", {}), "--config.inference"),
        build(TextRolloutOptions, sections.get("text_rollouts", {}), "--config.text_rollouts"),
    )
