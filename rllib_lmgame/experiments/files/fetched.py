"""What an experiment file from the network may set.

The experiment's own options declare it (:mod:`rllib_lmgame.experiments.spec`). :mod:`rllib_lmgame.algorithms.trust`
judges the algorithm's configuration, as for a stranger's checkpoint, each value of a search space alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rllib_lmgame.base.group import declared, values_of
from rllib_lmgame.base.text import has_control_characters
from rllib_lmgame.settings.trust import Gate

if TYPE_CHECKING:
    from rllib_lmgame.experiments.spec import ExperimentSpec

_INTO_CONFIG = ("hyperparam_mutations", "hyperparam_bounds")
"""Arguments of schedulers that write into the trials' configurations, also where the file's own one says nothing."""


def refuse_code(spec: ExperimentSpec) -> None:
    """Refuse what may not come from the network. Raises: ConfigError: naming key and line."""
    from rllib_lmgame.algorithms.trust import check_config
    from rllib_lmgame.experiments.spec import ExperimentOptions
    from rllib_lmgame.settings.algorithms import known_entry

    gate = Gate("the network", "download the file, read it, and run it from disk", _alternatives)
    with spec.source.attached():
        entry = known_entry(spec.options.run)
        groups = entry.groups if entry else {}
        for key, value in values_of(spec.options).items():
            _refuse_everywhere(value, gate, key)
            if key == "config":
                check_config(value, gate, sections=groups)
            elif key == "scheduler":
                _check_scheduler(value, spec.config, gate, groups)
            else:
                gate.option(declared(ExperimentOptions)[key], value, key)


def _check_scheduler(value: Any, config: Mapping[str, Any], gate: Gate, groups: Mapping[str, type]) -> None:
    """What a scheduler writes into a configuration is looked at as if it stood in the file's ``config``."""
    from rllib_lmgame.algorithms.trust import check_config
    from rllib_lmgame.experiments.spec import ExperimentOptions

    arguments = dict(value) if isinstance(value, Mapping) else value
    for key in _INTO_CONFIG:
        if isinstance(arguments, dict) and key in arguments:
            check_config(_as_config(arguments.pop(key), config, gate), gate, f"scheduler.{key}", sections=groups)
    gate.option(declared(ExperimentOptions)["scheduler"], arguments, "scheduler")


def _as_config(mutations: Any, config: Mapping[str, Any], gate: Gate) -> Any:
    """Mutations as a configuration: lists become choices, and each game may meet the options of every other game."""
    values = _chosen(mutations) if isinstance(mutations, Mapping) else mutations
    if not isinstance(values, dict) or not {"env", "env_config"} & set(values):
        return values
    sources = [source for source in (*gate.spread(config), values) if isinstance(source, Mapping)]
    games = {
        key: [item for source in sources if key in source for item in gate.spread(source[key])]
        for key in ("env", "env_config")
    }
    return {**values, **{key: {"choice": items} for key, items in games.items() if items}}


def _chosen(value: Any) -> Any:
    from rllib_lmgame.experiments.search.spaces import SEARCH_KEYS

    if isinstance(value, list):
        return {"choice": value}
    if not isinstance(value, Mapping) or (len(value) == 1 and next(iter(value)) in SEARCH_KEYS):
        return value
    return {key: _chosen(item) for key, item in value.items()}


def _alternatives(value: Any) -> Iterable[Any]:
    """The values a search space stands for (of a range its ends); anything else stands for itself."""
    from rllib_lmgame.experiments.search.spaces import DISTRIBUTIONS, SEARCH_KEYS

    if not (isinstance(value, Mapping) and len(value) == 1 and next(iter(value)) in SEARCH_KEYS):
        return (value,)
    ((kind, argument),) = value.items()
    if not isinstance(argument, list) or not argument:
        return (value,)
    if kind not in DISTRIBUTIONS:
        return argument
    if len(argument) < 2 or not all(isinstance(item, int | float) for item in argument):
        return (value,)
    low, high = argument[:2]
    if kind == "randn":
        return (low, low + high)
    return (low, max(low, high - 1) if kind in ("randint", "lograndint") else high)


def _refuse_everywhere(value: Any, gate: Gate, path: str) -> None:
    """Refuse what is dangerous anywhere: ``eval`` and ``sample_from`` run code, control characters fool terminals."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key in ("eval", "sample_from"):
                raise gate.refusal(f"{path}.{key}", f"`{key}`")
            _refuse_everywhere(str(key), gate, path)
            _refuse_everywhere(item, gate, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for position, item in enumerate(value):
            _refuse_everywhere(item, gate, f"{path}[{position}]")
    elif isinstance(value, str) and has_control_characters(value):
        raise gate.refusal(path, f"a control character (in {value!r})")
