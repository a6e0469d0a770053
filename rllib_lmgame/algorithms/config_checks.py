"""What the parts of a configuration ask of each other: players, models, learners, critics, league, schedules.

What one section asks of itself is in :mod:`~rllib_lmgame.algorithms.validation`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from rllib_lmgame.algorithms.games import is_contest, is_self_play, lists_legal_actions
from rllib_lmgame.algorithms.measuring.measures import check_measures
from rllib_lmgame.algorithms.module_checks import own_options_named
from rllib_lmgame.algorithms.occurring import occurring
from rllib_lmgame.algorithms.schedule_checks import check_schedules, check_selected
from rllib_lmgame.algorithms.scheduled import whole_keys
from rllib_lmgame.algorithms.seat_checks import check_seats
from rllib_lmgame.algorithms.validation import (
    check_games_known,
    check_games_or_env,
    check_inference,
    check_language_model,
    check_league,
    check_rllib,
    check_rollouts,
    check_row_limit,
    check_token_ppo,
    check_trainable,
    games_blamed_first,
)
from rllib_lmgame.errors import ConfigError, nearest
from rllib_lmgame.league.reach import MostPlay, check_reach
from rllib_lmgame.learners.scheduled import own_keys
from rllib_lmgame.policies.mapping import KEY as MAPPING
from rllib_lmgame.policies.mapping import is_league
from rllib_lmgame.policies.scripted import make_scripted_player
from rllib_lmgame.rollouts.seats import EpisodeFailed
from rllib_lmgame.rollouts.sources import LineUps
from rllib_lmgame.settings.plugins import MEASURES
from rllib_lmgame.settings.schedules import place_of
from rllib_lmgame.settings.schema import describe
from rllib_lmgame.settings.sections.language_model import LANGUAGE_MODEL

if TYPE_CHECKING:
    from rllib_lmgame.algorithms.config import LMGameConfig


def check_together(config: LMGameConfig) -> None:
    """Check what RLlib's own ``validate`` does not know of.

    Raises:
        ConfigError: naming the key, what is wrong and what would be right.
    """
    check_rllib(config)
    check_games_or_env(config.games, config.env, config.env_config)
    check_games_known(config)
    _check_players(config)
    _check_models(config)
    _check_learner(config)
    _check_updates(config)
    _check_critics(config)
    compares = config.who_compares()
    check_rollouts(config.text_rollout_options, config.num_learners, compares)
    if not any(key.startswith("data_selection.") for key in config.schedule_options):  # Else each of their values is.
        check_selected(config, config.text_rollout_options, config.data_selection_options, compares)
    with games_blamed_first(config):
        check_seats(config)
        _check_stop_success(config)
        _check_league(config)
    if config.schedule_options and not config.follows_schedules:
        raise ConfigError(
            place_of(next(iter(config.schedule_options))),
            f"has no effect: {config.entry.name} follows no schedules",
        )
    check_schedules(config, compares)
    _check_overlong(config)
    with games_blamed_first(config):
        _check_legal_moves(config)
    check_inference(config.inference_options, config.num_gpus_per_learner, config.num_learners)
    if config.evaluation_measures and config.evaluation_interval:  # To look at a game may take long.
        games = config.games_for_evaluation()
        with games_blamed_first(config):
            check_measures(config.evaluation_measures, games, MEASURES.key, averaged=config.evaluates_average)


def check_who_learns(config: LMGameConfig) -> None:
    """RLlib's ``policies_to_train`` says what ``policies`` say, or nothing.

    Raises:
        ConfigError: naming the policy of which they say different things.
    """
    key, named, learning = "config.policies_to_train", config.policies_to_train, config.trained_policies()
    if named is None:
        return
    if not isinstance(named, list | tuple | set | frozenset):
        raise ConfigError(key, f"expected names of policies, got {describe(named)}; set policies.NAME.trained instead")
    for policy in learning:
        if policy not in named:
            raise ConfigError(key, f"leaves out {policy!r}, which learns; set policies.{policy}.trained: false")
    for policy in named:
        if policy not in config.player_options:
            match = nearest(str(policy), config.player_options)
            hint = f"did you mean {match!r}?" if match else f"policies: {', '.join(config.player_options)}"
            raise ConfigError(key, f"unknown policy {policy!r}; {hint}")
        if policy not in learning:
            model = config.player_options[policy].player == LANGUAGE_MODEL
            hint = f"set policies.{policy}.trained: true, or leave it out" if model else "leave it out"
            raise ConfigError(key, f"names {policy!r}, which does not learn; {hint}")


def _check_legal_moves(config: LMGameConfig) -> None:
    if not config.text_rollout_options.legal_moves_only:
        return
    key = "config.text_rollouts.legal_moves_only"
    games = [
        (f"config.games[{number}].env" if config.games else "config.env", key, "leave it out", game)
        for number, game in enumerate(config.training_games())
    ]
    for number, game in enumerate(config.evaluation_games):
        place = f"config.evaluation_config.games[{number}].env"
        games.append((place, place, "text_rollouts.legal_moves_only asks for them", game))
    for place, path, hint, game in games:
        try:
            listed = lists_legal_actions(game)
        except EpisodeFailed as error:
            raise ConfigError(place, str(error)) from error
        if not listed:
            raise ConfigError(path, f"{game.env} does not list its legal actions; {hint}")


@contextmanager
def below_config() -> Iterator[None]:
    """What the learner's parts refuse stands below ``config``."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"config.{error.path}", error.message) from None


