"""Parts chosen by name: this package's own, which are not loaded here, and checks of a user's before a run."""

from __future__ import annotations

import importlib
import inspect
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

from pydantic_core import ValidationError, core_schema

from rllib_lmgame.base.errors import ConfigError, nearest
from rllib_lmgame.base.group import build, check_value, declared, describe, is_group, unknown_key
from rllib_lmgame.base.plugin import asking, import_path


@dataclass(frozen=True)
class Registry:
    """Parts of one kind; iterating gives this package's names.

    A setting is ``NAME``, ``package.module:Name``, or a mapping with that as ``type`` and the part's options.

    Attributes:
        key, what: For errors.
        parts: Name -> import path (or the part itself); or modules of this package: their classes that derive from
            ``base`` and have a name, which is the default of their ``type``. The first stands for one without a type.
        of_function: Import path of the group for a function; ``None``: parts are no groups.
        takes: What a function takes, for errors.
        base: Import path of what classes of parts that are groups derive from.
    """

    key: str
    what: str
    parts: Mapping[str, Any] | tuple[str, ...]
    of_function: str | None = None
    takes: str = ""
    base: str = "rllib_lmgame.base.group:Group"

    @classmethod
    def of(cls, key: str, what: str, *groups: type) -> Registry:
        """Groups by the defaults of their ``type``."""
        return cls(key, what, {declared(each)["type"].default: each for each in groups})

    @cached_property
    def own(self) -> Mapping[str, Any]:
        """Name -> this package's part, or its import path."""
        if isinstance(self.parts, Mapping):
            return self.parts
        base = import_path(self.base, self.key)
        found = [each for name in self.parts for each in vars(importlib.import_module(f"rllib_lmgame.{name}")).values()]
        groups = [each for each in found if isinstance(each, type) and issubclass(each, base)]
        return {name: each for each in groups if (name := declared(each)["type"].default)}

    @property
    def classes(self) -> Iterator[Any]:
        """Those of this package."""
        return map(self.__getitem__, self)

    def __iter__(self) -> Iterator[str]:
        return iter(self.own)

    def __getitem__(self, name: str) -> Any:
        """This package's part of that name."""
        found = self.own[name]
        return import_path(found, self.key) if isinstance(found, str) else found

    def listed(self) -> str:
        """What a setting may name, for a sentence of the documentation."""
        return f"{', '.join(f'`{name}`' for name in self.own)}, or `package.module:Name`"

    def split(self, choice: Any, key: str = "") -> tuple[str, dict[str, Any]]:
        """The name and own options of a setting. Raises: ConfigError: if it names nothing."""
        if isinstance(choice, str):
            return choice, {}
        if not isinstance(choice, Mapping):
            raise ConfigError(key or self.key, f"expected a name or {{type: NAME, ...}}, got {describe(choice)}")
        options = dict(choice)
        name = options.pop("type", None)
        if not isinstance(name, str):
            raise ConfigError(f"{key or self.key}.type", "is missing: write {type: NAME, OPTION: VALUE}")
        return name, options

    def find(self, name: str, key: str = "") -> Any:
        """The part registered as ``name`` or at an import path. Raises: ConfigError: names the nearest part."""
        if name in self.own:
            return self[name]
        if ":" in name:
            return import_path(name, key or self.key)
        lower = name.lower().replace("++", "_pp")
        close = lower if lower in self.own else nearest(name, self.own) or nearest(lower, self.own)
        hint = f"did you mean `{close}`?" if close else f"known are {', '.join(sorted(self.own))}"
        raise ConfigError(key or self.key, f"no {self.what} `{name}`; {hint}, or give `package.module:Name`")

    def class_of(self, choice: Any) -> Any:
        """The class of options of a setting: of the first part where it names none. Raises: ConfigError."""
        if is_group(type(choice)):
            return type(choice)
        name = self._split(choice)[0]
        found = self.find(name)
        base = import_path(self.base, self.key)
        if isinstance(found, type) and issubclass(found, base):
            return found
        if self.of_function is None or isinstance(found, type):
            raise ConfigError("", f"`{name}` does not derive from {base.__name__} ({base.__module__})")
        check_call(found, name, "", self.takes, None)
        return import_path(self.of_function, self.key)

    def _split(self, choice: Any) -> tuple[str, dict[str, Any]]:
        first = isinstance(choice, Mapping) and "type" not in choice
        return self.split({"type": next(iter(self.own)), **choice} if first else choice)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        schema = core_schema.no_info_plain_validator_function(self.read)
        return core_schema.nullable_schema(schema) if type(None) in typing.get_args(source) else schema

    def read(self, choice: Any) -> Any:
        """The part of a setting, which is a group of its options. Raises: ConfigError, ValidationError."""
        if is_group(type(choice)):
            return choice
        try:
            cls, (name, options) = self.class_of(choice), self._split(choice)
        except ConfigError as error:
            raise ConfigError("", error.message) from error
        with asking(f"making `{name}`", ""):
            try:
                return cls.model_validate({"type": name, **options})
            except ValidationError as error:
                wrong = error  # said by the group around it
        raise wrong

    def make(self, choice: Any, key: str = "") -> Any:
        """An object of the named class with its options. Raises: ConfigError: for a wrong name or options."""
        name, options = self.split(choice, key)
        return made(self.find(name, key), name, key or self.key, options)


