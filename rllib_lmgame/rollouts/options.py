"""Options of the rollouts: how many games, how they are seeded, what is logged."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from rllib_lmgame.base.errors import ConfigError, of_each
from rllib_lmgame.base.group import (
    REQUIRED,
    Group,
    Holds,
    Scheduled,
    as_mapping,
    build,
    check_placeholders,
    declared,
    option,
    tag,
    value_at,
)
from rllib_lmgame.base.registry import Registry
from rllib_lmgame.base.schedule import ScheduleOptions, schedules_in, with_schedules
from rllib_lmgame.base.step_timer import CALL_LIMIT_S
from rllib_lmgame.base.threads import AUTO
from rllib_lmgame.base.trust import is_name
from rllib_lmgame.policies.options import TalkOptions

EPISODES_OF_SAMPLE = 16
"""Of an iteration, that `episode_log: sample` writes, over all env runners."""


class TextRolloutOptions(Group):
    """The ``text_rollouts`` section."""

    episodes_per_iteration: Scheduled[int] = option(64, "Complete episodes per training iteration.", ge=1, le=1e6)
    group_size: int = option(1, "Games started from the same seed, whose episodes may be compared.", ge=1, le=100_000)
    episode_timeout_s: float = option(1800.0, "Wall-clock limit of an episode; slower ones are dropped.", gt=0)
    env_step_timeout_s: float = option(CALL_LIMIT_S, "Wall-clock limit of one `reset` or `step` of a game.", gt=0)
    format_penalty: Scheduled[float] = option(
        0.0, "Reward of a reply without a readable answer, added to the game's own penalty.", le=0
    )
    bootstrap_turn_limit: bool = option(
        False, "Bootstrap from the value of the state where a turn limit ends an episode."
    )
    constrained_decoding: bool = option(
        False,
        "Constrain replies to the legal moves, without reasoning, where a game lists some. Log-probabilities are among "
        "the allowed tokens, and tokens without an alternative are not trained on.",
    )
    reward_scale: Scheduled[float] = option(1.0, "Factor on rewards in training (not in metrics).", gt=0, le=1e6)
    deterministic: bool | Literal["auto"] = option(
        AUTO,
        "Repeat a run bit for bit on equal machines, with engines in float32 on CPUs; `auto`: on CPUs without "
        "oversampling or async rollouts, as far as engines in bfloat16 do.",
    )
    episode_log: str = option(
        "sample", "Episodes written: a `sample` (about 16 an iteration), or `all`.", choices=("sample", "all", "off")
    )
    max_failed_rounds: int = option(3, "Rounds in a row without a finished episode that end the run.", ge=1)


def share_of_groups(share: float, groups: int) -> int:
    """``share * groups``, rounded down; a whole number stays one whose share is a decimal: ``0.7 * 90`` is 63."""
    return math.floor(share * groups + 1e-9)


def groups_needed(num_learners: int, group_size: int, compares: bool) -> int:
    """Groups an update needs: one per learner if groups are compared (they stay together), else an episode each."""
    return max(1, num_learners if compares else math.ceil(num_learners / group_size))


def spare_groups(groups: int, oversample: float) -> int:
    """Groups started beyond ``groups``, rounded up without float error: ``1.1 * 30`` is 33."""
    return max(0, math.ceil(oversample * groups - 1e-9) - groups)


class KeptGroups(Group):
    """They are trained on as others."""

    type: str = tag("keep", "Its name.")


class DroppedGroups(KeptGroups):
    """They are left out."""

    type: str = tag("drop", "Its name.")
    max_refill: Scheduled[int] = option(
        0, "Most rounds in which further levels are played to replace those left out.", ge=0, le=1_000
    )


ZERO_VARIANCE_GROUPS = Registry.of("data_selection.zero_variance_groups", "choice", KeptGroups, DroppedGroups)


class OverlongOptions(Group):
    """``data_selection.overlong``: what long replies lose (DAPO's soft punishment)."""

    tokens: Scheduled[int] = option(REQUIRED, "A reply of more tokens than this loses `penalty` of its reward.", ge=1)
    buffer: Scheduled[int] = option(0, "The penalty grows from 0 over as many tokens before that.", ge=0)
    penalty: Scheduled[float] = option(1.0, "The penalty, in points of the game before `reward_scale`.", gt=0)


class NormalizeRewardsOptions(Group):
    """``data_selection.normalize_rewards``."""

    type: str = tag(
        REQUIRED, "Whose returns are compared; `group`: one level and role.", choices=("group", "batch", "game", "role")
    )
    deviation: bool = option(True, "Divide by the deviation; else only centre.")


class DataSelectionOptions(Group):
    """The ``data_selection`` section: what becomes of the episodes between play and update."""

    reward_variance_filter: Scheduled[float] = option(
        1.0, "Share of the groups trained on: those whose returns differ most.", gt=0, le=1
    )
    zero_variance_groups: Annotated[Any, ZERO_VARIANCE_GROUPS] = option(
        "keep", "`keep` or `drop` groups of equal returns; as many as the learners need stay in any case."
    )
    overlong: OverlongOptions | None = option(None, "Long replies lose some of their reward; null: none does.")
    normalize_rewards: NormalizeRewardsOptions | None = option(
        None, "Normalise each policy's returns before advantages; null: do not."
    )
    oversample: Scheduled[float] = option(
        1.0, "Start so many times the groups an iteration needs, and abandon those that finish last.", ge=1, le=10
    )

    @property
    def active(self) -> bool:
        """Whether anything is chosen or changed."""
        return self != DataSelectionOptions()


_NAME = re.compile(r"(?!\d+$)[\w-]{1,100}")

EnvConfig = Annotated[dict[str, Any], AfterValidator(with_schedules)]
"""Options of a game, of which some may follow schedules."""


_OF_TRAINING = ("weight", "episodes", "group_size", "reward_scale")


class GameConfig(Group):
    """One game to be played. What it says itself goes before what is said for all games."""

    env: str = option(REQUIRED, "Id of the game, or `package.module:Class`.")
    env_config: EnvConfig = option({}, "Its options; `rllib info GAME` lists them.")
    weight: Scheduled[float] = option(1.0, "Share of the episodes, relative to the other games.", ge=0)
    name: str | None = option(
        None, "Name in metrics, tables, logs and schedules, unique; null: its id.", stranger=is_name
    )
    language_model: dict[str, Any] = option(
        {}, "Overrides of `config.language_model` in this game.", holds=Holds(TalkOptions)
    )
    episodes: int | None = option(
        None, "Episodes of an iteration, in place of `weight`; in evaluations, of each one.", ge=1, le=1e6
    )
    group_size: int | None = option(
        None, "In place of `text_rollouts.group_size`; equal where games share by `weight`.", ge=1, le=100_000
    )
    temperature: Scheduled[float | None] = option(
        None, "In place of the temperature of `inference` or `evaluation_config`; 0 is greedy.", ge=0
    )
    format_penalty: Scheduled[float | None] = option(None, "In place of `text_rollouts.format_penalty`.", le=0)
    reward_scale: float | None = option(None, "In place of `text_rollouts.reward_scale`.", gt=0, le=1e6)

    @property
    def key(self) -> str:
        """The same for the same game with the same configuration, however models are talked to in it."""
        return f"{self.env}|{sorted(self.env_config.items(), key=lambda item: item[0])!r}"

    def called(self, game_id: str) -> str:
        """Its name in numbers and logs: its own, or the id of the game."""
        return self.name or game_id

    def as_mapping(self) -> dict[str, Any]:
        """What :func:`read_games` makes an equal entry of; options that ask for nothing are left out."""
        names = ("env", "env_config", *(() if self.episodes else ("weight",)))
        own = (key for key, each in declared(GameConfig).items() if value_at(self, key) != each.default)
        return {key: copy.deepcopy(value_at(self, key)) for key in dict.fromkeys((*names, *own))}

    def evaluated(self, temperature: float | None) -> GameConfig:
        """A training game in an evaluation, which may have a ``temperature`` of its own, and says how many episodes."""
        own = self.temperature if temperature is None else None
        return self.model_copy(update={"temperature": own, **dict.fromkeys(_OF_TRAINING), "weight": 1.0})

    def sampled_at(self, temperature: float | None) -> float | None:
        """The temperature of replies in this game, where ``temperature`` is that of all games."""
        return temperature if self.temperature is None else self.temperature

    def asked(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Options of ``language_model`` that the game has in place of everybody's; not those that a policy has."""
        return {key: value for key, value in self.language_model.items() if key not in own}


def read_games(value: Any, path: str = "config.games") -> tuple[GameConfig, ...]:
    """Games from a YAML list of names or mappings. Raises: ConfigError: names the wrong entry."""
    if isinstance(value, tuple) and all(isinstance(game, GameConfig) for game in value):
        _check_names(value, path)
        return value
    if not isinstance(value, list | tuple) or not value:
        raise ConfigError(path, "expected a list of games")
    games = of_each(lambda each: _built(each[1], f"{path}[{each[0]}]"), enumerate(value))
    _check_names(games, path)
    return tuple(games)


def read_evaluated(value: Any) -> tuple[GameConfig, ...] | None:
    """Games of evaluations, as :func:`read_games`; nothing of them changes."""
    if value is None:
        return None
    games = read_games(value, "config.evaluation_config.games")
    for position, game in enumerate(games):
        where = f"config.evaluation_config.games[{position}]"
        for key in schedules_in(game):
            raise ConfigError(f"{where}.{key}", "cannot change: evaluations are compared")
        for key in _OF_TRAINING:
            if key != "episodes" and value_at(game, key) != declared(GameConfig)[key].default:
                raise ConfigError(f"{where}.{key}", "has no effect in an evaluation; leave it out")
    return games


def game_of_env(env: Any, env_config: Mapping[str, Any]) -> tuple[GameConfig, ...]:
    """The game of ``env``, where it is set; it is checked later."""
    return (GameConfig.model_construct(env=env, env_config=dict(env_config)),) if env else ()


def shares_of(games: Sequence[GameConfig]) -> list[float]:
    """Shares of games where there is no iteration: by their ``episodes`` if each says them, else by weight."""
    if all(game.episodes for game in games):
        return [float(game.episodes or 0) for game in games]
    return [game.weight for game in games]


def _built(entry: Any, where: str) -> GameConfig:
    """One entry, its ``language_model`` with checked values."""
    fields = {"env": entry} if isinstance(entry, str) else entry
    if not isinstance(fields, Mapping):
        raise ConfigError(where, "expected the name of a game, or a mapping with env, env_config and weight")
    game = build(GameConfig, fields, where)
    if not isinstance(game.weight, ScheduleOptions) and game.weight <= 0:
        raise ConfigError(f"{where}.weight", "must be greater than 0")
    if game.episodes and game.weight != 1:
        raise ConfigError(f"{where}.weight", "has no effect beside `episodes`; leave one of them out")
    talk = build(TalkOptions, game.language_model, f"{where}.language_model")
    if "turn_suffix" in game.language_model:
        check_placeholders(value_at(talk, "turn_suffix"), ("turns_left",), f"{where}.language_model.turn_suffix")
    values = as_mapping(talk)
    found = {key: value_at(talk, key) for key in game.language_model}
    checked = {key: value if isinstance(value, ScheduleOptions) else values[key] for key, value in found.items()}
    return game.model_copy(update={"language_model": checked}) if checked else game


def _check_names(games: Sequence[GameConfig], path: str) -> None:
    ids = {game.env.replace("/", "_") for game in games if game.name is None}
    taken: dict[str, int] = {}
    for position, name in enumerate(game.name for game in games):
        if name is None:
            continue
        where = f"{path}[{position}].name"
        if not _NAME.fullmatch(name):
            raise ConfigError(where, f"{name[:120]!r} is no name: up to 100 letters, digits, - and _, not digits alone")
        if name in taken or name in ids:
            other = f"{path}[{taken[name]}]" if name in taken else "an entry without a name"
            raise ConfigError(where, f"{other} is called {name!r} too; every entry needs a name of its own")
        taken[name] = position
