"""Games by name: ids of this package, import paths, and games other packages announce.

A game can be named by

* an id, ``lmgame/Sokoban-v0``;
* a task on a server of others, ``agentgym:textcraft``, or an environment there, ``openenv:http://HOST:PORT``;
* a program of yours that asks the policy for completions, ``agent:package.module:function``;
* an import path, ``package.module:Class`` (a class, or a function that returns an environment);
* the name of an entry point in the group ``rllib_lmgame.games``.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium

from rllib_lmgame.base.errors import ConfigError, MissingDependencyError, did_you_mean, nearest
from rllib_lmgame.base.plugin import attribute_of, missing_import, where_it_was_sought
from rllib_lmgame.base.step_timer import CALL_LIMIT_S
from rllib_lmgame.base.text import in_words
from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.contract.session import GameSession

ENTRY_POINT_GROUP = "rllib_lmgame.games"
KINDS = ("gymnasium", "aec", "parallel")
READY = "check_ready"
"""Method of games that need something which runs beside them (a server, a judge); it says nothing where they do not."""
WITHOUT_REQUIREMENTS = {"browsergym": "--no-deps browsergym-core browsergym-miniwob"}
"""Module -> what pip installs it with, where its requirements do not go with ours (it pins Playwright 1.44)."""

TEXT_OF_GYMNASIUM = "rllib_lmgame.envs.games.adapted.gym_games.game:GymTextGame"

INDEX = Path(__file__).with_name("index.json")
"""What the classes of this package's games say, written by ``docs/generate.py``: read here, so that no game is imported
before it is made.
"""


@dataclass(frozen=True)
class GameSpec:
    """What is known of a game before it is built.

    Attributes:
        game_id: Name to ask for it.
        entry_point: ``package.module:Class``.
        summary: One line.
        kind: ``gymnasium`` (one player), ``aec`` (turns) or ``parallel`` (all at once).
        players: Number of players, as text (``1``, ``2``, ``2-3``).
        roles: Roles at the default options.
        horizon: Replies per player at most, at the default options; ``None`` if there is no fixed limit.
        reward_range: Smallest and largest return of one player that can come about at the default options.
        extra: Extra of this package that installs what the game needs, or ``None``.
        solver: Whether ``expert_action`` gives an answer.
        defaults: ``env_config`` values that make a variant.
        options: Keys of ``env_config``; none where they are not known before the game is imported.
        family: Title below which it is listed.
        own: It is part of this package, as the index says: its calls need no watch (unless the game says that they take
            long), and a stranger's file may name it.
    """

    game_id: str
    entry_point: str
    summary: str = ""
    kind: str = "gymnasium"
    players: str = "1"
    roles: tuple[str, ...] = ("player",)
    horizon: int | None = None
    reward_range: tuple[float, float] | None = None
    extra: str | None = None
    solver: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    family: str = "Games of other packages"
    own: bool = False

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> GameSpec:
        """A row of the index."""
        fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
        return cls(**fields, own=True)

    def cells(self) -> tuple[str, ...]:
        """Players, replies, return, solver, extra and summary, as tables of games show them."""
        reach = "" if self.reward_range is None else f"{self.reward_range[0]:g} to {self.reward_range[1]:g}"
        horizon = "" if self.horizon is None else str(self.horizon)
        return (self.players, horizon, reach, "yes" if self.solver else "", self.extra or "", self.summary)


_GAMES: dict[str, GameSpec] = {}

ON_SERVERS = "agentgym"
"""Ids of games on servers of others begin with it and a colon."""

AT_ADDRESSES = "openenv:URL"
"""Stands for the ids of environments on servers of OpenEnv, which have their address in place of `URL`."""

AGENT_PROGRAMS = "agent:PROGRAM"
"""Stands for the ids of agent programs, which have their import path in place of `PROGRAM`."""


ADAPTED = "rllib_lmgame.envs.games.adapted"


@cache
def served() -> Mapping[str, GameSpec]:
    """Games by ids that need more than this package: servers, sites, or a program of yours."""
    from rllib_lmgame.envs.games.adapted.agentgym.tasks import TASKS

    known = [
        GameSpec(
            f"{ON_SERVERS}:{name}",
            f"{ADAPTED}.agentgym.game:AgentGym",
            task.summary,
            horizon=task.turns,
            defaults={"task": name, "max_turns": task.turns},
            family="Tasks on AgentGym's servers",
        )
        for name, task in TASKS.items()
    ]
    sites = GameSpec(
        "lmgame/WebArena-v0",
        "rllib_lmgame.envs.games.web.web_arena.game:WebArena",
        "A task on a copy of a shop, a forum, GitLab, a map or Wikipedia (needs Chromium and the sites).",
        horizon=30,
        reward_range=(-2.1, 1.0),
        extra="browser",
        family="Shops, sites and search",
    )
    known += [sites, at_address("URL"), of_program("PROGRAM")]
    return {spec.game_id: spec for spec in known}


def at_address(url: str) -> GameSpec:
    """The environment on a server of OpenEnv."""
    return GameSpec(
        f"{AT_ADDRESSES.removesuffix('URL')}{url}",
        f"{ADAPTED}.openenv.game:OpenEnv",
        "An environment on a server that speaks OpenEnv's protocol.",
        defaults={"url": url},
        family="Environments on servers of OpenEnv",
    )


def is_program(game: str) -> bool:
    """Whether an id is that of an agent program."""
    return game.startswith(AGENT_PROGRAMS.removesuffix("PROGRAM"))


def of_program(path: str) -> GameSpec:
    """The agent program at an import path."""
    return GameSpec(
        f"{AGENT_PROGRAMS.removesuffix('PROGRAM')}{path}",
        f"{ADAPTED}.agent_program.game:AgentProgram",
        "A program of yours that asks the policy for completions.",
        defaults={"program": path},
        family="Programs of yours",
    )


def register_own_games() -> None:
    """Make the games of the index known."""
    for row in json.loads(INDEX.read_text(encoding="utf-8")):
        register_game(GameSpec.from_row(row))


def register_game(spec: GameSpec) -> None:
    """Make a game known under its id; one for a single player is registered with Gymnasium as well.

    Raises: ConfigError: if the id is taken by another game, or the spec cannot be right.
    """
    known = _GAMES.get(spec.game_id, spec)
    if known != spec:
        raise ConfigError("game", f"the id {spec.game_id!r} is taken by {known.entry_point}; choose another one")
    if spec.kind not in KINDS:
        raise ConfigError("game", f"kind of {spec.game_id!r} is {spec.kind!r}; it must be one of {', '.join(KINDS)}")
    if ":" not in spec.entry_point:
        read = f"entry_point of {spec.game_id!r} is {spec.entry_point!r}"
        raise ConfigError("game", f"{read}; it must read package.module:Class")
    _GAMES[spec.game_id] = spec
    if spec.kind == "gymnasium" and spec.game_id not in gymnasium.registry:
        gymnasium.register(spec.game_id, entry_point=spec.entry_point, kwargs=dict(spec.defaults))


def games() -> dict[str, GameSpec]:
    """All games known by id: those of this package in the order of the index, on servers, then those of others."""
    known = {**_GAMES, **served()}
    return known | {name: spec for name, spec in _announced(tuple(sys.path)).items() if name not in known}


@cache
def _announced(path: tuple[str, ...]) -> Mapping[str, GameSpec]:
    """Games of the packages installed on ``path``; looking through them takes 10 ms, and is done once."""
    points = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    said = {name: f"from {point.dist.name if point.dist else point.value}" for name, point in points.items()}
    return {name: GameSpec(name, point.value, said[name], kind="") for name, point in points.items()}


def own_games() -> dict[str, GameSpec]:
    """The games of this package by id, in the order of the index."""
    return {game_id: spec for game_id, spec in _GAMES.items() if spec.own}


def game_spec(game: str) -> GameSpec:
    """The spec of an id, entry point name or import path.

    Raises: ConfigError: if there is no such game; the message names the nearest one.
    """
    known = games()
    if game in known:
        return known[game]
    if game.startswith(AT_ADDRESSES.removesuffix("URL")):
        return at_address(game.partition(":")[2])
    if is_program(game):
        return of_program(game.partition(":")[2])
    if game.startswith(f"{ON_SERVERS}:"):
        tasks = [name for name in served() if name.startswith(f"{ON_SERVERS}:")]
        hint = did_you_mean(game, tasks, f"tasks: {', '.join(name.partition(':')[2] for name in tasks)}")
        raise ConfigError("game", f"unknown game {game!r}; {hint}")
    if ":" in game:
        return GameSpec(game, game, kind="", own=any(spec.entry_point == game for spec in own_games().values()))
    if game.endswith(".py"):
        module = game.removesuffix(".py").removeprefix("./").replace("/", ".")
        raise ConfigError("game", f"{game!r} is a file; name the class in it: {module}:CLASS")
    if game in gymnasium.registry:
        of_words = f"one with words for its actions and its state is a text game as {TEXT_OF_GYMNASIUM}"
        what = f"{game!r} is an environment of Gymnasium, which stock algorithms (`PPO`) train on, and no text game"
        raise ConfigError("game", f"{what}; {of_words} with `env_config: {{env_id: {game}}}`")
    match = nearest_game(game, known)
    hint = f"did you mean {match!r}?" if match else "`rllib games list` shows those there are."
    raise ConfigError("game", f"unknown game {game!r}; {hint} A game of your own is named package.module:Class")


def nearest_game(game: str, known: Iterable[str]) -> str | None:
    """The id nearest to ``game`` by what tells ids from each other: not the namespace, not the version."""
    short = {_short_name(game_id): game_id for game_id in sorted(known, reverse=True)}
    name = _short_name(game)
    if name in short:
        return short[name]
    longer = sorted((other for other in short if len(name) > 2 and other.startswith(name)), key=len)
    match = nearest(name, [other for other in short if abs(len(other) - len(name)) <= 2]) or (
        longer[0] if longer else nearest(name, short, 0.7)
    )
    return None if match is None else short[match]


def _short_name(game_id: str) -> str:
    return re.sub(r"-v\d*$", "", game_id.rpartition("/")[2].lower())


def _imported(module_name: str) -> ModuleType:
    """Import a module, one of others in a thread with a time limit. Raises: TimeoutError: late; what it raises."""
    module = sys.modules.get(module_name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        return module
    if module_name.startswith("rllib_lmgame."):
        return importlib.import_module(module_name)
    found: Future[ModuleType] = Future()

    def work() -> None:
        try:
            found.set_result(importlib.import_module(module_name))
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=work, daemon=True, name="game-import").start()
    try:
        return found.result(CALL_LIMIT_S)
    except TimeoutError:
        if found.done():
            raise
        raise TimeoutError(f"it takes longer than {CALL_LIMIT_S:g} s") from None


def load_factory(spec: GameSpec) -> Callable[..., Any]:
    """The class (or function) that builds the game.

    Raises:
        ConfigError: if the module or the name does not exist.
        MissingDependencyError: if the game needs a package that is not installed.
    """
    module_name, _, attribute = spec.entry_point.partition(":")
    try:
        module = _imported(module_name)
    except ModuleNotFoundError as error:
        if error.name and not (module_name == error.name or module_name.startswith(error.name + ".")):
            if spec.extra is None:
                raise MissingDependencyError(f"game {spec.game_id!r}: {missing_import(module_name, error)}") from error
            packages = WITHOUT_REQUIREMENTS.get(error.name.partition(".")[0], f"'rllib-lmgame[{spec.extra}]'")
            raise MissingDependencyError(
                f"game {spec.game_id!r} needs the package {error.name!r}: pip install {packages}"
            ) from error
        sought = where_it_was_sought(module_name, error)
        raise ConfigError("game", f"cannot import {module_name!r} of game {spec.game_id!r}: {error}{sought}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        reason = f"importing {module_name!r} of game {spec.game_id!r} fails: {in_words(error)}"
        raise ConfigError("game", reason) from error
    factory = attribute_of(module, attribute, "game")
    lacks_step = isinstance(factory, type) and not hasattr(factory, "step")
    if lacks_step or not callable(factory):
        kind = "a class without `step`" if lacks_step else type(factory).__name__
        must = "it must be a class or a function that returns an environment"
        raise ConfigError("game", f"{spec.entry_point!r} is {kind}; {must}")
    return factory


def options_of(game: str) -> type | None:
    """The option group of a game's ``env_config``; ``None`` where the game has none, as games of others."""
    return getattr(load_factory(game_spec(game)), "Options", None)


