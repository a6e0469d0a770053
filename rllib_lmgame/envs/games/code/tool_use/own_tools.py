"""Tools of one's own: functions by import path, and those of a server of the Model Context Protocol."""

from __future__ import annotations

import inspect
import json
import queue
import threading
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.plugin import asking, import_path
from rllib_lmgame.base.text import in_words, one_line, printable
from rllib_lmgame.envs.contract.base import GameError, InvalidAction
from rllib_lmgame.envs.contract.functions import NAME
from rllib_lmgame.envs.games.code.tool_use.mcp import McpError, McpServer

FUNCTIONS_KEY, MCP_KEY = "env_config.functions", "env_config.mcp"
MAX_SUMMARY = 200
NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}
TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "array": (list,),
    "object": (dict,), "null": (type(None),),
}  # fmt: skip


@dataclass(frozen=True)
class OwnTool:
    """A tool with the JSON schema of its arguments; ``function`` is ``None`` for one of a server."""

    name: str
    summary: str
    schema: Mapping[str, Any]
    function: Callable[..., Any] | None = None

    @property
    def listed(self) -> str:
        """Name, arguments with their types (those in brackets may be left out) and what it does."""
        needed = self.schema.get("required", ())
        shown = [f"{name}: {_kind(schema)}" for name, schema in self._properties.items()]
        arguments = [
            text if name in needed else f"[{text}]" for name, text in zip(self._properties, shown, strict=True)
        ]
        listed = f"{self.name}({', '.join(arguments)})" + (f": {self.summary}" if self.summary else "")
        return printable(one_line(listed))

    @property
    def _properties(self) -> Mapping[str, Any]:
        found = self.schema.get("properties", {})
        return found if isinstance(found, dict) else {}

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Raises: InvalidAction: an argument is missing, unknown or of another type."""
        for name in self.schema.get("required", ()):
            if name not in arguments:
                raise InvalidAction(f'{self.name} needs "{name}".')
        for name, value in arguments.items():
            schema = self._properties.get(name)
            if schema is None and not self.schema.get("additionalProperties", self.function is None):
                raise InvalidAction(f"{self.name} has no argument {name[:40]!r}.")
            if isinstance(schema, dict) and not _fits(value, schema):
                raise InvalidAction(f'"{name}" of {self.name} must be {_kind(schema)}.')


def _kind(schema: Any) -> str:
    if not isinstance(schema, dict):
        return "anything"
    if isinstance(schema.get("enum"), list):
        return "one of " + ", ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"][:20])
    kinds = schema.get("type", "anything")
    return " or ".join(map(str, kinds)) if isinstance(kinds, list) else str(kinds)


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    if isinstance(schema.get("enum"), list):
        return value in schema["enum"]
    kinds = schema.get("type", ())
    named = [kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if isinstance(kind, str)]
    known = [TYPES[kind] for kind in named if kind in TYPES]
    return not known or any(isinstance(value, kind) and (bool in kind or not isinstance(value, bool)) for kind in known)


def tool_of(path: str) -> OwnTool:
    """The function at an import path as a tool: its name, the first line of its docstring, its signature.

    Raises: ConfigError: if there is none, or it takes what a call cannot give.
    """
    function = import_path(path, FUNCTIONS_KEY)
    if not callable(function):
        raise ConfigError(FUNCTIONS_KEY, f"`{path}` is a {type(function).__name__}, not a function")
    with asking(f"reading the signature of `{path}`", FUNCTIONS_KEY):
        signature, hints = inspect.signature(function), typing.get_type_hints(function)
    properties, needed = {}, []
    for name, parameter in signature.parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(
                FUNCTIONS_KEY, f"`{path}` takes {parameter}; a tool's arguments are called by their names"
            )
        properties[name] = _schema(hints.get(name))
        if parameter.default is parameter.empty:
            needed.append(name)
    schema = {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}
    summary = (inspect.getdoc(function) or "").partition("\n")[0]
    return OwnTool(path.rpartition(":")[2].rpartition(".")[2], _line(summary), schema, function)


def _schema(hint: Any) -> dict[str, Any]:
    """JSON schema of a type, as far as it is one that JSON has."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return {"enum": list(inner)}
    if origin in (typing.Union, types.UnionType):
        kinds = [_schema(one).get("type") if one is not type(None) else "null" for one in inner]
        return {"type": kinds} if all(isinstance(kind, str) for kind in kinds) else {}
    name = NAMES.get(origin or hint) if isinstance(origin or hint, type) else None
    return {} if name is None else {"type": name}


