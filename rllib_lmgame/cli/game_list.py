"""Which games ``rllib evaluate`` plays: ``--games a,b@{num_boxes: 2},NAME=c``, or those of a tuned example."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.plugin import find_in_current_directory

if TYPE_CHECKING:
    from rllib_lmgame.rollouts.records import GameConfig

FLAG = "--games"
FORM = "GAME, NAME=GAME or GAME@{num_boxes: 2}"
_INNER = r"""\{(?:[^{}'"]|'[^']*'|"[^"]*")*\}"""
_ENTRY = rf"""(?: *[^,{{}}\s](?:[^,{{}}]|\{{(?:[^{{}}'"]|'[^']*'|"[^"]*"|{_INNER})*\}})*)"""
"""Options stand between braces, one pair in another at most."""


def listed(texts: Iterable[str]) -> list[str]:
    """The entries of lists joined by commas, of which those between braces part nothing. Raises: ConfigError."""
    found = []
    for text in texts:
        if not re.fullmatch(f"{_ENTRY}(?:,{_ENTRY})*", text):
            why = f"expected games joined by commas, each {FORM}, with every bracket and quote closed, got {text!r}"
            raise ConfigError(FLAG, why)
        found += [entry.strip() for entry in re.findall(_ENTRY, text)]
    return found


def named_games(entries: Iterable[str], env_config: Mapping[str, Any]) -> dict[str, GameConfig]:
    """The games by name; one without a name is called by its id. ``env_config`` goes on top of the options of each.

    Games and their parts are found in the current directory too.

    Raises: ConfigError: no such game, options that are no mapping, or a name twice.
    """
    from rllib_lmgame.envs.registry import game_spec
    from rllib_lmgame.evaluation.players.naming import split_name
    from rllib_lmgame.experiments.files.reading import load_text
    from rllib_lmgame.rollouts.records import GameConfig

    games: dict[str, GameConfig] = {}
    for entry in entries:
        head, at, options = entry.partition("@{")
        name, env = split_name(head.strip())
        own = load_text("{" + options, f"{FLAG} {entry}")[0] if at else {}
        if not isinstance(own, dict):
            raise ConfigError(FLAG, f"{entry!r}: the options of a game are a mapping, {FORM}")
        find_in_current_directory([env, own, env_config])
        game = GameConfig(env=game_spec(env).game_id, env_config={**own, **env_config})
        name = name or game.env
        if name in games:
            raise ConfigError(FLAG, f"two games are called {name!r}; give one another name: NAME={entry}")
        games[name] = game
    return games


def with_names(games: Sequence[GameConfig]) -> dict[str, GameConfig]:
    """Games of a configuration by their names; of those that share one the second is ``ID (2)``, and so on."""
    seen: Counter[str] = Counter()
    named = {}
    for game in games:
        called = game.called(game.env)
        seen[called] += 1
        named[called if seen[called] == 1 else f"{called} ({seen[called]})"] = game
    return named


def suite(name: str) -> tuple[tuple[GameConfig, ...], int | None]:
    """The evaluation games of all experiments of a tuned example or a file, and how many episodes they play of each.

    The number is ``None`` if experiments say none, or several. Raises: ConfigError: there is no such example or file.
    """
    from rllib_lmgame.base.storage import expanded
    from rllib_lmgame.cli.example import find_example
    from rllib_lmgame.experiments.files.reading import read_experiments

    file = expanded(name)
    experiments = read_experiments(str(file if file.is_file() else find_example(name)))
    played = [_evaluated(spec.config) for spec in experiments]
    games = {repr(game): game for each, _ in played for game in each}
    episodes = {number for _, number in played}
    return tuple(games.values()), episodes.pop() if len(episodes) == 1 else None


def _evaluated(config: Mapping[str, Any]) -> tuple[tuple[GameConfig, ...], int | None]:
    from rllib_lmgame.config.algorithms import PPO

    own = {key: config[key] for key in config if key in ("env", "env_config", "games")}
    given = config.get("evaluation_config") or {}
    evaluation = {key: given[key] for key in ("games", "temperature", "explore") if given.get(key) is not None}
    episodes = config.get("evaluation_duration")
    made = PPO.config_class()().update_from_dict({**own, "evaluation_config": evaluation})
    played, sampled = made.games_for_evaluation("test"), made.run.evaluation_config.sampling
    games = tuple(game.model_copy(update={"temperature": game.sampled_at(sampled)}) for game in played)
    return games, episodes if isinstance(episodes, int) else None
