"""What is asked of a configuration whose advantage estimator wants rollouts from states in the middle of games."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rllib_lmgame.algorithms.module_checks import own_options_named
from rllib_lmgame.envs.registry import make_session
from rllib_lmgame.errors import ConfigError
from rllib_lmgame.settings.sections.token_ppo import REWARD

if TYPE_CHECKING:
    from rllib_lmgame.algorithms.config import LMGameConfig
    from rllib_lmgame.rollouts.records import GameConfig

KEY = "config.token_ppo.advantage_estimator"


def check_state_rollouts(config: LMGameConfig) -> None:
    """Games can be played again, and rollouts have the rewards that training has.

    Raises:
        ConfigError: naming the key.
    """
    policies = list(config.state_rollouts())
    for policy in policies:
        name, of_module = config.estimator_of(policy), config.get_config_for_module(policy)
        if of_module.use_kl_loss and of_module.token_ppo_options.kl_in == REWARD:
            with own_options_named(config, policy):
                raise ConfigError(
                    "config.token_ppo.kl_in",
                    f"reward does not go with advantage_estimator `{name}`: its rollouts have no penalty on their "
                    "tokens, so that values would be of other rewards; use kl_in: loss",
                )
        if config.data_selection_options.normalize_rewards != "none":
            raise ConfigError(
                "config.data_selection.normalize_rewards",
                f"does not go with advantage_estimator `{name}`, whose values are in the game's own rewards; leave it "
                "out",
            )
    for game in config.training_games() if policies else ():
        if not is_replayable(game):
            raise ConfigError(
                KEY,
                f"`{config.estimator_of(policies[0])}` plays on from states in the middle of a game, which must be a "
                f"pure function of its seed and the replies; {game.env} with these options does not say that it is "
                "(`replayable`)",
            )


def is_replayable(game: GameConfig) -> bool:
    """Whether a game says that it goes the same way with the same seed and replies; it is built to be asked."""
    session = make_session(game.env, game.env_config)
    try:
        return session.replayable
    finally:
        session.close()
