"""Search spaces written in YAML: ``lr: {loguniform: [1e-6, 1e-4]}``, at any depth.

The single key names a distribution. All values of ``grid_search`` are tried; others are drawn once per sample.
"""

from __future__ import annotations

import copy
import itertools
import math
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rllib_lmgame.base.errors import ConfigError, nearest
from rllib_lmgame.base.group import describe
from rllib_lmgame.base.plugin import asking, import_path
from rllib_lmgame.base.schedule import is_meant_as_schedule
from rllib_lmgame.experiments.spec import dotted

Path = tuple[str | int, ...]
GRID = "grid_search"
MAX_GRID_POINTS = 256


@dataclass(frozen=True)
class Distribution:
    """One kind of search space, with numbers as arguments: bounds above zero, whole, the first less than the second."""

    arguments: tuple[str, ...]
    positive: bool = False
    whole: bool = False
    ordered: bool = True


DISTRIBUTIONS: dict[str, Distribution] = {
    "uniform": Distribution(("low", "high")),
    "quniform": Distribution(("low", "high", "step")),
    "loguniform": Distribution(("low", "high"), positive=True),
    "qloguniform": Distribution(("low", "high", "step"), positive=True),
    "randn": Distribution(("mean", "deviation"), ordered=False),
    "randint": Distribution(("low", "high"), whole=True),
    "qrandint": Distribution(("low", "high", "step"), whole=True),
    "lograndint": Distribution(("low", "high"), positive=True, whole=True),
}
_VALUES = ("choice", GRID)
SEARCH_KEYS = (*DISTRIBUTIONS, *_VALUES, "sample_from")


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


def misspelt_space(config: Any, key: str) -> str | None:
    """What to say if the value at the dotted ``key`` looks like a search space with a misspelt name."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if not isinstance(value, Mapping) or len(value) != 1 or find_search_spaces(value):
        return None
    name, argument = str(next(iter(value))), next(iter(value.values()))
    match = nearest(name, SEARCH_KEYS) or next((known for known in SEARCH_KEYS if known.startswith(name)), None)
    if match is None and (not isinstance(argument, list) or is_meant_as_schedule(value)):
        return None
    hint = f"did you mean {match!r}?" if match else f"known: {', '.join(SEARCH_KEYS)}"
    return f"there is no search space {name!r}; {hint}"


def check_search_space(node: SearchNode, prefix: str = "config") -> None:
    if not node.path:
        below = f"write it below a key, e.g. lr: {{{node.kind}: ...}}"
        raise ConfigError(prefix, f"`{node.kind}` stands for one value; {below}")
    where = f"{dotted((prefix, *node.path))}.{node.kind}"
    if node.kind in _VALUES:
        if not isinstance(node.argument, list) or not node.argument:
            raise ConfigError(where, f"expected a list of values to try, got {describe(node.argument)}")
        for value in node.argument:
            if find_search_spaces(value):
                raise ConfigError(where, "a search space inside another one is not supported")
    elif node.kind == "sample_from":
        if not isinstance(node.argument, str):
            raise ConfigError(where, f"expected package.module:function, got {describe(node.argument)}")
        import_path(node.argument, where)
    else:
        _check_numbers(node, DISTRIBUTIONS[node.kind], where)


def _check_numbers(node: SearchNode, distribution: Distribution, where: str) -> None:
    values, last = node.argument, distribution.arguments[-1]
    if not isinstance(values, list) or len(values) != len(distribution.arguments):
        raise ConfigError(where, f"expected [{', '.join(distribution.arguments)}], got {describe(values)}")
    for name, value in zip(distribution.arguments, values, strict=True):
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
            raise ConfigError(where, f"{name} must be a number, got {describe(value)}")
        if distribution.whole and int(value) != value:
            raise ConfigError(where, f"{name} must be a whole number, got {value}")
    if distribution.ordered and not values[0] < values[1]:
        raise ConfigError(where, f"low must be less than high, got {values}")
    if distribution.positive and values[0] <= 0:
        raise ConfigError(where, f"low must be greater than 0, got {values[0]}")
    if last in {"step", "deviation"} and values[-1] <= 0:
        raise ConfigError(where, f"{last} must be greater than 0, got {values[-1]}")
    for name, value in zip(distribution.arguments[:-1], values, strict=False) if last == "step" else ():
        steps = value / values[-1]
        if not (math.isfinite(steps) and math.isclose(steps, round(steps))):
            raise ConfigError(where, f"{name} must be a multiple of step, {values[-1]}; got {value}")


def to_tune(config: Mapping[str, Any]) -> dict[str, Any]:
    return substitute(config, {node.path: _tune_space(node) for node in find_search_spaces(config)})


def _tune_space(node: SearchNode) -> Any:
    from ray import tune

    if node.kind == GRID:
        return tune.grid_search(node.argument)
    if node.kind == "choice":
        return tune.choice(node.argument)
    if node.kind == "sample_from":
        return tune.sample_from(import_path(node.argument, dotted(node.path)))
    values = [int(v) for v in node.argument] if DISTRIBUTIONS[node.kind].whole else [float(v) for v in node.argument]
    return getattr(tune, node.kind)(*values)


def substitute(config: Mapping[str, Any], values: Mapping[Path, Any]) -> dict[str, Any]:
    result = copy.deepcopy(dict(config))
    for path, value in values.items():
        section: Any = result
        for part in path[:-1]:
            section = section[part]
        section[path[-1]] = value
    return result


def sample_points(config: Mapping[str, Any], *, random_points: int = 4, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Concrete configurations of a search space, for checking.

    Grid points come first, at most :data:`MAX_GRID_POINTS`. Distributions give their extremes, then random values,
    ``choice`` each value. ``sample_from`` is called as by Tune. Raises: ConfigError: if its function fails.
    """
    nodes = find_search_spaces(config)
    if not nodes:
        yield copy.deepcopy(dict(config))
        return
    rng = random.Random(seed)
    grids = [n for n in nodes if n.kind == GRID]
    functions = [n for n in nodes if n.kind == "sample_from"]
    others = [n for n in nodes if n.kind not in {GRID, "sample_from"}]
    rounds = max([random_points if others else 1, *(len(n.argument) if n.kind == "choice" else 2 for n in others)])
    points = list(itertools.islice(itertools.product(*(n.argument for n in grids)), MAX_GRID_POINTS))
    for i in range(max(rounds, len(points))):
        grid_values = points[i % len(points)]
        point = substitute(config, {n.path: v for n, v in zip(grids, grid_values, strict=True)})
        drawn = {n.path: _draw(n, i, rng) for n in others}
        yield _call(functions, point, drawn) if functions else substitute(point, drawn)


