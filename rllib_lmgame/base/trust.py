"""What is accepted from the configuration in a checkpoint, whose author may be anybody.

Only declared options (:func:`~rllib_lmgame.base.group.option`). Numbers, booleans and ``choices`` cannot name code,
programs or files, so they are accepted; other texts only where the option says so. New options are therefore safe by
default.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import (
    NAMED,
    Option,
    check_value,
    declared,
    describe,
    is_open,
    tag_of,
    unknown_key,
    values_of,
)
from rllib_lmgame.base.schedule import ScheduleOptions, is_meant_as_schedule, read_schedule

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_HUB_ID = re.compile(rf"{_NAME.pattern}(/{_NAME.pattern})?")


_DEEPEST = 50
"""Lists and mappings inside each other, at most."""


def is_number(value: Any, within: int = _DEEPEST) -> bool:
    """Whether ``value`` is a number, boolean, ``None``, or lists and mappings of these, at most ``within`` deep."""
    if isinstance(value, Mapping):
        items = list(value.values()) if all(isinstance(key, str) for key in value) else [value]
    elif isinstance(value, list | tuple):
        items = list(value)
    else:
        return value is None or isinstance(value, bool | int | float)
    return within > 0 and all(is_number(item, within - 1) for item in items)


def is_name(value: Any, within: int = _DEEPEST) -> bool:
    """Whether it can only be looked up: words or numbers without colon or slash, in lists at most ``within`` deep."""
    if isinstance(value, list | tuple):
        return within > 0 and all(is_name(item, within - 1) for item in value)
    return (
        value is None
        or isinstance(value, int)
        or (isinstance(value, str) and _NAME.fullmatch(value) is not None and ".." not in value)
    )


def is_hub_id(value: Any) -> bool:
    """Whether ``value`` is ``name`` or ``organisation/name`` of a model hub, and no path."""
    if value is None or not isinstance(value, str):
        return value is None
    return _HUB_ID.fullmatch(value) is not None and ".." not in value


def is_data_set(value: Any) -> bool:
    """Whether it is ``data:NAME`` or ``data:NAME:PART`` of a published data set, and no path."""
    if value is None or not isinstance(value, str):
        return value is None
    kind, *names = value.split(":")
    return kind == "data" and 1 <= len(names) <= 2 and all(is_name(name) for name in names)


def is_template(value: Any) -> bool:
    """Whether it is a chat template's text (run in Jinja's sandbox), and not a file's name."""
    return isinstance(value, str) and "{" in value and not value.rstrip().endswith((".jinja", ".j2", ".txt"))


@dataclass(frozen=True)
class Gate:
    """Decides about the values of one file.

    Attributes:
        origin: Where the file came from, for messages.
        hint: What a user can do who wants the value.
    """

    origin: str
    hint: str

    def refusal(self, path: str, what: str) -> ConfigError:
        """The error for a value that is not accepted."""
        return ConfigError(path, f"{what} is not taken from {self.origin}; {self.hint}")

    def options(self, group: type, section: Any, path: str, skip: Iterable[str] = ()) -> None:
        """Check the values of an option group, except ``skip``. Raises: ConfigError: for a value that is refused."""
        if section is None:
            return
        kind, options = tag_of(group), declared(group)
        open_to_others = is_open(group)
        if kind and isinstance(section, str):
            section = {kind: section}
        if not isinstance(section, Mapping):
            raise ConfigError(path, f"expected a mapping of options, got {describe(section)}")
        for key, value in section.items():
            if key in options and key not in skip:
                self.option(options[key], value, f"{path}.{key}")
            elif key not in options and not open_to_others:
                raise unknown_key(str(key), options, path)
            elif key not in options and not (is_number(value) or is_name(value)):
                raise self.refusal(f"{path}.{key}", describe(value))

    def option(self, option: Option, value: Any, path: str) -> None:
        """Check one option, as :meth:`options` does."""
        holds = option.holds
        if option.parts is not None:
            if (value.get("type") if isinstance(value, Mapping) else value) not in (None, *option.parts):
                raise self.refusal(path, describe(value))
            self.options(option.group_of(value), value, path)
        elif option.group or (holds and not holds.form):
            self.options(option.group or holds.group, value, path)  # type: ignore[union-attr]
        elif holds and holds.form == NAMED:
            self._named(holds.group, value, path)
        elif option.scheduled and is_meant_as_schedule(value):
            self.schedule(value, path)
        else:
            checked = check_value(value, option.hint, option.says, path)
            if not takes(option.says, checked) and checked not in (option.default, *_words(option.hint)):
                raise self.refusal(path, describe(value))

    def _named(self, group: type, value: Any, path: str) -> None:
        """Groups by their names, which may become directories; or the names alone."""
        if not isinstance(value, Mapping | list | tuple):
            raise ConfigError(path, f"expected a mapping from names to options, got {describe(value)}")
        for name in value:
            if not (isinstance(name, str) and is_name(name)):
                raise self.refusal(path, f"the name {name!r}")
            if isinstance(value, Mapping):
                self.options(group, value[name], f"{path}.{name}")

    def schedule(self, value: Any, path: str) -> None:
        """Check a schedule; raises as :meth:`options` does."""
        self.options(ScheduleOptions, values_of(read_schedule(value, path)), path)


def takes(says: Mapping[str, Any], value: Any) -> bool:
    """Whether a stranger's file may set an option to ``value``, whose type and choice are already checked."""
    taken: bool | Callable[[Any], bool] | None = says.get("stranger")
    if taken is None:
        taken = True if says.get("choices") else is_number
    return taken(value) if callable(taken) else taken


def _words(hint: Any) -> tuple[Any, ...]:
    """Fixed choices that an option's type names (``Literal``)."""
    parts = (hint, *typing.get_args(hint))
    return tuple(word for part in parts if typing.get_origin(part) is typing.Literal for word in typing.get_args(part))
