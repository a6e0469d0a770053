"""Which numbers of the results a schedule may follow: those that results have, and have again after a resume."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from rllib_lmgame.algorithms.facts import PolicyFacts, state_rollouts
from rllib_lmgame.algorithms.selection import COUNTS, SELECTION
from rllib_lmgame.envs.registry import game_spec
from rllib_lmgame.errors import ConfigError, nearest
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.settings.algorithms import OWN
from rllib_lmgame.settings.schedules import ENV_STEPS, NUMBERS, PPO_ITERATION, place_of
from rllib_lmgame.telemetry.gauges import LMGameGauges
from rllib_lmgame.telemetry.metrics import (
    CRITIC_NAMES,
    EPISODE_NAMES,
    LEAGUE_NAMES,
    LEARNER_NAMES,
    MEASURES,
    OF_TUNE,
    OUTCOME_RATES,
    RATES,
    RLLIB_EVALUATION,
    TIMER_COLUMNS,
    VINE_NAMES,
)

NEVER_FOLLOWED = {
    "config": "is what is configured, which never changes",
    "done": "is no number",
    "phase": "is 1 in every result that schedules follow",
    "supervised_steps": "stands still where schedules are followed",
    "training_iteration": "also counts the iterations of a warm start; use ppo_iteration",
    "iterations_since_restore": "begins anew when a run is resumed; use ppo_iteration",
    "time_since_restore": "begins anew when a run is resumed; use time_total_s",
}
"""What results have and no schedule may follow, and why."""

_NUMBERS = (
    *(PPO_ITERATION, ENV_STEPS, "time_total_s", "time_this_iter_s"),
    *("num_env_steps_sampled_lifetime", "num_training_step_calls_per_iteration"),
)
"""Numbers at the top of a result, beside those of an algorithm's entry."""

EVALUATION_NAMES = tuple(
    name
    for name in EPISODE_NAMES
    if name not in ("generated_tokens_per_s", "engine_busy_fraction", "prompt_tokens_computed_fraction")
    and not name.startswith("num_env_steps_sampled")
    and name != "num_episodes_lifetime"
)
"""First parts of what evaluations report below ``evaluation/env_runners``."""

_RLLIB_TIMERS = ("restore_env_runners", "synch_env_connectors", "training_iteration", "training_step")
_RLLIB_GROUPS = ("fault_tolerance", "env_runner_group", "perf")
_SEVERAL = (
    *("agent_episode_returns_mean", "module_episode_returns_mean", "role_returns_mean", "stop_reason", "dropped"),
    *("games", "seat_returns_mean", MEASURES, *OUTCOME_RATES),
    *("mean_win_rate", "rating", "exploiters"),
)
"""Second parts of names that need a third one."""

_OF_STAGE = "confident_fraction"
"""What a supervised stage reports of a policy, and PPO does not."""

_TOP = ""
"""Among first parts below which there is nothing else: there are no other first parts either."""

_OF_A_POLICY = "learners/"
"""Likewise: below a policy's name there is nothing but what this package reports."""

Known = Mapping[str, Collection[str] | None]
"""First parts of names -> the second parts that are known (of a number of its own ``""``), ``None`` where none is."""


def check_metrics(config: Any) -> None:
    """Raise :class:`ConfigError` for a schedule by what is in no result, or says nothing there."""
    known, closed = followed(config)
    for key, options in config.schedule_options.items():
        problem = metric_problem(options.by, config, known, closed)
        if problem is None and _OF_A_POLICY in closed:
            problem = _lacks_critic(options.by, config)
        if problem is not None:
            raise ConfigError(f"{place_of(key)}.by", problem)
        if options.by == f"schedules/{key}":
            raise ConfigError(f"{place_of(key)}.by", f"{options.by} is the schedule's own value")
        if options.by.startswith("evaluation/") and not config.evaluation_interval:
            raise ConfigError(f"{place_of(key)}.by", f"{options.by} is never measured: set config.evaluation_interval")
        if RATES.isdisjoint(options.by.split("/")):
            continue
        if options.above is not None and options.above >= 1:
            raise ConfigError(f"{place_of(key)}.above", f"{options.by} is never above 1; set less than 1")
        if options.below is not None and options.below <= 0:
            raise ConfigError(
                f"{place_of(key)}.below", f"{options.by} is never below 0; set more than 0, or leave it out"
            )


