"""Writes ``quickstart.ipynb`` from the README's Python example: the same lines, in cells with a word before each."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"

HEAD = """# rllib-lmgame in Python

A language model with random weights learns FrozenLake: from the game's solver first, then by PPO. Start
Jupyter in the environment that `make install` made (`.venv`), with Jupyter installed into it. The cells are the example
of the README, which a test runs."""

CELLS = (
    ("Import", "The configuration is an `AlgorithmConfig` of RLlib."),
    ("Assign", "Game, model, engine, and how it learns. Each section of a YAML file is a method."),
    ("Assign", "Start the processes. Where no Ray is running, this starts one."),
    ("For", "Train. While the model learns from the solver, success is not measured: NaN."),
    ("Expr", "Save. `checkpoint/hf` loads with Transformers and vLLM."),
    ("Expr", "Stop the processes."),
)
"""Kind of each statement of the example, and what is said before it."""


def example() -> str:
    """The one Python block of the README."""
    (text,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    return text


def notebook() -> str:
    """The notebook as JSON (nbformat 4.5), without outputs.

    Raises:
        ValueError: The README's example has other statements than :data:`CELLS` speaks of.
    """
    text = example()
    lines, statements = text.splitlines(), ast.parse(text).body
    kinds = ["Import" if isinstance(each, ast.Import | ast.ImportFrom) else type(each).__name__ for each in statements]
    if kinds != [kind for kind, _ in CELLS]:
        raise ValueError(f"README.md's example has statements {kinds}: say in docs/notebook_page.py what each does")
    cells = [_cell("markdown", 0, HEAD)]
    for number, (each, (_, words)) in enumerate(zip(statements, CELLS, strict=True), 1):
        cells.append(_cell("markdown", 2 * number - 1, words))
        cells.append(_cell("code", 2 * number, "\n".join(lines[each.lineno - 1 : each.end_lineno])))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    book = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(book, indent=1) + "\n"


def _cell(kind: str, number: int, source: str) -> dict[str, object]:
    code = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {
        "cell_type": kind,
        "id": f"cell-{number}",
        "metadata": {},
        "source": source.splitlines(keepends=True),
        **code,
    }
