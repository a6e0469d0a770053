"""Whether a configuration may run: all rules are asked in order, then files and games."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rllib_lmgame.algorithms.games import check_seats, games_blamed_first, games_of, is_contest
from rllib_lmgame.algorithms.measuring.measures import check_measures
from rllib_lmgame.algorithms.scheduled import game_variants, kind_of, occurring, whole_keys
from rllib_lmgame.base.errors import ConfigError, did_you_mean
from rllib_lmgame.base.group import describe
from rllib_lmgame.base.registry import ENGINES, MEASURES
from rllib_lmgame.base.schedule import check_numbers, game_of, place_of
from rllib_lmgame.config import rules
from rllib_lmgame.config.algorithms import OWN
from rllib_lmgame.config.rllib import INSTEAD, SCHEDULED_KEYS
from rllib_lmgame.config.rules import Broken, Rules
from rllib_lmgame.config.run import OVERRIDES, RunConfig
from rllib_lmgame.endpoints.address import read_address
from rllib_lmgame.learners.options import TEACHER, TeacherOptions
from rllib_lmgame.policies.chat.format import ChatFormat
from rllib_lmgame.policies.chat.reply_formats import reply_format
from rllib_lmgame.policies.model.files import (
    TOKENIZER_FILES,
    check_model,
    fetched,
    load_tokenizer,
    local_config,
    model_directory,
    other_vocabulary,
    read_config,
    tokenizer_source,
    vocabulary_problem,
)
from rllib_lmgame.policies.model.loading import UnfitModelError, context_problem, packing_of
from rllib_lmgame.policies.model.tiny import check_shape, tiny_config
from rllib_lmgame.policies.options import LANGUAGE_MODEL, TINY_MODEL, LanguageModelOptions
from rllib_lmgame.policies.scripted import make_scripted_player
from rllib_lmgame.rollouts.game_calls import opened

_OF_ONE = (
    *(*SCHEDULED_KEYS, "kl_coeff", "kl_target", "grad_clip", "grad_clip_by", "seed", "learner_config_dict"),
    *("training", "text_rollouts", "text_rollouts.reward_scale"),
)
"""What an update reads, beside the options of ``training``: it can be one policy's own."""
_OF_ALL = ("training.num_threads", "training.offload_during_rollout")
"""Of these options, what is the process's."""


@contextmanager
def below_config() -> Iterator[None]:
    """What a plug-in refuses stands below ``config``."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"config.{error.path.removeprefix('config.')}", error.message) from None


# -- rules ------------------------------------------------------------------------------------------------------------


def admit(config: Any) -> None:
    """Check what RLlib's ``validate`` does not know. Raises: ConfigError: says the key, the problem and the remedy."""
    from rllib_lmgame.learners.engines.deepspeed_engine import check_deepspeed
    from rllib_lmgame.learners.engines.torch_engine import optimizer_class

    s = config.run
    refuse(rules.rllib, s, config)
    _check_players(config, s)
    refuse(rules.imitation, s)
    for name in s.language_model_policies():
        _check_language_model(s.policy(name), trained=s.is_trained(name))
        for place, game in games_of(config):
            if game.language_model:
                _check_language_model(s.policy(name).in_game(game, place.rstrip(".")), trained=False)
    with below_config():
        check_deepspeed(s.deepspeed, config.grad_clip)
    for policy in map(s.policy, s.trained_policies()):
        optimizer_class(policy.training.optimizer)
        refuse(rules.numerics, policy)
        refuse(rules.row_lengths, policy)
    refuse(rules.asked_teacher, s)
    check_teacher(config, {})
    refuse(rules.play, s)
    refuse(rules.selection, s)
    refuse(rules.async_rollouts, s, config)
    with games_blamed_first(config):
        check_seats(config)
        if s.league is not None:
            refuse(rules.league, s)
            if not any(is_contest(game) for game in config.training_games()):
                raise ConfigError("config.league", "needs a game in which players play against each other")
    check_schedules(config)
    if s.inference.engine.type not in ENGINES:  # This package's own need not be installed here.
        s.inference.engine.engine_class("config.inference.engine")
    refuse(rules.engines, s)
    if s.evaluation_config.measures:  # To look at a game may take long.
        games = config.games_for_evaluation() if config.evaluation_interval else ()
        with games_blamed_first(config):
            check_measures(s.evaluation_config.measures, games, MEASURES.key, averaged=s.averages)


