"""CodeExecution: write a function that passes tests it does not show."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from rllib_lmgame.base.group import option
from rllib_lmgame.base.trust import is_data_set
from rllib_lmgame.envs.contract.base import TextGameOptions, Variant
from rllib_lmgame.envs.games.code.code_execution.generated import generated_problems
from rllib_lmgame.envs.games.code.code_execution.problems import Problem, case_text, read_problems
from rllib_lmgame.envs.support.published import PublishedLevels
from rllib_lmgame.envs.support.replies import WholeReplyGame, as_block, only_block
from rllib_lmgame.sandbox.judging import Answer, Answers, call_function, run_tests, same
from rllib_lmgame.sandbox.limits import MEBIBYTE, Limits

SYNTAX_CREDIT = 0.05
WALL_FACTOR = 3.0
"""Wall-clock time for each second of processor time: a busy machine must not fail a right program."""
LANGUAGES = ("python", "py", "python3")
SHOWN_FAILURES, SHOWN_VALUE, SHOWN_PROBLEM = 3, 200, 300

RULES = """You write a Python function. Reply with one block that holds the whole program:
```python
def ...
```
It is run on the examples and on hidden tests. It scores {credit:g} for being valid Python \
and {rest:g} times the share of hidden tests it passes.
{tries}"""
ONE_TRY = "You have one try."
SEVERAL_TRIES = (
    "You have {tries} tries and read after each what went wrong with the examples; a later try earns by how much it "
    "beats the best before."
)


class CodeExecutionOptions(TextGameOptions):
    """``env_config`` of CodeExecution."""

    max_turns: int = option(3, "Tries.", ge=1, le=5)
    run_seconds: int = option(
        3, "Seconds of processor time a program may use for all tests of a try together.", ge=1, le=60
    )
    memory_megabytes: int = option(512, "Memory a program may use.", ge=64, le=8192)
    data: str | None = option(
        None,
        "File of problems in HumanEval's or MBPP's form (JSON or Parquet), or `data:humaneval`, `data:mbpp`, and with "
        "EvalPlus's tests `data:humanevalplus`, `data:mbppplus`; null plays generated problems.",
        path=True,
        stranger=is_data_set,
    )


class CodeExecution(PublishedLevels, WholeReplyGame):
    """Write a Python function that passes hidden tests.

    Observation: signature, description and examples; after a try the examples that failed, with what the function
        returned or raised. Hidden tests are never shown.
    Action: a whole program in one fenced block marked ``python``.
    Reward: how much a try's score beats the best one before, so that the rewards of an episode add up to its best
        score. Score = 0.05 for a program that compiles + 0.95 x fraction of hidden tests passed; success is a fraction
        of 1. -0.1 for a reply without such a block.
    Horizon: 3 tries (1 to 5), the last of which ends the game (``terminated``).
    Levels: one of 68 functions with its constants drawn (264 problems), 3 examples and up to 12 hidden tests each. Or
        the problems of a HumanEval or MBPP file (option ``data``), whose assertions count one by one. ``data:mbpp``
        keeps MBPP's own splits; all of ``data:humaneval``, and of EvalPlus's ``data:humanevalplus`` and
        ``data:mbppplus``, is ``test``.
    Solver: the reference solution.

    Every try starts a confined process (two for a data file's tests), some 20-50 ms each. So this game plays tens of
    steps a second per core and not thousands: the price of never running a player's program in this process.
    """

    variants = (Variant("lmgame/CodeExecution-v0", (-0.3, 1.0)),)
    Options: ClassVar[type[TextGameOptions]] = CodeExecutionOptions
    real_levels = ("data", "HumanEval or MBPP (`data: data:mbpp`)")
    turns_are_tries = True
    slow_calls = True  # programs run in processes of their own
    uses_sandbox = True
    options: CodeExecutionOptions

    def __init__(self, render_mode: str | None = None, **env_config: object) -> None:
        super().__init__(render_mode, **env_config)
        self._file = [problem for file in self.published.files for problem in read_problems(file)]
        self.check_split()

    @property
    def rules(self) -> str:
        tries = self.options.max_turns
        return RULES.format(
            credit=SYNTAX_CREDIT,
            rest=1 - SYNTAX_CREDIT,
            tries=ONE_TRY if tries == 1 else SEVERAL_TRIES.format(tries=tries),
        )

    @property
    def success(self) -> bool:
        return self._solved

    @property
    def solver_wins(self) -> bool:
        return self.options.data is None

    @property
    def listed(self) -> Sequence[Problem]:
        return self._file

    def made_up(self, rng: random.Random) -> Iterator[Problem]:
        return generated_problems(rng)

    def level_key(self, level: Problem) -> str:
        return f"code\0{level.name}\0{level.statement}"

    def start(self, level: Problem) -> None:
        self._problem = level
        self._best = 0.0
        self._solved = False

    def board(self) -> str:
        return f"{self._problem.statement}\n\n{self._said}" if self._said else self._problem.statement

    def read_move(self, text: str) -> str:
        return only_block(text, LANGUAGES)

    def play_move(self, move: str) -> float:
        compiles, passed, total = self._judge_calls(move) if self._problem.hidden else self._judge_tests(move)
        self._solved = passed == total
        score = 1 - (1 - SYNTAX_CREDIT) * (1 - passed / total) if compiles else 0.0
        gain, self._best = max(score - self._best, 0.0), max(score, self._best)
        if self._solved:
            self._said = "All tests pass."
        return gain

    def expert_action(self) -> str | None:
        """The reference solution."""
        return as_block(self._problem.reference, "python") if self._problem.reference else None

    @property
    def _limits(self) -> Limits:
        seconds = self.options.run_seconds
        return Limits(
            wall_s=WALL_FACTOR * seconds,
            cpu_s=seconds,
            memory_bytes=self.options.memory_megabytes * MEBIBYTE,
            output_bytes=MEBIBYTE,
        )

    def _judge_calls(self, program: str) -> tuple[bool, int, int]:
        problem = self._problem
        cases = (*problem.public, *problem.hidden)
        answers = call_function(program, problem.entry, [case.arguments for case in cases], self._limits)
        right = [
            not answer.error and same(answer.value, case.expected)
            for answer, case in zip(answers.answers, cases, strict=True)
        ]
        shown = len(problem.public)
        self._said = remark(problem, answers, right[:shown])
        return answers.compiles, sum(right[shown:]), len(problem.hidden)

    def _judge_tests(self, program: str) -> tuple[bool, int, int]:
        problem = self._problem
        tally = run_tests(program, problem.entry, problem.tests, problem.prelude, self._limits)
        self._said = "The program does not pass all tests."
        # What is wrong is asked of a process that is called with nothing, so it can tell of no call.
        if not tally.compiles:
            self._said = (
                "The program is not valid Python: "
                f"{call_function(program, problem.entry, (), self._limits).problem[:SHOWN_PROBLEM]}"
            )
        elif problem.public_tests and not self._passes_public(program):
            self._said += " It fails the example."
        return tally.compiles, tally.passed, tally.total

    def _passes_public(self, program: str) -> bool:
        problem = self._problem
        tally = run_tests(program, problem.entry, "\n".join(problem.public_tests), problem.prelude, self._limits)
        return tally.passed == tally.total


def remark(problem: Problem, answers: Answers, right: list[bool]) -> str:
    """What went wrong with the examples, never anything of the hidden tests."""
    if not answers.compiles:
        return f"The program is not valid Python: {answers.problem[:SHOWN_PROBLEM]}"
    failures = [
        f"{_short(case_text(problem.entry, case))}: {_got(answer)}"
        for case, answer, passed in zip(problem.public, answers.answers, right, strict=False)
        if not passed
    ]
    if not failures:
        return "All examples pass, but not all hidden tests."
    return "These examples fail:\n" + "\n".join(failures[:SHOWN_FAILURES])


def _got(answer: Answer) -> str:
    return _short(answer.error, SHOWN_PROBLEM) if answer.error else f"got {_short(_written(answer.value))}"


def _written(value: object) -> str:
    """A value as Python writes it; whole numbers beyond the interpreter's limit of digits have no such text."""
    try:
        return repr(value)
    except (ValueError, RecursionError):
        return "a value too large to write"


def _short(text: str, length: int = SHOWN_VALUE) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."
