"""ReasoningGym: the generators of the package ``reasoning_gym`` as games.

Two habits of that package are kept inside here. Some generators draw from, or seed, Python's and numpy's global
generators: both are set from the level before, and put back after every call. Some scorers hand the answer to ``eval``
or to sympy's reader, which evaluates Python. Those see an answer only if it is a plain literal, or an expression that
our own reader accepts, which evaluates nothing.
"""

from __future__ import annotations

import ast
import contextlib
import random
import re
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import reasoning_gym
from reasoning_gym.factory import DATASETS

from rllib_lmgame.base.errors import ConfigError, did_you_mean
from rllib_lmgame.base.group import option
from rllib_lmgame.base.trust import is_name
from rllib_lmgame.envs.contract.base import MAX_TEXT, InvalidAction, TextGameOptions, Variant
from rllib_lmgame.envs.support.datasets import readable
from rllib_lmgame.envs.support.mathematics.formulas import UnreadableError, read_formula
from rllib_lmgame.envs.support.mathematics.shape import shape_of
from rllib_lmgame.envs.support.replies import AnswerGame

DATASET_SEED = 20_250_601
"""Seed of the data sets; the level is an index into one."""

EVALUATED_AS_LITERALS = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
EVALUATED_AS_FORMULAS = frozenset(
    {"countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"}
)
READ_AS_FRACTIONS = frozenset({"coin_flip"})
HUGE_EXPONENT = re.compile(r"[eE][-+]?[0-9_]{4}")
WORDS = re.compile(r"[\w\s]*")
FORMULA = re.compile(r"[0-9a-zA-Z+\-*/(). ]*")
FUNCTION = re.compile(r"\b(?:sin|cos|tan|asin|acos|atan|sinh|cosh|tanh|exp|log|sqrt|Abs|abs)(?=\()")
NAMES = re.compile(r"[a-zA-Z]{2,}")
"""Sympy's reader would call most of Python's and sympy's functions: ``input(2)``, ``factorial(9999999)``."""
HALF_POWER = re.compile(r"(?<=\*\*)\([0-9]{1,2}/2\)")
MAX_FORMULA = 400
MAX_FUNCTIONS = 8
MAX_KINDS_OF_FUNCTIONS = 3
"""Sympy's ``simplify`` takes many seconds where more functions are mixed; the integrals asked for need no more."""

RULES = """You solve a reasoning task. Reply with the answer alone, in the form the task asks for.
You have {tries}. The right answer gives 1, a partly right one less."""

_shared_state = threading.Lock()


class ReasoningGymOptions(TextGameOptions):
    """``env_config`` of ReasoningGym."""

    max_turns: int = option(1, "Tries.", ge=1)
    task: str = option("leg_counting", "Name of the generator, one of those of `reasoning_gym`.", stranger=is_name)
    task_config: dict[str, Any] = option(
        {}, "Settings of the generator, as its own configuration names them (without `seed` and `size`)."
    )
    size: int = option(2_000, "Levels to draw from, all splits together.", ge=30)


class ReasoningGym(AnswerGame):
    """Any task of Reasoning Gym.

    The tasks are those of Stojanovski et al. 2025.

    Observation: the question.
    Action: the answer, as the question asks for it; the whole reply counts, ``||`` included.
    Reward: the score of the task's own scorer, 0 to 1; with several tries, what a try adds to the best one before. -0.1
        for an empty reply.
    Horizon: one try by default; the last one ends the game (``terminated``). Success is a score of 1.
    Levels: the first ``size`` items of the generator; the hash of the question decides the split.
    Solver: the stored answer, where the task's own scorer gives it 1.
    """

    variants = (Variant("lmgame/ReasoningGym-v0", (-0.1, 1.0)),)
    extra = "reasoning-gym"
    Options: ClassVar[type[TextGameOptions]] = ReasoningGymOptions
    rules_text = RULES
    options: ReasoningGymOptions

    def __init__(self, render_mode: str | None = None, **env_config: object) -> None:
        super().__init__(render_mode, **env_config)
        self._tasks = make_tasks(self.options.task, self.options.task_config, self.options.size)

    @property
    def success(self) -> bool:
        return self._best >= 1.0

    def levels(self, rng: random.Random) -> Iterator[dict[str, Any]]:
        while True:
            yield self._item(rng.randrange(self.options.size))

    def level_key(self, level: dict[str, Any]) -> str:
        return readable(f"reasoning_gym {self.options.task} {level['question']}")

    def start(self, level: dict[str, Any]) -> None:
        self._entry = level
        self._best = 0.0
        self._tried = False

    def board(self) -> str:
        if self.success:
            return "Correct."
        return (
            f"That is not right, or not all of it.\n\n{self._entry['question']}"
            if self._tried
            else str(self._entry["question"])
        )

    def read_move(self, text: str) -> str:
        if not text:
            raise InvalidAction("the reply is empty.")
        return text

    def play_move(self, move: str) -> float:
        self._tried = True
        gain = max(0.0, self._score(move) - self._best)
        self._best += gain
        return gain

    def solve(self) -> list[str] | None:
        answer = self._entry.get("answer")
        text = "" if answer is None else str(answer).strip()
        return [text] if text and len(text) <= MAX_TEXT and self._score(text) >= 1.0 else None

    def _item(self, index: int) -> dict[str, Any]:
        with _seeded_state(f"{self.options.task} {index}"):
            entry: dict[str, Any] = self._tasks[index]
        return entry

    def _score(self, answer: str) -> float:
        """Score of an answer, 0 where the scorer stumbles over it."""
        if not may_be_scored(self.options.task, answer):
            return 0.0
        with _seeded_state(self._entry["question"]):
            try:
                score = float(self._tasks.score_answer(answer, self._entry))
            except Exception:  # A scorer may raise anything at a text it does not expect.
                return 0.0
        return min(1.0, max(0.0, score)) if score == score else 0.0


