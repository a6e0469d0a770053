"""Whether a configuration may run: all rules are asked in order, then files and games; and what its plug-ins say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from rllib_lmgame.algorithms.games import check_games_known, check_seats, games_blamed_first, games_of, is_contest
from rllib_lmgame.algorithms.measuring.measures import check_measures
from rllib_lmgame.algorithms.scheduled import game_variants, kind_of, occurring, whole_keys
from rllib_lmgame.base.errors import ConfigError, did_you_mean
from rllib_lmgame.base.group import describe
from rllib_lmgame.base.plugin import asking
from rllib_lmgame.base.registry import ENGINES, ESTIMATORS, MEASURES, OBJECTIVES
from rllib_lmgame.base.schedule import check_numbers, game_of, place_of
from rllib_lmgame.base.storage import expanded
from rllib_lmgame.config import rules
from rllib_lmgame.config.algorithms import OWN, PREFERENCES, TOKEN_PPO, WITHOUT_VALUES
from rllib_lmgame.config.rllib import INSTEAD, SCHEDULED_KEYS
from rllib_lmgame.config.rules import Broken, Rules
from rllib_lmgame.config.run import OVERRIDES, RunConfig
from rllib_lmgame.endpoints.address import read_address
from rllib_lmgame.inference.options import Engine
from rllib_lmgame.learners.options import GROUP, TEACHER, TeacherOptions
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
    *("token_ppo", "text_rollouts", "text_rollouts.reward_scale"),
)
"""What an update reads, beside the options of ``token_ppo``: it can be one policy's own."""


# -- what plug-ins say ------------------------------------------------------------------------------------------------


class RunFacts:
    """Facts of a whole run; ``rllib`` is its configuration, for RLlib's keys that no group declares."""

    def __init__(self, config: Any) -> None:
        self.rllib = config

    @cached_property
    def compares(self) -> str | None:
        """Which option compares the episodes of a group, if one does."""
        if self.rllib.entry.learned_by == PREFERENCES:
            own = self.rllib.run.dpo
            return f"dpo.loss `{own.loss.type}`" if own.data is None else None
        if self.rllib.entry.learned_by != TOKEN_PPO:
            return None
        found = (PolicyFacts(self.rllib, policy).compares for policy in self.rllib.trained_policies())
        return next((option for option in found if option), None)

    @cached_property
    def engine(self) -> Engine:
        """The engine; one that is brought along must have what it is asked for."""
        options = self.rllib.run.inference
        engine: Engine = options.engine
        if engine.type not in ENGINES:  # This package's own need not be installed here.
            engine.engine_class("config.inference.engine")
            asks = {"weight_transport": options.over_devices, "sleep_during_update": options.sleep_during_update}
            for option in (option for option, asked in asks.items() if asked):
                engine.check_on_devices(f"config.inference.{option}")
        return engine


