"""Who plays which seat: mappings by name.

In YAML ``policy_mapping_fn`` is one of these names, a name with options (``{type: versus, opponents: {minimax: 3,
random: 1}}``), a mapping from agent id or role to policy, or an import path to a function with RLlib's signature:

* ``self_play`` (or ``shared``): every seat plays the one trained policy; several trained ones take turns;
* ``per_role``: every role has a policy of its own;
* ``versus``: a trained policy against others that are not trained, every seat as often as every other;
* ``random_seat``: the policies change seats from level to level;
* ``league``: a trained policy against itself and its past versions, which the algorithm deals
  (:mod:`rllib_lmgame.league`); outside its training it is self-play.

Besides RLlib's arguments a mapping gets the seat's ``role``, all ``agent_ids``, their ``roles`` (agent id -> role), and
a ``seed``. The ``number`` of the level among those of its game lets it deal evenly (``None`` where nobody counts).
Episodes of one level, of a group or as samples, have the same seed and number, and so the same seats.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rllib_lmgame.base.errors import ConfigError, did_you_mean
from rllib_lmgame.base.group import describe
from rllib_lmgame.base.plugin import import_path
from rllib_lmgame.base.registry import check_call
from rllib_lmgame.policies.options import LEAGUE
from rllib_lmgame.policies.scripted import SCRIPTED_PLAYERS

MappingFn = Callable[..., str]

KEY = "config.policy_mapping_fn"

OTHERS = "*"
"""Any seat that is not named, in a mapping from seats to policies."""

GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it modulo 1 lie as evenly as those of any number (H. Weyl, Math. Ann. 77, 1916)."""


class SharedMapping:
    """Every seat of an episode plays the same policy; of several each in turn."""

    def __init__(self, *policies: str) -> None:
        self.policies = policies

    def __call__(
        self, agent_id: str, episode: Any = None, *, number: int | None = None, seed: int = 0, **kwargs: Any
    ) -> str:
        return self.policies[(seed if number is None else number) % len(self.policies)]


class SeatMapping:
    def __init__(self, seats: Mapping[str, str]) -> None:
        self.seats = dict(seats)

    def __call__(self, agent_id: str, episode: Any = None, *, role: str | None = None, **kwargs: Any) -> str:
        for key in (agent_id, role, OTHERS):
            if key in self.seats:
                return self.seats[str(key)]
        mapped = ", ".join(self.seats) or "nothing"
        raise ConfigError(KEY, f"no policy for agent {agent_id!r} (role {role!r}); mapped: {mapped}")


class RoleMapping:
    """The policy that is called like a seat's role. If none is, roles and policies are matched in their orders."""

    def __init__(self, policies: Sequence[str]) -> None:
        self.policies = list(policies)

    def __call__(
        self, agent_id: str, episode: Any = None, *, role: Any = None, roles: Any = None, **kwargs: Any
    ) -> str:
        there = list(dict.fromkeys((roles or {agent_id: str(role)}).values()))
        if set(there) <= set(self.policies):
            return str(role)
        if set(there) & set(self.policies) or len(there) > len(self.policies):
            names = f"the game has {', '.join(there)}, the policies are {', '.join(self.policies)}"
            raise ConfigError(KEY, f"per_role finds no policy for every role: {names}; call policies like the roles")
        return self.policies[there.index(str(role))]


class VersusMapping:
    """A trained policy in one seat, in the others ``opponents``, which are not trained, by their relative shares.

    In as many episodes in a row as there are seats, the trained policy takes every seat once, against the same
    opponents. Over many, shares are met as evenly as can be. Several trained policies take turns.
    """

    def __init__(self, trained: Sequence[str], opponents: Mapping[str, float]) -> None:
        self.trained = SharedMapping(*trained)
        self.opponents = list(opponents)
        self.weights = list(opponents.values())

    def __call__(self, agent_id: str, episode: Any = None, **kwargs: Any) -> str:
        seats, number = list(kwargs.get("agent_ids") or [agent_id]), kwargs.get("number")
        block, own = divmod(kwargs.get("seed", 0) if number is None else number, len(seats))
        place = seats.index(agent_id)
        if place == own:
            return self.trained(agent_id, number=block)
        draw = block * (len(seats) - 1) + (place - own) % len(seats)
        left = draw * GOLDEN % 1 * sum(self.weights)
        for name, weight in zip(self.opponents, self.weights, strict=True):
            left -= weight
            if left < 0:
                return name
        return self.opponents[-1]


