"""A Hugging Face model as it is, without a run."""

from __future__ import annotations

from pathlib import Path

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.evaluation.players.language_model import LocalModel, ModelOptions
from rllib_lmgame.evaluation.players.player import PlayerSettings
from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.policies.model.files import check_model
from rllib_lmgame.policies.options import LanguageModelOptions
from rllib_lmgame.rollouts.options import TextRolloutOptions
from rllib_lmgame.schema import build

PREFIX = "hf:"


class HuggingFacePlayer(LocalModel):
    """The model of ``hf:DIR_OR_ID``.

    Raises:
        ConfigError: if there is no such model, it is incomplete, or a setting is wrong.
    """

    def __init__(self, name: str, source: str, settings: PlayerSettings) -> None:
        model = source.removeprefix(PREFIX)
        if not model:
            raise ConfigError("--players", f"{source!r} names no model; write hf:DIR or hf:ORGANISATION/MODEL")
        path = Path(model).expanduser()
        directory = str(path) if path.exists() else model
        check_model(directory, "--players")
        super().__init__(name, source, directory, options_of(settings, directory), settings)


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
