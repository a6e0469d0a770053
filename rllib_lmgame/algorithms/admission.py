"""Whether a configuration may run: all rules are asked in order, then files and games."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rllib_lmgame.algorithms.facts import PolicyFacts, RunFacts, below_config, state_rollouts
from rllib_lmgame.algorithms.games import (
    check_contest,
    check_games_known,
    check_replayable,
    check_seats,
    games_blamed_first,
    games_of,
)
from rllib_lmgame.algorithms.measuring.measures import check_measures
from rllib_lmgame.algorithms.scheduled import game_variants, in_lockstep, kind_of, occurring, whole_keys
from rllib_lmgame.base.errors import ConfigError, did_you_mean
from rllib_lmgame.base.group import describe, leaves
from rllib_lmgame.base.registry import MEASURES
from rllib_lmgame.base.schedule import check_numbers, game_of, place_of
from rllib_lmgame.base.storage import expanded
from rllib_lmgame.config import rules
from rllib_lmgame.config.algorithms import OWN
from rllib_lmgame.config.rllib import INSTEAD, SCHEDULED_KEYS
from rllib_lmgame.config.rules import Broken, Rules
from rllib_lmgame.config.run import OVERRIDES, RunConfig
from rllib_lmgame.endpoints.address import read_address
from rllib_lmgame.learners.teacher_options import KEY as TEACHER
from rllib_lmgame.learners.teacher_options import TeacherOptions
from rllib_lmgame.policies.chat.format import ChatFormat
from rllib_lmgame.policies.chat.replies import reply_format
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
from rllib_lmgame.policies.model.positions import context_problem
from rllib_lmgame.policies.model.tiny import check_shape, tiny_config
from rllib_lmgame.policies.options import LANGUAGE_MODEL, TINY_MODEL, LanguageModelOptions
from rllib_lmgame.policies.scripted import make_scripted_player
from rllib_lmgame.rollouts.game_calls import opened

_OF_ONE = (
    *(*SCHEDULED_KEYS, "kl_coeff", "kl_target", "grad_clip", "grad_clip_by", "seed", "learner_config_dict"),
    *("token_ppo", "text_rollouts", "text_rollouts.reward_scale"),
)
"""What an update reads, beside the options of ``token_ppo``: it can be one policy's own."""

_PLAYED = ("text_rollouts.", "data_selection.")

_SINCE_RESTORE = ("iterations_since_restore", "time_since_restore")

_MANY = 4096
"""Combinations that are looked at where a look costs microseconds."""


def admit(config: Any) -> None:
    """Check what RLlib's ``validate`` does not know. Raises: ConfigError: says the key, the problem and the remedy."""
    s, run = config.run, RunFacts(config)
    refuse(rules.rllib, s, run)
    check_games_known(config)
    _check_players(config, s)
    refuse(rules.imitation, s, run)
    for name in s.language_model_policies():
        _check_language_model(s.policy(name), trained=s.is_trained(name))
    _check_talk(config, s)
    _check_updates(config, s)
    refuse(rules.asked_teacher, s, run)
    check_teacher(config, {})
    if not any(key.startswith(_PLAYED) for key in s.schedules):  # Else each of their values is looked at.
        refuse(rules.play, s, run)
        refuse(rules.selection, s, run)
    refuse(rules.async_rollouts, s, run)
    with games_blamed_first(config):
        check_seats(config)
        if s.league is not None:
            refuse(rules.league, s, run)
            check_contest(config)
    check_schedules(config)
    refuse(rules.engines, s, run)
    if s.evaluation_config.measures and config.evaluation_interval:  # To look at a game may take long.
        games = config.games_for_evaluation()
        with games_blamed_first(config):
            check_measures(s.evaluation_config.measures, games, MEASURES.key, averaged=s.averages)


def check_states(config: Any) -> None:
    """Check what estimators need that play on from the middle of games. Raises: ConfigError: names the key."""
    for policy in state_rollouts(config):
        refuse(rules.states, config.run.policy(policy), PolicyFacts(config, policy))
    with games_blamed_first(config):
        check_replayable(config)


# -- rules ------------------------------------------------------------------------------------------------------------


