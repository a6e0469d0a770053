"""GSM8K: word problems of several steps, made up here or read from the published file."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import ClassVar

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.base.trust import is_data_set, is_name
from rllib_lmgame.envs.contract.base import InvalidAction, TextGameOptions, Variant
from rllib_lmgame.envs.support.answers import TAIL, number_text, read_number
from rllib_lmgame.envs.support.datasets import once_per_file, readable
from rllib_lmgame.envs.support.json_stream import stream_records
from rllib_lmgame.envs.support.published import PublishedLevels
from rllib_lmgame.envs.support.replies import AnswerGame
from rllib_lmgame.envs.synthetic.word_problems import FAMILIES, MAX_STEPS, WordProblem, word_problem

RIGHT_REWARD, WRONG_REWARD = 10.0, -0.1
MISS = "Incorrect. Please think again."

RULES = """You solve word problems of several steps. Think, then reply with the final number alone; \
commas and a unit or currency do no harm.
You have {tries}. The right number gives 10, a wrong one costs 0.1."""


class GSM8KOptions(TextGameOptions):
    """``env_config`` of GSM8K."""

    max_turns: int = option(1, "Tries.", ge=1)
    steps: tuple[int, int] = option(
        (2, 4), "Fewest and most calculations a problem takes; not used with `data`.", ge=1, le=MAX_STEPS
    )
    families: tuple[str, ...] = option(
        (), "Kinds of stories; empty for all. Not with `data`.", choices=tuple(FAMILIES), stranger=is_name
    )
    data: str | None = option(
        None,
        "File of problems (`question`, and `answer` ending in `#### number`; JSON or Parquet) to play instead of "
        "made-up ones; `data:gsm8k` is GSM8K.",
        path=True,
        stranger=is_data_set,
    )


CALCULATION = re.compile(r"<<[^<>]*>>")
"""A note for a calculator, as GSM8K's solutions hold them."""


class GSM8K(PublishedLevels, AnswerGame):
    """Grade-school word problems.

    Observation: the question; after a miss ``Incorrect. Please think again.``
    Action: one number. Commas, a sign, decimals, fractions, a currency and a unit are read (``$1,234.50``, ``-3``,
        ``1/2``, ``42 apples``, ``#### 42``); several different numbers are ambiguous, hence invalid.
    Reward: 10 for the right number, -0.1 for a wrong one and for a reply that gives no number (GRL). Numbers are
        compared exactly.
    Horizon: one try; five in ``GSM8KFiveTries`` (the settings of GRL). The last try ends the game (``terminated``).
    Levels: stories of 18 families with numbers, names and things drawn at random, ``steps`` calculations long; with
        ``data``, the problems of a file in the form of GSM8K (Cobbe et al. 2021). The hash of the question decides the
        split; ``split: all`` plays a whole file. Of ``data:gsm8k`` the 1,319 test problems are ``test``, and a tenth
        of the 7,473 training problems, by hash, is ``validation``.
    Solver: knows the answer; ``solution`` is the worked solution, ending in ``#### number``; without that line it is
        what the expert thinks, for models that reason (``language_model.think``).
    """

    variants = (
        Variant("lmgame/GSM8K-v0", (-0.1, 10.0), "Word problems of several steps, one try."),
        Variant(
            "lmgame/GSM8KFiveTries-v0", (-0.5, 10.0), "Word problems of several steps, five tries.", {"max_turns": 5}
        ),
    )
    Options: ClassVar[type[TextGameOptions]] = GSM8KOptions
    real_levels = ("data", "GSM8K (`data: data:gsm8k`)")
    rules_text = RULES
    options: GSM8KOptions

    def __init__(self, render_mode: str | None = None, **env_config: object) -> None:
        super().__init__(render_mode, **env_config)
        low, high = self.options.steps
        if low > high:
            raise ConfigError("env_config.steps", f"must have the smaller number first, got [{low}, {high}]")
        self._file = tuple(problem for file in self.published.files for problem in load_problems(file))
        self.check_split()

    @property
    def success(self) -> bool:
        return self._given == self._problem.answer

    @property
    def solution(self) -> str:
        """The worked solution of this level, in the form of GSM8K."""
        return self._problem.solution

    @property
    def listed(self) -> Sequence[WordProblem]:
        return self._file

    def made_up(self, rng: random.Random) -> Iterator[WordProblem]:
        families = self.options.families or tuple(FAMILIES)
        while True:
            yield word_problem(rng, rng.choice(families), rng.randint(*self.options.steps))

    def level_key(self, level: WordProblem) -> str:
        return f"gsm8k {level.question}"

    def start(self, level: WordProblem) -> None:
        self._problem = level
        self._given: Fraction | None = None

    def board(self) -> str:
        if self.success:
            return "Correct."
        return self._problem.question if self._given is None else MISS

    def read_move(self, text: str) -> Fraction:
        return read_number(text)

    def play_move(self, move: Fraction) -> float:
        self._given = move
        return RIGHT_REWARD if self.success else WRONG_REWARD

    def expert_thought(self) -> str:
        """The worked solution in words: without the calculator's notes (``<<2*3=6>>``) and without the last line, which
        the reply says.
        """
        return CALCULATION.sub("", self.solution.rsplit(TAIL, 1)[0]).strip()

    def solve(self) -> list[str] | None:
        return [number_text(self._problem.answer)]


@once_per_file
def load_problems(path: str) -> tuple[WordProblem, ...]:
    """Problems of a file in the form of GSM8K. Raises: ConfigError: names file and line of what is wrong."""
    problems = tuple(
        _problem(record["question"], record["answer"], where)
        for where, record in stream_records(path, {"question": str, "answer": str})
    )
    if not problems:
        raise ConfigError("env_config.data", f"{path} holds no problems; expected records with `question` and `answer`")
    return problems


def _problem(question: str, solution: str, where: str) -> WordProblem:
    if TAIL not in solution:
        raise ConfigError("env_config.data", f"{where}: field 'answer' does not end in '{TAIL} number'")
    if not question.strip():
        raise ConfigError("env_config.data", f"{where}: field 'question' is empty")
    try:
        answer = read_number(TAIL + solution.rsplit(TAIL, 1)[1])
    except InvalidAction as problem:
        raise ConfigError(
            "env_config.data", f"{where}: what follows '{TAIL}' in field 'answer' is no number ({problem})"
        ) from None
    question = readable(question.strip())
    return WordProblem(question, solution, answer)
