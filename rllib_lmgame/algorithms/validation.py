"""What the options of a configuration ask of each other. Each check names the key, what is wrong and what is right."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray.rllib.algorithms.ppo import PPOConfig

from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.registry import game_spec, load_factory, make_game, session_of
from rllib_lmgame.errors import ConfigError, MissingDependencyError, nearest
from rllib_lmgame.inference.registry import ENGINES, EngineEntry, find_engine
from rllib_lmgame.league.matchmaking import MATCHMAKERS, resolve_matchmaker
from rllib_lmgame.policies.chat.format import ChatFormat
from rllib_lmgame.policies.model.files import (
    check_model,
    load_tokenizer,
    local_config,
    model_directory,
    tokenizer_source,
    vocabulary_problem,
)
from rllib_lmgame.policies.model.positions import context_problem
from rllib_lmgame.policies.model.tiny import check_shape
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.settings.schedules import check_points
from rllib_lmgame.settings.sections.exploiters import KEY as EXPLOITERS
from rllib_lmgame.settings.sections.exploiters import ExploiterOptions, share_without_members
from rllib_lmgame.settings.sections.inference import InferenceOptions
from rllib_lmgame.settings.sections.language_model import TINY_MODEL, LanguageModelOptions
from rllib_lmgame.settings.sections.league import LeagueOptions
from rllib_lmgame.settings.sections.supervised import DataSelectionOptions, groups_needed, share_of_groups
from rllib_lmgame.settings.sections.text_rollouts import TextRolloutOptions
from rllib_lmgame.settings.sections.token_ppo import TokenPPOOptions
from rllib_lmgame.text import in_words, one_line


def check_rllib(config: PPOConfig) -> None:
    """RLlib's own settings as far as they would not do what they say."""
    fixed = {"batch_mode": "complete_episodes", "num_aggregator_actors_per_learner": 0}
    for key, wanted in fixed.items():
        if getattr(config, key) != wanted:
            raise ConfigError(f"config.{key}", f"must be {wanted!r} with this algorithm, got {getattr(config, key)!r}")
    if config.evaluation_duration_unit != "episodes" or not isinstance(config.evaluation_duration, int):
        raise ConfigError("config.evaluation_duration", "must be a whole number of episodes")
    if config.evaluation_parallel_to_training:
        raise ConfigError(
            "config.evaluation_parallel_to_training",
            "must be false: evaluation uses the engines that training updates",
        )
    if not 0 <= config.gamma <= 1:
        raise ConfigError("config.gamma", f"must lie between 0 and 1, got {config.gamma}")
    if not 0 <= config.lambda_ <= 1:
        raise ConfigError("config.lambda", f"must lie between 0 and 1, got {config.lambda_}")
    if config.num_epochs < 1:
        raise ConfigError("config.num_epochs", f"must be at least 1, got {config.num_epochs}")


def check_games_or_env(games: Sequence[GameConfig], env: Any, env_config: Mapping[str, Any]) -> None:
    """``games`` stands instead of ``env`` and ``env_config``: beside each other, one of them would be left out
    without a word.
    """
    if not games:
        return
    if env is not None:
        raise ConfigError(
            "config.games",
            f"stands beside env: {env}, which would not be played; add it to the list, or leave `games` out",
        )
    if env_config:
        raise ConfigError(
            "config.env_config",
            "has no effect beside `games`: every entry of the list has an `env_config` of its own",
        )


def check_games_known(config: Any) -> None:
    """Raise :class:`ConfigError` if there is no such game; keys do not start with ``config.``."""
    for place, game in _games_of(config):
        with _blamed(place, game):
            load_factory(game_spec(game.env))


def check_games_can_be_made(config: Any) -> None:
    """Raise :class:`ConfigError` if a game cannot be made as it is configured; keys do not start with ``config.``."""
    for place, game in _games_of(config):
        with _blamed(place, game):
            made, spec = make_game(game.env, game.env_config), game_spec(game.env)
            session_of(spec.game_id, made, own=spec.own)
            close_game(made)


