"""The index of games, ``rllib_lmgame/envs/index.json``: a row for each of the ``variants`` of the classes in
``rllib_lmgame.envs.games``.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
from collections.abc import Iterator
from typing import Any

import gymnasium
from pettingzoo import AECEnv

from rllib_lmgame.base.errors import MissingDependencyError
from rllib_lmgame.base.group import declared
from rllib_lmgame.envs import games
from rllib_lmgame.envs.contract.base import TextGame, Variant
from rllib_lmgame.envs.contract.multi_agent import TextMultiAgentGame
from rllib_lmgame.envs.games import FAMILIES
from rllib_lmgame.envs.registry import INDEX, session_of


def index_text() -> str:
    """The index, a line for each game. Rows of games that cannot be imported here (no Java ...) are kept as they are.

    Raises:
        ValueError: if two games have the same id, or a folder of games is no family.
    """
    folders = {module.name for module in pkgutil.iter_modules(games.__path__)}
    if folders != FAMILIES.keys():
        raise ValueError(f"folders of games and rllib_lmgame.envs.games.FAMILIES differ: {folders ^ FAMILIES.keys()}")
    rows = [row for family, title in FAMILIES.items() for row in _rows_of_family(family, title)]
    ids = [row["game_id"] for row in rows]
    twice = sorted({game_id for game_id in ids if ids.count(game_id) > 1})
    if twice:
        raise ValueError(f"several games have the id {', '.join(twice)}")
    return "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n"


def _rows_of_family(family: str, title: str) -> Iterator[dict[str, Any]]:
    package = importlib.import_module(f"{games.__name__}.{family}")
    seen: list[type] = []
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        try:
            classes = _classes_in(found.name)
            rows = [
                _row(cls, found.name, title, variant) for cls in classes if cls not in seen for variant in cls.variants
            ]
        except (ModuleNotFoundError, MissingDependencyError):
            rows = _rows_before(found.name)
        else:
            seen += classes
        yield from rows


def _classes_in(module: str) -> list[Any]:
    """Listed classes that are defined in a module, or that a package offers from its own modules."""
    members = vars(importlib.import_module(module)).values()
    classes = [cls for cls in members if inspect.isclass(cls) and f"{cls.__module__}.".startswith(f"{module}.")]
    return [cls for cls in classes if vars(cls).get("variants")]


def _row(cls: Any, module: str, family: str, variant: Variant) -> dict[str, Any]:
    """The arguments of a :class:`~rllib_lmgame.envs.registry.GameSpec`, those that are its defaults left out."""
    env = cls(**variant.defaults)
    session = session_of(variant.game_id, env)
    roles = list(session.roles.values())
    session.close()
    row = {
        "game_id": variant.game_id,
        "entry_point": f"{module}:{cls.__name__}",
        "summary": variant.summary or inspect.cleandoc(cls.__doc__).partition("\n\n")[0].replace("\n", " "),
        "family": family,
        "reward_range": list(variant.reward_range),
        "horizon": env.options.max_turns if isinstance(env, TextGame) else env.turn_limit(),
        "solver": _has_solver(cls),
    }
    if not isinstance(env, gymnasium.Env):
        row["kind"] = "aec" if isinstance(env, AECEnv) else "parallel"
        row["players"] = variant.players or _players(env.options, len(roles))
    if roles != ["player"]:
        row["roles"] = roles
    if cls.extra is not None:
        row["extra"] = cls.extra
    if variant.defaults:
        row["defaults"] = dict(variant.defaults)
    return row | {"options": list(declared(cls.Options))}


def _has_solver(cls: Any) -> bool:
    base = TextGame if issubclass(cls, TextGame) else TextMultiAgentGame
    return cls.expert_action is not base.expert_action or (base is TextGame and cls.solve is not TextGame.solve)


def _players(options: Any, seats: int) -> str:
    """The limits of the option ``players``; without one the seats there are."""
    limits = declared(type(options)).get("players")
    return f"{limits.says['ge']}-{limits.says['le']}" if limits is not None else str(seats)


def _rows_before(module: str) -> list[dict[str, Any]]:
    """What the index says of a module's games now."""
    rows: list[dict[str, Any]] = json.loads(INDEX.read_text(encoding="utf-8"))
    return [row for row in rows if row["entry_point"].partition(":")[0] == module]
