"""Actions of a game as functions that a model calls: from a call to the action's text, and back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from string import Formatter
from typing import Any

from rllib_lmgame.base.group import check_placeholders

TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_PLAIN = re.compile(r"true|false|-?\d{1,18}(?:\.\d{1,18})?")


@dataclass(frozen=True)
class GameFunction:
    """One function, all of whose arguments are needed.

    Attributes:
        name: What it is called.
        action: The action's text, with its arguments in braces: ``search[{keywords}]``.
        description: What it does, in a sentence.
        parameters: JSON schema of its arguments, an object; of each property ``type`` (:data:`TYPES`), ``enum`` and
            ``pattern`` are checked.
    """

    name: str
    action: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def properties(self) -> Mapping[str, Mapping[str, Any]]:
        """Schemas of the arguments by their names."""
        return self.parameters.get("properties", {})

    @property
    def signature(self) -> str:
        """Its name, arguments and description, on one line."""
        arguments = ", ".join(f"{name}: {_kind(schema)}" for name, schema in self.properties.items())
        return f"{self.name}({arguments})" + (f" - {self.description}" if self.description else "")

    def text(self, arguments: Mapping[str, Any]) -> str:
        """The action that a call plays. Raises: ValueError: says which argument is wrong."""
        for name in self.properties.keys() - arguments.keys():
            raise ValueError(f"{self.name} needs the argument {name!r}")
        for name in arguments.keys() - self.properties.keys():
            raise ValueError(f"{self.name} has no argument {name[:40]!r}")
        for name, schema in self.properties.items():
            if not _fits(arguments[name], schema):
                raise ValueError(f"the argument {name!r} of {self.name} must be {_kind(schema)}")
        return self.action.format(**{name: _written(value) for name, value in arguments.items()})

    def arguments(self, action: str) -> dict[str, Any] | None:
        """The arguments of the call that plays ``action``; ``None`` if none does."""
        pattern, seen = "", set[str]()
        for literal, name, _, _ in Formatter().parse(self.action):
            pattern += re.escape(literal)
            if name is not None:
                pattern += f"(?P={name})" if name in seen else f"(?P<{name}>.*)"
                seen.add(name)
        match = re.fullmatch(pattern, action, re.DOTALL)
        if match is None:
            return None
        found = {name: _read(text, self.properties[name]) for name, text in match.groupdict().items()}
        try:
            return found if self.text(found) == action else None
        except ValueError:
            return None


def read_functions(listed: Iterable[Mapping[str, Any]]) -> tuple[GameFunction, ...]:
    """What a game's method ``functions`` lists. Raises: ValueError, TypeError: says what is wrong with it."""
    functions = tuple(GameFunction(**each) for each in listed)
    for function in functions:
        if not isinstance(function.name, str) or not NAME.fullmatch(function.name):
            raise ValueError(f"{function.name!r} is no name of a function")
        if not isinstance(function.description, str):
            raise ValueError(f"the description of {function.name} is no text")
        if not isinstance(function.parameters, Mapping) or not isinstance(function.properties, Mapping):
            raise ValueError(f"the parameters of {function.name} are no JSON schema of an object")
        for name, schema in function.properties.items():
            if not name.isidentifier() or not isinstance(schema, Mapping) or schema.get("type") not in TYPES:
                raise ValueError(f"{name!r} of {function.name}: an argument has a type of {', '.join(TYPES)}")
            if not isinstance(schema.get("enum", []), list | tuple):
                raise ValueError(f"{name!r} of {function.name}: an enum is a list")
            try:
                re.compile(schema.get("pattern", ""))
            except (re.error, TypeError) as error:
                raise ValueError(f"{name!r} of {function.name}: the pattern cannot be used: {error}") from None
        check_placeholders(function.action, tuple(function.properties), f"{function.name}.action")
        unused = [name for name in function.properties if f"{{{name}}}" not in function.action]
        if unused:
            raise ValueError(f"the action of {function.name} does not hold {{{unused[0]}}}")
    names = [function.name for function in functions]
    if len(set(names)) < len(names):
        raise ValueError("two functions have one name")
    return functions


def _kind(schema: Mapping[str, Any]) -> str:
    return f"one of {', '.join(map(_written, schema['enum']))}" if "enum" in schema else str(schema["type"])


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    kind = schema["type"]
    if not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    return "pattern" not in schema or re.search(schema["pattern"], str(value)) is not None


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _read(text: str, schema: Mapping[str, Any]) -> Any:
    return text if schema["type"] == "string" or not _PLAIN.fullmatch(text) else json.loads(text)