def refuse(asked: Rules, s: RunConfig, f: Any = None) -> None:
    """Raise :class:`ConfigError` for the first rule that is broken, at a policy's own option if it has one there."""
    own = {key.partition(".")[0] for key in s.own_keys(s.name)}
    with below_config():
        for key, message, beside in asked(s, f):
            of_policy = f"{OVERRIDES}.{s.name}.{key}" if key.partition(".")[0] in own else s.place(key, *beside)
            raise ConfigError(of_policy, message)


# -- RLlib's own keys -------------------------------------------------------------------------------------------------


def check_overrides(config: Any) -> None:
    """Check the owners, types and ranges of overrides per module. Raises: ConfigError: names the key.

    Custom algorithms are not checked: they may read anything.
    """
    trained = config.trained_policies()
    for policy in getattr(config, OVERRIDES):
        path = f"config.{OVERRIDES}.{policy}"
        if policy not in trained:
            hint = did_you_mean(policy, trained, f"policies that learn: {', '.join(trained)}")
            raise ConfigError(path, f"{policy!r} is no policy that learns; {hint}")
        problem = None
        try:
            of_module = config.get_config_for_module(policy)
            for key, schedule in of_module.run.schedules.items():
                if config.run.schedules.get(key) != schedule:
                    raise ConfigError(f"{path}.{key}", "a policy's own option cannot follow a schedule; set a number")
        except ConfigError as error:
            below = f"{path}.{error.path.removeprefix('config.')}"
            raise ConfigError(error.path if error.path.startswith(path) else below, error.message) from None
        except (ValueError, TypeError, AttributeError) as error:  # RLlib's own words, which name no policy.
            problem = ConfigError(path, str(error).strip().split("\n")[0])
        for key in sorted(config.run.own_keys(policy)) if config.entry in OWN.values() else ():
            within = key.startswith(("training.", "learner_config_dict.")) and key not in _OF_ALL
            if key not in _OF_ONE and not within:
                where = f"policies.{policy}.{key}" if key == "language_model" else key
                raise ConfigError(f"{path}.{key}", INSTEAD.get(key, f"cannot be a policy's own; set config.{where}"))
        if problem is not None:
            raise problem


# -- players and models -----------------------------------------------------------------------------------------------


def check_who_learns(config: Any) -> None:
    """RLlib's ``policies_to_train`` must be empty or agree with ``policies``. Raises: ConfigError."""
    named, learning = config.policies_to_train, config.trained_policies()
    known = isinstance(named, list | tuple | set | frozenset)
    if named is not None and not (known and sorted(named) == sorted(learning)):
        say = f"must be {learning}, who learns by policies.NAME.trained; leave it out, got {describe(named)}"
        raise ConfigError("config.policies_to_train", say)


def _check_players(config: Any, s: RunConfig) -> None:
    if not s.trained_policies():
        raise ConfigError("config.policies", "no policy is trained; at least one must be a language model")
    for name, options in s.policies.items():
        if options.player != LANGUAGE_MODEL:
            make_scripted_player(options.player, f"config.policies.{name}.player")
            if options.trained:
                say = f"the scripted player {options.player!r} cannot be trained"
                raise ConfigError(f"config.policies.{name}.trained", say)
    config.agent_to_module_mapping()


