"""A policy of a checkpoint."""

from __future__ import annotations

from typing import Any

from rllib_lmgame.algorithms.checkpoints.manifest import MANIFEST, file_hash
from rllib_lmgame.algorithms.checkpoints.paths import find_checkpoint, is_own_checkpoint
from rllib_lmgame.algorithms.config import LMGameConfig
from rllib_lmgame.errors import CheckpointError, ConfigError, nearest
from rllib_lmgame.evaluation.players.language_model import LocalModel, ModelOptions
from rllib_lmgame.evaluation.players.player import Player, PlayerSettings
from rllib_lmgame.evaluation.players.scripted import Scripted
from rllib_lmgame.evaluation.saved_config import model_of, open_checkpoint
from rllib_lmgame.settings.sections.language_model import LANGUAGE_MODEL


def checkpoint_player(name: str, source: str, directory: str, policy: str | None, settings: PlayerSettings) -> Player:
    """A policy of a checkpoint as a player.

    Args:
        name, source: See :class:`~rllib_lmgame.evaluation.players.player.Player`.
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
    policy = _policy(config, policy, source)
    player = config.player_options[policy].player
    if player != LANGUAGE_MODEL:
        return Scripted(name, player, settings)
    model = model_of(checkpoint, config, policy).directory()
    options = ModelOptions(config.language_model_of(policy), config.inference_options, config.text_rollout_options)
    return _CheckpointModel(name, source, model, options, settings, file_hash(checkpoint / MANIFEST))


def _policy(config: LMGameConfig, policy: str | None, source: str) -> str:
    known, trained = list(config.player_options), config.trained_policies()
    if policy is None:
        if len(trained) == 1:
            return trained[0]
        raise ConfigError(
            "--players", f"{source} holds several trained policies ({', '.join(trained)}); write {source}:{trained[0]}"
        )
    if policy not in known:
        match = nearest(policy, known)
        hint = f"did you mean {match!r}?" if match else f"known: {', '.join(known)}"
        raise ConfigError("--players", f"{policy!r} is no policy of the checkpoint; {hint}")
    return policy


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
