"""The tools of one episode: what they take, what they do, what they say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rllib_lmgame.envs.contract.base import InvalidAction
from rllib_lmgame.envs.games.code.tool_use.calculator import CalculatorError, calculate
from rllib_lmgame.envs.games.code.tool_use.calls import ToolCall
from rllib_lmgame.envs.games.code.tool_use.files import FileProblem, Files
from rllib_lmgame.envs.games.code.tool_use.tasks import Task
from rllib_lmgame.envs.support.bm25 import BM25
from rllib_lmgame.sandbox.limits import MEBIBYTE, Limits
from rllib_lmgame.sandbox.programs import run_program

SEARCH_RESULTS = 3
SHOWN = 2_000
"""Characters of a result that are shown."""

PYTHON_LIMITS = Limits(wall_s=6.0, cpu_s=2, memory_bytes=256 * MEBIBYTE, output_bytes=16_384)


@dataclass(frozen=True)
class Tool:
    """Name, names of the arguments (all texts), and what it does in one line."""

    name: str
    arguments: tuple[str, ...]
    summary: str

    @property
    def listed(self) -> str:
        """As the rules list it."""
        return f"{self.name}({', '.join(self.arguments)}): {self.summary}"


TOOLS = {
    tool.name: tool
    for tool in (
        Tool("calculator", ("expression",), "the value of numbers joined by + - * / // % ** and parentheses"),
        Tool("search", ("query",), "the passages that fit the words best"),
        Tool("python", ("code",), "run a program; what it prints is the result. It sees no files and no network"),
        Tool("list_files", (), "paths of all files of the working directory"),
        Tool("read_file", ("path",), "content of a file"),
        Tool("write_file", ("path", "content"), "write a file, replacing what was there"),
        Tool("submit", ("answer",), "give the answer; this ends the game"),
    )
}


def shortened(result: str) -> str:
    """A result as it is shown."""
    return result if len(result) <= SHOWN else result[:SHOWN] + "\n... (cut)"


def check_arguments(call: ToolCall) -> dict[str, str]:
    """The arguments of a call, as texts. Raises: InvalidAction: for arguments that the tool does not take."""
    tool = TOOLS[call.name]
    if set(call.arguments) != set(tool.arguments):
        wanted = ", ".join(f'"{name}"' for name in tool.arguments) or "no arguments"
        raise InvalidAction(f"{tool.name} takes {wanted}.")
    values = {}
    for name, value in call.arguments.items():
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise InvalidAction(f'"{name}" of {tool.name} must be text.')
        values[name] = str(value)
    return values


class Toolbox:
    """The tools, on one task's texts and files."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._index: BM25 | None = None
        self.files = Files()
        for path, content in task.files:
            self.files.write(path, content)

    def use(self, name: str, arguments: dict[str, str]) -> str:
        """Result of a tool, or what went wrong; ``submit`` is the game's own."""
        uses: dict[str, Callable[..., str]] = {
            "calculator": lambda expression: calculate(expression),
            "search": self._search,
            "python": self._python,
            "list_files": lambda: "\n".join(self.files.paths()) or "There are no files.",
            "read_file": lambda path: self.files.read(path) or "The file is empty.",
            "write_file": self._write,
        }
        try:
            result = uses[name](**arguments)
        except (CalculatorError, FileProblem) as problem:
            result = f"Error: {problem}"
        return shortened(result)

    def wrote(self, path: str, content: str) -> bool:
        """Whether a file holds ``content``, but for white space at its ends."""
        try:
            return self.files.read(path).strip() == content
        except FileProblem:
            return False

    def _search(self, query: str) -> str:
        if self._index is None:
            self._index = BM25(self._task.texts)
        found = [self._task.texts[row] for row in self._index.search(query, SEARCH_RESULTS)]
        return "\n".join(f"[{i}] {text}" for i, text in enumerate(found, start=1)) or "Nothing was found."

    def _write(self, path: str, content: str) -> str:
        self.files.write(path, content)
        return f"Wrote {path}."

    def _python(self, code: str) -> str:
        outcome = run_program(code, limits=PYTHON_LIMITS)
        problem = outcome.problem()
        parts = [outcome.stdout.rstrip("\n"), f"Error: {problem}" if problem else ""]
        return "\n".join(part for part in parts if part) or "The program printed nothing."