def refuse(asked: Rules, s: RunConfig, f: Any) -> None:
    """Raise :class:`ConfigError` for the first rule that is broken."""
    with _of_policy(s, f):
        for key, message, beside in asked(s, f):
            raise ConfigError(s.place(key, *beside), message)


@contextmanager
def _of_policy(s: RunConfig, f: Any) -> Iterator[None]:
    """A :class:`ConfigError` raised inside stands below ``config``, and names a policy's own options if it has any."""
    try:
        with below_config():
            yield
    except ConfigError as error:
        own = f.own if isinstance(f, PolicyFacts) else ()
        key = error.path.removeprefix("config.")
        if key.partition(".")[0] in {option.partition(".")[0] for option in own}:
            raise ConfigError(f"config.{OVERRIDES}.{s.name}.{key}", error.message) from None
        theirs = f"; {s.name} has {', '.join(sorted(own))} of its own" if own else ""
        raise ConfigError(error.path, f"{error.message}{theirs}") from None


def _check_updates(config: Any, s: RunConfig) -> None:
    """How every policy is updated."""
    from rllib_lmgame.learners.engines.deepspeed_engine import check_deepspeed

    trained = {name: (s.policy(name), PolicyFacts(config, name)) for name in s.trained_policies()}
    with below_config():
        check_deepspeed(config.run.deepspeed, config.grad_clip)
    for of_policy, f in trained.values():
        refuse(rules.numerics, of_policy, f)
    for of_policy, f in trained.values():
        known = {f"token_ppo.{name}" for name in leaves(type(of_policy.token_ppo))}
        begins = of_policy.at({key: options.first for key, options in of_policy.schedules.items() if key in known})
        with _of_policy(of_policy, f):
            for key, message, beside in rules.update(begins, f):
                if not of_policy.follows(key):  # Else the schedule is refused.
                    raise ConfigError(of_policy.place(key, *beside), message)


# -- RLlib's own keys -------------------------------------------------------------------------------------------------


def check_overrides(config: Any) -> None:
    """Check the owners, types and ranges of overrides per module. Raises: ConfigError: names the key.

    Custom algorithms are not checked: they may read anything.
    """
    overrides, trained, place = getattr(config, OVERRIDES), config.trained_policies(), f"config.{OVERRIDES}"
    if not isinstance(overrides, Mapping):
        raise ConfigError(place, f"expected a mapping from policies to options, got {describe(overrides)}")
    for policy, options in overrides.items():
        path = f"{place}.{policy}"
        if policy not in trained:
            hint = did_you_mean(policy, trained, f"policies that learn: {', '.join(trained)}")
            raise ConfigError(path, f"{policy!r} is no policy that learns; {hint}")
        if not isinstance(options, Mapping):
            raise ConfigError(path, f"expected a mapping of options, got {describe(options)}")
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
            within = key.startswith(("token_ppo.", "learner_config_dict.")) and key != "token_ppo.num_threads"
            if key in _OF_ONE or within:
                continue
            if key in INSTEAD:
                raise ConfigError(f"{path}.{key}", f"unknown key; {INSTEAD[key]}")
            where = f"policies.{policy}.{key}" if key == "language_model" else key
            raise ConfigError(f"{path}.{key}", f"cannot be a policy's own; set config.{where}")
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
                raise ConfigError(
                    f"config.policies.{name}.trained", f"the scripted player {options.player!r} cannot be trained"
                )
    config.agent_to_module_mapping()


def _check_talk(config: Any, s: RunConfig) -> None:
    """What games ask for in place of ``language_model``."""
    policies = s.language_model_policies()
    for place, game in games_of(config):
        for name in policies if game.language_model else ():
            _check_language_model(s.policy(name).in_game(game, place.rstrip(".")), trained=False)


