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

from rllib_lmgame.base.errors import ConfigError, nearest
from rllib_lmgame.base.group import describe
from rllib_lmgame.base.plugin import asking, import_path
from rllib_lmgame.base.schedule import is_meant_as_schedule
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
        _check_numbers(node, where)


def _check_numbers(node: SearchNode, where: str) -> None:
    names, values = DISTRIBUTIONS[node.kind], node.argument
    if not isinstance(values, list) or len(values) != len(names):
        raise ConfigError(where, f"expected [{', '.join(names)}], got {describe(values)}")
    for name, value in zip(names, values, strict=True):
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
            raise ConfigError(where, f"{name} must be a number, got {describe(value)}")
        if _is_whole(node) and int(value) != value:
            raise ConfigError(where, f"{name} must be a whole number, got {value}")
        if name in ("step", "deviation") and value <= 0:
            raise ConfigError(where, f"{name} must be greater than 0, got {value}")
        if name == "low" and "log" in node.kind and value <= 0:
            raise ConfigError(where, f"low must be greater than 0, got {value}")
    if names[0] == "low" and not values[0] < values[1]:
        raise ConfigError(where, f"low must be less than high, got {values}")
    for name, value in zip(names[:-1], values, strict=False) if names[-1] == "step" else ():
        steps = value / values[-1]
        if not (math.isfinite(steps) and math.isclose(steps, round(steps))):
            raise ConfigError(where, f"{name} must be a multiple of step, {values[-1]}; got {value}")


def _is_whole(node: SearchNode) -> bool:
    return "int" in node.kind


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
    return getattr(tune, node.kind)(*map(int if _is_whole(node) else float, node.argument))


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
    :data:`MAX_GRID_POINTS`. ``sample_from`` is called as by Tune. Raises: ConfigError: if its function fails.
    """
    nodes = find_search_spaces(config)
    grids = [n for n in nodes if n.kind == GRID]
    functions = [n for n in nodes if n.kind == "sample_from"]
    others = {n.path: _values(n) for n in nodes if n not in grids and n not in functions}
    points = list(itertools.islice(itertools.product(*(n.argument for n in grids)), MAX_GRID_POINTS))
    for i in range(max(len(points), *map(len, others.values()), 1)):
        drawn = {n.path: value for n, value in zip(grids, points[i % len(points)], strict=True)}
        point = substitute(config, drawn | {path: values[i % len(values)] for path, values in others.items()})
        for node in functions:
            point = substitute(point, {node.path: _called(node, point)})
        yield point


def grid_size(config: Mapping[str, Any]) -> int:
    return math.prod(len(n.argument) for n in find_search_spaces(config) if n.kind == GRID)


def _called(node: SearchNode, point: Mapping[str, Any]) -> Any:
    """What the function returns for the point, called as Tune calls it."""
    with asking(node.argument, dotted(("config", *node.path))):
        return _tune_space(node).sample(point)


def _values(node: SearchNode) -> list[Any]:
    """The values of a ``choice``, the ends of a distribution."""
    if node.kind == "choice":
        return list(node.argument)
    low, high = node.argument[:2]
    if node.kind == "randn":
        return [float(low - high), float(low + high)]
    if node.kind in ("randint", "lograndint"):  # Without the upper end.
        high -= 1
    return [int(low), int(high)] if _is_whole(node) else [float(low), float(high)]


MUTATIONS = "hyperparam_mutations"
WHERE = f"scheduler.{MUTATIONS}"


def tune_mutations(mutations: Any) -> dict[str, Any]:
    """The mutations with Tune's own search spaces; a ``choice`` becomes a list. Raises: ConfigError: not drawable."""
    choices = {path: value for path, value in _ends(mutations) if isinstance(value, list)}
    return to_tune(substitute(mutations, choices))


def mutated_points(config: Mapping[str, Any], mutations: Any) -> Iterator[dict[str, Any]]:
    """Configurations that mutations can lead to: each value of a list, the ends of a search space.

    Raises: ConfigError: if a nested key has no value to start from; Tune gives one to top-level keys only.
    """
    whole: Any = config
    for path, value in _ends(mutations):
        _check_start(config, path)
        whole = _put(whole, path, {"choice": value} if isinstance(value, list) else value)
    return sample_points(whole)


def mutated_key(path: str, mutations: Any) -> str:
    """Where a wrong value was written: ``path`` (``config.lr``) itself, or among the mutations."""
    own = f"{WHERE}.{path.removeprefix('config.')}"
    return own if own in {dotted((WHERE, *end)) for end, _ in _ends(mutations)} else path


def _ends(mutations: Any) -> Iterator[tuple[Path, Any]]:
    """Every mutated key with its list of values or its search space, checked."""
    for node in find_search_spaces(mutations):
        check_search_space(node, WHERE)
    if not isinstance(mutations, Mapping) or not mutations:
        raise ConfigError(WHERE, f"expected key -> list of values or search space, got {describe(mutations)}")
    for key, value in mutations.items():
        yield from _ends_below((str(key),), value)


def _ends_below(path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    where = dotted((WHERE, *path))
    space = next((node for node in find_search_spaces(value) if not node.path), None)
    if space is not None:
        yield path, _drawn_from(space, value, where)
    elif isinstance(value, list) and value:
        if find_search_spaces(value):
            raise ConfigError(where, "a list holds values, not search spaces")
        yield path, value
    elif isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _ends_below((*path, str(key)), item)
    else:
        spaces = ", ".join((*DISTRIBUTIONS, "choice"))
        raise ConfigError(where, f"expected a list of values or one of {spaces}, got {describe(value)}")


def _drawn_from(space: SearchNode, value: Any, where: str) -> Any:
    if space.kind in (GRID, "sample_from"):
        why = "values are drawn again and again; write a list of values, or a distribution"
        raise ConfigError(f"{where}.{space.kind}", why)
    return list(space.argument) if space.kind == "choice" else value


def _check_start(config: Mapping[str, Any], path: Path) -> None:
    """Raise :class:`ConfigError` if ``config`` holds the section of a mutated key, but no value of the key."""
    section: Any = config
    for key in path if path[0] in config else ():
        if not isinstance(section, Mapping) or key not in section:
            why = f"there is no value to start from; set {dotted(('config', *path))} too"
            raise ConfigError(dotted((WHERE, *path)), why)
        section = section[key]


def _put(config: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    section = config if isinstance(config, Mapping) else {}
    return {**section, path[0]: _put(section.get(path[0]), path[1:], value)}
