"""ToolUse: solve a task by calling tools."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract.base import InvalidAction, TextGameOptions, Variant
from rllib_lmgame.envs.games.code.tool_use.calls import ToolCall, read_call
from rllib_lmgame.envs.games.code.tool_use.generated import generated_tasks
from rllib_lmgame.envs.games.code.tool_use.own_tools import OwnToolbox, own_tools
from rllib_lmgame.envs.games.code.tool_use.tasks import (
    Task,
    calculator,
    load_tasks,
    read_file,
    same_call,
    search,
    submit,
)  # fmt: skip
from rllib_lmgame.envs.games.code.tool_use.tools import TOOLS, Toolbox, check_arguments, shortened
from rllib_lmgame.envs.support.answers import same_answer
from rllib_lmgame.envs.support.datasets import readable
from rllib_lmgame.envs.support.listed_levels import ListedLevels
from rllib_lmgame.envs.support.replies import WholeReplyGame

LISTED_PATHS = 16

RULES = """You solve a task with tools. Each reply is one tool call and nothing else, as JSON:
{example}
The same between <tool_call> and </tool_call> is understood too. The tools:
{tools}
There are {turns} turns. Submitting the right answer gives 1, a wrong one 0."""


class ToolUseOptions(TextGameOptions):
    """``env_config`` of ToolUse."""

    max_turns: int = option(8, "Replies per episode.", ge=2)
    functions: tuple[str, ...] = option(
        (), "Functions that are tools too, as `package.module:function`; annotations and defaults say what they take."
    )
    mcp: tuple[str, ...] = option(
        (), "Program and arguments of a Model Context Protocol server whose tools are offered: `[python, tools.py]`."
    )
    own_only: bool = option(False, "Offer `functions` and `mcp` alone, with `submit`; needs `data`.")
    tool_limit_s: float = option(
        20.0, "Seconds that one of these may take; the episode of one that takes longer is dropped.", gt=0
    )
    data: str | None = option(
        None,
        "File of tasks to play instead of made-up ones: `question`, `answer`, and perhaps `calls` that solve it.",
        path=True,
    )


class ToolUse(ListedLevels, WholeReplyGame):
    """Solve a task with a calculator, search, programs and files.

    Observation: the task; from the second turn on the last call's result below it.
    Action: one tool call as JSON, ``{"name": ..., "arguments": {...}}``, bare, in a fenced block, or between
        ``<tool_call>`` tags (the form of Qwen's chat template). Tools: ``calculator``, ``search``, ``python``,
        ``list_files``, ``read_file``, ``write_file``, ``submit``.
    Reward: 1 for submitting the right answer (and having written the file that was asked for), 0 otherwise; -0.1 for a
        reply that is no proper call. A call that fails, such as reading a file that is not there, is a proper call with
        an error as its result.
    Horizon: 8 replies.
    Own tools: functions (option ``functions``) and those of a Model Context Protocol server (``mcp``), a process for
        each episode that calls it. What goes wrong inside a tool is its result. A tool that hangs, or a server that
        ends or answers nonsense, drops the episode.
    Levels: eight kinds of task with all numbers, texts and files drawn. They are arithmetic, facts about invented towns
        (one search, two, a chain of two), a table in a file, a search among files, a file to be written, and counting
        and iterating by a program. With ``data``, the tasks of a file, split by hash.
    Solver: the calls that lead to the answer, 2 to 6 of them; of a file those it lists.

    Programs run in a confined process; files live in a temporary directory that paths cannot leave. A turn with a
    program takes some 30 ms, every other one far less than 1 ms.
    """

    variants = (Variant("lmgame/ToolUse-v0", (-0.6, 1.0)),)
    Options: ClassVar[type[TextGameOptions]] = ToolUseOptions
    slow_calls = True  # programs and queries run in processes of their own
    lists_levels = "data"
    uses_sandbox = True
    options: ToolUseOptions

    def __init__(self, render_mode: str | None = None, **env_config: object) -> None:
        super().__init__(render_mode, **env_config)
        self._tools: Toolbox | None = None
        chosen = self.options
        if chosen.own_only and chosen.data is None:
            raise ConfigError("env_config.own_only", "needs tasks that can be solved without the others: set `data`")
        self._builtin = {"submit": TOOLS["submit"]} if chosen.own_only else TOOLS
        self._own = own_tools(chosen.functions, chosen.mcp, chosen.tool_limit_s, tuple(TOOLS))
        self._file = () if chosen.data is None else load_tasks(chosen.data, (*self._own, *self._builtin))
        self.check_split()

    @property
    def rules(self) -> str:
        listed = [tool.listed for tool in self._own.values()]
        listed += [tool.listed for tool in self._builtin.values()]
        tools = "\n".join(f"- {tool}" for tool in listed)
        return RULES.format(example=self._example(), tools=tools, turns=self.options.max_turns)

    @property
    def success(self) -> bool:
        return self._right

    @property
    def finished(self) -> bool:
        return self._submitted

    @property
    def listed(self) -> Sequence[Task]:
        return self._file

    def made_up(self, rng: random.Random) -> Iterator[Task]:
        return (task for task in generated_tasks(rng) if len(task.plan) <= self.options.max_turns)

    def level_key(self, level: Task) -> str:
        return f"tool use\0{level.question}\0{level.answer}\0{level.texts}\0{level.files}"

    def start(self, level: Task) -> None:
        self.close()
        self._task, self._tools = level, Toolbox(level)
        self._toolbox = OwnToolbox(self._own, self.options.mcp, self.options.tool_limit_s)
        self._seen = [path for path, _ in level.files if path in level.question]
        self._done = 0
        self._right = self._submitted = False

    def board(self) -> str:
        return f"Task: {self._task.question}\n{self._said}" if self._said else f"Task: {self._task.question}"

    def legal_actions(self) -> tuple[str, ...]:
        """Calls that come to mind: own tools without arguments, listing the files, reading those seen, searching for
        what the task names.
        """
        calls = [ToolCall(tool.name, {}) for tool in self._own.values() if not tool.schema.get("required")]
        if not self.options.own_only:
            calls += [
                ToolCall("list_files", {}),
                *map(read_file, self._seen[:LISTED_PATHS]),
                *map(search, self._task.subjects),
            ]
        return tuple(call.text() for call in calls)

    def read_move(self, text: str) -> ToolCall:
        call = read_call(text)
        if own := self._own.get(call.name):
            own.check(call.arguments)
            return call
        if call.name not in self._builtin:
            raise InvalidAction(f"there is no tool {call.name[:40]!r}; there are {', '.join(self._names())}.")
        return ToolCall(call.name, check_arguments(call))

    def play_move(self, move: ToolCall) -> float:
        assert self._tools is not None
        if self._done < len(self._task.plan) - 1 and same_call(move, self._task.plan[self._done]):
            self._done += 1
        if move.name == "submit":
            return self._submit(move.arguments["answer"], self._tools)
        if move.name in self._own:
            result = shortened(readable(self._toolbox.use(move.name, move.arguments)))
        else:
            result = self._tools.use(move.name, move.arguments)
        self._said = f"Result of {move.name}:\n{result}"
        if move.name == "list_files":
            self._seen = [path for path in self._tools.files.paths() if not path.endswith("/")]
        return 0.0

    def expert_action(self) -> str:
        """The first call of the plan that was not made yet."""
        return self._task.plan[self._done].text()

    def close(self) -> None:
        """End the server of tools."""
        if self._tools is not None:
            self._tools = None
            self._toolbox.close()

    def _names(self) -> list[str]:
        return [*self._own, *self._builtin]

    def _example(self) -> str:
        if not self.options.own_only:
            return calculator("2 * (3 + 4)").text()
        return submit("42").text()

    def _submit(self, answer: str, tools: Toolbox) -> float:
        self._submitted = True
        right = same_answer(answer, self._task.answer)
        self._right = right and (self._task.written is None or tools.wrote(*self._task.written))
        self._said = "The task is solved." if self._right else "The task is not solved."
        return 1.0 if self._right else 0.0
