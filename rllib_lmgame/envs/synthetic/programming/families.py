"""What a family of programming problems is: a reference function, a sentence, inputs and parameters.

The reference is an ordinary function of this package. Its parameters in capitals are chosen per level and then written
into its text, so one function is a family of problems. The text with the constants in place is what the expert replies;
its first line is the signature the player sees. Expected results come from calling the function itself: no text is ever
executed in this process.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import random
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

Maker = Callable[[random.Random], Any]
"""Makes one argument."""

FAMILIES: dict[str, Family] = {}


@dataclass(frozen=True)
class Family:
    """A reference function with what is said about it.

    Attributes:
        function: Takes the arguments by position and the parameters in capitals by name.
        text: What it does; ``{K}`` stands for the value of parameter ``K``.
        parameters: Values each parameter may take.
        inputs: Makers of the arguments, in order.
    """

    function: Callable[..., Any]
    text: str
    parameters: dict[str, tuple[Any, ...]]
    inputs: tuple[Maker, ...]

    @property
    def name(self) -> str:
        """Name of the function."""
        return self.function.__name__

    def choices(self) -> list[dict[str, Any]]:
        """All values of all parameters together."""
        return [
            dict(zip(self.parameters, values, strict=True)) for values in itertools.product(*self.parameters.values())
        ]


def family(text: str, **given: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a reference function.

    Args:
        text: What it does.
        given: For a name in capitals the values it may take, for any other the maker of that argument.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        parameters = {name: tuple(values) for name, values in given.items() if name.isupper()}
        inputs = tuple(maker for name, maker in given.items() if not name.isupper())
        FAMILIES[function.__name__] = Family(function, text, parameters, inputs)
        return function

    return register


@cache
def _parsed(name: str) -> ast.FunctionDef:
    tree = ast.parse(textwrap.dedent(inspect.getsource(FAMILIES[name].function))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    return tree


class _Constants(ast.NodeTransformer):
    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.copy_location(ast.Constant(self._values[node.id]), node) if node.id in self._values else node


def source_of(name: str, values: dict[str, Any]) -> str:
    """Text of a family's function with the parameters' values written into it."""
    tree = ast.parse(ast.unparse(_parsed(name))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    tree.decorator_list = []
    tree.args.kwonlyargs, tree.args.kw_defaults = [], []
    return ast.unparse(ast.fix_missing_locations(_Constants(values).visit(tree)))


def signature_of(name: str, values: dict[str, Any]) -> str:
    """First line of the function: ``def name(argument: type) -> type:``."""
    return source_of(name, values).split("\n", 1)[0]


def ints(low: int = -20, high: int = 40, least: int = 0, most: int = 10) -> Maker:
    """A list of whole numbers, now and then with repetitions."""

    def make(rng: random.Random) -> list[int]:
        top = high if rng.random() < 0.6 else min(high, low + 6)
        return [rng.randint(low, top) for _ in range(rng.randint(least, most))]

    return make


def whole(low: int, high: int) -> Maker:
    """A whole number, small ones more often."""
    return lambda rng: rng.randint(low, high if rng.random() < 0.6 else min(high, low + 5))


def text(letters: str = "abcde ", least: int = 0, most: int = 14) -> Maker:
    """A text of some letters."""
    return lambda rng: "".join(rng.choice(letters) for _ in range(rng.randint(least, most)))


def sentence(
    words: str = "red fox ran over the old red bridge at noon and saw a very small owl", least: int = 0, most: int = 8
) -> Maker:
    """Words with single spaces."""
    return lambda rng: " ".join(rng.choice(words.split()) for _ in range(rng.randint(least, most)))


def words(letters: str = "abcd", least: int = 0, most: int = 7, longest: int = 5) -> Maker:
    """A list of short words."""
    return lambda rng: [
        "".join(rng.choice(letters) for _ in range(rng.randint(1, longest))) for _ in range(rng.randint(least, most))
    ]


def grid(low: int = 0, high: int = 9, most: int = 5) -> Maker:
    """A rectangle of whole numbers, as a list of rows."""

    def make(rng: random.Random) -> list[list[int]]:
        rows, columns = rng.randint(1, most), rng.randint(1, most)
        return [[rng.randint(low, high) for _ in range(columns)] for _ in range(rows)]

    return make


def intervals() -> Maker:
    """A list of ``[start, end]`` with ``start <= end``."""
    return lambda rng: [sorted((rng.randint(0, 20), rng.randint(0, 20))) for _ in range(rng.randint(0, 6))]