@contextmanager
def _blamed(place: str, game: GameConfig) -> Iterator[None]:
    """Whatever is raised inside, also by a game of somebody else, is a :class:`ConfigError` at the game's place, or a
    :class:`MissingDependencyError`. Of a game in a list it says the name, which does not stand in the key.
    """

    def named(message: str) -> str:
        return message if not place or game.env in message else f"{message} ({game.env})"

    try:
        yield
    except ConfigError as error:
        path = "env" if error.path in {"", "env", "game"} else error.path
        raise ConfigError(f"{place}{path}", named(error.message)) from error.__cause__
    except MissingDependencyError as error:
        raise MissingDependencyError(named(str(error))) from error
    except GameError as error:
        raise ConfigError(f"{place}env", named(str(error))) from error
    except Exception as error:
        raise ConfigError(f"{place}env", f"{game.env} cannot be made: {one_line(in_words(error))}") from error


@contextmanager
def games_blamed_first(config: Any) -> Iterator[None]:
    """An error raised inside, where games are made, is that of the configured game which cannot be made,
    at its place in the configuration, if there is one. They are made only then.
    """
    try:
        yield
    except Exception:
        check_games_can_be_made(config)
        raise


def _games_of(config: Any) -> list[tuple[str, GameConfig]]:
    """Where each game stands, of training and of evaluation, and the game."""
    games = [(f"games[{n}]." if config.games else "", game) for n, game in enumerate(config.training_games())]
    return games + [(f"evaluation_config.games[{n}].", game) for n, game in enumerate(config.evaluation_games)]


def close_game(game: Any) -> None:
    """Close a game that was made to see whether it can be."""
    close = getattr(game, "close", None)
    if callable(close):
        close()


def check_language_model(options: LanguageModelOptions, key: Callable[..., str]) -> None:
    """The options of one language model; ``key`` names the one to change among some that do not fit together."""
    if options.model == TINY_MODEL:
        most = check_shape(options.tiny, key("tiny")).max_position_embeddings
        if options.context_length > most:
            raise ConfigError(
                key("context_length", "tiny"),
                f"{options.context_length} is more than the {most} positions of the model "
                "(max_position_embeddings of the tiny model)",
            )
    else:
        check_model(options.model, key("model"))
        directory = model_directory(options.model)
        tokenizer = tokenizer_source(options, directory)
        tokenizer_key = key("tokenizer", "model") if options.tokenizer else key("model")
        try:
            problem = vocabulary_problem(directory, tokenizer)
        except (OSError, ValueError) as error:
            problem = str(error)
        if problem is not None:
            raise ConfigError(tokenizer_key, problem)
        if Path(tokenizer).is_dir() and not options.trust_remote_code:  # Nothing is fetched here, and no code is run.
            try:
                ChatFormat(load_tokenizer(directory, options), options)
            except ConfigError as error:
                name = error.path.rpartition(".")[2]
                raise ConfigError(tokenizer_key if name == "tokenizer" else key(name), error.message) from error
        config = local_config(directory)
        problem = None if config is None else context_problem(config, options.context_length)
        if problem is not None:
            raise ConfigError(key("context_length", "model"), problem)
    check_lengths(options, key)


def check_trainable(options: LanguageModelOptions, key: Callable[..., str]) -> None:
    """Models of this architecture can be trained, as far as local files tell; ``key`` as above."""
    config = None if options.model == TINY_MODEL else local_config(model_directory(options.model))
    if config is None:
        return
    from rllib_lmgame.policies.model.isolation import UnfitModelError, packing_of

    try:
        packing_of(config)
    except UnfitModelError as error:
        raise ConfigError(key("model"), f"{config.model_type} models cannot be trained here: {error}") from error


def check_lengths(options: LanguageModelOptions, key: Callable[..., str]) -> None:
    """How long replies, episodes and the context of a language model are, beside each other; ``key`` as above."""
    if options.max_tokens_per_turn >= options.context_length:
        raise ConfigError(
            key("max_tokens_per_turn", "context_length"),
            f"max_tokens_per_turn={options.max_tokens_per_turn} leaves no room for a prompt in "
            f"context_length={options.context_length}",
        )
    if options.least_room > options.max_tokens_per_turn:
        raise ConfigError(
            key("min_tokens_per_turn", "max_tokens_per_turn"),
            f"min_tokens_per_turn={options.min_tokens_per_turn} is more than "
            f"max_tokens_per_turn={options.max_tokens_per_turn}",
        )
    if options.max_tokens_per_episode is not None and options.max_tokens_per_episode < options.max_tokens_per_turn:
        raise ConfigError(
            key("max_tokens_per_episode", "max_tokens_per_turn"),
            f"max_tokens_per_episode={options.max_tokens_per_episode} is less than "
            f"max_tokens_per_turn={options.max_tokens_per_turn}",
        )


