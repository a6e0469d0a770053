"""Import paths in configurations: ``package.module:Name``."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from rllib_lmgame.base.errors import ConfigError, MissingDependencyError, nearest
from rllib_lmgame.base.text import in_words, place_of


@contextmanager
def asking(doing: str, key: str) -> Iterator[None]:
    """Whatever somebody's code raises inside is refused at ``key``; ``doing`` is what then fails, for the message.

    Raises: ConfigError: says what was raised; a script without a main guard may also end the program.
    """
    try:
        yield
    except (ConfigError, MissingDependencyError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise ConfigError(key, f"{doing} fails: {in_words(error)}{place_of(error)}") from error


def import_path(path: str, key: str) -> Any:
    """The object at ``package.module:Name``; ``key`` is the one to name in errors.

    Raises: ConfigError: The module cannot be imported, whatever it raises, or the name does not exist.
    """
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise ConfigError(key, f"{path!r} is not an import path; write package.module:Name")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            key, f"cannot import {module_name!r}: {error}{where_it_was_sought(module_name, error)}"
        ) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # Also a ConfigError, which would name a key of somebody else.
        raise ConfigError(key, f"importing {module_name!r} fails: {in_words(error)}") from error
    return attribute_of(module, name, key)


def import_path_or(path: str, key: str, others: str) -> Any:
    """As :func:`import_path`, of an option that takes something else too: an error lists the ``others``."""
    try:
        return import_path(path, key)
    except ConfigError as error:
        raise ConfigError(key, f"{error.message}; this option also takes {others}") from error.__cause__


class LazyModule:
    """A module that is imported when something of it is first used: options are checked without it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        found = getattr(importlib.import_module(self._name), name)
        setattr(self, name, found)
        return found


def attribute_of(module: ModuleType, path: str, key: str) -> Any:
    """What stands at ``Name`` or ``Name.inner`` in a module. Raises: ConfigError: there is none."""
    found: Any = module
    for name in path.split("."):
        with asking(f"reading {path!r} of module {module.__name__!r}", key):
            try:
                found = getattr(found, name)
            except AttributeError:
                match = nearest(name, dir(found))
                hint = f"; did you mean {match!r}?" if match else ""
                raise ConfigError(key, f"module {module.__name__!r} has no {path!r}{hint}") from None
    return found


def where_it_was_sought(module_name: str, error: ImportError) -> str:
    """For a message about a module that is not there: the nearest file of the current directory."""
    top = module_name.partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or error.name != top:
        return ""
    match = nearest(top, [path.stem for path in Path.cwd().glob("*.py")])
    return (
        f"; did you mean {match!r}, which is in the current directory?"
        if match
        else f" (neither installed nor in {Path.cwd()})"
    )


def missing_import(module_name: str, error: ModuleNotFoundError) -> str:
    """What to say of a module whose import of another one fails. No advice to install it: it may be misspelt."""
    where = place_of(error).strip(" ()") or module_name
    return f"{where} imports {error.name!r}, which is not installed"


_IMPORT_PATH = re.compile(r"(?:agent:)?(([^\W\d]\w*)(\.[^\W\d]\w*)*:[^\W\d][\w.]*)")


IMPORTING_KEYS = frozenset(
    {
        *("run", "env", "games", "player", "expert", "oracle", "judge", "engine", "advantage_estimator"),
        *("policy_loss", "matchmaking", "policy_mapping_fn", "callbacks", "measures", "report", "type"),
        *("choice", "grid_search", "reply_format", "functions", "retriever", "aggregation", "loss"),
    }
)
"""Keys whose text may be an import path; of search spaces, those that may list some."""


def named_in(value: Any) -> Iterator[str]:
    """The import paths among the texts of plain data; of a mapping only below keys that take one."""
    if isinstance(value, str):
        if found := _IMPORT_PATH.fullmatch(value):
            yield found[1]
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if key in IMPORTING_KEYS or isinstance(item, Mapping):
                yield from named_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from named_in(item)


def find_in_current_directory(value: Any) -> None:
    """Let modules of the current directory be imported if ``value`` names one that is installed nowhere.

    A console script does not look there, ``python -m`` does. Only for what the user wrote or trusts: never for a
    stranger's checkpoint or a fetched file. What is installed goes first, so that a file here cannot stand for a
    package. Ray gives its workers the current directory by itself.
    """
    here = Path.cwd()
    for path in named_in(value):
        top = re.split(r"[.:]", path, maxsplit=1)[0]
        if (
            str(here) not in sys.path
            and importlib.util.find_spec(top) is None
            and ((here / f"{top}.py").is_file() or (here / top).is_dir())
        ):
            sys.path.append(str(here))
            importlib.invalidate_caches()
