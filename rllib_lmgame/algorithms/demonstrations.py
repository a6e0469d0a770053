"""Demonstrations by a game's solver, on training levels: the same for the same seed, in every process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllib_lmgame.algorithms.games import on_split
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import values_of
from rllib_lmgame.envs.contract.session import GameSession
from rllib_lmgame.envs.contract.splits import TRAIN
from rllib_lmgame.policies.demonstrations import KEY, Demonstration
from rllib_lmgame.policies.options import LanguageModelOptions
from rllib_lmgame.rollouts.game_calls import call_game, opened
from rllib_lmgame.rollouts.plans import stable_seed
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.rollouts.seats import EpisodeFailed

TRIES = 200
"""Seeds in a row that show nothing new, until there is taken to be no more."""
MOST_MADE = 256
"""Games whose demonstrations a process remembers."""

_MADE: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
"""Those made in this process, by all that they depend on."""


def with_demonstrations(options: LanguageModelOptions, games: Iterable[GameConfig], seed: int) -> LanguageModelOptions:
    """``options`` with the turns themselves where they say how many: per game, of its first configuration in ``games``.

    Raises: ConfigError: a game has no solver with its options, or too few levels.
    """
    count = options.demonstrations
    if not isinstance(count, int) or not count:
        return options
    first: dict[str, GameConfig] = {}
    think: set[str] = set()
    for game in on_split(tuple(games), TRAIN, override=True):
        first.setdefault(game.env, game)
        think |= {game.env} if game.language_model.get("think", options.think) != "off" else set()
    found = []
    for game in first.values():
        thinks = options.think != "off" or game.env in think
        key = (game.key, count, thinks, seed)
        if key not in _MADE:
            if len(_MADE) >= MOST_MADE:
                _MADE.clear()
            _MADE[key] = _turns_of(game, count, thinks, seed)
        found += _MADE[key]
    return options.model_copy(update={"demonstrations": found})


def _turns_of(game: GameConfig, count: int, thinks: bool, seed: int) -> list[dict[str, Any]]:
    try:
        with opened(game.env, game.env_config) as session:
            turns = _demonstrated(session, count, thinks, seed)
    except EpisodeFailed as error:
        raise ConfigError(KEY, f"none can be made: {error}") from None
    return [{key: each for key, each in values_of(turn).items() if each not in ("", None)} for turn in turns]


def _demonstrated(session: GameSession, count: int, thinks: bool, seed: int) -> list[Demonstration]:
    """The n-th shows the n-th turn of each role in the solver's game of a level, or its last one there."""
    roles = list(dict.fromkeys(session.roles.values()))
    levels: dict[str, dict[str, Demonstration]] = {}
    tries = number = 0
    level: str | None = None
    while tries < TRIES:
        number, tries = number + 1, tries + 1
        level_seed = stable_seed(seed, "demonstrations", session.game_id, number)
        level = call_game(session, "reset", _level_of, session, level_seed)
        if level in levels:
            continue
        if len(levels) == count:  # This level is left to be played.
            return [levels[key][role] for role in roles for key in levels]
        played = call_game(session, "the solver's game", _played, session, len(levels), thinks)
        key = "\n".join(turn.observation for turn in played.values()) if level is None else level
        if key in levels or len(played) < len(roles):
            continue
        for role, turn in played.items():
            own = {"role": role if len(roles) > 1 else "", "level": level or ""}
            levels.setdefault(key, {})[role] = turn.model_copy(update=own)
        tries = 0
    most, left = (len(levels), "") if level is None else (len(levels) - 1, ", since a level must be left to play")
    raise ConfigError(KEY, f"is {count}, but {session.game_id} can show at most {most} with these options{left}")


def _level_of(session: GameSession, seed: int) -> str | None:
    session.reset(seed)
    return session.level()


def _played(session: GameSession, at: int, thinks: bool) -> dict[str, Demonstration]:
    found: dict[str, Demonstration] = {}
    counts = dict.fromkeys(session.roles.values(), 0)
    while (agents := session.to_act()) and min(counts.values()) <= at:
        actions = {}
        for agent in agents:
            role, seen = session.roles[agent], session.observe(agent)
            thought = session.expert_thought(agent) if thinks else None
            action = session.expert_action(agent)
            if action is None:
                raise ConfigError(KEY, f"{session.game_id} has no solver with these options; name a file")
            actions[agent] = action
            if counts[role] <= at:
                found[role] = Demonstration(
                    observation=seen.text,
                    action=action,
                    think=thought,
                    turns_left=seen.turns_left,
                    game=session.game_id,
                )
            counts[role] += 1
        session.step(actions)
    return found
