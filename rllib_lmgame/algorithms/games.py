"""Lists of games in a configuration."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import closing

import gymnasium

from rllib_lmgame.envs.contract.session import GameSession
from rllib_lmgame.envs.registry import READY, game_spec, load_factory, make_game, options_of
from rllib_lmgame.rollouts.game_calls import call_game, opened
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.rollouts.sources import LineUps

_REPLIES = 100
"""Turns that are looked at to see whether a game lists its legal actions."""


def on_split(games: Sequence[GameConfig], split: str, override: bool) -> tuple[GameConfig, ...]:
    """The same games on the levels of ``split``, where a game has splits.

    Args:
        override: Also replace a split that ``env_config`` names.
    """
    moved = []
    for game in games:
        if has_option(game.env, "split") and (override or "split" not in game.env_config):
            game = game.model_copy(update={"env_config": {**game.env_config, "split": split}})
        moved.append(game)
    return tuple(moved)


def has_option(env: str, name: str) -> bool:
    """Whether the game's ``env_config`` knows ``name``."""
    options = options_of(env)
    return options is not None and name in options.model_fields


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


def is_self_play(game: GameConfig, line_ups: LineUps) -> bool:
    """Whether trained policies take every seat, so that success means nothing: somebody wins every decided game.

    The game is built if it may have several seats.
    """
    roles = _roles_of_contest(game)
    return bool(roles) and all(seat.trained for line_up in line_ups.drawn(roles) for seat in line_up.values())


def is_contest(game: GameConfig) -> bool:
    """Whether several play against each other; the game is built if it may have several seats."""
    return bool(_roles_of_contest(game))


def is_for_one(game: GameConfig) -> bool:
    """Whether a game can be seen to have one seat without being built."""
    factory = load_factory(game_spec(game.env))
    return isinstance(factory, type) and issubclass(factory, gymnasium.Env)


def roles_of(game: GameConfig) -> dict[str, str]:
    """The seats of a game, which is built: agent id -> role."""
    with opened(game.env, game.env_config) as session:
        return dict(session.roles)


def _roles_of_contest(game: GameConfig) -> dict[str, str]:
    """Agent id -> role where several play against each other, else nothing."""
    if is_for_one(game):
        return {}
    with opened(game.env, game.env_config) as session:
        return {} if len(session.agent_ids) == 1 or session.cooperative else dict(session.roles)


_LISTING: set[str] = set()
"""Games that were found to list their legal actions, by their keys."""


def lists_legal_actions(game: GameConfig) -> bool:
    """Whether the game lists legal actions in any turn of a solver's or random episode. Builds the game; keeps a yes.

    Raises: EpisodeFailed: if the game fails or takes too long.
    """
    if game.key not in _LISTING:
        with opened(game.env, game.env_config) as session:
            if any(_listed(session, solved) for solved in (True, False)):
                _LISTING.add(game.key)
    return game.key in _LISTING


def _listed(session: GameSession, solved: bool) -> bool:
    """Whether actions are listed in any turn of one episode."""
    rng = random.Random(0)

    def reply(agent: str) -> str:
        expert = call_game(session, "the expert", session.expert_action, agent) if solved else None
        return expert or call_game(session, "random_action", session.random_action, agent, rng) or ""

    call_game(session, "reset", session.reset, 0)
    for _ in range(_REPLIES):
        actors = call_game(session, "to_act", session.to_act)
        if any(call_game(session, "observe", session.observe, agent).legal_actions for agent in actors):
            return True
        if not actors:
            return False
        call_game(session, "step", session.step, {agent: reply(agent) for agent in actors})
    return False
