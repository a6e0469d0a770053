"""Commands and their options, each option written as a manual has it: ``Option("--out DIR", "write it there")``.

A module of a command has ``command``: a function under the decorator :func:`command`, or :class:`Actions`. Options that
several commands have are declared here, once.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from rllib_lmgame.base.errors import ConfigError, nearest
from rllib_lmgame.base.text import shown

Run = Callable[[argparse.Namespace], int]
MOST = 1_000_000
"""Largest count that an option accepts (episodes, parallel games, ...)."""
SPLITS = "{train,validation,test}"


class Option:
    """An argument of a command.

    Args:
        form: The names joined by ``|``, then what follows them: ``N`` a value, ``N...`` one or more, ``[N]`` one or
            none, ``{a,b}`` one of these, nothing for a flag. Without a dash it has a place of its own: ``GAME``.
        says: Its help; the default is appended.
        default: What holds where it is not given.
        more: As of ``ArgumentParser.add_argument``.
    """

    def __init__(self, form: str, says: str, type: Callable[[str], Any] = str, default: Any = None, **more: Any):
        names, _, takes = form.partition(" ") if form.startswith("-") else ("", "", form)
        self.names = names.split("|") if names else []
        settings: dict[str, Any] = {"help": says, "default": default}
        if isinstance(default, str | int | float) and default is not bool(default) and default != "":
            settings["help"] += " (default %(default)s)"
        if not takes:
            settings |= {"action": "store_true", "default": bool(default)} if "action" not in more else {}
        elif takes[0] == "{":
            settings["choices"] = tuple(takes.strip("{}").split(","))
        else:
            maybe = re.fullmatch(r"\[(.+)\]", takes)
            takes, many = (maybe[1] if maybe else takes).removesuffix("..."), takes.rstrip("]").endswith("...")
            settings |= {"type": type, "metavar": takes}
            if maybe or many:
                settings["nargs"] = ("*" if maybe else "+") if many else "?"
            if many and self.names:
                settings["action"] = "extend"
        if not self.names:
            self.names = [more.pop("dest", takes.lower())]
        self.settings = settings | more

    def add_to(self, parser: Any) -> None:
        parser.add_argument(*self.names, **self.settings)


class Section:
    """Options below a title of their own in the help; ``with --A or --B`` they are refused without either."""

    def __init__(self, title: str, *options: Option | Section) -> None:
        self.options = options
        self.group: Callable[[Any], Any] = lambda parser: parser.add_argument_group(title)

    def add_to(self, parser: Any) -> None:
        group = self.group(parser)
        for option in self.options:
            option.add_to(group)


class OneOf(Section):
    """Options of which at most one is given, or exactly one if it is ``required``."""

    def __init__(self, *options: Option, required: bool = False) -> None:
        self.options = options
        self.group = lambda parser: parser.add_mutually_exclusive_group(required=required)


class Parser(argparse.ArgumentParser):
    """Takes whole names alone, keeps line ends of examples; errors are raised, and name the nearest option."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_Help, **settings)

    def error(self, message: str) -> NoReturn:
        raise ConfigError("", f"{message}; see `{self.prog} --help`")

    def parse_known_args(self, *words: Any, **more: Any) -> Any:
        parsed, rest = super().parse_known_args(*words, **more)
        for group in self._action_groups:
            flags = [flag.replace("-", "_") for flag in re.findall(r"--([\w-]+)", group.title or "")]
            for action in group._group_actions if flags and not any(getattr(parsed, flag) for flag in flags) else ():
                if getattr(parsed, action.dest) not in (action.default, []):
                    self.error(f"{(action.option_strings or ['--'])[-1]} goes {group.title}")
        return parsed, rest

    def unknown(self, words: Sequence[str]) -> NoReturn:
        """Raise for words and options that the command does not have."""
        wrong = max(words, key=lambda word: word.startswith("-"))
        meant = nearest(wrong.partition("=")[0], self._option_string_actions)
        self.error(f"unrecognized arguments: {' '.join(words)}" + (f"; did you mean {meant}?" if meant else ""))


class _Help(argparse.HelpFormatter):
    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


