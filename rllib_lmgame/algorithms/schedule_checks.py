"""What is asked of schedules before a run: that options may follow them, and that nothing they lead to is refused when
it is written down as it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from rllib_lmgame.algorithms.occurring import in_lockstep, occurring
from rllib_lmgame.algorithms.schedule_metrics import check_metrics
from rllib_lmgame.algorithms.scheduled import ScheduledConfig, find_target, game_variants, whole_keys
from rllib_lmgame.algorithms.validation import (
    check_lengths,
    check_rollouts,
    check_row_limit,
    check_selection,
    close_game,
    games_blamed_first,
)
from rllib_lmgame.envs.registry import make_game
from rllib_lmgame.errors import ConfigError
from rllib_lmgame.learners.scheduled import own_keys
from rllib_lmgame.settings.plugins import ESTIMATORS
from rllib_lmgame.settings.schedules import check_numbers, place_of
from rllib_lmgame.settings.schema import with_changes
from rllib_lmgame.settings.sections.supervised import DataSelectionOptions
from rllib_lmgame.settings.sections.text_rollouts import TextRolloutOptions

_MANY = 4096
"""Combinations that are looked at where a look costs microseconds."""


def check_schedules(config: ScheduledConfig, compares: str | None) -> None:
    """Check the schedules of a configuration: that their options are there, may change, and stay in their ranges.

    Args:
        config: The configuration.
        compares: Which option asks for groups, if one does.

    Raises:
        ConfigError: naming the schedule.
    """
    schedules = config.schedule_options
    if not schedules:
        return
    check_metrics(config)
    taken: dict[tuple[int, str | None], str] = {}
    for key, options in schedules.items():
        target = find_target(key, config)
        _check_alone(key, config)
        for place in ((number, target.option) for number in target.games):
            if place in taken:
                raise ConfigError(place_of(key), f"changes what schedules.{taken[place]} changes")
            taken[place] = key
        check_numbers(options, target.hint, target.limits, place_of(key))
    _check_play(config, compares)
    _check_loss(config)
    _check_reward_scale(config)
    _check_language_models(config)
    _check_weights(config)
    _check_game_variants(config)


def _check_alone(key: str, config: ScheduledConfig) -> None:
    """Nothing else may move the option, and it must have an effect."""
    path = place_of(key)
    if key in ("lr", "entropy_coeff") and isinstance(getattr(config, key), list):
        raise ConfigError(path, f"config.{key} is a schedule of RLlib's already; set it to a number")
    section, _, name = key.partition(".")
    if section == "language_model":
        own = [name in config.player_options[policy].language_model for policy in config.language_model_policies()]
        problems = ["has no effect: every policy has its own" if has_own else None for has_own in own]
    else:
        problems = [_problem(key, config, policy) for policy in config.trained_policies()]
    if problems and problems[0] is not None and all(problems):
        raise ConfigError(path, problems[0])


def _problem(key: str, config: ScheduledConfig, policy: str) -> str | None:
    """Why a schedule has no effect on a policy that learns, if it has none."""
    of_module, own = config.get_config_for_module(policy), own_keys(config, policy)
    if key in own:
        return "has no effect: every policy that learns has its own"
    scheduled = config.schedule_options.keys() - own
    ppo = of_module.token_ppo_options
    targeted = ppo.entropy_target is not None or "token_ppo.entropy_target" in scheduled
    if key == "entropy_coeff" and targeted:
        return "has no effect beside token_ppo.entropy_target, which moves the coefficient; leave one of them out"
    if key == "kl_coeff" and not of_module.use_kl_loss:
        return "has no effect without use_kl_loss: true"
    if key == "kl_coeff" and ppo.kl_schedule is not None:
        return "stands beside token_ppo.kl_schedule; leave one of them out"
    bounds = "token_ppo.kl_coeff_range"
    if key == bounds and (ppo.kl_schedule is not None or "kl_coeff" in scheduled):
        beside = "a schedule of kl_coeff" if ppo.kl_schedule is None else "token_ppo.kl_schedule"
        return f"has no effect beside {beside}; leave one of them out"
    if key == "kl_coeff" and bounds not in scheduled and ppo.kl_coeff_range != type(ppo).kl_coeff_range:
        return f"stands beside {bounds}, which then has no effect; leave one of them out"
    return None


# Each looks at all values that come together of those options alone that its checks are about.


def _combinations(config: ScheduledConfig, *sections: str) -> list[dict[str, float]]:
    """Values of the schedules of some sections; none where there are no such schedules."""
    schedules = config.schedule_options
    of_sections = {key: options for key, options in schedules.items() if key.partition(".")[0] in sections}
    return occurring(of_sections, whole_keys(config), _MANY) if of_sections else []


def _of(section: str, values: Mapping[str, float]) -> dict[str, Any]:
    """Those of a section, by option."""
    return {key.partition(".")[2]: value for key, value in values.items() if key.startswith(f"{section}.")}


def check_selected(
    config: ScheduledConfig,
    rollouts: TextRolloutOptions,
    selection: DataSelectionOptions,
    compares: str | None,
    scheduled: Collection[str] = (),
) -> None:
    """What is chosen of the episodes that are played; ``scheduled``: options of it that follow a schedule."""
    check_selection(selection, rollouts, config.num_learners, scheduled=scheduled, compares=compares is not None)
    config.check_oversampling(rollouts, selection)


def _check_play(config: ScheduledConfig, compares: str | None) -> None:
    """How many episodes are played, and what is chosen of them."""
    configured = partial(check_selected, config, config.text_rollout_options, config.data_selection_options, compares)
    for values in _combinations(config, "text_rollouts", "data_selection"):
        rollouts = with_changes(config.text_rollout_options, _of("text_rollouts", values))
        selected = _of("data_selection", values)
        with _AsSchedule("text_rollouts", values, configured):
            check_rollouts(rollouts, config.num_learners, compares)
            selection = with_changes(config.data_selection_options, selected)
            check_selected(config, rollouts, selection, compares, selected)


def _check_loss(config: ScheduledConfig) -> None:
    from rllib_lmgame.learners.objectives.checks import check_objective

    policies = {policy: own_keys(config, policy) for policy in config.trained_policies()}
    for values in _combinations(config, "token_ppo"):
        found: list[ConfigError | None] = []
        for policy, own in policies.items():
            of_module = config.get_config_for_module(policy)
            followed = _of("token_ppo", {key: value for key, value in values.items() if key not in own})
            try:
                check_objective(
                    with_changes(of_module.token_ppo_options, followed),
                    use_kl_loss=of_module.use_kl_loss,
                    entropy_coeff=of_module.entropy_coeff,
                    scheduled=followed,
                )
            except ConfigError as error:
                found.append(error)
            else:
                found += [None] if followed else []
        if found and found[0] is not None and all(found):  # It may well be without effect on some policies.
            with _AsSchedule("token_ppo", values):
                raise found[0]


def _check_reward_scale(config: ScheduledConfig) -> None:
    """What a running baseline took in at another scale would stay in it."""
    from rllib_lmgame.learners.advantages import resolve_estimator

    key = "text_rollouts.reward_scale"
    if key not in config.schedule_options:
        return
    for policy in config.trained_policies():
        choice = config.get_config_for_module(policy).token_ppo_options.advantage_estimator
        if key not in own_keys(config, policy) and resolve_estimator(choice).keeps_baseline:
            raise ConfigError(
                place_of(key),
                f"stands beside token_ppo.advantage_estimator: {ESTIMATORS.split(choice)[0]} of {policy}, whose "
                "running baselines are in scaled rewards: they would be those of another scale; leave one of them out",
            )


def _check_language_models(config: ScheduledConfig) -> None:
    """The lengths of every policy; its own options stay as they are."""

    def key(values: Mapping[str, float], *names: str) -> str:
        """The schedule of the option that a check names, else the first."""
        keys = [f"language_model.{name}" for name in names if f"language_model.{name}" in values]
        return place_of(next(iter(keys), next(iter(values))))

    combinations = _combinations(config, "language_model")
    for policy in config.language_model_policies():
        configured, fixed = config.language_model_of(policy), config.player_options[policy].language_model
        learns = policy in config.trained_policies()
        limit = config.get_config_for_module(policy).token_ppo_options.max_row_tokens if learns else None
        for values in combinations:
            named: Callable[..., str] = partial(key, values)
            own = {name: value for name, value in _of("language_model", values).items() if name not in fixed}
            options = with_changes(configured, own)
            check_lengths(options, named)
            check_row_limit(limit, options, named("max_tokens_per_turn"))


def _check_weights(config: ScheduledConfig) -> None:
    """Some game must be played: the weights of schedules that go together may not all be 0 where those of all others
    may be, too.
    """
    targets = {key: find_target(key, config) for key in config.schedule_options}
    weights = {key: config.schedule_options[key] for key in targets if targets[key].games and not targets[key].option}
    moved = {number for key in weights for number in targets[key].games}
    if not weights or any(game.weight > 0 for n, game in enumerate(config.training_games()) if n not in moved):
        return
    if all(any(not any(values.values()) for values in occurring(group)) for group in in_lockstep(weights)):
        raise ConfigError(place_of(next(iter(weights))), "all games would have a weight of 0 at once")


def _check_game_variants(config: ScheduledConfig) -> None:
    """Every game can be made as schedules make it; what is wrong without a schedule is not the schedule's fault."""
    with games_blamed_first(config):
        for game, values in game_variants(config):
            with _AsSchedule("games", values):
                close_game(make_game(game.env, game.env_config))


class _AsSchedule:
    """A :class:`ConfigError` raised inside names the schedule, and at which values: the schedule of the option it is
    about, else the first of a section, else the first of all.

    Args:
        section: The section.
        values: What the schedules say.
        configured: The same check of what is configured: an error that it raises too is not the schedule's fault.
    """

    def __init__(self, section: str, values: Mapping[str, float], configured: Callable[[], None] | None = None) -> None:
        self._section = section
        self._values = values
        self._configured = configured

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, ConfigError) or self._is_configured(error):
            return
        option = error.path.rpartition(".")[2]
        keys = [key for key in self._values if key.endswith(f".{option}")]
        keys += [key for key in self._values if key.startswith(f"{self._section}.")]
        at = ", ".join(f"{key}={value:g}" for key, value in self._values.items())
        path = place_of(next(iter(keys), next(iter(self._values))))
        raise ConfigError(path, f"at {at}: {error.path.removeprefix('config.')}: {error.message}") from error

    def _is_configured(self, error: ConfigError) -> bool:
        try:
            if self._configured is not None:
                self._configured()
        except ConfigError as plain:
            return error.path.removeprefix("config.") not in self._values and str(plain) == str(error)
        return False
