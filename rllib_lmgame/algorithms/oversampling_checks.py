"""What oversampling asks of the other options. Importing this loads no Ray."""

from __future__ import annotations

import math

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.rollouts.plans import spare_groups
from rllib_lmgame.settings.sections.supervised import DataSelectionOptions
from rllib_lmgame.settings.sections.text_rollouts import TextRolloutOptions


def check_oversampling(
    options: DataSelectionOptions,
    rollouts: TextRolloutOptions,
    *,
    num_env_runners: int,
    games_at_once: int,
    league: bool,
) -> None:
    """The factor ``data_selection.oversample`` beside who plays.

    Args:
        options: The section.
        rollouts: How many episodes are needed.
        num_env_runners: RLlib's.
        games_at_once: Games in play at the same time in each of them.
        league: Whether there is one.

    Raises:
        ConfigError: where it contradicts another option, has no effect, or leaves an env runner without a share.
    """
    key, factor = "config.data_selection.oversample", options.oversample
    if factor == 1:
        return
    if rollouts.deterministic:
        raise ConfigError(
            key, "contradicts text_rollouts.deterministic: who finishes first is no rule; leave one of them out"
        )
    if league:
        raise ConfigError(
            key,
            "does not go with a `league`: its pay-offs would hardly count the games that take longest (draws, often); "
            "leave one of them out",
        )
    if games_at_once == 1:
        raise ConfigError(
            key,
            "has no effect with num_envs_per_env_runner: 1, where no game is in play beside another; set at least 2",
        )
    groups = rollouts.episodes_per_iteration // rollouts.group_size
    spare = spare_groups(groups, factor)
    if num_env_runners > groups:
        raise ConfigError(
            key,
            f"makes each env runner stop by itself, after whole groups: {groups} of them are too few for "
            f"num_env_runners={num_env_runners}; set at most {groups}",
        )
    if num_env_runners > spare:
        raise ConfigError(
            key,
            f"{factor:g} times {groups} groups are {spare} more than are needed, and each of {num_env_runners} env "
            f"runners must have one to spare; set at least {_up(1 + num_env_runners / groups):g}",
        )


def _up(number: float) -> float:
    """The next decimal of four places."""
    return math.ceil(number * 1e4 - 1e-6) / 1e4