def check_game(game: str, env_config: Mapping[str, Any]) -> None:
    """Check what can be seen without making the game: there is such a game, and it takes such arguments.

    Raises: ConfigError: for an unknown game, or a key that a game without option group does not take.
    """
    spec = game_spec(game)
    factory = load_factory(spec)
    if not hasattr(factory, "Options"):
        check_arguments(factory, {**spec.defaults, **env_config})


def check_arguments(factory: Callable[..., Any], env_config: Mapping[str, Any], more: Collection[str] = ()) -> None:
    """Raise :class:`ConfigError` for the first key that is neither an argument of ``factory`` nor one of ``more``."""
    try:
        arguments = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # Written in C, say: what it takes is seen when it is called.
        return
    if any(argument.kind is argument.VAR_KEYWORD for argument in arguments):
        return
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = [*(argument.name for argument in arguments if argument.kind in by_name), *more]
    for key in env_config:
        if key not in names:
            hint = did_you_mean(key, names, f"there are {', '.join(names)}" if names else "there are none")
            raise ConfigError(
                f"env_config.{key}", f"{getattr(factory, '__name__', factory)} has no such argument; {hint}"
            )


def make(game: str, **env_config: Any) -> Any:
    """The environment of a game, for one player (a ``gymnasium.Env``) or several (PettingZoo):
    ``make("lmgame/KuhnPoker-v0", players=3)``.

    Raises: ConfigError: for an unknown game or key, or an impossible value.
    """
    return make_game(game, env_config)


