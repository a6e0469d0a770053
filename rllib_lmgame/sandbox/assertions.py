"""Rewrites test code so that every assertion is counted, and none is lost to what fails between them.

Plain test code ends at the first exception. Here an assertion that fails or raises is counted, and the next one is
tried. After any other statement that raises, the names it should have set hold a value that nothing can be done with.
Inside ``try`` and ``with`` nothing is caught: an exception may be what is tested. EvalPlus's tests call a function
``assertion`` for each case: there each call is one assertion, whatever the function does.

The new text calls three functions of ``harness.py``: ``__assertion__(value)``, ``__assertion_failed__(error)``, and
``__broken__(error, assertions)``, which counts those a broken statement took with it and gives the value for its names.
"""

from __future__ import annotations

import ast
from functools import lru_cache

_WALKED_INTO = (ast.For, ast.While, ast.If)
"""Their bodies are guarded statement by statement."""
_UNGUARDED = (ast.Return, ast.Break, ast.Continue, ast.Pass, ast.Global, ast.Nonlocal, ast.Import, ast.ImportFrom)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@lru_cache(maxsize=1024)
def counted(tests: str) -> str:
    """Test code, rewritten. Raises: SyntaxError: if it is not Python."""
    tree = _OneEach().visit(ast.parse(tests))
    tree.body = _body(tree.body, guard=True)
    return ast.unparse(ast.fix_missing_locations(tree))


class _OneEach(ast.NodeTransformer):
    """Asserts that a call of ``assertion`` returns; what that asserts is raised into the call."""

    _name = "assertion"
    _inside = False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        outer, self._inside = self._inside, self._inside or node.name == self._name
        self.generic_visit(node)
        self._inside = outer
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        if not self._inside:
            return node
        (raised,) = ast.parse("if not 0:\n    raise AssertionError").body
        raised.test.operand = node.test  # type: ignore[attr-defined]
        return raised

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        call = node.value
        if self._inside or not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            return node
        return ast.Assert(ast.List([call], ast.Load())) if call.func.id == self._name else node


def _body(statements: list[ast.stmt], guard: bool) -> list[ast.stmt]:
    return [_statement(statement, guard) for statement in statements]


def _statement(statement: ast.stmt, guard: bool) -> ast.stmt:
    if isinstance(statement, ast.Assert):
        return _try(f"__assertion__({ast.unparse(statement.test)})", "__assertion_failed__(__error__)")
    assertions = _assertions(statement)
    if isinstance(statement, _DEFINITIONS):
        # A helper that asserts nothing must raise into the assertion that calls it.
        tests = not isinstance(statement, ast.ClassDef) and assertions > 0
        statement.body = _body(statement.body, tests)
        return statement
    inner = guard and isinstance(statement, _WALKED_INTO)
    for field in ("body", "orelse", "finalbody"):
        if isinstance(getattr(statement, field, None), list):
            setattr(statement, field, _body(getattr(statement, field), inner))
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        part.body = _body(part.body, guard=False)
    text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    if not guard or text or isinstance(statement, _UNGUARDED):
        return statement
    return _try(statement, f"{''.join(f'{name} = ' for name in _names(statement))}__broken__(__error__, {assertions})")


def _try(body: ast.stmt | str, handler: str) -> ast.stmt:
    (made,) = ast.parse(f"try:\n    pass\nexcept Exception as __error__:\n    {handler}").body
    assert isinstance(made, ast.Try)
    made.body = ast.parse(body).body if isinstance(body, str) else [body]
    return made


def _assertions(node: ast.AST) -> int:
    """Assertions in a statement itself, not in functions defined within it."""
    inner = (child for child in ast.iter_child_nodes(node) if not isinstance(child, _DEFINITIONS))
    return int(isinstance(node, ast.Assert)) + sum(map(_assertions, inner))


def _names(statement: ast.stmt) -> list[str]:
    if not isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign):
        return []
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    found = (
        node.id
        for target in targets
        for node in ast.walk(target)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    return list(dict.fromkeys(found))