def grid_size(config: Mapping[str, Any]) -> int:
    return math.prod(len(n.argument) for n in find_search_spaces(config) if n.kind == GRID)


def _call(functions: Sequence[SearchNode], config: Mapping[str, Any], drawn: Mapping[Path, Any]) -> dict[str, Any]:
    """The point with the values ``drawn``; Tune itself calls the functions, so they see what they see in a run."""
    from ray import tune
    from ray.tune.search.variant_generator import RecursiveDependencyError, generate_variants

    spaces: dict[Path, Any] = {path: tune.choice([value]) for path, value in drawn.items()}
    with asking(" or ".join(n.argument for n in functions), dotted(("config", *functions[0].path))):
        try:
            spaces.update({n.path: _tune_space(n) for n in functions})
            ((_, point),) = generate_variants(substitute(config, spaces))
        except (ValueError, RecursiveDependencyError) as error:
            cause = error if error.__cause__ else error.__context__ or error
            failed = next((n for n in functions if str(n.path) in str(error)), functions[0])
            message = f"{failed.argument} fails: {type(cause).__name__}: {cause}"
            raise ConfigError(dotted(("config", *failed.path)), message) from cause
    return point


def _draw(node: SearchNode, i: int, rng: random.Random) -> Any:
    """Value number ``i`` of one space: its extremes first, then random ones."""
    if node.kind == "choice":
        return node.argument[i % len(node.argument)]
    low, high = node.argument[0], node.argument[1]
    if node.kind == "randn":
        return rng.gauss(low, high)
    last = high - 1 if node.kind in {"randint", "lograndint"} else high
    drawn = low if i == 0 else last if i == 1 else rng.uniform(low, last)
    if "step" in DISTRIBUTIONS[node.kind].arguments:
        drawn = round(drawn / node.argument[-1]) * node.argument[-1]
    return round(drawn) if DISTRIBUTIONS[node.kind].whole else float(drawn)


def describe_space(nodes: Sequence[SearchNode]) -> list[str]:
    return [f"{dotted(n.path)}: {n.kind} {n.argument}" for n in nodes]