def check_arguments(called: Any, given: Mapping[str, Any], key: str, before: int = 0) -> dict[str, Any]:
    """Arguments for a function or class, checked by its signature; an ``int`` is converted where a float is due.

    Types of what YAML can write are checked, and limits (``Annotated[int, limits(ge=1)]``); other annotations are left
    to what is called. ``before`` are positional arguments that stand before them.

    Raises: ConfigError: if an argument is not taken, or of wrong type or range.
    """
    try:
        signature = inspect.signature(called)
        signature.bind(*[None] * before, **given)
    except (TypeError, ValueError) as error:
        raise ConfigError(key, f"{getattr(called, '__name__', called)}: {error}") from None
    annotations = _annotations(called)
    checked = dict(given)
    for name in given.keys() & signature.parameters.keys() & annotations.keys():
        left_out = given[name] is None and signature.parameters[name].default is None  # Whatever the annotation says.
        if not left_out and _is_plain(annotations[name]):
            checked[name] = check_value(given[name], annotations[name], {}, f"{key}.{name}")
    return checked


def check_call(called: Any, name: str, key: str, takes: str, /, *arguments: Any, **named: Any) -> None:
    """Refuse what cannot be called with so many arguments of these names.

    ``name`` is what the user calls it; ``takes`` says what it should take, and why.

    Raises: ConfigError: if it is no function, or takes something else.
    """
    if not callable(called):
        raise ConfigError(key, f"`{name}` is a {type(called).__name__}, not a function; {takes}")
    with asking(f"asking `{name}`", key):
        try:
            signature = inspect.signature(called)
        except ValueError:  # Some built-in functions have none to look at.
            return
        try:
            signature.bind(*arguments, **named)
        except TypeError:
            raise ConfigError(key, f"`{name}` takes {signature}; {takes}") from None


def check_methods(found: Any, protocol: type, name: str, key: str) -> None:
    """Refuse an object or class that lacks a protocol's (or base class's) member. Raises: ConfigError: names them."""
    bases = [base for base in protocol.__mro__ if base not in (object, typing.Protocol, typing.Generic)]
    needed = [member for base in bases for member in vars(base) if not member.startswith("_")]
    with asking(f"asking `{name}`", key):
        missing = [member for member in needed if not hasattr(found, member)]
    if missing:
        raise ConfigError(key, f"`{name}` lacks {', '.join(missing)} of {protocol.__name__} ({protocol.__module__})")


def made(cls: Any, name: str, key: str, options: Mapping[str, Any] | None = None) -> Any:
    """An object of a user's class or factory, made with ``options``; the fields of a group are its options.

    Raises: ConfigError: if it is no class, refuses the options, or raises.
    """
    if not callable(cls):
        raise ConfigError(key, f"`{name}` is a {type(cls).__name__}, not a class")
    with asking(f"making `{name}`", key):
        try:
            if is_group(cls):
                return build(cls, options or {}, key)
            return cls(**_own_options(cls, name, key, options)) if options else cls()
        except ConfigError as error:
            below = not error.path.startswith(key)
            raise ConfigError(f"{key}.{error.path}", error.message) if below and error.path else error from None
        except TypeError as error:
            with_what = "with these options" if options else "without arguments"
            raise ConfigError(key, f"`{name}` cannot be made {with_what}: {error}") from error


