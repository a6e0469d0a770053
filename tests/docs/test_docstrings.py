"""Docstrings: what is listed has a line of its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import rllib_lmgame

PACKAGE = Path(rllib_lmgame.__file__).parent
SECTIONS = re.compile(r"^(Args|Attributes|Raises|Returns):$", re.MULTILINE)


def listed(node: ast.AST) -> list[str]:
    """Public names that a docstring may list: the fields of a class, the arguments of a function."""
    if isinstance(node, ast.ClassDef):
        fields = (item.target for item in node.body if isinstance(item, ast.AnnAssign))
        return [target.id for target in fields if isinstance(target, ast.Name) and not target.id.startswith("_")]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = node.args
        return [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return []


def run_together(node: ast.AST) -> Iterator[str]:
    """Names of a section that stand in the middle of a line: ``x: first. y: second.``"""
    doc = ast.get_docstring(node) if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) else None
    if doc is None or not SECTIONS.search(doc):
        return
    section = doc[SECTIONS.search(doc).start() :]  # type: ignore[union-attr]
    begun = {
        name for heads in re.findall(r"^ +([\w, *]+):", section, re.MULTILINE) for name in re.split(r"[ ,*]+", heads)
    }
    yield from (name for name in listed(node) if name not in begun and re.search(rf"\. {name}:\s", section))


def test_what_is_listed_has_a_line_of_its_own() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {name}"
        for path, text in texts.items()
        if re.search(r"\. [a-z_]+:\s", text)  # Parsing all files takes seconds.
        for node in ast.walk(ast.parse(text))
        for name in run_together(node)
    ]
    assert found == []
