"""Algorithms by name: this package's own, RLlib's, or a class by import path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rllib_lmgame.errors import ConfigError, nearest
from rllib_lmgame.imports import import_path

OWN_ALGORITHMS = {
    "LMGamePPO": "rllib_lmgame.algorithms.ppo:LMGamePPO",
    "LMGameSFT": "rllib_lmgame.algorithms.sft:LMGameSFT",
}
_OLD_STACK_ONLY = {"A2C", "A3C", "ARS", "ES", "DDPG", "TD3", "PG", "R2D2", "MADDPG", "QMIX", "SlateQ", "SimpleQ", "ApexDQN", "ApexDDPG", "CRR", "DT"}


@dataclass(frozen=True)
class AlgorithmEntry:
    """A resolved algorithm.

    Attributes:
        name: Name Tune knows it by.
        cls: RLlib ``Algorithm`` class.
        own: Whether it is one of this package's, whose configuration checks itself.
    """

    name: str
    cls: type
    own: bool

    def default_config(self) -> Any:
        """A fresh ``AlgorithmConfig`` with the algorithm's defaults."""
        return self.cls.get_default_config().copy(copy_frozen=False)  # type: ignore[attr-defined]

    def register(self) -> str:
        """Make the name known to Tune; returns it."""
        from ray.tune import register_trainable

        register_trainable(self.name, self.cls)
        return self.name


def is_own(name: str) -> bool:
    """Whether ``name`` is one of this package's algorithms."""
    return name in OWN_ALGORITHMS


def resolve_algorithm(name: str, given: type | None = None) -> AlgorithmEntry:
    """The algorithm called ``name`` in a ``run:`` setting.

    Args:
        name: ``LMGamePPO``, a name of RLlib's, or ``package.module:Class``.
        given: The class itself, if a Python file gave one.

    Raises:
        ConfigError: if there is no such algorithm.
    """
    from ray.rllib.algorithms.algorithm import Algorithm

    if given is not None:
        return AlgorithmEntry(given.__name__, given, _configures_itself(given))
    check_name(name)
    if name in OWN_ALGORITHMS:
        return AlgorithmEntry(name, import_path(OWN_ALGORITHMS[name], "run"), True)
    if ":" in name:
        cls = import_path(name, "run")
        if not (isinstance(cls, type) and issubclass(cls, Algorithm)):
            raise ConfigError("run", f"{name} is not an RLlib Algorithm class")
        return AlgorithmEntry(cls.__name__, cls, _configures_itself(cls))
    return AlgorithmEntry(name, _stock()[name](), False)


def check_name(name: str) -> None:
    """Raise :class:`ConfigError` if ``name`` can be no algorithm; import paths are not followed here."""
    if name in OWN_ALGORITHMS or ":" in name:
        return
    stock = _stock()
    if name in stock:
        return
    if name in _OLD_STACK_ONLY:
        raise ConfigError("run", f"{name} is no longer part of RLlib; available: {', '.join([*OWN_ALGORITHMS, *stock])}")
    known = [*OWN_ALGORITHMS, *stock]
    match = nearest(name, known) or {k.lower(): k for k in known}.get(name.lower())
    hint = f"did you mean {match!r}?" if match else f"available: {', '.join(known)}, or package.module:Class"
    raise ConfigError("run", f"there is no algorithm {name!r}; {hint}")


def _stock() -> dict[str, Any]:
    from ray.rllib.algorithms.registry import ALGORITHMS

    return {name: (lambda load=load: load()[0]) for name, load in ALGORITHMS.items()}


def _configures_itself(cls: type) -> bool:
    """Whether a class derives from one of ours (its configuration then rejects unknown keys itself)."""
    return any(base.__module__.startswith("rllib_lmgame.") for base in cls.__mro__)