def _check_players(config: LMGameConfig) -> None:
    if not config.trained_policies():
        raise ConfigError("config.policies", "no policy is trained; at least one must be a language model")
    for name, options in config.player_options.items():
        if options.player != LANGUAGE_MODEL:
            make_scripted_player(options.player, f"config.policies.{name}.player")
            if options.trained:
                raise ConfigError(
                    f"config.policies.{name}.trained", f"the scripted player {options.player!r} cannot be trained"
                )
    config.seat_mapping()


def _check_models(config: LMGameConfig) -> None:
    for name in config.language_model_policies():
        options, key = config.language_model_of(name), partial(_language_model_key, config, name)
        check_language_model(options, key)
        if config.is_trained(name):
            check_trainable(options, key)


def _language_model_key(config: LMGameConfig, policy: str, *names: str) -> str:
    """The key to name where options do not fit together: the policy's own where it overrides one, else the
    section's first.
    """
    own = [name for name in names if name in config.player_options[policy].language_model]
    return f"config.policies.{policy}.language_model.{own[0]}" if own else f"config.language_model.{names[0]}"


def _check_learner(config: LMGameConfig) -> None:
    from rllib_lmgame.learners.engines.deepspeed_engine import check_deepspeed
    from rllib_lmgame.learners.settings import check_numerics, check_value_grad_clip

    with below_config():
        check_deepspeed(config.deepspeed_config, config.grad_clip)
        if "token_ppo.value_grad_clip" in config.schedule_options:
            check_value_grad_clip(config.deepspeed_config, "token_ppo.value_grad_clip")
        for name in config.trained_policies():
            check_numerics(config.language_model_of(name), config.deepspeed_config, config.num_gpus_per_learner > 0)


def _check_updates(config: LMGameConfig) -> None:
    """How every policy is updated."""
    trained = config.trained_policies()
    separate = [name for name in trained if config.language_model_of(name).value_model == "separate"]
    for name in trained:
        of_module = config.get_config_for_module(name)
        ppo, own = of_module.token_ppo_options, own_keys(config, name)
        with own_options_named(config, name):
            has_model = name in separate if "token_ppo.value_backbone_lr" in own else bool(separate)
            check_token_ppo(ppo, has_model, of_module.use_kl_loss)
            _check_entropy_target(config, name)
            check_row_limit(ppo.max_row_tokens, config.language_model_of(name), "config.token_ppo.max_row_tokens")
            with below_config():
                _check_update(of_module, {key for key in config.schedule_options if key not in own})


def _check_update(config: LMGameConfig, scheduled: Collection[str]) -> None:
    """How one module is updated, some of whose options follow schedules; keys do not start with ``config.``."""
    from rllib_lmgame.learners.advantages import resolve_estimator
    from rllib_lmgame.learners.advantages.group_relative import MaxRL
    from rllib_lmgame.learners.objectives import resolve_objective
    from rllib_lmgame.learners.objectives.checks import check_objective
    from rllib_lmgame.learners.settings import LearnerSettings
    from rllib_lmgame.settings.sections.token_ppo import INITIAL

    options = config.token_ppo_options
    LearnerSettings.from_config(config)
    estimator = resolve_estimator(options.advantage_estimator)
    if options.reference_options.type != INITIAL and not (config.use_kl_loss or estimator.needs_reference):
        raise ConfigError(
            "token_ppo.reference", f"{options.reference_options.type} has no effect without use_kl_loss: true"
        )
    if isinstance(estimator, MaxRL) and config.data_selection_options.normalize_rewards == "group":
        raise ConfigError(
            "data_selection.normalize_rewards",
            "group makes the mean of every group 0, for which token_ppo.advantage_estimator `max_rl` learns nothing",
        )
    resolve_objective(options.objective)
    section, schedules = "token_ppo.", config.schedule_options
    names = [key.removeprefix(section) for key in scheduled if key.startswith(section)]
    begins: dict[str, Any] = {name: schedules[section + name].first for name in names if hasattr(options, name)}
    options = dataclasses.replace(options, **begins)
    try:
        check_objective(options, use_kl_loss=config.use_kl_loss, entropy_coeff=config.entropy_coeff)
    except ConfigError as error:
        if error.path.removeprefix(section) not in begins:  # Else the schedule is refused.
            raise


