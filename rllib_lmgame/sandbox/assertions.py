"""Rewrites test code so that every assertion is counted, and one that fails or raises does not end the tests.

An error in any other statement does end them. Inside ``try`` and ``with`` an assertion that holds is counted, and one
that fails raises as ever: an exception may be what is tested. EvalPlus's tests call a function ``assertion`` for each
case: there each call is one assertion.

The new text calls functions of ``harness.py``: ``__assertion__(value)``, ``__assertion_failed__(error)`` and
``__held__(value)``.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import Any

_OF_EVALPLUS = "assertion"
_COUNTED = "try:\n    __assertion__(0)\nexcept Exception as __error__:\n    __assertion_failed__(__error__)"


@lru_cache(maxsize=1024)
def counted(tests: str) -> str:
    """Test code, rewritten. Raises: SyntaxError: if it is not Python."""
    return ast.unparse(ast.fix_missing_locations(_Counting().visit(ast.parse(tests))))


class _Counting(ast.NodeTransformer):
    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        return node if node.name == _OF_EVALPLUS else self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> Any:
        return _counted(node.test)

    def visit_Expr(self, node: ast.Expr) -> Any:
        called = node.value.func if isinstance(node.value, ast.Call) else None
        of_evalplus = isinstance(called, ast.Name) and called.id == _OF_EVALPLUS
        return _counted(ast.List([node.value], ast.Load())) if of_evalplus else node

    def visit_Try(self, node: Any) -> Any:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Assert):
                inner.test = ast.Call(ast.Name("__held__", ast.Load()), [inner.test], [])
        return node

    visit_TryStar = visit_With = visit_AsyncWith = visit_Try


def _counted(test: ast.expr) -> ast.stmt:
    (made,) = ast.parse(_COUNTED).body
    made.body[0].value.args = [test]  # type: ignore[attr-defined]
    return made
