"""The part of a configuration that an env runner needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.policies.mapping import MappingFn
from rllib_lmgame.policies.model.files import ModelFiles
from rllib_lmgame.policies.options import LanguageModelOptions, PlayerOptions
from rllib_lmgame.rollouts.options import TextRolloutOptions
from rllib_lmgame.rollouts.records import GameConfig


class PlayedOptions(Protocol):
    """The part of a run's options that playing needs."""

    policies: dict[str, PlayerOptions]
    inference: InferenceOptions
    text_rollouts: TextRolloutOptions


class RunnerConfig(Protocol):
    """The part of an algorithm's configuration that playing needs.

    Attributes:
        num_env_runners: Runners that share the episodes; with 0 the driver's own runner plays them all.
        num_envs_per_env_runner: Games a runner plays at once.
        model_files: Policy -> files with its tokenizer.
        engine_names: Policy -> the engines that hold its weights.
        episode_log_dir: ``None`` is the current directory.
        watched_as: Id of the trial under which progress is shown, if it is.
    """

    run: PlayedOptions
    num_env_runners: int
    num_envs_per_env_runner: int
    seed: int | None
    model_files: Mapping[str, ModelFiles]
    engine_names: Mapping[str, list[str]]
    episode_log_dir: str | None
    watched_as: str | None

    def training_games(self) -> tuple[GameConfig, ...]:
        """The games that are trained on."""

    def trained_policies(self) -> list[str]:
        """Policies that are trained."""

    def learns_observations(self, policy: str) -> bool:
        """Whether a policy is trained on observations."""

    def agent_to_module_mapping(self) -> MappingFn:
        """The mapping from agents to policies."""

    def language_model_of(self, policy: str, game: GameConfig | None = None) -> LanguageModelOptions:
        """A policy's language-model options, in a game."""

    def module_spec(self, policy: str, inference_only: bool = False) -> Any:
        """RLModule of a policy."""
