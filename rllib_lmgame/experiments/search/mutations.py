"""``hyperparam_mutations``: what population-based training writes into the configurations of its trials.

Nested like the configuration, with lists or search spaces as values. Tune checks them in mid-run; this does before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import describe
from rllib_lmgame.experiments.search.spaces import (
    DISTRIBUTIONS,
    GRID,
    Path,
    SearchNode,
    check_search_space,
    find_search_spaces,
    sample_points,
    substitute,
    to_tune,
)
from rllib_lmgame.experiments.spec import dotted

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
