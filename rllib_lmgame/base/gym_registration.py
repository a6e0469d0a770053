"""Games register with Gymnasium when it is imported."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

_GYMNASIUM, _GAMES = "gymnasium", "rllib_lmgame.envs"


def register_with_gymnasium() -> None:
    """Register the games now if Gymnasium is there already, else as soon as it has been imported."""
    if _GYMNASIUM in sys.modules:
        importlib.import_module(_GAMES)
    elif not any(isinstance(finder, _AtImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AtImport())


class _AtImport:
    """Finds Gymnasium as all others do, once, and has the games imported behind it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _GYMNASIUM or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        loader: Any = spec and spec.loader
        if loader is not None:
            load = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                importlib.import_module(_GAMES)

            loader.exec_module = exec_module
        return spec