def check_row_limit(limit: int | None, options: LanguageModelOptions, key: str) -> None:
    """Rows of at most ``limit`` tokens hold a reply; ``key`` names what to change."""
    if limit is not None and limit < options.max_tokens_per_turn + 1:
        raise ConfigError(
            key,
            f"token_ppo.max_row_tokens={limit} cannot hold one reply of max_tokens_per_turn="
            f"{options.max_tokens_per_turn} tokens and its prompt",
        )


def check_token_ppo(options: TokenPPOOptions, separate: bool, use_kl_loss: bool) -> None:
    """The section ``token_ppo``; ``separate``: a trained policy has a value model of its own."""
    betas = options.adam_betas
    if not all(0 <= beta < 1 for beta in betas):
        raise ConfigError(
            "config.token_ppo.adam_betas", f"must be two numbers of at least 0 and less than 1, got {list(betas)}"
        )
    if options.value_backbone_lr is not None and not separate:
        raise ConfigError(
            "config.token_ppo.value_backbone_lr", "has no effect without language_model.value_model: separate"
        )
    if options.ema_decay == 1:
        raise ConfigError("config.token_ppo.ema_decay", "1 never follows the weights; set less than 1")
    schedule = options.kl_schedule
    if schedule is None:
        return
    check_points(schedule, "config.token_ppo.kl_schedule")
    if any(coefficient < 0 for _, coefficient in schedule):
        raise ConfigError(
            "config.token_ppo.kl_schedule",
            "must be a list of [iteration, coefficient of at least 0] with rising iterations",
        )
    if not use_kl_loss:
        raise ConfigError("config.token_ppo.kl_schedule", "has no effect without use_kl_loss: true")
    if options.kl_coeff_range != TokenPPOOptions.kl_coeff_range:
        raise ConfigError("config.token_ppo.kl_coeff_range", "has no effect beside kl_schedule; leave one of them out")


def check_rollouts(rollouts: TextRolloutOptions, num_learners: int, compares: str | None) -> None:
    """The section ``text_rollouts``; ``compares``: the option that asks for groups, if one does."""
    if rollouts.episodes_per_iteration % rollouts.group_size:
        raise ConfigError(
            "config.text_rollouts.episodes_per_iteration",
            f"{rollouts.episodes_per_iteration} is not a multiple of group_size={rollouts.group_size}",
        )
    if rollouts.episodes_per_iteration < max(1, num_learners):
        raise ConfigError("config.text_rollouts.episodes_per_iteration", "each learner needs at least one episode")
    if compares is None:
        return
    if rollouts.group_size == 1:
        raise ConfigError(
            "config.text_rollouts.group_size",
            f"{compares} compares the episodes of a group; set at least 2",
        )
    if rollouts.episodes_per_iteration // rollouts.group_size < num_learners:
        raise ConfigError(
            "config.text_rollouts.episodes_per_iteration",
            f"{compares} needs whole groups and each learner at least one: with "
            f"group_size={rollouts.group_size} and num_learners={num_learners} that is "
            f"{rollouts.group_size * num_learners} episodes",
        )