def _check_language_model(s: RunConfig, *, trained: bool) -> None:
    def key(*names: str) -> str:
        return s.place(*(f"language_model.{name}" for name in names))

    try:
        refuse(rules.replies, s, reply_format)
    except ConfigError as error:
        raise ConfigError(key(error.path.rpartition(".")[2]), error.message) from error
    loaded_here = trained or s.inference.engine.type == "transformers"
    if s.language_model.model == TINY_MODEL:
        most = check_shape(s.language_model.tiny, key("tiny")).max_position_embeddings
        if s.language_model.context_length > most:
            say = f"{s.language_model.context_length} is more than max_position_embeddings={most} of the tiny model"
            raise ConfigError(key("context_length", "tiny"), say)
    else:
        _check_files(s.language_model, key, loaded_here)
    refuse(rules.lengths, s)
    if not trained:
        return
    tiny = s.language_model.model == TINY_MODEL
    config: Any = None if tiny else local_config(model_directory(s.language_model.model))
    if s.language_model.lora is not None:
        shape = check_shape(s.language_model.tiny, key("tiny")) if tiny else None
        _check_lora(s, config if shape is None else tiny_config(shape), key)
    if config is not None:
        try:
            packing_of(config)
        except UnfitModelError as error:
            raise ConfigError(key("model"), f"{config.model_type} models cannot be trained here: {error}") from error


def _check_lora(s: RunConfig, model: Any, key: Callable[..., str]) -> None:
    from rllib_lmgame.policies.model.adapters import check_lora, served_rank

    assert s.language_model.lora is not None
    try:
        if s.inference.adapters:
            served_rank(s.language_model.lora)
        check_lora(s.language_model.lora, model)
    except ConfigError as error:
        raise ConfigError(key(error.path.removeprefix("language_model.")), error.message) from error


_FIT: set[str] = set()
"""Options whose files were found to go together in this process: a tokenizer takes long to load."""


def _check_files(options: LanguageModelOptions, key: Callable[..., str], loaded_here: bool) -> None:
    check_model(options.model, key("model"))
    directory = model_directory(options.model)
    problem = read_config(directory)[1] if loaded_here and not options.trust_remote_code else None
    if problem is not None:
        raise ConfigError(key("model"), f"the config.json of {directory} cannot be read: {problem}")
    if repr(options) not in _FIT:
        _check_tokenizer(options, key)
        _FIT.add(repr(options))


def _check_tokenizer(options: LanguageModelOptions, key: Callable[..., str]) -> None:
    """A model's tokenizer is one that it knows, replies can be told in its chat template, and positions suffice."""
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


def check_on_hub(config: Any) -> None:
    """Policies' models that are not on this machine must be on the hub; configuration and tokenizer are fetched.

    Else engines would be waited for that cannot start. Raises: ConfigError: naming what is not there.
    """
    for own in map(config.run.policy, config.language_model_policies()):
        if own.language_model.model != TINY_MODEL:
            fetched(own.language_model.model, own.place("language_model.model"))
        if own.language_model.tokenizer:
            fetched(own.language_model.tokenizer, own.place("language_model.tokenizer"), TOKENIZER_FILES)


def check_teacher(config: Any, made: Mapping[str, str], *, fetch: bool = False) -> None:
    """A teacher must have the vocabulary of all that learn from it, as far as local files tell.

    ``made`` are directories of models that were made for policies. ``fetch``: of models on the hub configuration and
    tokenizer are fetched first, and a teacher behind an endpoint is asked. Raises: ConfigError: naming a token that
    differs; such a teacher is not there.
    """
    teacher = config.run.teacher
    if teacher is None:
        return
    other = _vocabulary_of(teacher, fetch)
    for policy in config.trained_policies():
        learner = config.run.policy(policy)
        if policy not in made and learner.language_model.model == TINY_MODEL:
            continue  # It is made later.
        model = made.get(policy) or model_directory(learner.language_model.model)
        tokenizer = tokenizer_source(learner.language_model, model)
        if fetch and learner.language_model.tokenizer:
            tokenizer = fetched(tokenizer, learner.place("language_model.tokenizer"), TOKENIZER_FILES)
        elif fetch:
            tokenizer = fetched(model, learner.place("language_model.model"))
        if (problem := other(learner.language_model, tokenizer)) is not None:
            cure = "; set language_model.tokenizer to the teacher's" * (learner.language_model.model == TINY_MODEL)
            raise ConfigError(TEACHER, f"the teacher of {policy} must have the same vocabulary: {problem}{cure}")


