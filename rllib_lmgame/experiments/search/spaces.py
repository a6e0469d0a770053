"""Search spaces written in YAML: ``lr: {loguniform: [1e-6, 1e-4]}``, at any depth.

The single key names a distribution. All values of ``grid_search`` are tried; others are drawn once per sample.
``hyperparam_mutations``, which population-based training writes into the configurations of its trials, are nested like
the configuration, with lists or search spaces as values. Tune checks them during the run; this does before.
"""

from __future__ import annotations

import copy
import itertools
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import describe
from rllib_lmgame.experiments.spec import dotted

Path = tuple[str | int, ...]
GRID = "grid_search"
MAX_GRID_POINTS = 256


DISTRIBUTIONS = {
    "uniform": ("low", "high"),
    "quniform": ("low", "high", "step"),
    "loguniform": ("low", "high"),
    "qloguniform": ("low", "high", "step"),
    "randn": ("mean", "deviation"),
    "randint": ("low", "high"),
    "qrandint": ("low", "high", "step"),
    "lograndint": ("low", "high"),
}
"""Ray Tune's, with their arguments."""
SEARCH_KEYS = (*DISTRIBUTIONS, "choice", GRID)


@dataclass(frozen=True)
class SearchNode:
    path: Path
    kind: str
    argument: Any


def find_search_spaces(config: Any, path: Path = ()) -> list[SearchNode]:
    """All search spaces in a configuration, outermost first."""
    if isinstance(config, Mapping):
        if len(config) == 1 and next(iter(config)) in SEARCH_KEYS:
            kind, argument = next(iter(config.items()))
            return [SearchNode(path, kind, argument)]
        return [node for key, value in config.items() for node in find_search_spaces(value, (*path, key))]
    if isinstance(config, list):
        return [node for i, value in enumerate(config) for node in find_search_spaces(value, (*path, i))]
    return []


def check_search_space(node: SearchNode, prefix: str = "config") -> None:
    """Check the arguments of a space. Raises: ConfigError."""
    if not node.path:
        raise ConfigError(
            prefix, f"`{node.kind}` stands for one value; write it below a key: `lr: {{{node.kind}: ...}}`"
        )
    where, values = f"{dotted((prefix, *node.path))}.{node.kind}", node.argument
    names = DISTRIBUTIONS.get(node.kind)
    if names is None:
        if not isinstance(values, list) or not values:
            raise ConfigError(where, f"expected a list of values to try, got {describe(values)}")
        if find_search_spaces(values):
            raise ConfigError(where, "a search space inside another one is not supported")
        return
    if not isinstance(values, list) or len(values) != len(names):
        raise ConfigError(where, f"expected [{', '.join(names)}], got {describe(values)}")
    for name, value in zip(names, values, strict=True):
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
            raise ConfigError(where, f"{name} must be a number, got {describe(value)}")
        if "int" in node.kind and int(value) != value:
            raise ConfigError(where, f"{name} must be a whole number, got {value}")
        if value <= 0 and (name in ("step", "deviation") or (name == "low" and "log" in node.kind)):
            raise ConfigError(where, f"{name} must be greater than 0, got {value}")
    if names[0] == "low" and not values[0] < values[1]:
        raise ConfigError(where, f"low must be less than high, got {values}")


def to_tune(config: Mapping[str, Any]) -> dict[str, Any]:
    return substitute(config, {node.path: _tune_space(node) for node in find_search_spaces(config)})


def _tune_space(node: SearchNode) -> Any:
    from ray import tune

    if node.kind == GRID:
        return tune.grid_search(node.argument)
    if node.kind == "choice":
        return tune.choice(node.argument)
    try:
        return getattr(tune, node.kind)(*map(int if "int" in node.kind else float, node.argument))
    except (ValueError, OverflowError) as error:  # Ends that are no multiples of the step.
        raise ConfigError(dotted(("config", *node.path, node.kind)), str(error)) from None


def substitute(config: Mapping[str, Any], values: Mapping[Path, Any]) -> dict[str, Any]:
    result = copy.deepcopy(dict(config))
    for path, value in values.items():
        section: Any = result
        for part in path[:-1]:
            section = section[part]
        section[path[-1]] = value
    return result