def check_selection(
    options: DataSelectionOptions,
    rollouts: TextRolloutOptions,
    num_learners: int,
    scheduled: Collection[str] = (),
    *,
    compares: bool = False,
) -> None:
    """The section ``data_selection``.

    Args:
        options: The section.
        rollouts: How many episodes are played.
        num_learners: RLlib's.
        scheduled: Options of the section that follow a schedule, and are set whatever their present values are.
        compares: Whether an option of the update asks for groups.

    Raises:
        ConfigError: for a filter that would keep nothing, or that needs groups where there are none.
    """
    asking = {
        "keep_groups": options.keep_groups < 1,
        "drop_constant_groups": options.drop_constant_groups,
        "normalize_rewards": options.normalize_rewards == "group",
    }
    for key in (key for key, asks in asking.items() if asks and rollouts.group_size == 1):
        raise ConfigError(
            f"config.data_selection.{key}",
            "compares the episodes of a group; set text_rollouts.group_size to at least 2",
        )
    groups = rollouts.episodes_per_iteration // rollouts.group_size
    least = groups_needed(num_learners, rollouts.group_size, compares)
    left = share_of_groups(options.keep_groups, groups)
    if options.keep_groups < 1 and left < least:
        raise ConfigError(
            "config.data_selection.keep_groups",
            f"{options.keep_groups:g} of {groups} groups leaves {left}, but {least} must stay"
            + (f", {'one' if compares else 'an episode'} for each learner" if least > 1 else ""),
        )
    lacking = {
        "max_refill": None if options.drop_constant_groups else "drop_constant_groups: true",
        "overlong_penalty": "overlong_tokens" if options.overlong_tokens is None else None,
        "overlong_buffer": "overlong_tokens" if options.overlong_tokens is None else None,
        "normalize_deviation": "normalize_rewards" if options.normalize_rewards == "none" else None,
    }
    for key, needed in lacking.items():
        if needed and (key in scheduled or getattr(options, key) != getattr(DataSelectionOptions, key)):
            raise ConfigError(f"config.data_selection.{key}", f"has no effect without {needed}")
    if options.overlong_tokens is not None and options.overlong_buffer >= options.overlong_tokens:
        raise ConfigError(
            "config.data_selection.overlong_buffer",
            f"must be less than overlong_tokens={options.overlong_tokens}, got {options.overlong_buffer}",
        )


def check_league(league: LeagueOptions, models: Mapping[str, LanguageModelOptions], *, averaging: bool) -> None:
    """The section ``league``.

    Args:
        league: The section.
        models: Policies that learn -> how they are talked to.
        averaging: Whether there are averaged weights.
    """
    resolve_matchmaker(league.matchmaking)
    exploiters = league.exploiter_options
    if league.self_play_share == 1 and not exploiters:
        raise ConfigError("config.league.self_play_share", "1 leaves no matches against members; set less than 1")
    if league.self_play_share + league.forgotten_share > 1:
        raise ConfigError(
            "config.league.forgotten_share",
            f"{league.forgotten_share:g} and self_play_share={league.self_play_share:g} are more than 1 together",
        )
    if league.snapshot_every is None and league.snapshot_win_rate is None:
        raise ConfigError("config.league.snapshot_every", "null needs a snapshot_win_rate: no snapshot is ever due")
    if league.snapshot_every is None and league.snapshot_win_rate == 1:
        raise ConfigError(
            "config.league.snapshot_win_rate",
            "1 is never exceeded: with snapshot_every: null no snapshot but the first is ever due",
        )
    if league.averaged_snapshots and not averaging:
        raise ConfigError("config.league.averaged_snapshots", "needs averaged weights: set config.token_ppo.ema_decay")
    _check_used(league)
    _check_exploiters(exploiters, list(models))
    meeting = [name for name in models if share_without_members(exploiters.get(name), league.self_play_share) < 1]
    if league.opponent_engines < len(meeting):
        raise ConfigError(
            "config.league.opponent_engines",
            f"{league.opponent_engines} engines do not suffice for {len(meeting)} policies that meet members "
            f"({', '.join(meeting)}); each needs one",
        )
    if league.max_members < len(models):
        raise ConfigError(
            "config.league.max_members",
            f"{league.max_members} members do not suffice for {len(models)} policies that learn: each has one at least",
        )
    for policy in models:
        stem, _, number = policy.rpartition("-")
        if stem in models and number.isdecimal():
            raise ConfigError(
                f"config.policies.{policy}", f"is what a league calls a past version of {stem}; choose another name"
            )
    first, *others = models
    for policy in others:
        ours, theirs = (_without_seed(models[name]) for name in (first, policy))
        if ours != theirs:
            raise ConfigError(
                f"config.policies.{policy}.language_model",
                f"differs from that of {first}: the policies of a league share its opponent engines, so they need the "
                "same model and the same options",
            )


def _check_used(league: LeagueOptions) -> None:
    """Options that say how others do what they do need those; a matchmaker of one's own may read any."""
    waited = [options.win_rate for options in league.exploiter_options.values()] + [league.snapshot_win_rate]
    lacking = {"snapshot_min_games": "snapshot_win_rate" if all(rate is None for rate in waited) else None}
    if league.matchmaking in MATCHMAKERS:
        lacking["power"] = "matchmaking: pfsp_hard" if league.matchmaking != "pfsp_hard" else None
        lacking["forgotten_below"] = "forgotten_share" if league.forgotten_share == 0 else None
    for key, needed in lacking.items():
        if needed and getattr(league, key) != getattr(LeagueOptions, key):
            raise ConfigError(f"config.league.{key}", f"has no effect without {needed}")


