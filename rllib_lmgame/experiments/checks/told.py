"""Options that are taken and have nothing to do: told, so that one file can compare settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rllib_lmgame.algorithms.facts import PolicyFacts
from rllib_lmgame.settings.rules import TOLD
from rllib_lmgame.settings.tree import Settings

_AS_WITHOUT = {"gamma": 1}
"""Values that ask for nothing, beside null, false, 0 and the empty list."""


def idle_notices(configs: Sequence[Any]) -> Iterator[str]:
    """Notices about given options that no trained policy reads at any point of the search space."""
    each = [config.settings for config in configs]
    policies = [
        (s.policy(name), PolicyFacts(config, name))
        for config, s in zip(configs, each, strict=True)
        for name in s.trained_policies()
    ]
    told: dict[str, str] = {}
    for row in TOLD:
        given = [key for key in row.keys if key not in told and any(_asks(key, s) for s in each)]
        if given and all(row.idle(s, f) for s, f in policies):
            told |= dict.fromkeys(
                given, row.effect + ", ".join(sorted({row.say.format(s=s, f=f) for s, f in policies}))
            )
    for message in dict.fromkeys(told.values()):
        keys = ", ".join(f"config.{key}" for key, said in told.items() if said == message)
        yield f"{keys}: {message}"


def _asks(key: str, s: Settings) -> bool:
    """Whether an option was given, and not as what switches it off."""
    return s.follows(key) or (s.given(key) and s.value(key) not in (None, False, 0, [], _AS_WITHOUT.get(key)))
