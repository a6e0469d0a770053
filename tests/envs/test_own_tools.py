"""ToolUse with functions and Model Context Protocol servers of one's own."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.games.code.tool_use import own_tools
from rllib_lmgame.envs.games.code.tool_use.game import ToolUse
from rllib_lmgame.envs.games.code.tool_use.mcp import McpServer
from rllib_lmgame.envs.games.code.tool_use.own_tools import OwnTool, OwnToolbox, tool_of, tools_of_server

HERE = "tests.envs.tool_functions"
PROGRAM = str(Path(__file__).parent / "mcp_server.py")


def command(how: str = "") -> tuple[str, ...]:
    return (sys.executable, PROGRAM, how)


def call(name: str, /, **arguments: object) -> str:
    return json.dumps({"name": name, "arguments": arguments})


@pytest.fixture
def tasks(tmp_path: Path) -> str:
    path = tmp_path / "tasks.jsonl"
    calls = [{"name": "stock", "arguments": {"name": "nails"}}]
    path.write_text(json.dumps({"question": "How many nails are there?", "answer": 12, "calls": calls}))
    return str(path)


@pytest.fixture
def game(tasks: str) -> Iterator[ToolUse]:
    functions = [f"{HERE}:{name}" for name in ("stock", "double", "shout", "leave")]
    made = ToolUse(functions=functions, mcp=command(), data=tasks, split="all", own_only=True, max_turns=50)
    made.reset(seed=0)
    yield made
    made.close()


def said(game: ToolUse, reply: str) -> str:
    return game.step(reply)[0].partition("\n")[2]


def test_a_functions_schema_comes_from_its_signature() -> None:
    tool = tool_of(f"{HERE}:stock")
    assert tool.name == "stock" and tool.summary == "How many of something there are."
    assert tool.schema == {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "unit": {"enum": ["pieces", "boxes"]},
            "least": {"type": ["integer", "null"]},
        },
        "required": ["name"],
        "additionalProperties": False,
    }
    assert tool.listed == (
        'stock(name: string, [unit: one of "pieces", "boxes"], [least: integer or null]): '
        "How many of something there are."
    )


def test_functions_and_a_servers_tools_are_called(game: ToolUse) -> None:
    assert "- stock(name: string" in game.rules and "- add(a: integer, b: integer): Add two numbers.\n" in game.rules
    assert "calculator" not in game.rules and "- submit(answer)" in game.rules
    stock = said(game, call("stock", name="nails", unit="boxes", least=20))
    assert stock == 'Result of stock:\n{"name": "nails", "boxes": 12, "enough": false}'
    assert said(game, call("double", number=2)) == "Result of double:\n4"
    assert said(game, call("add", a=2, b=-5)) == "Result of add:\n-3"
    assert said(game, call("note", of="x")) == "Result of note:\n1 notes\n[image]"
    assert said(game, call("note", of="y")) == "Result of note:\n2 notes\n[image]"
    game.reset(seed=0)
    assert said(game, call("note", of="z")) == "Result of note:\n1 notes\n[image]"  # A server of its own.


def test_an_error_of_a_tool_is_its_result(game: ToolUse) -> None:
    assert "Error: KeyError" in said(game, call("stock", name="boats"))
    assert "Error: SystemExit" in said(game, call("leave"))
    assert said(game, call("fail")) == "Result of fail:\nError: it went wrong"
    assert said(game, call("add", a=13, b=1)) == "Result of add:\nError: thirteen is not added"
    assert said(game, call("shout")).endswith("(cut)") and len(said(game, call("shout"))) < 2_100


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (call("stock"), 'needs "name"'),
        (call("stock", name="nails", colour="red"), "no argument 'colour'"),
        (call("stock", name=5), '"name" of stock must be string'),
        (call("stock", name="nails", unit="tons"), "must be one of"),
        (call("double", number=True), "must be number"),
        (call("add", a="1", b=2), "must be integer"),
        (call("calculator", expression="1"), "there is no tool 'calculator'; there are stock, double"),
    ],
)
def test_calls_that_do_not_fit_are_invalid(game: ToolUse, reply: str, why: str) -> None:
    observation, reward, _, _, info = game.step(reply)
    assert (reward, info["invalid_action"]) == (-0.1, True) and why in observation


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("ends", r"ended; it said: no more memory"),
        ("hangs", r"gave no answer within 0\.5 s"),
        ("nonsense", r"writes what is no JSON-RPC: 'Hello!'"),
        ("floods", r"writes more than 4,194,304 bytes"),
        ("empty", r"answers tools/call without content"),
    ],
)
def test_a_server_that_fails_drops_the_episode_and_is_ended(how: str, why: str, tasks: str) -> None:
    game = ToolUse(mcp=command(how), split="all")
    game.reset(seed=0)
    game._toolbox._limit_s = 0.5 if how == "hangs" else 20.0
    toolbox = game._toolbox
    toolbox._server = server = McpServer(command(how), 20.0)
    server._limit_s = toolbox._limit_s
    with pytest.raises(GameError, match=why):
        game.step(call("add", a=1, b=2))
    assert server._process.returncode is not None and toolbox._server is None
    game.close()


def test_a_server_ends_with_its_game() -> None:
    with McpServer(command(), 20.0) as server:
        process = server._process.pid
        assert [tool["name"] for tool in server.tools()] == ["add", "fail", "note"]
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_a_server_that_starts_after_its_game_was_given_up_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    toolbox, started = OwnToolbox({"add": OwnTool("add", "", {})}, command(), 20.0), []

    def slow(*args: object) -> McpServer:
        toolbox.close()  # Another thread gives the game up.
        started.append(McpServer(*args))  # type: ignore[arg-type]
        return started[0]

    monkeypatch.setattr(own_tools, "McpServer", slow)
    with pytest.raises(GameError, match="closed before its server had started"):
        toolbox.use("add", {"a": 1, "b": 2})
    assert started[0]._process.returncode is not None


@pytest.mark.slow
def test_a_server_of_the_protocols_own_package_is_understood(tmp_path: Path) -> None:
    pytest.importorskip("mcp.server")
    program = tmp_path / "server.py"
    program.write_text(
        "try:\n    from mcp.server import MCPServer as Server\n"
        "except ImportError:\n    from mcp.server.fastmcp import FastMCP as Server\n"
        "server = Server('towns')\n\n@server.tool()\ndef people(town: str) -> int:\n"
        '    """How many live there."""\n    return {"Ashford": 70}[town]\n\nserver.run("stdio")\n'
    )
    (tool,) = tools_of_server((sys.executable, str(program)), 60.0)
    assert tool.listed == "people(town: string): How many live there."
    with McpServer((sys.executable, str(program)), 60.0) as server:
        assert server.call("people", {"town": "Ashford"}) == "70"
        assert server.call("people", {"town": "Nowhere"}).startswith("Error: ")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"functions": ["no_such_module:f"]}, "env_config.functions: cannot import 'no_such_module'"),
        ({"functions": [f"{HERE}:doubel"]}, "did you mean 'double'?"),
        ({"functions": [f"{HERE}:NO_FUNCTION"]}, "is a int, not a function"),
        ({"functions": [f"{HERE}:double"] * 2}, "two tools called 'double'"),
        ({"mcp": ["no-such-program"]}, "env_config.mcp: cannot start 'no-such-program': No such file"),
        ({"mcp": [sys.executable, "-c", "import sys; sys.exit('no licence')"]}, "ended; it said: no licence"),
        ({"mcp": [sys.executable, "-c", "while True: input()"], "tool_limit_s": 0.5}, "gave no answer within 0.5 s"),
        ({"mcp": command("endless")}, "more than 20 pages"),
    ],
)
def test_what_cannot_be_used_is_said_when_the_game_is_made(options: dict, why: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)):
        ToolUse(**options)