def _check_exploiters(exploiters: Mapping[str, ExploiterOptions], policies: Sequence[str]) -> None:
    """Who is to beat whom."""
    for name, options in exploiters.items():
        for policy, path in ((name, f"{EXPLOITERS}.{name}"), (options.of, f"{EXPLOITERS}.{name}.of")):
            if policy not in policies:
                match = nearest(policy, policies)
                hint = f"did you mean {match!r}?" if match else f"policies that learn: {', '.join(policies)}"
                raise ConfigError(path, f"{policy!r} is no policy that learns; {hint}")
        if options.of in exploiters:
            what = "itself" if options.of == name else "another exploiter"
            raise ConfigError(f"{EXPLOITERS}.{name}.of", f"is {what}; an exploiter is to beat a policy that is none")


def _without_seed(options: LanguageModelOptions) -> LanguageModelOptions:
    """The options but for what tells two untrained tiny models apart."""
    return dataclasses.replace(options, tiny={key: value for key, value in options.tiny.items() if key != "seed"})


def check_inference(inference: InferenceOptions, learner_gpus: float, num_learners: int) -> None:
    """The section ``inference``, beside learners of ``learner_gpus`` GPUs each."""
    if inference.tensor_parallel_size > 1 and inference.num_gpus_per_engine != inference.tensor_parallel_size:
        raise ConfigError(
            "config.inference.num_gpus_per_engine",
            f"must equal tensor_parallel_size={inference.tensor_parallel_size}, got {inference.num_gpus_per_engine:g}",
        )
    entry = _check_engine(inference)
    if inference.over_devices:
        _check_device_transport(inference, entry, learner_gpus, num_learners)
    if inference.sleep_during_update and inference.num_gpus_per_engine == 0:
        raise ConfigError(
            "config.inference.sleep_during_update",
            "needs engines on GPUs: there is no GPU memory to give back on a CPU",
        )


def _check_engine(inference: InferenceOptions) -> EngineEntry:
    """There is such an engine, and one that is brought along has what it is asked for."""
    key = "config.inference.engine"
    entry = find_engine(inference.engine, key)
    if inference.engine not in ENGINES:  # This package's own need not be installed here.
        entry.engine_class(key)
        asks = {"weight_transport": inference.over_devices, "sleep_during_update": inference.sleep_during_update}
        for option in (option for option, asked in asks.items() if asked):
            entry.check_on_devices(f"config.inference.{option}")
    return entry


def _check_device_transport(inference: InferenceOptions, entry: EngineEntry, learner: float, num_learners: int) -> None:
    """Weights from GPU to GPU: what the way asks of engines and learners."""
    way, engine = inference.weight_transport, inference.num_gpus_per_engine
    if engine == 0:
        raise ConfigError("config.inference.weight_transport", f"{way!r} needs engines on GPUs; use object_store")
    if learner == 0:
        raise ConfigError(
            "config.num_gpus_per_learner",
            f"is 0, but inference.weight_transport: {way} needs learners on GPUs; use object_store",
        )
    if not entry.over_devices:
        raise ConfigError(
            "config.inference.weight_transport",
            f"{way!r} needs engine: vllm, or another that takes weights from GPU to GPU; `{entry.name}` takes "
            "object_store",
        )
    if way == "nccl" and (engine % 1 or learner % 1):
        raise ConfigError(
            "config.inference.weight_transport",
            f"'nccl' needs whole GPUs for every engine and learner, got num_gpus_per_engine={engine:g} and "
            f"num_gpus_per_learner={learner:g}: NCCL does not connect two processes on one GPU; use object_store",
        )
    if way == "ipc" and engine + learner > 1:
        raise ConfigError(
            "config.inference.weight_transport",
            f"'ipc' needs learner and engine on one GPU, got num_gpus_per_engine={engine:g} and "
            f"num_gpus_per_learner={learner:g}, which must be at most 1 together; use object_store",
        )
    for key, count in {"inference.num_engines": inference.num_engines, "num_learners": num_learners}.items():
        if way == "ipc" and count > 1:
            raise ConfigError(
                f"config.{key}",
                f"must be 1 with inference.weight_transport: ipc, where learner and engine share a GPU; got {count}",
            )