def followed(config: Any) -> tuple[Known, Collection[str]]:
    """The numbers that schedules of a configuration may follow, and the first parts below which there are no others."""
    numbers = [*_NUMBERS, *(name for name in config.entry.metrics if name not in NEVER_FOLLOWED)]
    known: dict[str, Collection[str] | None] = {
        **dict.fromkeys(numbers, ("",)),
        **dict.fromkeys((*_RLLIB_GROUPS, "evaluation")),
        "env_runners": (*EPISODE_NAMES, *(VINE_NAMES if state_rollouts(config) else ())),
        "learners": [*config.trained_policies(), "__all_modules__"],
        "timers": (*TIMER_COLUMNS, *_RLLIB_TIMERS),
        "schedules": config.schedule_options,
    }
    if config.settings.selects:
        known[SELECTION] = COUNTS
    if config.settings.league is not None:
        known["league"] = LEAGUE_NAMES
    closed = [_TOP, *numbers, "learners", "schedules", SELECTION, "league"]
    if _reports_more(config):
        return known, closed
    ppo = [config.get_config_for_module(policy).token_ppo_options for policy in config.trained_policies()]
    own_loss = any(":" in options.objective or ":" in options.policy_loss.type for options in ppo)
    own_learner = own_loss or config.learner_class is not config.get_default_learner_class()
    return known, [*closed, "env_runners", *([] if own_learner else [_OF_A_POLICY])]


def _reports_more(config: Any) -> bool:
    """Whether callbacks or an algorithm beside this package's own may report whatever they like."""
    functions = (value for name, value in vars(config).items() if name.startswith("callbacks_on_"))
    others = config.callbacks_class != [LMGameGauges] or any(function is not None for function in functions)
    return others or config.entry not in OWN.values()


def _lacks_critic(by: str, config: Any) -> str | None:
    """What is wrong with a number of a critic that there is not."""
    _, _, rest = by.partition("learners/")
    policy, _, name = rest.partition("/")
    if name not in CRITIC_NAMES or policy not in config.trained_policies():
        return None
    facts = PolicyFacts(config, policy)
    if facts.needs_critic:
        return None
    return f"{by} is never a number: token_ppo.advantage_estimator `{facts.estimator_name}` needs no critic"


def metric_problem(by: str, config: Any, known: Known, closed: Collection[str]) -> str | None:
    """What is wrong with a result's name, as far as known before; ``known`` and ``closed`` are of :func:`followed`."""
    head, _, rest = by.partition("/")
    if head in NEVER_FOLLOWED:
        return f"{by!r} {NEVER_FOLLOWED[head]}"
    if head == "evaluation" and rest:
        hint = _hint_of_evaluation(rest, config, closed)
    else:
        hint = _hint(by, _wrong_part(by, known, closed)) or _hint_of_game(by, "", config.training_games)
    return f"no result has {by!r}; {hint}" if hint else None


def result_problem(name: str, config: Any) -> tuple[str, bool] | None:
    """What is wrong with the name of a result of any phase, or ``None``; and whether that is certain.

    It is not certain where custom callbacks, learners or algorithms may report anything.
    """
    head, _, rest = name.partition("/")
    if head in NEVER_FOLLOWED or head == "timers" or name in OF_TUNE:
        return None
    if name == ENV_STEPS:
        return f"no result has {name!r}; did you mean {NUMBERS[name]!r}?", True
    known, closed = followed(config)
    problem = metric_problem(name, config, known, closed)
    if problem is None or (config.supervised_options is not None and rest.endswith(f"/{_OF_STAGE}")):
        return None
    if head not in known and head in EPISODE_NAMES:
        problem = f"no result has {name!r}; did you mean 'env_runners/{name}'?"
    ours = not _reports_more(config)
    second, _, third = rest.partition("/")
    if head == "learners" and third and second in (known[head] or ()):  # A supervised stage reports more than PPO.
        ours = ours and _OF_A_POLICY in closed and config.supervised_options is None
    return problem, ours and (head in closed or head == "evaluation" or head not in known)