class PolicyFacts:
    """Facts of the update of one learning policy.

    Attributes:
        own: Dotted keys of its own options, from RLlib's overrides per module.
    """

    def __init__(self, config: Any, policy: str) -> None:
        self._config = config
        self._of_module = config.get_config_for_module(policy)
        self.own = config.run.own_keys(policy)

    @property
    def keeps_reference(self) -> bool:
        """Whether learners compare with a reference model: the KL penalty, the estimator, or the loss of pairs."""
        if self._config.entry.learned_by == PREFERENCES:
            return bool(self._config.run.dpo.loss.asks_reference)
        return bool(self._of_module.use_kl_loss or self.estimator.needs_reference)

    @property
    def half_precision(self) -> bool:
        """Whether DeepSpeed casts the weights and keeps float32 copies."""
        from rllib_lmgame.learners.engines.deepspeed_engine import half_dtype

        return half_dtype(self._config.run.deepspeed) is not None

    @property
    def hidden_last_layer(self) -> bool:
        """Whether DeepSpeed keeps a private float32 copy of the value head: half precision without ZeRO."""
        stage = ((self._config.run.deepspeed or {}).get("zero_optimization") or {}).get("stage", 0)
        return stage == 0 and self.half_precision

    @property
    def one_norm_each(self) -> bool:
        """Whether parts of a model can have bounds of their own on their gradients."""
        from rllib_lmgame.learners.engines.deepspeed_engine import optimizer_is_guarded

        return optimizer_is_guarded(self._config.run.deepspeed)

    @property
    def estimator(self) -> Any:
        """The :class:`~rllib_lmgame.learners.advantages.Estimator`."""
        return self._of_module.run.token_ppo.advantage_estimator

    @property
    def estimator_name(self) -> str:
        """Of the advantage estimator."""
        return str(self.estimator.type)

    @cached_property
    def objective(self) -> Any:
        """A new object of the objective."""
        from rllib_lmgame.learners.objectives import resolve_objective

        return resolve_objective(self._of_module.run.token_ppo.objective)

    @cached_property
    def needs_critic(self) -> bool:
        """Whether the update asks a value function, as the objective or else the estimator says."""
        return self._config.entry.learned_by not in WITHOUT_VALUES and self._objective_says("needs_critic")

    @property
    def compares(self) -> str | None:
        """The option that compares the episodes of a group: the estimator, else normalisation or the objective."""
        options = self._of_module.run.token_ppo
        if not self._objective_says("needs_groups"):
            return None
        if self.estimator.needs_groups:
            return f"token_ppo.advantage_estimator `{self.estimator_name}`"
        if options.normalize_advantages == GROUP:
            return f"token_ppo.normalize_advantages `{GROUP}`"
        return f"token_ppo.objective `{options.objective}`"

    def _objective_says(self, question: str) -> bool:
        from rllib_lmgame.learners.objectives.base import LearnerSettings

        with below_config(), asking(f"asking `{self._of_module.run.token_ppo.objective}`", OBJECTIVES.key):
            return bool(getattr(self.objective, question)(LearnerSettings.from_config(self._of_module)))

    @property
    def without_critic(self) -> str:
        """Estimators that need none."""
        return ", ".join(name for name in ESTIMATORS if not ESTIMATORS[name].needs_critic)


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
    s, run = config.run, RunFacts(config)
    refuse(rules.rllib, s, run)
    check_games_known(config)
    _check_players(config, s)
    refuse(rules.imitation, s, run)
    for name in s.language_model_policies():
        _check_language_model(s.policy(name), trained=s.is_trained(name))
        for place, game in games_of(config):
            if game.language_model:
                _check_language_model(s.policy(name).in_game(game, place.rstrip(".")), trained=False)
    _check_updates(config, s)
    refuse(rules.asked_teacher, s, run)
    check_teacher(config, {})
    refuse(rules.play, s, run)
    refuse(rules.selection, s, run)
    refuse(rules.async_rollouts, s, run)
    with games_blamed_first(config):
        check_seats(config)
        if s.league is not None:
            refuse(rules.league, s, run)
            if not any(is_contest(game) for game in config.training_games()):
                raise ConfigError("config.league", "needs a game in which players play against each other")
    check_schedules(config)
    refuse(rules.engines, s, run)
    if s.evaluation_config.measures and config.evaluation_interval:  # To look at a game may take long.
        games = config.games_for_evaluation()
        with games_blamed_first(config):
            check_measures(s.evaluation_config.measures, games, MEASURES.key, averaged=s.averages)


def refuse(asked: Rules, s: RunConfig, f: Any) -> None:
    """Raise :class:`ConfigError` for the first rule that is broken; it names a policy's own options if it has any."""
    try:
        with below_config():
            for key, message, beside in asked(s, f):
                raise ConfigError(s.place(key, *beside), message)
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

    with below_config():
        check_deepspeed(config.run.deepspeed, config.grad_clip)
    for rule in (rules.numerics, rules.update):
        for policy in s.trained_policies():
            refuse(rule, s.policy(policy), PolicyFacts(config, policy))


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
            say = f"{s.language_model.context_length} is more than max_position_embeddings={most} of the tiny model"
            raise ConfigError(key("context_length", "tiny"), say)
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

    try:
        packing_of(config)
    except UnfitModelError as error:
        raise ConfigError(key("model"), f"{config.model_type} models cannot be trained here: {error}") from error


