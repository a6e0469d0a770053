"""What a file names: algorithms (of a registry, RLlib's, or by import path) and Tune callbacks."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import describe
from rllib_lmgame.base.plugin import import_path
from rllib_lmgame.base.registry import CALLBACKS, check_arguments
from rllib_lmgame.config.algorithms import OWN, AlgorithmEntry, entry_of, unknown_algorithm


@dataclass(frozen=True)
class ResolvedAlgorithm:
    """An algorithm that can run. ``entry`` is set for algorithms on text games, which check their own configuration."""

    name: str
    cls: Any
    entry: AlgorithmEntry | None = None

    @property
    def own(self) -> bool:
        """Whether it is an algorithm on text games: of this package, or of its kind."""
        return self.entry is not None


def resolve_algorithm(name: str) -> ResolvedAlgorithm:
    """The algorithm called ``name`` in a ``run:`` setting: an entry's name, RLlib's, or an import path (of an entry or
    a class). Raises: ConfigError: if there is none.
    """
    from ray.rllib.algorithms.algorithm import Algorithm
    from ray.rllib.algorithms.registry import ALGORITHMS as stock

    found = import_path(name, "run") if ":" in name else OWN.get(name)
    if found is None and name in stock:
        return ResolvedAlgorithm(name, stock[name]()[0])
    if found is None:
        raise unknown_algorithm(name, list(stock))
    if isinstance(found, AlgorithmEntry):
        return ResolvedAlgorithm(found.name, found.algorithm_class(), found)
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise ConfigError("run", f"{name} is not an RLlib Algorithm class")
    return ResolvedAlgorithm(found.__name__, found, entry_of(found))


PACKAGES = {"wandb": "wandb", "mlflow": "mlflow", "comet": "comet_ml"}
"""What Ray's loggers need."""


def check_callbacks(setting: list[Any] | None) -> None:
    """Raises: ConfigError: an entry is no Tune callback, or has wrong arguments."""
    from ray.tune import Callback

    for i, entry in enumerate(setting or []):
        key = f"callbacks[{i}]"
        name, arguments = CALLBACKS.split(entry, key)
        package = PACKAGES.get(name)
        if package is not None and find_spec(package) is None:
            raise ConfigError(key, f"{name} needs {package}: pip install {package}")
        cls = CALLBACKS.find(name, key)
        if not (isinstance(cls, type) and issubclass(cls, Callback)):
            raise ConfigError(key, f"expected a class derived from ray.tune.Callback, got {describe(cls)}")
        check_arguments(cls, arguments, key)


def make_callbacks(setting: list[Any] | None) -> list[Any]:
    """Tune callback objects for the ``callbacks`` setting."""
    return [CALLBACKS.make(entry, f"callbacks[{i}]") for i, entry in enumerate(setting or [])]