def make_tasks(task: str, config: dict[str, Any], size: int) -> Any:
    """A data set of Reasoning Gym. Raises: ConfigError: for an unknown task, or settings it does not take."""
    if task not in DATASETS:
        hint = did_you_mean(task, DATASETS, "known: " + ", ".join(sorted(DATASETS)))
        raise ConfigError("env_config.task", f"unknown task {task!r}; {hint}")
    known = getattr(DATASETS[task][1], "__dataclass_fields__", {})
    for key in config:
        if key in ("seed", "size"):
            raise ConfigError(
                f"env_config.task_config.{key}",
                "is set by the game; levels are chosen by the seed of reset() and by `size`",
            )
        if key not in known:
            hint = did_you_mean(key, known, "it has " + ", ".join(sorted(set(known) - {"seed", "size"})))
            raise ConfigError(f"env_config.task_config.{key}", f"{task} has no such setting; {hint}")
    try:
        with _seeded_state(task):
            return _ordered(reasoning_gym.create_dataset(task, seed=DATASET_SEED, size=size, **config))
    except Exception as error:  # Its checks are assertions, and what a wrong type leads to is anybody's guess.
        said = str(error) or "a value is out of range"
        raise ConfigError(
            "env_config.task_config", f"{task} does not take {config}: {said} ({type(error).__name__})"
        ) from error


class _Letters(frozenset[str]):
    """A set of letters that is gone through in alphabetical order, whatever the hash salt of the process."""

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(super().__iter__()))

    def __sub__(self, other: Any) -> _Letters:
        return _Letters(super().__sub__(other))


def _ordered(tasks: Any) -> Any:
    """The data set, with the sets it draws from put in order: some tasks would else be others in every process."""
    if isinstance(getattr(tasks, "letters", None), set):
        tasks.letters = _Letters(tasks.letters)
    if hasattr(tasks, "_get_monomials"):
        monomials = tasks._get_monomials
        tasks._get_monomials = lambda rng: sorted(monomials(rng), key=str)
    return tasks


def may_be_scored(task: str, answer: str) -> bool:
    """Whether the task's scorer may see this answer: not if it would evaluate it and it is more than data, or would
    write out 1e999999999.
    """
    if task in EVALUATED_AS_LITERALS:
        return WORDS.fullmatch(answer) is not None or _is_literal(answer)
    if task in EVALUATED_AS_FORMULAS | READ_AS_FRACTIONS and HUGE_EXPONENT.search(answer):
        return False
    return task not in EVALUATED_AS_FORMULAS or _is_formula(answer)


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
    return True


def _is_formula(text: str) -> bool:
    """An expression of numbers, single letters and a few functions, small enough to be compared in bounded time."""
    if len(text) > MAX_FORMULA:
        return False
    bare, functions = HALF_POWER.sub("4", FUNCTION.sub("", text)), FUNCTION.findall(text)
    if not FORMULA.fullmatch(bare) or len(functions) > MAX_FUNCTIONS or len(set(functions)) > MAX_KINDS_OF_FUNCTIONS:
        return False
    if not {*NAMES.findall(bare)} <= {"pi"}:
        return False
    try:
        shape_of(read_formula(bare).node)
    except UnreadableError:
        return False
    return True


@contextlib.contextmanager
def _seeded_state(purpose: str) -> Iterator[None]:
    """Global generators seeded for ``purpose``, and as they were afterwards."""
    seed = random.Random(purpose).getrandbits(32)
    with _shared_state:
        state, np_state = random.getstate(), np.random.get_state()
        random.seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(state)
            np.random.set_state(np_state)
