"""Which numbers of the results a schedule may follow: those that results have, and have again after a resume."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rllib_lmgame.algorithms.facts import PolicyFacts, state_rollouts
from rllib_lmgame.algorithms.overlap import OVERLAP
from rllib_lmgame.algorithms.selection import COUNTS, SELECTION
from rllib_lmgame.base.errors import ConfigError, nearest
from rllib_lmgame.base.schedule import ENV_STEPS, NUMBERS, PPO_ITERATION, place_of, shown_key
from rllib_lmgame.envs.registry import game_spec
from rllib_lmgame.rollouts.item_order import is_list
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.settings.algorithms import OWN, SUPERVISED_METRICS
from rllib_lmgame.telemetry import metrics
from rllib_lmgame.telemetry.gauges import LMGameGauges

NEVER_FOLLOWED = {
    "config": "is what is configured, which never changes",
    "done": "is no number",
    "phase": "is 1 in every result that schedules follow",
    **dict.fromkeys(SUPERVISED_METRICS, "stands still where schedules are followed"),
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
    for name in metrics.EPISODE_NAMES
    if name not in ("generated_tokens_per_s", "engine_busy_fraction", "prompt_tokens_computed_fraction")
    and not name.startswith("num_env_steps_sampled")
    and name != "num_episodes_lifetime"
)
"""First parts of what evaluations report below ``evaluation/env_runners``."""

_RLLIB_TIMERS = ("restore_env_runners", "synch_env_connectors", "training_iteration", "training_step")
_RLLIB_GROUPS = ("fault_tolerance", "env_runner_group", "perf")
_SEVERAL = (
    *("agent_episode_returns_mean", "module_episode_returns_mean", "role_returns_mean", "stop_reason", "dropped"),
    *("games", "seat_returns_mean", metrics.MEASURES, *metrics.OUTCOME_RATES),
    *("mean_win_rate", "rating", "exploiters"),
)
"""Second parts of names that need a third one."""

_FOR_EXAMPLE = "e.g. env_runners/success_rate"

_OF_STAGE = "confident_fraction"
"""What a supervised stage reports of a policy, and PPO does not."""


@dataclass(frozen=True)
class Below:
    """What stands below a part of a result's name: the ``parts`` that are known, and whether there may be ``others``.

    ``None`` in place of it is a number.
    """

    parts: Mapping[str, Below | None]
    others: bool = False


ANYTHING = Below({}, others=True)


def check_metrics(config: Any) -> None:
    """Raise :class:`ConfigError` for a schedule by what is in no result, or says nothing there."""
    for key, options in config.schedule_options.items():
        by, path = options.by, place_of(key)
        problem = metric_problem(by, config) or _lacks_critic(by, config)
        if problem is None and by in (f"schedules/{key}", f"schedules/{shown_key(key, config.games)}"):
            problem = f"{by} is the schedule's own value"
        if problem is None and by.startswith("evaluation/") and not config.evaluation_interval:
            problem = f"{by} is never measured: set config.evaluation_interval"
        if problem is not None:
            raise ConfigError(f"{path}.by", problem)
        if metrics.RATES.isdisjoint(by.split("/")):
            continue
        if options.above is not None and options.above >= 1:
            raise ConfigError(f"{path}.above", f"{by} is never above 1; set less than 1")
        if options.below is not None and options.below <= 0:
            raise ConfigError(f"{path}.below", f"{by} is never below 0; set more than 0, or leave it out")


def followed(config: Any) -> Below:
    """The numbers that schedules of a configuration may follow, but for those of measures."""
    more, never = _reports_more(config), set(NEVER_FOLLOWED)
    if not _has_list(config):
        never.add(metrics.DATA_EPOCHS)
    of_policy = Below(dict.fromkeys(metrics.LEARNER_NAMES), others=more or _learners_report_more(config))
    known: dict[str, Below | None] = {
        **dict.fromkeys([*_NUMBERS, *(name for name in config.entry.metrics if name not in never)]),
        **dict.fromkeys((*_RLLIB_GROUPS, "evaluation"), ANYTHING),
        "env_runners": _of_episodes(
            (*metrics.EPISODE_NAMES, *(metrics.VINE_NAMES if state_rollouts(config) else ())), more
        ),
        "learners": Below(dict.fromkeys([*config.trained_policies(), "__all_modules__"], of_policy)),
        "timers": Below(dict.fromkeys((*metrics.TIMER_COLUMNS, *_RLLIB_TIMERS)), others=True),
        "schedules": Below(dict.fromkeys(shown_key(key, config.games) for key in config.schedule_options)),
    }
    if config.settings.selects:
        known[SELECTION] = Below(dict.fromkeys(COUNTS))
    if config.overlap_options.max_staleness:
        known[OVERLAP] = Below(dict.fromkeys(metrics.OVERLAP_NAMES))
    if config.settings.league is not None:
        known["league"] = _of_episodes(metrics.LEAGUE_NAMES, False)
    return Below(known)


def _of_episodes(names: Iterable[str], others: bool) -> Below:
    return Below({name: ANYTHING if name in _SEVERAL else None for name in names}, others)


def _reports_more(config: Any) -> bool:
    """Whether callbacks or an algorithm beside this package's own may report whatever they like."""
    functions = (value for name, value in vars(config).items() if name.startswith("callbacks_on_"))
    others = config.callbacks_class != [LMGameGauges] or any(function is not None for function in functions)
    return others or config.entry not in OWN.values()