def _check_language_model(s: RunConfig, *, trained: bool) -> None:
    """The options of one policy's language model, and the files that they name."""

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
            raise ConfigError(
                key("context_length", "tiny"),
                f"{s.language_model.context_length} is more than the {most} positions of the model "
                "(max_position_embeddings of the tiny model)",
            )
    else:
        _check_files(s.language_model, key, loaded_here)
    refuse(rules.lengths, s, None)
    if trained and s.language_model.lora is not None:
        _check_lora(s.language_model, key, served=s.inference.adapters)
    config = (
        local_config(model_directory(s.language_model.model))
        if trained and s.language_model.model != TINY_MODEL
        else None
    )
    if config is None:
        return
    from rllib_lmgame.policies.model.packing_support import UnfitModelError, packing_of

    try:
        packing_of(config)
    except UnfitModelError as error:
        raise ConfigError(key("model"), f"{config.model_type} models cannot be trained here: {error}") from error


def _check_lora(options: LanguageModelOptions, key: Callable[..., str], *, served: bool) -> None:
    """What adapters need, and whether they suit the model as far as local files tell, and engines if ``served``."""
    from rllib_lmgame.policies.model.adapters import check_lora, served_rank

    assert options.lora is not None
    directory = None if options.model == TINY_MODEL else expanded(model_directory(options.model))
    if directory is None:
        config: Any = tiny_config(check_shape(options.tiny, key("tiny")))
    else:
        config = local_config(str(directory))
    try:
        if served:
            served_rank(options.lora)
        check_lora(options.lora, config)
    except ConfigError as error:
        raise ConfigError(key(error.path.removeprefix("language_model.")), error.message) from error


_FIT: set[tuple[Any, ...]] = set()
"""Options and files that were found to go together in this process: a tokenizer takes long to load."""


