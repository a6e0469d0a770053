"""What is taken of an experiment file that came from the network.

The experiment's own options say so where they are declared (:mod:`.spec`); the algorithm's configuration is looked at by
:mod:`rllib_lmgame.algorithms.trust`, as that of a stranger's checkpoint. Search spaces are looked at value by value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rllib_lmgame.trust import Gate, is_name, is_number

if TYPE_CHECKING:
    from rllib_lmgame.experiments.spec import ExperimentSpec

OWN_REPORTS = frozenset({"rllib_lmgame.algorithms.report:learning_report", "rllib_lmgame.algorithms.kuhn_report:exploitability_report"})
"""Reports of this package."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SCHEDULER_TEXTS = ("type", "metric", "mode", "time_attr")


def refuse_code(spec: ExperimentSpec) -> None:
    """Raise unless everything in an experiment may come from the network.

    Raises:
        ConfigError: naming key and line.
    """
    from rllib_lmgame.algorithms.trust import check_config
    from rllib_lmgame.experiments.spec import CheckpointOptions, ExperimentOptions, SearchOptions

    gate = Gate("the network", "download the file, read it, and run it from disk", _alternatives)
    sections = {"checkpoint_config": CheckpointOptions, "search": SearchOptions}
    with spec.source.attached():
        for key, value in vars(spec.options).items():
            _refuse_everywhere(value, gate, key)
            if key == "config":
                check_config(value, gate)
            elif key in sections:
                gate.options(sections[key], value, key)
            else:
                gate.option(ExperimentOptions, key, value, key)


def is_own_report(value: Any) -> bool:
    """Whether a ``report`` setting names a report of this package, with plain arguments."""
    arguments = dict(value) if isinstance(value, Mapping) else {"type": value}
    path = arguments.pop("type", None)
    return isinstance(path, str) and path in OWN_REPORTS and all(is_number(item) or is_name(item) for item in arguments.values())


def is_plain_scheduler(value: Any) -> bool:
    """Whether a ``scheduler`` setting holds names of metrics and numbers alone; what it changes in a configuration are numbers too."""
    if not isinstance(value, Mapping):
        return is_name(value)
    texts = all(isinstance(value[key], str) for key in _SCHEDULER_TEXTS if key in value)
    return texts and is_name(value.get("type")) and all(_is_plain(item) for key, item in value.items() if key not in _SCHEDULER_TEXTS)


def _is_plain(value: Any) -> bool:
    """A truth value as an argument of the scheduler is fine; one within, where values for the configuration stand, is not."""
    return isinstance(value, bool) or (is_number(value) and not _holds_truth(value))


def _holds_truth(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_truth, value.values()))
    return any(map(_holds_truth, value)) if isinstance(value, list | tuple) else isinstance(value, bool)


def _alternatives(value: Any) -> Iterable[Any]:
    """The values a search space stands for; what a function would return cannot be known, so its name is looked at like any text."""
    from rllib_lmgame.experiments.search import DISTRIBUTIONS, SEARCH_KEYS

    if not (isinstance(value, Mapping) and len(value) == 1 and next(iter(value)) in SEARCH_KEYS):
        return (value,)
    ((kind, argument),) = value.items()
    if kind in DISTRIBUTIONS and isinstance(argument, list) and is_number(argument):
        return ()  # numbers within its bounds: RLlib's and ours are checked by what draws from it
    return argument if isinstance(argument, list) else (value,)


def _refuse_everywhere(value: Any, gate: Gate, path: str) -> None:
    """What is not taken wherever it stands.

    Tune runs ``{eval: "..."}`` as Python, and calls the function of ``sample_from``. Control characters are for terminals.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key in ("eval", "sample_from"):
                raise gate.refusal(f"{path}.{key}", f"`{key}`")
            _refuse_everywhere(str(key), gate, path)
            _refuse_everywhere(item, gate, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for position, item in enumerate(value):
            _refuse_everywhere(item, gate, f"{path}[{position}]")
    elif isinstance(value, str) and _CONTROL.search(value):
        raise gate.refusal(path, f"a control character (in {value!r})")