def _vocabulary_of(teacher: TeacherOptions, fetch: bool) -> Callable[[LanguageModelOptions, str], str | None]:
    """How the vocabulary of a policy's tokenizer differs from the teacher's. Raises: ConfigError: no such teacher."""
    if not teacher.is_asked:
        check_model(teacher.model, TEACHER)
        own = fetched(teacher.model, TEACHER) if fetch else model_directory(teacher.model, TEACHER)
        return lambda options, tokenizer: other_vocabulary(tokenizer, own)
    read_address(teacher.model, TEACHER)
    if not fetch:
        return lambda options, tokenizer: None
    from rllib_lmgame.learners.engines.teacher_client import HURRIED, SHORT_LIMIT_S, TeacherClient  # Of an HTTP client.

    asked = TeacherClient(teacher.model, HURRIED, SHORT_LIMIT_S)
    asked.check()
    return lambda options, source: asked.other_vocabulary(load_tokenizer(source, options), options.context_length)


# -- schedules --------------------------------------------------------------------------------------------------------


def check_schedules(config: Any) -> None:
    """Scheduled options must exist, be changeable and stay valid. Raises: ConfigError: names the schedule."""
    s = config.run
    if not s.schedules:
        return
    if not config.follows_schedules:
        raise ConfigError(place_of(next(iter(s.schedules))), f"{config.entry.name} follows no schedules")
    for key, options in s.schedules.items():
        check_numbers(options, *kind_of(key, config), place_of(key))
        if options.by.endswith("_since_restore"):
            raise ConfigError(f"{place_of(key)}.by", f"{options.by} begins anew when a run is resumed")
    policies = list(map(s.policy, s.language_model_policies()))
    for policy in policies:
        for broken in rules.scheduled(policy, None) if s.is_trained(policy.name) else ():
            raise ConfigError(place_of(broken.key), broken.message)
    outside = {key: each for key, each in s.schedules.items() if not game_of(key)[1].startswith("env_config.")}
    for values in occurring(outside, whole_keys(config)):
        for key, message, beside in _broken_at(values, s, policies):
            raise _at(values, (key, *beside), message)
    with games_blamed_first(config):
        for game, found in game_variants(config):
            try:
                with opened(game.env, game.env_config):
                    pass
            except ConfigError as error:
                raise _at(found, (error.path,), error.message) from error


def _broken_at(values: Mapping[str, float], s: RunConfig, policies: list[RunConfig]) -> Iterator[Broken]:
    """The rules that are broken where schedules have these values; a policy's own options stay as they are."""
    at = s.at(values)
    weights = [game.weight for game in at.games if not game.episodes]
    if weights and not any(weights):
        yield Broken("games.weight", "all games would have a weight of 0 at once")
    yield from rules.play(at, None)
    yield from rules.selection(at, None)
    for policy in policies:
        own = policy.at({key: value for key, value in values.items() if key in policy.schedules})
        in_games = (own.in_game(game, f"games[{n}]") for n, game in enumerate(own.games) if game.language_model)
        for each in (own, *in_games):
            yield from rules.lengths(each, None)
            if s.is_trained(policy.name):
                yield from rules.row_lengths(each, None)


def _at(values: Mapping[str, float], keys: tuple[str, ...], message: str) -> ConfigError:
    """The error for values of schedules at which ``keys`` are refused: names one of their schedules, or another."""
    names = {key.rpartition(".")[2] for key in keys}
    called = next((key for key in values if key.rpartition(".")[2] in names), next(iter(values)))
    at, key = ", ".join(f"{each}={value:g}" for each, value in values.items()), keys[0].removeprefix("config.")
    return ConfigError(place_of(called), f"at {at}: {key}: {message}")