def make_game(game: str, env_config: Mapping[str, Any] | None = None) -> Any:
    """The environment itself, without a session (and without Gymnasium's wrappers).

    Raises: ConfigError: for an unknown game or key, or an impossible value.
    """
    spec = game_spec(game)
    config = {**spec.defaults, **(env_config or {})}
    if game.startswith(f"{ON_SERVERS}:") and config["task"] != spec.defaults["task"]:
        raise ConfigError("env_config.task", f"the game's name says it; write env: {ON_SERVERS}:TASK")
    factory = load_factory(spec)
    if not hasattr(factory, "Options"):
        check_arguments(factory, config)
    try:
        return factory(**config)
    except (ConfigError, MissingDependencyError, GameError):
        raise
    except TypeError as error:
        message = f"game {spec.game_id!r} does not take {config} as keyword arguments: {error}"
        raise ConfigError("env_config", message) from error
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:  # Such as sys.exit(), which would end whoever makes the game.
        raise GameError(f"game {spec.game_id!r} cannot be made: {in_words(error)}") from error


def make_session(game: str, env_config: Mapping[str, Any] | None = None) -> GameSession:
    """A session of ``game``, ready for ``reset``.

    The rules stand in ``session.instructions`` (a policy shows them as the system prompt), so the games of this package
    leave them out of the first observation unless ``env_config`` says ``show_rules: true``.

    Raises:
        ConfigError: for an unknown game or key, or an impossible value.
        GameError: if it is no text environment.
    """
    spec = game_spec(game)
    config = dict(env_config or {})
    if options_of(game) is not None:
        config = {"show_rules": False, **config}
    return session_of(spec.game_id, make_game(game, config), own=spec.own)