class RandomSeatMapping:
    """Policies take seats drawn per level.

    With enough seats every policy sits, and the last one fills what remains. With fewer, one of the ``trained`` first
    policies, drawn evenly, sits first; the other seats go to different policies drawn evenly from the rest.
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
    """The mapping function that ``policy_mapping_fn`` asks for; the ``trained`` first of ``policies`` are trained.

    ``spec`` is a name, name with options, seat mapping, import path, callable, or ``None`` for ``self_play``.

    Raises: ConfigError: an unknown name, option or policy, or a function that takes something else.
    """
    if isinstance(spec, Mapping) and "type" in spec and spec["type"] not in list(policies):
        name, options = str(spec["type"]), {key: value for key, value in spec.items() if key != "type"}
        return _by_name(name, options, policies, trained)
    if isinstance(spec, Mapping):
        for seat, policy in spec.items():
            _check_policy(policy, policies, f"{KEY}.{seat}")
        return SeatMapping(spec)
    if callable(spec) or (isinstance(spec, str) and ":" in spec):
        found: MappingFn = import_path(spec, KEY) if isinstance(spec, str) else spec
        named: dict[str, Any] = dict.fromkeys(("role", "roles", "agent_ids", "seed", "number"))
        takes = f"it is called as (agent_id, None, {', '.join(f'{name}=...' for name in named)}); take **kwargs"
        check_call(found, str(spec), KEY, takes, None, None, **named)
        return found
    return _by_name("self_play" if spec is None else spec, {}, policies, trained)


def _by_name(name: Any, options: Mapping[str, Any], policies: Sequence[str], trained: int) -> MappingFn:
    learning = list(policies[: max(1, trained)])
    known: dict[str, Callable[[], MappingFn]] = {
        **dict.fromkeys(("self_play", "shared", LEAGUE), lambda: SharedMapping(*learning)),
        "per_role": lambda: RoleMapping(policies),
        "versus": lambda: _versus(options, policies, learning),
        "random_seat": lambda: RandomSeatMapping(policies, trained),
    }
    if not isinstance(name, str) or name not in known:
        hint = did_you_mean(str(name), known, "write one, a mapping from seats to policies, or package.module:function")
        raise ConfigError(KEY, f"{name!r} is none of {', '.join(known)}; {hint}")
    wrong = next((key for key in options if name != "versus" or key != "opponents"), None)
    if wrong is not None:
        raise ConfigError(f"{KEY}.{wrong}", f"{name} has no such option; `opponents` of `versus` is the only one")
    return known[name]()


def _versus(options: Mapping[str, Any], policies: Sequence[str], learning: Sequence[str]) -> VersusMapping:
    key = f"{KEY}.opponents"
    given = options.get("opponents", [policy for policy in policies if policy not in learning])
    if not isinstance(given, Mapping | list | tuple) or not given:
        such_as = "policies: {player: {}, opponent: {player: random}}"
        raise ConfigError(key if "opponents" in options else KEY, f"versus needs opponents, such as {such_as}")
    for name in given:
        _check_policy(name, policies, key)
        if name in learning:
            raise ConfigError(key, f"{name!r} is trained; an opponent is not (trained: false)")
    shares = given if isinstance(given, Mapping) else dict.fromkeys(given, 1.0)
    for name, share in shares.items():
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < float("inf"):
            raise ConfigError(f"{key}.{name}", f"expected a share greater than 0, got {share!r}")
    return VersusMapping(learning, shares)


def _check_policy(policy: Any, policies: Sequence[str], key: str) -> None:
    if not isinstance(policy, str):
        raise ConfigError(key, f"expected the name of a policy ({', '.join(policies)}), got {describe(policy)}")
    if policy not in policies:
        declare = f"{policy}: {{player: {policy if policy in SCRIPTED_PLAYERS else '...'}}}"
        hint = did_you_mean(policy, policies, f"name one of {', '.join(policies)}, or add {declare} to policies")
        raise ConfigError(key, f"unknown policy {policy!r}; {hint}")
