"""The games of a configuration: that there are such games, and who can sit, win and move in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import gymnasium

from rllib_lmgame.base.errors import ConfigError, MissingDependencyError, did_you_mean
from rllib_lmgame.base.group import declared
from rllib_lmgame.base.text import in_words, one_line
from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.registry import READY, game_spec, load_factory, make_game, options_of
from rllib_lmgame.policies.mapping import KEY as MAPPING
from rllib_lmgame.policies.mapping import OTHERS, RoleMapping, SeatMapping
from rllib_lmgame.rollouts.game_calls import opened
from rllib_lmgame.rollouts.plans import EpisodePlan
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.rollouts.sources import AgentMapper, Roles


def on_split(games: Sequence[GameConfig], split: str, override: bool) -> tuple[GameConfig, ...]:
    """The same games on the levels of ``split``, where a game has splits.

    Args:
        override: Also replace a split that ``env_config`` names.
    """
    moved = []
    for game in games:
        if has_splits(game.env) and (override or "split" not in game.env_config):
            game = game.model_copy(update={"env_config": {**game.env_config, "split": split}})
        moved.append(game)
    return tuple(moved)


def has_splits(env: str) -> bool:
    options = options_of(env)
    return options is not None and "split" in declared(options)


def needs_others(game: GameConfig) -> bool:
    """Whether the game may need something which runs beside it."""
    return hasattr(load_factory(game_spec(game.env)), READY)


def found_beside(game: GameConfig) -> str:
    """What the game finds that runs beside it, in a few words; nothing where it needs nothing.

    Raises: ConfigError: it is not there, or the game cannot be made.
    """
    if not needs_others(game):
        return ""
    with closing(make_game(game.env, game.env_config)) as made:
        return str(getattr(made, READY)())


def is_contest(game: GameConfig) -> bool:
    """Whether several play against each other; the game is built if it may have several seats."""
    if is_for_one(game):
        return False
    with opened(game.env, game.env_config) as session:
        return len(session.agent_ids) > 1 and not session.cooperative


def is_for_one(game: GameConfig) -> bool:
    """Whether a game can be seen to have one seat without being built."""
    factory = load_factory(game_spec(game.env))
    return isinstance(factory, type) and issubclass(factory, gymnasium.Env)


def roles_of(game: GameConfig) -> dict[str, str]:
    """The seats of a game, which is built: agent id -> role."""
    with opened(game.env, game.env_config) as session:
        return dict(session.roles)


# -- checks -----------------------------------------------------------------------------------------------------------

_PLAN = EpisodePlan("", 0, 0, "", 0, number=0)


def check_games_can_be_made(config: Any) -> None:
    """Raise :class:`ConfigError` if a game cannot be made as it is configured; keys do not start with ``config.``."""
    for place, game in games_of(config):
        with _blamed(place, game):
            with opened(game.env, game.env_config):
                pass


@contextmanager
def games_blamed_first(config: Any) -> Iterator[None]:
    """If making games fails inside, the error names the configured game that cannot be made, and its place."""
    try:
        yield
    except (Exception, SystemExit):
        check_games_can_be_made(config)
        raise


def games_of(config: Any) -> list[tuple[str, GameConfig]]:
    """Where each game stands below ``config`` (with a dot at the end), of training and of evaluation, and the game."""
    games = [(f"games[{n}]." if config.games else "", game) for n, game in enumerate(config.training_games())]
    evaluated = enumerate(config.run.evaluation_config.games or ())
    return games + [(f"evaluation_config.games[{n}].", game) for n, game in evaluated]


@contextmanager
def _blamed(place: str, game: GameConfig) -> Iterator[None]:
    """Whatever is raised inside becomes a :class:`ConfigError` at ``place``, or a :class:`MissingDependencyError`."""

    def named(message: str) -> str:
        return message if not place or game.env in message else f"{message} ({game.env})"

    try:
        yield
    except ConfigError as error:
        path = "env" if error.path in {"", "env", "game"} else error.path
        raise ConfigError(f"{place}{path}", named(error.message)) from error.__cause__
    except MissingDependencyError as error:
        raise MissingDependencyError(named(str(error))) from error
    except GameError as error:
        raise ConfigError(f"{place}env", named(str(error))) from error
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{place}env", f"{game.env} cannot be made: {one_line(in_words(error))}") from error


def check_seats(config: Any) -> None:
    """Check one assignment of every game. Single-player games are built only if seats are mapped by name.

    Raises: ConfigError: if a seat has no policy, a learning policy has no seat, or a key is no seat.
    """
    if not config.run.plays:
        return
    mapping, agent_mapper = config.agent_to_module_mapping(), AgentMapper(config)
    by_name = isinstance(mapping, SeatMapping)

    def seats_of(game: GameConfig) -> Roles:
        return roles_of(game) if by_name or not is_for_one(game) else {}

    training = [seats_of(game) for game in config.training_games()]
    games = [*training, *(seats_of(game) for game in config.run.evaluation_config.games or ())]
    if isinstance(mapping, SeatMapping):
        seats = dict.fromkeys(name for roles in games for seat in roles.items() for name in seat)
        for name in mapping.seats:
            if name not in (*seats, OTHERS):
                hint = did_you_mean(name, seats, f"there are {', '.join(seats)}, and {OTHERS!r} for others")
                raise ConfigError(f"{MAPPING}.{name}", f"no game has a seat or role {name!r}; {hint}")
    for roles in games:
        agent_mapper.assignments(_PLAN, roles)
    if isinstance(mapping, SeatMapping | RoleMapping):  # The others deal seats anew from episode to episode.
        seated = {seat.module_id for roles in training for seat in agent_mapper.assignments(_PLAN, roles).values()}
        for policy in config.trained_policies():
            if policy not in seated:
                message = f"gives {policy!r}, which learns, no seat of any game of training; map one to it"
                raise ConfigError(MAPPING, message)