def _check_files(options: LanguageModelOptions, key: Callable[..., str], loaded_here: bool) -> None:
    """Model and tokenizer of a directory, as far as local files tell; ``loaded_here``: Transformers reads the model."""
    check_model(options.model, key("model"))
    directory = model_directory(options.model)
    problem = read_config(directory)[1] if loaded_here and not options.trust_remote_code else None
    if problem is not None:
        raise ConfigError(key("model"), f"the config.json of {directory} cannot be read: {problem}")
    places = {str(directory), str(tokenizer_source(options, directory)), str(options.chat_template)}
    there = [
        Path(place) for place in places if os.path.exists(place)
    ]  # Unlike Path's: False for a template's long text.
    files = (file for place in there for file in (place, *place.glob("*")) if file.exists())
    state = (repr(options), *sorted((str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files))
    if state not in _FIT:
        _check_tokenizer(options, key)
        _FIT.add(state)


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
            _fetched_tokenizer(own, own.language_model.model)


def _fetched_tokenizer(own: RunConfig, model: str) -> str:
    """Where the tokenizer of a policy lies, whose model is ``model``, once it is fetched. Raises: ConfigError."""
    if not own.language_model.tokenizer:
        return fetched(model, own.place("language_model.model"))
    return fetched(own.language_model.tokenizer, own.place("language_model.tokenizer"), TOKENIZER_FILES)


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
        tokenizer = _fetched_tokenizer(learner, model) if fetch else tokenizer_source(learner.language_model, model)
        problem = other(learner.language_model, tokenizer)
        if problem is None:
            continue
        cure = ""
        if (
            learner.language_model.model == TINY_MODEL
        ):  # Its directory is one of this package, and its tokenizer may be any.
            problem = problem.replace(model, TINY_MODEL)
            theirs = "" if teacher.is_asked else model_directory(teacher.model, TEACHER)
            cure = theirs and f"; with language_model.tokenizer: {theirs} it has the teacher's"
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
    s, run = config.run, RunFacts(config)
    if not s.schedules:
        return
    if not config.follows_schedules:
        raise ConfigError(place_of(next(iter(s.schedules))), f"has no effect: {config.entry.name} follows no schedules")
    policies = {name: (s.policy(name), PolicyFacts(config, name)) for name in s.trained_policies()}
    for key, options in s.schedules.items():
        _check_followed(options.by, f"{place_of(key)}.by", config)
        check_numbers(options, *kind_of(key, config), place_of(key))
    for policy, f in policies.values():
        for broken in rules.scheduled(policy, f):
            raise ConfigError(place_of(broken.key), broken.message)
    _check_play(config, s, run)
    _check_loss(config, policies)
    _check_lengths(config, s)
    _check_weights(config)
    with games_blamed_first(config):
        for game, values in game_variants(config):
            try:
                with opened(game.env, game.env_config):
                    pass
            except ConfigError as error:
                raise _at(values, "games", error.path, error.message) from error


def _check_followed(metric: str, key: str, config: Any) -> None:
    """As far as the name tells; metrics that no result has are refused at the first one."""
    if metric in _SINCE_RESTORE:
        raise ConfigError(key, f"{metric} begins anew when a run is resumed")
    if metric.startswith("evaluation/") and not config.evaluation_interval:
        raise ConfigError(key, f"{metric} is never measured: set config.evaluation_interval")


def _together(config: Any, *sections: str) -> list[dict[str, float]]:
    """Values of the schedules of some sections that come together; none where there are no such schedules."""
    chosen = {key: options for key, options in config.run.schedules.items() if key.partition(".")[0] in sections}
    return occurring(chosen, whole_keys(config), _MANY) if chosen else []


def _check_play(config: Any, s: RunConfig, run: RunFacts) -> None:
    """How many episodes are played, and what is chosen of them; what is always refused is no schedule's fault."""
    together = _together(config, *(section.rstrip(".") for section in _PLAYED))
    found = [next(_played(s.at(values), run), None) for values in together]
    for values, broken in zip(together, found, strict=True):
        if broken is None:
            continue
        if broken.key not in values and found.count(broken) == len(found):
            raise ConfigError(f"config.{broken.key}", broken.message)
        raise _at(values, "text_rollouts", broken.key, broken.message)


def _played(s: RunConfig, run: RunFacts) -> Iterator[Broken]:
    yield from rules.play(s, run)
    yield from rules.selection(s, run)


def _check_loss(config: Any, policies: Mapping[str, tuple[RunConfig, PolicyFacts]]) -> None:
    for values in _together(config, "token_ppo"):
        for policy, f in policies.values():
            followed = {key: value for key, value in values.items() if policy.follows(key)}
            for broken in rules.update(policy.at(followed), f) if followed else ():
                raise _at(values, "token_ppo", broken.key, broken.message)


def _check_lengths(config: Any, s: RunConfig) -> None:
    """The lengths of every policy; its own options stay as they are."""
    games = [None, *(number for number, game in enumerate(s.games) if game.language_model)]
    policies = {name: s.policy(name) for name in s.language_model_policies()}
    every = itertools.product(_together(config, "language_model", "games"), policies.items(), games)
    for values, (name, policy), number in every:
        at = policy.at({key: value for key, value in values.items() if policy.follows(key)})
        at = at if number is None else at.in_game(at.games[number], f"games[{number}]")
        rows = rules.row_lengths(at, None) if s.is_trained(name) else ()
        for broken, message, beside in (*rules.lengths(at, None), *rows):
            keys = [named for key in (broken, *beside) for named in (f"games.{number}.{key}", key)]
            raise ConfigError(place_of(next((key for key in keys if key in values), next(iter(values)))), message)


def _check_weights(config: Any) -> None:
    """Some game must be played: not all weights may be 0 at the same time."""
    weights = {key: options for key, options in config.run.schedules.items() if game_of(key)[1] == "weight"}
    moved = {game_of(key)[0] for key in weights}
    still = (game for n, game in enumerate(config.training_games()) if n not in moved and not game.episodes)
    if not weights or any(game.weight > 0 for game in still):
        return
    if all(any(not any(values.values()) for values in occurring(group)) for group in in_lockstep(weights)):
        raise ConfigError(place_of(next(iter(weights))), "all games would have a weight of 0 at once")


def _at(values: Mapping[str, float], section: str, key: str, message: str) -> ConfigError:
    """The error for values of schedules at which ``key`` is refused: names its schedule, else the first of them."""
    keys = [followed for followed in values if followed.endswith(f".{key.rpartition('.')[2]}")]
    keys += [followed for followed in values if followed.startswith(f"{section}.")]
    at = ", ".join(f"{followed}={value:g}" for followed, value in values.items())
    return ConfigError(place_of([*keys, *values][0]), f"at {at}: {key.removeprefix('config.')}: {message}")
