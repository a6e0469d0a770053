"""What is hooked into Python's imports: games register with Gymnasium when it is imported, and links are no copies."""

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


def stand_for(package: str, name: str) -> None:
    """Make ``name``, which is being imported by a link to the folder of ``package``, the same modules.

    Python would load each file a second time under the other name, and its classes would differ.
    """
    if not any(isinstance(finder, _Link) and finder.name == name for finder in sys.meta_path):
        sys.meta_path.insert(0, _Link(package, name))
    sys.modules[name] = importlib.import_module(package)


class _Link:
    """Finds the modules below ``name`` among those of ``package``."""

    def __init__(self, package: str, name: str) -> None:
        self.package, self.name = package, name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        loader: Any = self
        below = fullname.startswith(f"{self.name}.")
        return importlib.util.spec_from_loader(fullname, loader) if below else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self.package + spec.name.removeprefix(self.name))
        spec.loader_state = module.__spec__  # Python gives the module this other one meanwhile.
        return module

    def exec_module(self, module: ModuleType) -> None:
        spec: Any = module.__spec__
        if spec is not None and spec.loader is self:
            module.__spec__ = spec.loader_state