@lru_cache(maxsize=32)
def tools_of_server(command: tuple[str, ...], limit_s: float) -> tuple[OwnTool, ...]:
    """What a server lists; it is asked once per process.

    Raises: ConfigError: if it is not there, hangs, or answers nonsense.
    """
    try:
        with McpServer(command, limit_s) as server:
            listed = server.tools()
    except McpError as error:
        raise ConfigError(MCP_KEY, str(error)) from None
    found = []
    for tool in listed:
        name, schema = tool.get("name"), tool.get("inputSchema", {})
        if not isinstance(name, str) or not isinstance(schema, dict):
            raise ConfigError(MCP_KEY, f"{command[0]!r} lists a tool without a name or schema")
        needed = schema.get("required", [])
        if not isinstance(needed, list) or not all(isinstance(one, str) for one in needed):
            raise ConfigError(MCP_KEY, f"{command[0]!r} lists {name!r} with a schema that is none")
        found.append(OwnTool(name, _line(str(tool.get("description") or "").strip().partition("\n")[0]), schema))
    if not found:
        raise ConfigError(MCP_KEY, f"{command[0]!r} lists no tools")
    return tuple(found)


def own_tools(functions: Sequence[str], mcp: Sequence[str], limit_s: float, taken: Sequence[str]) -> dict[str, OwnTool]:
    """All tools of one's own by their names.

    Raises: ConfigError: for one that cannot be used, or a name that is ``taken`` or given twice.
    """
    found: dict[str, OwnTool] = {}
    listed = [(FUNCTIONS_KEY, tool_of(path)) for path in functions]
    listed += [(MCP_KEY, tool) for tool in (tools_of_server(tuple(mcp), limit_s) if mcp else ())]
    for key, tool in listed:
        if not NAME.fullmatch(tool.name):
            raise ConfigError(key, f"{tool.name[:80]!r} is no name of a tool: letters, digits, `_`, `.` and `-`")
        if tool.name in found or tool.name in taken:
            raise ConfigError(key, f"there are two tools called {tool.name!r}")
        found[tool.name] = tool
    return found


class OwnToolbox:
    """The tools of one's own in one episode; a server is started at its first call."""

    def __init__(self, tools: Mapping[str, OwnTool], mcp: Sequence[str], limit_s: float) -> None:
        self._tools, self._mcp, self._limit_s = tools, mcp, limit_s
        self._server: McpServer | None = None
        self._closed = False

    def use(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Result of a call, or what the tool raised.

        Raises: GameError: the tool takes longer than the limit, or its server fails: no fault of the player.
        """
        function = self._tools[name].function
        if function is not None:
            return self._bounded(name, partial(function, **arguments))
        try:
            if self._server is None:
                self._server = McpServer(self._mcp, self._limit_s)
            if self._closed:  # Given up meanwhile, as the server took too long to start.
                self.close()
                raise GameError(f"tool {name}: the game was closed before its server had started")
            return self._server.call(name, arguments)
        except McpError as error:
            self._server = None  # It has ended.
            raise GameError(f"tool {name}: {error}") from None

    def close(self) -> None:
        """End the server, also one that starts in another thread now."""
        self._closed = True
        if self._server is not None:
            self._server.close()
            self._server = None

    def _bounded(self, name: str, work: Callable[[], Any]) -> str:
        answers: queue.SimpleQueue[str] = queue.SimpleQueue()

        def run() -> None:
            try:
                result = work()
                answers.put(result if isinstance(result, str) else json.dumps(result, default=str, ensure_ascii=False))
            except BaseException as error:  # A tool may raise anything, and the player may try again.
                answers.put(f"Error: {in_words(error)}")

        threading.Thread(target=run, daemon=True, name=f"tool {name}").start()
        try:
            return answers.get(timeout=self._limit_s)
        except queue.Empty:
            raise GameError(f"the tool {name} took longer than {self._limit_s:g} s") from None


def _line(text: str) -> str:
    return printable(one_line(text))[:MAX_SUMMARY].strip()