def session_of(game_id: str, env: Any, own: bool = False) -> GameSession:
    """The session that fits the environment.

    Args:
        game_id: Id or import path, for messages.
        env: The environment.
        own: It is a game of this package (:attr:`GameSpec.own`).

    Raises: GameError: if ``env`` is neither a Gymnasium nor a PettingZoo environment.
    """
    from pettingzoo import AECEnv, ParallelEnv

    from rllib_lmgame.envs.contract.adapters import AECSession, GymnasiumSession, ParallelSession

    kind = f"{game_id}: {type(env).__name__} is"
    if any(base.__name__ == "MultiAgentEnv" for base in type(env).__mro__):  # It derives from gymnasium.Env.
        raise GameError(f"{kind} RLlib's MultiAgentEnv; a game for several is pettingzoo's AECEnv or ParallelEnv here")
    for base, session in ((gymnasium.Env, GymnasiumSession), (AECEnv, AECSession), (ParallelEnv, ParallelSession)):
        if isinstance(env, base):
            return session(game_id, env, own)
    raise GameError(f"{kind} neither a gymnasium.Env nor a pettingzoo AECEnv or ParallelEnv")


def made_up_levels(games: Iterable[Any]) -> list[str]:
    """A line for each of the games (with ``env`` and ``env_config``) that make up levels like published ones."""
    said = []
    for game in games:
        spec = game_spec(game.env)
        option, real = getattr(load_factory(spec), "real_levels", ("", ""))
        if real and {**spec.defaults, **game.env_config}.get(option) is None:
            said.append(f"{game.env} plays made-up levels, not {real}")
    return list(dict.fromkeys(said))
