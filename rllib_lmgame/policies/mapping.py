"""Who plays which seat: mapping functions by name.

A mapping is given in YAML as ``shared`` (every seat plays the one trained policy), ``random_seat`` (the policies
change seats from episode to episode), a mapping from agent id or role to policy, or an import path to a function with
RLlib's signature.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rllib_lmgame.errors import ConfigError, nearest
from rllib_lmgame.imports import import_path
from rllib_lmgame.signatures import check_call

MappingFn = Callable[..., str]


class SharedMapping:
    """Every seat plays the same policy."""

    def __init__(self, policy: str) -> None:
        self.policy = policy

    def __call__(self, agent_id: str, episode: Any = None, **kwargs: Any) -> str:
        return self.policy


class SeatMapping:
    """A policy per agent id or role; ``"*"`` is any other seat."""

    def __init__(self, seats: Mapping[str, str]) -> None:
        self.seats = dict(seats)

    def __call__(self, agent_id: str, episode: Any = None, *, role: str | None = None, **kwargs: Any) -> str:
        for key in (agent_id, role, "*"):
            if key in self.seats:
                return self.seats[str(key)]
        raise ConfigError(
            "config.policy_mapping_fn",
            f"no policy for agent {agent_id!r} (role {role!r}); mapped: {', '.join(self.seats)}",
        )


class RandomSeatMapping:
    """Policies take seats drawn per episode.

    With as many seats as policies or more, every policy sits, and the last one fills what seats remain. With fewer
    seats, one of the trained policies, drawn evenly, is dealt a seat first; the other seats go to different policies
    drawn evenly from all that are left.

    Args:
        policies: Names, the trained ones first.
        trained: How many of them are trained.
    """

    def __init__(self, policies: Sequence[str], trained: int = 1) -> None:
        self.policies = list(policies)
        self.trained = max(1, trained)

    def __call__(
        self, agent_id: str, episode: Any = None, *, agent_ids: Sequence[str] = (), seed: int = 0, **kwargs: Any
    ) -> str:
        seats = list(agent_ids) or [agent_id]
        chance = random.Random(seed)
        order = self.policies + self.policies[-1:] * (len(seats) - len(self.policies))
        if len(seats) < len(order):
            first = chance.randrange(self.trained)
            rest = order[:first] + order[first + 1 :]
            order = [order[first], *chance.sample(rest, len(seats) - 1)]
        chance.shuffle(order)
        return order[seats.index(agent_id)]


def make_mapping(spec: Any, policies: Sequence[str], trained: int = 1) -> MappingFn:
    """The mapping function that ``policy_mapping_fn`` asks for.

    Args:
        spec: Name, seat mapping, import path, callable, or ``None`` for ``shared``.
        policies: Names of the policies, the trained ones first.
        trained: How many of them are trained.

    Raises:
        ConfigError: for an unknown name, a policy that does not exist, or a function that takes something else.
    """
    key = "config.policy_mapping_fn"
    if spec is None or spec == "shared":
        return SharedMapping(policies[0])
    if spec == "random_seat":
        return RandomSeatMapping(policies, trained)
    if isinstance(spec, Mapping):
        for seat, policy in spec.items():
            if policy not in policies:
                match = nearest(str(policy), policies)
                raise ConfigError(
                    f"{key}.{seat}", f"unknown policy {policy!r}" + (f"; did you mean {match!r}?" if match else "")
                )
        return SeatMapping(spec)
    if callable(spec) or (isinstance(spec, str) and ":" in spec):
        found: MappingFn = import_path(spec, key) if isinstance(spec, str) else spec
        takes = "it is called as (agent_id, None, role=..., agent_ids=..., seed=...), and may take **kwargs"
        check_call(found, str(spec), key, takes, None, None, role=None, agent_ids=None, seed=None)
        return found
    raise ConfigError(
        key, f"{spec!r} is none of shared, random_seat, a mapping from seats to policies, or package.module:function"
    )
