"""What supervised learning learns from: a scripted player that is known, or an episode log that can be replayed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.storage import expanded


def check_taught(config: Any) -> None:
    """Check that the expert, or its file, exists. Raises: ConfigError: if not; keys do not start with ``config.``."""
    from rllib_lmgame.policies.scripted import make_scripted_player

    options = config.supervised_options
    if options is None:
        return
    if options.data is not None:
        if not os.path.isfile(expanded(options.data)):  # Unlike Path's: False for a name that is too long.
            raise ConfigError(f"{config.section_of('supervised_options')}.data", f"no such file: {options.data}")
        return
    try:
        make_scripted_player(options.expert)
    except ConfigError as error:
        raise ConfigError(f"{config.section_of('supervised_options')}.expert", error.message) from None


def check_logs(configs: Iterable[Any]) -> None:
    """Check that episode logs hold whole episodes of the trained games, in seats that have policies.

    Each log is read once per set of games and seats. Raises: ConfigError: naming the wrong line.
    """
    seen = set()
    for config in configs:
        options = config.supervised_options
        if options is None or options.data is None:
            continue
        key = f"config.{config.section_of('supervised_options')}.data"
        games = frozenset(_game_ids(config))
        what = (options.data, games, repr(config.seat_mapping_spec), *config.player_options)
        if what not in seen:
            seen.add(what)
            try:
                _check_log(expanded(options.data), games, config)
            except ConfigError as error:
                raise ConfigError(key, error.message) from None


def _check_log(path: Path, games: frozenset[str], config: Any) -> None:
    from rllib_lmgame.rollouts.log.replay import logged_sessions, plan_of
    from rllib_lmgame.rollouts.sources import LineUps

    line_ups, seatings = LineUps(config), set()
    for line, session in logged_sessions(path):
        if session.game_id not in games:
            raise ConfigError(
                "",
                f"{path}, line {line}: an episode of {session.game_id}, but {', '.join(sorted(games))} is trained on; "
                "set config.env to the log's game, or leave its lines out",
            )
        seating = tuple(session.roles.items())
        if seating not in seatings:
            seatings.add(seating)
            try:
                line_ups.line_up(plan_of(session, ""), session.roles)
            except ConfigError as error:
                raise ConfigError("", f"{path}, line {line}: {error.path}: {error.message}") from None


def _game_ids(config: Any) -> Iterable[str]:
    from rllib_lmgame.envs.registry import game_spec

    return (game_spec(game.env).game_id for game in config.training_games())