def _check_lora(options: LanguageModelOptions, key: Callable[..., str], *, served: bool) -> None:
    """What adapters need, and whether they suit the model as far as local files tell, and engines if ``served``."""
    from rllib_lmgame.policies.model.adapters import check_lora, served_rank

    assert options.lora is not None
    if options.model == TINY_MODEL:
        config: Any = tiny_config(check_shape(options.tiny, key("tiny")))
    else:
        config = local_config(str(expanded(model_directory(options.model))))
    try:
        if served:
            served_rank(options.lora)
        check_lora(options.lora, config)
    except ConfigError as error:
        raise ConfigError(key(error.path.removeprefix("language_model.")), error.message) from error


_FIT: set[str] = set()
"""Options whose files were found to go together in this process: a tokenizer takes long to load."""


def _check_files(options: LanguageModelOptions, key: Callable[..., str], loaded_here: bool) -> None:
    """Model and tokenizer of a directory, as far as local files tell; ``loaded_here``: Transformers reads the model."""
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
    s, run = config.run, RunFacts(config)
    if not s.schedules:
        return
    if not config.follows_schedules:
        raise ConfigError(place_of(next(iter(s.schedules))), f"{config.entry.name} follows no schedules")
    for key, options in s.schedules.items():
        check_numbers(options, *kind_of(key, config), place_of(key))
        if options.by.endswith("_since_restore"):
            raise ConfigError(f"{place_of(key)}.by", f"{options.by} begins anew when a run is resumed")
    policies = {name: (s.policy(name), PolicyFacts(config, name)) for name in s.language_model_policies()}
    for name in s.trained_policies():
        for broken in rules.scheduled(*policies[name]):
            raise ConfigError(place_of(broken.key), broken.message)
    outside = {key: each for key, each in s.schedules.items() if not game_of(key)[1].startswith("env_config.")}
    for values in occurring(outside, whole_keys(config)):
        for key, message, beside in _broken_at(values, s, run, policies):
            raise _at(values, (key, *beside), message)
    with games_blamed_first(config):
        for game, found in game_variants(config):
            try:
                with opened(game.env, game.env_config):
                    pass
            except ConfigError as error:
                raise _at(found, (error.path,), error.message) from error


def _broken_at(
    values: Mapping[str, float], s: RunConfig, run: RunFacts, policies: Mapping[str, tuple[RunConfig, PolicyFacts]]
) -> Iterator[Broken]:
    """The rules that are broken where schedules have these values; a policy's own options stay as they are."""
    at = s.at(values)
    weights = [game.weight for game in at.games if not game.episodes]
    if weights and not any(weights):
        yield Broken("games.weight", "all games would have a weight of 0 at once")
    yield from rules.play(at, run)
    yield from rules.selection(at, run)
    for name, (policy, f) in policies.items():
        own = policy.at({key: value for key, value in values.items() if policy.follows(key)})
        in_games = (own.in_game(game, f"games[{n}]") for n, game in enumerate(own.games) if game.language_model)
        for each in (own, *in_games):
            yield from rules.lengths(each, None)
            if s.is_trained(name):
                yield from rules.row_lengths(each, None)
        if s.is_trained(name):
            yield from rules.update(own, f)


def _at(values: Mapping[str, float], keys: tuple[str, ...], message: str) -> ConfigError:
    """The error for values of schedules at which ``keys`` are refused: names one of their schedules, or another."""
    names, sections = ({key.split(".")[n] for key in keys} for n in (-1, 0))
    called = [key for key in values if key.rpartition(".")[2] in names]
    beside = [key for key in values if key.partition(".")[0] in sections]
    at, key = ", ".join(f"{each}={value:g}" for each, value in values.items()), keys[0].removeprefix("config.")
    return ConfigError(place_of([*called, *beside, *values][0]), f"at {at}: {key}: {message}")