def _check_entropy_target(config: LMGameConfig, policy: str) -> None:
    """The entropy that a policy is to keep is one that a choice among all tokens of its model can have."""
    key = "token_ppo.entropy_target"
    path, target = f"config.{key}", config.get_config_for_module(policy).token_ppo_options.entropy_target
    if key in config.schedule_options and key not in own_keys(config, policy):
        path, target = place_of(key), config.schedule_options[key].highest
    if target is None:
        return
    from rllib_lmgame.policies.model.files import vocabulary_size  # Loads safetensors.

    size = vocabulary_size(config.language_model_of(policy))
    if size is not None and target > math.log(size):
        raise ConfigError(
            path, f"{target:g} is more than the entropy of {size} tokens that are all alike, {math.log(size):.2f}"
        )


def _check_overlong(config: LMGameConfig) -> None:
    """Some reply can at some time be so long that the penalty of ``data_selection`` is taken off."""
    tokens, buffer = "data_selection.overlong_tokens", "data_selection.overlong_buffer"
    longest = "language_model.max_tokens_per_turn"
    selection, schedules = config.data_selection_options, config.schedule_options
    if selection.overlong_tokens is None and tokens not in schedules:
        return

    def reply(policy: str, values: Mapping[str, float]) -> float:
        own = config.player_options[policy].language_model.get("max_tokens_per_turn")
        return own or values.get(longest, config.language_model_options.max_tokens_per_turn)

    together = {key: schedules[key] for key in (tokens, buffer, longest) if key in schedules}
    limit = 0.0
    for values in occurring(together, whole_keys(config)):
        bound = values.get(tokens, selection.overlong_tokens or 0) - values.get(buffer, selection.overlong_buffer)
        replies = max(reply(policy, values) for policy in config.trained_policies())
        if bound < replies:
            return
        limit = max(limit, replies)
    raise ConfigError(
        place_of(tokens) if tokens in schedules else f"config.{tokens}",
        ("" if tokens in schedules else f"{selection.overlong_tokens} ")
        + f"has no effect: no reply is longer than {longest}={limit:g}; set less, or an overlong_buffer",
    )


def _check_critics(config: LMGameConfig) -> None:
    for name in config.trained_policies():
        if config.language_model_of(name).value_model == "separate" and not config.needs_critic(name):
            raise ConfigError(
                _language_model_key(config, name, "value_model"),
                "separate has no effect with token_ppo.advantage_estimator "
                f"`{config.estimator_of(name)}`, which asks no value function",
            )


def _check_league(config: LMGameConfig) -> None:
    league = config.league_of_run()
    if league is None:
        return
    if config.seat_mapping_spec is not None and not is_league(config.seat_mapping_spec):
        raise ConfigError(MAPPING, "must be `league` beside a `league` section, or left out; the league seats")
    check_league(
        league,
        {policy: config.language_model_of(policy) for policy in config.trained_policies()},
        averaging=config.averages_weights,
    )
    check_reach(league, _most_play(config))
    if not any(is_contest(game) for game in config.training_games()):
        raise ConfigError("config.league", "needs a game in which players play against each other")


def _most_play(config: LMGameConfig) -> MostPlay:
    """The most that is played in an iteration, by any schedule."""
    rollouts, selection = config.text_rollout_options, config.data_selection_options

    def highest(key: str, value: int) -> int:
        return int(config.schedule_options[key].highest) if key in config.schedule_options else value

    episodes = highest("text_rollouts.episodes_per_iteration", rollouts.episodes_per_iteration)
    refills = highest("data_selection.max_refill", selection.max_refill) if selection.drop_constant_groups else 0
    return MostPlay(
        policies=len(config.trained_policies()),
        groups=episodes // rollouts.group_size,
        group_size=rollouts.group_size,
        rounds=1 + refills,
        games=len(config.training_games()),
    )


def _check_stop_success(config: LMGameConfig) -> None:
    stage = config.supervised_options
    if stage is None or stage.stop_success is None:
        return
    for game in config.games_for_evaluation():
        if is_self_play(game, LineUps(config)):
            raise ConfigError(
                f"config.{config.section_of('supervised_options')}.stop_success",
                f"trained policies take every seat of {game.env} and play against each other, so there is no "
                "success; use stop_invalid_rate or max_steps, or give a seat to a policy that is not trained "
                "(policies: {player: {}, opponent: {player: solver}})",
            )
