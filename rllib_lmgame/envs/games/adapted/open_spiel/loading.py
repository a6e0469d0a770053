"""Which of OpenSpiel's games can be played, and why the others cannot."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pyspiel

from rllib_lmgame.base.errors import ConfigError, did_you_mean
from rllib_lmgame.base.text import first_line

GAME, PARAMETERS = "env_config.game", "env_config.parameters"
FAULTY = frozenset({"quoridor"})
"""Games that OpenSpiel warns of when they are loaded: their implementation has known issues."""
ChanceMode, Dynamics, Information = pyspiel.GameType.ChanceMode, pyspiel.GameType.Dynamics, pyspiel.GameType.Information


def load_game(name: str, parameters: Mapping[str, Any]) -> Any:
    """The game of this name, its simultaneous moves made into turns in which nobody sees what the others have chosen
    before all have.

    Args:
        name: Short name, as ``leduc_poker``, or with parameters as OpenSpiel writes them, ``leduc_poker(players=3)``.
        parameters: Parameters by name.

    Raises: ConfigError: if there is no such game or parameter, or it cannot be played here; the message says why.
    """
    short, bracket, _ = name.partition("(")
    if short not in pyspiel.registered_names():
        hint = did_you_mean(short, pyspiel.registered_names(), "`pyspiel.registered_names()` lists those it has")
        raise ConfigError(GAME, f"OpenSpiel has no game {short!r}; {hint}")
    if bracket and parameters:
        raise ConfigError(PARAMETERS, f"stand in the name too, {name!r}; say them in one place")
    try:
        game = pyspiel.load_game(name, *([dict(parameters)] if parameters else []))
        problem = why_not(game)
        if problem:
            raise ConfigError(GAME, f"{name!r} cannot be played: {problem}")
        if game.get_type().dynamics == Dynamics.SIMULTANEOUS:
            game = pyspiel.convert_to_turn_based(game)
        game.new_initial_state()  # Some say only here that they cannot be made so.
    except (LookupError, RuntimeError, TypeError, ValueError, MemoryError) as error:
        raise ConfigError(
            PARAMETERS, f"OpenSpiel does not make {name!r} of {dict(parameters)}: {first_line(error)}"
        ) from error
    return game


def why_not(game: Any) -> str:
    """Why a game cannot be played as a text game; empty if it can."""
    kind = game.get_type()
    if kind.short_name in FAULTY:
        return "OpenSpiel says that its implementation has known issues"
    if kind.dynamics == Dynamics.MEAN_FIELD:
        return "it is a mean-field game, of one player who stands for a crowd"
    if not game.num_distinct_actions():
        return "it does not number its actions"
    if kind.chance_mode == ChanceMode.SAMPLED_STOCHASTIC:
        return "it draws its chance itself and says no probabilities, so that a seed would not decide it"
    if not (kind.provides_information_state_string or kind.provides_observation_string):
        return "it says neither an information state nor an observation in words"
    if not all(math.isfinite(utility) for utility in (game.min_utility(), game.max_utility())):
        return "its utilities have no limits, so that nobody can say what a forfeit costs"
    return ""


def shows_information_state(game: Any) -> bool:
    """Whether players are best shown their information state: all they have learnt so far. Where nothing is hidden, or
    where only chance hides it, the observation is the board, and the information state a list of moves.
    """
    kind = game.get_type()
    if not kind.provides_observation_string:
        return True
    hidden = kind.information != Information.PERFECT_INFORMATION and game.num_players() > 1
    return bool(hidden and kind.provides_information_state_string)