def _learners_report_more(config: Any) -> bool:
    """Whether losses or a learner beside this package's own may."""
    ppo = [config.get_config_for_module(policy).token_ppo_options for policy in config.trained_policies()]
    own_loss = any(":" in options.objective or ":" in options.policy_loss.type for options in ppo)
    return own_loss or config.learner_class is not config.get_default_learner_class()


def _lacks_critic(by: str, config: Any) -> str | None:
    """What is wrong with a number of a critic that there is not."""
    policy, _, name = by.removeprefix("learners/").partition("/")
    if name not in metrics.CRITIC_NAMES or policy not in config.trained_policies():
        return None
    facts = PolicyFacts(config, policy)
    if facts.needs_critic or _reports_more(config) or _learners_report_more(config):
        return None
    return f"{by} is never a number: {facts.asks_no_critic} needs no critic"


def _has_list(config: Any) -> bool:
    return any(map(is_list, config.training_games()))


def metric_problem(by: str, config: Any) -> str | None:
    """What is wrong with a result's name, as far as known before."""
    head, _, rest = by.partition("/")
    if head == metrics.DATA_EPOCHS and not _has_list(config):
        return f"{by!r} counts passes over a list of levels, and no game has one; name one, e.g. by env_config.data"
    if head in NEVER_FOLLOWED:
        return f"{by!r} {NEVER_FOLLOWED[head]}"
    if head == "evaluation" and rest:
        hint = _hint_of_evaluation(rest, config)
    else:
        hint = _hint(by, followed(config)) or _hint_of_game(by, "", config.training_games)
    return f"no result has {by!r}; {hint}" if hint else None


def result_problem(name: str, config: Any) -> tuple[str, bool] | None:
    """What is wrong with the name of a result of any phase, or ``None``; and whether that is certain.

    It is not certain where custom callbacks, learners or algorithms may report anything.
    """
    head, _, rest = name.partition("/")
    if head in NEVER_FOLLOWED or head == "timers" or name in metrics.OF_TUNE:
        return None
    if name == ENV_STEPS:
        return f"no result has {name!r}; did you mean {NUMBERS[name]!r}?", True
    problem, known = metric_problem(name, config), followed(config).parts
    if problem is None or (config.supervised_options is not None and rest.endswith(f"/{_OF_STAGE}")):
        return None
    if head not in known and head in metrics.EPISODE_NAMES:
        problem = f"no result has {name!r}; did you mean 'env_runners/{name}'?"
    below, (second, _, third) = known.get(head), rest.partition("/")
    of_policy = below.parts.get(second) if below and head == "learners" and third else None
    if of_policy:  # A supervised stage reports more than PPO.
        return problem, not of_policy.others and config.supervised_options is None
    return problem, not _reports_more(config) and (head == "evaluation" or below is None or not below.others)


def _hint(name: str, below: Below, above: str = "") -> str | None:
    """What to write for a name of which a part cannot be; ``None`` if nothing is wrong."""
    parts = name.split("/")
    for number, part in enumerate(parts, 1):
        if part not in below.parts:
            if match := nearest(part, below.parts):
                return f"did you mean '{above}{name.replace(part, match, 1)}'?"
            return None if below.others else _FOR_EXAMPLE
        inner = below.parts[part]
        if inner is None:  # A number has no parts.
            return _FOR_EXAMPLE if parts[number:] and not below.others else None
        below = inner
    return _FOR_EXAMPLE


def _hint_of_evaluation(name: str, config: Any) -> str | None:
    """What stands below ``evaluation`` in place of what does not: numbers of episodes, and those of measures."""
    (head, _, rest), more = name.partition("/"), _reports_more(config)
    if head == "env_runners":
        below = Below({head: _of_episodes(EVALUATION_NAMES, more)})
        return _hint(name, below, "evaluation/") or _hint_of_game(name, "evaluation/", config.games_for_evaluation)
    columns = measured_names(config)
    if name in columns or (not rest and name in metrics.RLLIB_EVALUATION):
        return None
    if head in EVALUATION_NAMES:
        return f"did you mean 'evaluation/env_runners/{name}'?"
    match = nearest(name, columns) or (nearest(head, ["env_runners"]) and f"env_runners/{rest}")
    if match:
        return f"did you mean 'evaluation/{match}'?"
    listed = f"those there are: {', '.join(sorted(columns))}" if columns else "there are none"
    return None if more else f"no measure of evaluation_config.measures gives it ({listed})"


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
    ids = sorted({config.called(game_spec(config.env).game_id).replace("/", "_") for config in games()})
    if len(ids) == 1:
        number = "/".join(itertools.dropwhile(lambda part: part not in metrics.EPISODE_NAMES, rest))
        number = "success_rate" if not number or number in _SEVERAL else number
        return f"there is one game: did you mean '{above}env_runners/{number}'?"
    if rest and f"{game}_{rest[0]}" in ids:  # The id as it is written elsewhere.
        game, *rest = f"{game}_{rest[0]}", *(rest[1:] or ["success_rate"])
        return f"did you mean '{'/'.join([f'{above}env_runners/games', game, *rest])}'?"
    if game in ids:
        return None if rest else f"e.g. {above}{name}/success_rate"
    match, rest = nearest(game, ids), rest or ["success_rate"]
    meant = "/".join([f"{above}env_runners/games", match or ids[0], *rest])
    return f"did you mean {meant!r}?" if match else f"e.g. {meant}"