def sample_points(config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Concrete configurations of a search space, for checking.

    Every value of ``choice`` and both ends of a distribution occur, and the points of a grid, at most
    :data:`MAX_GRID_POINTS`.
    """
    nodes = find_search_spaces(config)
    grids = [n for n in nodes if n.kind == GRID]
    others = {n.path: _values(n) for n in nodes if n not in grids}
    points = list(itertools.islice(itertools.product(*(n.argument for n in grids)), MAX_GRID_POINTS))
    for i in range(max(len(points), *map(len, others.values()), 1)):
        drawn = {n.path: value for n, value in zip(grids, points[i % len(points)], strict=True)}
        yield substitute(config, drawn | {path: values[i % len(values)] for path, values in others.items()})


def grid_size(config: Mapping[str, Any]) -> int:
    return math.prod(len(n.argument) for n in find_search_spaces(config) if n.kind == GRID)


def _values(node: SearchNode) -> list[Any]:
    if node.kind == "choice":
        return list(node.argument)
    low, high = node.argument[:2]
    if node.kind == "randn":
        return [float(low - high), float(low + high)]
    if node.kind in ("randint", "lograndint"):  # Without the upper end.
        high -= 1
    return [int(low), int(high)] if "int" in node.kind else [float(low), float(high)]


MUTATIONS = "hyperparam_mutations"
WHERE = f"scheduler.{MUTATIONS}"


def tune_mutations(mutations: Any) -> dict[str, Any]:
    """The mutations with Tune's own search spaces; a ``choice`` becomes a list. Raises: ConfigError: not drawable."""
    space = _mutation_space(mutations)
    choices = {node.path: list(node.argument) for node in find_search_spaces(space) if node.kind == "choice"}
    return to_tune(substitute(space, choices))


def mutated_points(config: Mapping[str, Any], mutations: Any) -> Iterator[dict[str, Any]]:
    """Configurations that mutations can lead to: each value of a list, the ends of a search space.

    Raises: ConfigError: if a nested key has no value to start from; Tune gives one to top-level keys only.
    """
    return sample_points(_mutated(config, _mutation_space(mutations)))


def mutated_key(path: str, mutations: Any) -> str:
    """Where a wrong value was written: ``path`` (``config.lr``) itself, or among the mutations."""
    own = f"{WHERE}.{path.removeprefix('config.')}"
    spaces = find_search_spaces(_mutation_space(mutations))
    return own if own in {dotted((WHERE, *node.path)) for node in spaces} else path


def _mutation_space(mutations: Any) -> dict[str, Any]:
    """The mutations as a search space, checked: each list is a ``choice``."""
    for node in find_search_spaces(mutations):
        check_search_space(node, WHERE)

    def as_space(value: Any, where: str) -> Any:
        if isinstance(value, list) and value and not find_search_spaces(value):
            return {"choice": value}
        kind = next(iter(value)) if isinstance(value, Mapping) and _is_space(value) else None
        if not isinstance(value, Mapping) or not value or kind == GRID:
            spaces = ", ".join((*DISTRIBUTIONS, "choice"))
            raise ConfigError(where, f"expected a list of values or one of {spaces}, got {describe(value)}")
        return value if kind else {key: as_space(item, f"{where}.{key}") for key, item in value.items()}

    if not isinstance(mutations, Mapping):
        raise ConfigError(WHERE, f"expected key -> list of values or search space, got {describe(mutations)}")
    return {key: as_space(value, f"{WHERE}.{key}") for key, value in mutations.items()}


def _is_space(value: Any) -> bool:
    return any(not node.path for node in find_search_spaces(value))


def _mutated(config: Mapping[str, Any], space: Mapping[str, Any], path: Path = ()) -> dict[str, Any]:
    """The configuration with search spaces in the place of mutated values."""
    result = dict(config)
    for key, value in space.items():
        own = (*path, key)
        if path and key not in config:
            why = f"there is no value to start from; set {dotted(('config', *own))} too"
            raise ConfigError(dotted((WHERE, *own)), why)
        if _is_space(value) or key not in config:
            result[key] = value
        else:
            result[key] = _mutated(config[key] if isinstance(config[key], Mapping) else {}, value, own)
    return result
