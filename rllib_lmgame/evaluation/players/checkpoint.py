"""Policies of a checkpoint as players."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rllib_lmgame.algorithms.checkpoints.manifest import MANIFEST, file_hash
from rllib_lmgame.algorithms.checkpoints.paths import find_checkpoint, is_own_checkpoint
from rllib_lmgame.algorithms.config import LMGameConfig
from rllib_lmgame.errors import CheckpointError, ConfigError, nearest
from rllib_lmgame.evaluation.players.language_model import LocalModel, ModelOptions
from rllib_lmgame.evaluation.players.settings import PlayerSettings
from rllib_lmgame.evaluation.saved_config import model_of, open_checkpoint
from rllib_lmgame.rollouts.players import Player, Scripted
from rllib_lmgame.settings.sections.language_model import LANGUAGE_MODEL


def checkpoint_player(name: str, source: str, directory: str, policy: str | None, settings: PlayerSettings) -> Player:
    """A policy of a checkpoint as a player.

    Args:
        name, source: See :class:`~rllib_lmgame.rollouts.players.Player`.
        directory: The checkpoint, or the directory of its trial.
        policy: Which one; by default the one that was trained.
        settings: What all players share.

    Raises:
        CheckpointError: if it is no checkpoint of this package, or files are missing, truncated or altered.
        ConfigError: if there is no such policy, or several were trained and none is named.
    """
    place = find_checkpoint(directory)
    if not is_own_checkpoint(place):
        raise CheckpointError(f"{place} is no checkpoint with a language model; a model's directory is written hf:DIR")
    checkpoint, config = open_checkpoint(place, trust=settings.trust, games=settings.games)
    trained = config.trained_policies()
    if policy is None and len(trained) > 1:
        several = f"{source} holds several trained policies ({', '.join(trained)}); write {source}:{trained[0]}"
        raise ConfigError(settings.flag, several)
    return policy_player(name, source, checkpoint, config, policy or trained[0], settings)


def policy_player(
    name: str, source: str, checkpoint: Path, config: LMGameConfig, policy: str, settings: PlayerSettings
) -> Player:
    """The same of a checkpoint that is open.

    Raises:
        ConfigError: if it has no such policy.
    """
    if policy not in config.player_options:
        match = nearest(policy, config.player_options)
        hint = f"did you mean {match!r}?" if match else f"known: {', '.join(config.player_options)}"
        raise ConfigError(settings.flag, f"{policy!r} is no policy of the checkpoint; {hint}")
    player = config.player_options[policy].player
    if player != LANGUAGE_MODEL:
        return Scripted(name, player, limit_s=settings.time_limit_s)
    model = model_of(checkpoint, config, policy).directory()
    options = ModelOptions(config.language_model_of(policy), config.inference_options, config.text_rollout_options)
    return _CheckpointModel(name, source, model, options, settings, file_hash(checkpoint / MANIFEST))


class _CheckpointModel(LocalModel):
    """A language model of a checkpoint; ``digest`` is that of the checkpoint."""

    def __init__(
        self, name: str, source: str, model: str, options: ModelOptions, settings: PlayerSettings, digest: str
    ) -> None:
        super().__init__(name, source, model, options, settings)
        self._digest = digest

    def identity(self) -> dict[str, Any]:
        """See :class:`Player`: another checkpoint of the same directory is another player."""
        return {**super().identity(), "checkpoint": self._digest}