def _own_options(cls: Any, name: str, key: str, options: Mapping[str, Any]) -> dict[str, Any]:
    known = inspect.signature(cls).parameters
    if not known:
        raise ConfigError(f"{key}.{next(iter(options))}", f"`{name}` takes no options")
    if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in known.values()):
        for option in options:
            if option not in known:
                raise unknown_key(option, known, key)
    return check_arguments(cls, options, key)


def _annotations(called: Any) -> dict[str, Any]:
    """Those of its arguments; none where they name what cannot be found."""
    function = called.__init__ if isinstance(called, type) else called
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception:  # Annotations of others are any expression.
        return {}


def _is_plain(hint: Any) -> bool:
    """Whether YAML can write it, at every depth."""
    origin, arms = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _is_plain(arms[0])
    if origin in (typing.Union, types.UnionType, list, tuple, dict):
        return all(inner in (Ellipsis, Any) or _is_plain(inner) for inner in arms)
    return hint in (bool, int, float, str, type(None), list, dict)


ESTIMATORS = Registry(
    "training.advantage_estimator",
    "advantage estimator",
    ("learners.advantages.base", "learners.advantages.without_critic"),
    of_function="rllib_lmgame.learners.advantages.base:FunctionEstimator",
    takes="an estimator takes one argument, an AdvantageInputs (rllib_lmgame.learners.advantages.base)",
    base="rllib_lmgame.learners.advantages.base:Estimator",
)
POLICY_LOSSES = Registry(
    "training.policy_loss",
    "policy loss",
    ("learners.losses.policy",),
    of_function="rllib_lmgame.learners.losses.policy:FunctionLoss",
    takes="a policy loss takes one argument, PolicyTerms (rllib_lmgame.learners.losses.policy)",
    base="rllib_lmgame.learners.losses.policy:PolicyLoss",
)
AGGREGATIONS = Registry(
    "training.aggregation",
    "aggregation",
    ("learners.losses.policy",),
    base="rllib_lmgame.learners.losses.policy:Aggregation",
)
PREFERENCE_LOSSES = Registry(
    "dpo.loss",
    "preference loss",
    ("learners.losses.preferences",),
    base="rllib_lmgame.learners.losses.preferences:PreferenceLoss",
)
ENGINES = Registry("inference.engine", "engine", ("inference.options",), base="rllib_lmgame.inference.options:Engine")
REPLY_FORMATS = Registry(
    "config.language_model.reply_format",
    "reply format",
    ("policies.chat.reply_formats", "policies.chat.tool_calls"),
    base="rllib_lmgame.policies.chat.reply_formats:ReplyFormat",
)
MATCHMAKERS = Registry(
    "config.league.matchmaking",
    "matchmaker",
    ("league.matchmaking",),
    of_function="rllib_lmgame.league.matchmaking:FunctionMatchmaker",
    takes="a matchmaker takes one argument, the standings against all members",
    base="rllib_lmgame.league.matchmaking:Matchmaker",
)
MEASURES = Registry(
    "config.evaluation_config.measures",
    "measure",
    {
        "against": "rllib_lmgame.algorithms.measuring.against:Against",
        "exploitability": "rllib_lmgame.algorithms.measuring.exact:Exploitability",
    },
)
CALLBACKS = Registry(
    "callbacks",
    "callback",
    {
        "wandb": "ray.air.integrations.wandb:WandbLoggerCallback",
        "mlflow": "ray.air.integrations.mlflow:MLflowLoggerCallback",
        "comet": "ray.air.integrations.comet:CometLoggerCallback",
    },
)
REPORTS = Registry("report", "report", {"learning": "rllib_lmgame.evaluation.learning_report:learning_report"})