def _hint(by: str, wrong: tuple[str, str | None] | None) -> str | None:
    if wrong is None:
        return None
    part, match = wrong
    return f"did you mean {by.replace(part, match, 1)!r}?" if match else "e.g. env_runners/success_rate"


def _hint_of_evaluation(name: str, config: Any, closed: Collection[str]) -> str | None:
    """What stands below ``evaluation`` in place of what does not: numbers of episodes, and those of measures."""
    head, _, rest = name.partition("/")
    complete = "env_runners" in closed
    if head == "env_runners":
        known = {head: EVALUATION_NAMES}
        wrong = _wrong_part(name, known, (head,) if complete else ())
        return _hint(f"evaluation/{name}", wrong) or _hint_of_game(name, "evaluation/", config.games_for_evaluation)
    columns = measured_names(config)
    if name in columns or (not rest and name in RLLIB_EVALUATION):
        return None
    if head in EVALUATION_NAMES:
        return f"did you mean 'evaluation/env_runners/{name}'?"
    match = nearest(name, columns)
    if match:
        return f"did you mean 'evaluation/{match}'?"
    if hint := _hint(f"evaluation/{name}", _wrong_part(name, {"env_runners": EVALUATION_NAMES}, ())):
        return hint
    listed = f"those there are: {', '.join(sorted(columns))}" if columns else "there are none"
    return f"no measure of evaluation_config.measures gives it ({listed})" if complete else None


def measured_names(config: Any) -> set[str]:
    """Names below ``evaluation`` of what is measured beside episodes."""
    from rllib_lmgame.algorithms.measuring.measures import measured_columns

    measures, games = config.evaluation_options.measures, config.games_for_evaluation()
    if not measures:
        return set()
    return {"/".join(path) for path in measured_columns(config, measures, games, averaged=config.settings.averages)}


def _hint_of_game(name: str, above: str, games: Callable[[], Sequence[GameConfig]]) -> str | None:
    """What to write for a name below ``env_runners/games`` that no game has; a single game has no numbers there."""
    if not name.startswith("env_runners/games/"):
        return None
    _, _, game, *rest = name.split("/")
    ids = sorted({game_spec(config.env).game_id.replace("/", "_") for config in games()})
    if len(ids) == 1:
        number = "/".join(itertools.dropwhile(lambda part: part not in EPISODE_NAMES, rest))
        number = "success_rate" if not number or number in _SEVERAL else number
        return f"there is one game: did you mean '{above}env_runners/{number}'?"
    if game in ids:
        return None if rest else f"e.g. {above}{name}/success_rate"
    if rest and f"{game}_{rest[0]}" in ids:
        game, *rest = f"{game}_{rest[0]}", *rest[1:]
    match = game if game in ids else nearest(game, ids)
    meant = "/".join([f"{above}env_runners/games", match or ids[0], *(rest or ["success_rate"])])
    return f"did you mean {meant!r}?" if match else f"e.g. {meant}"


def _wrong_part(name: str, known: Known, closed: Collection[str]) -> tuple[str, str | None] | None:
    """The part of a name that cannot be, with the nearest one that can; ``None`` if nothing is wrong."""
    head, _, rest = name.partition("/")
    second, _, third = rest.partition("/")
    if head not in known:
        match = nearest(head, known)
        return (head, match) if match or _TOP in closed else None
    names = known[head]
    if names is None:
        return None if second else (head, None)
    if second not in names:
        match = nearest(second, names) if second else None
        return (second or head, match) if match or head in closed or not second else None
    if third and head == "learners" and third not in LEARNER_NAMES:
        match = nearest(third, LEARNER_NAMES)
        return (third, match) if match or _OF_A_POLICY in closed else None
    if third and head == "env_runners" and head in closed and second not in _SEVERAL:  # One number, not several.
        return third, None
    return (second, None) if (head == "learners" or second in _SEVERAL) and not third else None
