"""What EvalPlus's tests need of numpy: the sandbox has no packages."""

from __future__ import annotations

import inspect
from typing import Any

NUMPY = "import numpy as np"


class _Numpy:
    """Comparing numbers, and lists and tuples of them, as numpy does, but for shapes, which must be the same."""

    ndarray = float32 = float64 = type("of numpy", (), {})

    class testing:
        @staticmethod
        def assert_allclose(actual: Any, desired: Any, rtol: float = 1e-7, atol: float = 0.0) -> None:
            if not _Numpy.allclose(actual, desired, rtol, atol, equal_nan=True):
                raise AssertionError

    @staticmethod
    def allclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
        if isinstance(a, list | tuple) or isinstance(b, list | tuple):
            lists = isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b)
            return lists and all(_Numpy.allclose(*pair, rtol, atol, equal_nan) for pair in zip(a, b, strict=True))
        if a != a or b != b:
            return equal_nan and a != a and b != b
        return bool(a == b or abs(a - b) <= atol + rtol * abs(b) < float("inf"))


def with_stand_in(tests: str, prelude: str) -> tuple[str, str]:
    """Test code without numpy, and what is run before it."""
    if NUMPY not in tests:
        return tests, prelude
    return tests.replace(NUMPY, ""), f"{prelude}\nfrom typing import Any\n{inspect.getsource(_Numpy)}\nnp = _Numpy\n"
