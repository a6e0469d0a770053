"""Whether ``policy_mapping_fn`` gives every seat of the configured games a policy, and who learns a seat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rllib_lmgame.algorithms.games import is_for_one, roles_of
from rllib_lmgame.errors import ConfigError, nearest
from rllib_lmgame.policies.mapping import KEY, OTHERS, RoleMapping, SeatMapping
from rllib_lmgame.rollouts.plans import EpisodePlan
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.rollouts.sources import LineUps, Roles

if TYPE_CHECKING:
    from rllib_lmgame.algorithms.config import LMGameConfig

_PLAN = EpisodePlan("", 0, 0, "", 0, number=0)


def check_seats(config: LMGameConfig) -> None:
    """Look at one line-up of every game of training and of evaluation. Games for one are built only where seats are
    mapped by their names.

    Raises:
        ConfigError: if a seat has no policy, a policy that learns has no seat, or a key is no seat.
    """
    mapping, line_ups = config.seat_mapping(), LineUps(config)
    by_name = isinstance(mapping, SeatMapping)

    def seats_of(game: GameConfig) -> Roles:
        return roles_of(game) if by_name or not is_for_one(game) else {}

    training = [seats_of(game) for game in config.training_games()]
    games = [*training, *(seats_of(game) for game in config.evaluation_games)]
    if isinstance(mapping, SeatMapping):
        _check_names(mapping.seats, games)
    for roles in games:
        line_ups.line_up(_PLAN, roles)
    if isinstance(mapping, SeatMapping | RoleMapping):  # The others deal seats anew from episode to episode.
        seated = {seat.module_id for roles in training for seat in line_ups.line_up(_PLAN, roles).values()}
        for policy in config.trained_policies():
            if policy not in seated:
                message = f"gives {policy!r}, which learns, no seat of any game of training; map one to it"
                raise ConfigError(KEY, message)


def _check_names(mapped: Mapping[str, str], games: list[Roles]) -> None:
    """Every key of ``mapped`` must be a seat or a role of one of the games."""
    seats = dict.fromkeys(name for roles in games for seat in roles.items() for name in seat)
    for name in mapped:
        if name not in (*seats, OTHERS):
            match = nearest(name, seats)
            hint = f"did you mean {match!r}?" if match else f"there are {', '.join(seats)}, and {OTHERS!r} for others"
            raise ConfigError(f"{KEY}.{name}", f"no game has a seat or role {name!r}; {hint}")