@dataclass(frozen=True)
class Command:
    """A command: its description, its options and its function."""

    run: Run
    says: str
    options: tuple[Option | Section, ...]
    epilog: str

    def add_to(self, subparsers: Any, name: str, summary: str) -> None:
        parser = subparsers.add_parser(name, help=summary, description=self.says, epilog=self.epilog)
        for option in self.options:
            option.add_to(parser)
        parser.set_defaults(run=self.run, parser=parser)


@dataclass(frozen=True)
class Actions:
    """A command with actions: ``rllib data list``, ``rllib data fetch`` ..."""

    says: str
    of: Mapping[str, Command]

    def add_to(self, subparsers: Any, name: str, summary: str) -> None:
        parser = subparsers.add_parser(name, help=summary, description=self.says)
        below = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
        for action, command in self.of.items():
            command.add_to(below, action, command.says)


def command(says: str, *options: Option | Section, epilog: str = "") -> Callable[[Run], Command]:
    """Make a function of the parsed arguments, which returns the exit status, a command."""
    return lambda run: Command(run, says, options, epilog)


def whole(low: int = 1, high: int = MOST) -> Callable[[str], int]:
    """The type of an argument that is a whole number from ``low`` to ``high``."""

    def read(text: str) -> int:
        value = int(text)
        if value < low:
            raise argparse.ArgumentTypeError(f"must be at least {low}, got {value}")
        if value > high:
            raise argparse.ArgumentTypeError(f"must be at most {high:,}, got {shown(value, 30)}")
        return value

    read.__name__ = "int"  # argparse says it of a text that is none.
    return read


DAY_S = 86_400.0
"""Most seconds of a limit: clocks and timers take no number of thirty digits."""


def seconds(text: str) -> float:
    """The type of an argument in seconds."""
    value = float(text)
    if not 0 < value <= DAY_S:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most {DAY_S:g} (seconds), got {value:g}")
    return value


seconds.__name__ = "float"  # argparse says it of a text that is none.


def mapping(text: str | None, flag: str, like: str = "{key: 1}") -> dict[str, Any]:
    """A mapping as YAML or JSON text; empty without one. Raises: ConfigError: it is none."""
    from rllib_lmgame.experiments.files.reading import load_text

    if text is None:
        return {}
    try:
        value = load_text(text, flag)[0]
    except ConfigError as error:
        raise ConfigError(flag, f"{error.message}; write it like '{like}'") from None
    if not isinstance(value, dict):
        raise ConfigError(flag, f"must be a mapping like '{like}', got {text!r}")
    return value


def env_config_of(args: argparse.Namespace) -> dict[str, Any]:
    return mapping(args.env_config, "--env-config", "{num_boxes: 2}")


def print_json(value: Any) -> int:
    """Print what JSON can hold: a number of NumPy's as Python's, anything else as text."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=lambda x: x.item() if hasattr(x, "item") else str(x)))
    return 0


def seed(of: str) -> Option:
    return Option("--seed N", f"seed of {of}", whole(0, (1 << 63) - 1), 0)  # Generators accept no negative one.


def env_config(whose: str) -> Option:
    return Option("--env-config YAML", f"options of {whose}, as YAML or JSON text: '{{num_boxes: 2}}'")


def parallel(says: str = "", default: int | None = 16) -> Option:
    return Option("--parallel N", says or "games in play at the same time", whole(), default)


def verbosity(shown: str) -> Option:
    """``-v``, and ``-vv`` for more."""
    return Option("-v|--log-info", shown, action="count", default=0, dest="verbosity")


GAME = Option("GAME", "id, entry point name or package.module:Class")
JSON = Option("--json", "print JSON")
OUT_FILE = Option("--out FILE", "file to write; it must not exist yet")
FILTER = Option("-f|--filter TEXT", "only those that have this text in their name or description", default="")
TRUST = Option("--trust-checkpoint", "run code that it names or holds")
RAY_ADDRESS = Option("--ray-address|--address ADDRESS", "Ray cluster to join (default: RAY_ADDRESS, else a local one)")
HOST = Option("--host HOST", "address to listen at", default="127.0.0.1")
PORT = Option("--port N", "port to listen at; 0 takes a free one", int, 8000)
