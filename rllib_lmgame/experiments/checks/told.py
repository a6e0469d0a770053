"""Options that are taken and have nothing to do: told, so that one file can compare settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rllib_lmgame.algorithms.facts import PolicyFacts
from rllib_lmgame.settings.rules import TOLD
from rllib_lmgame.settings.schema import default_of, leaves

_AS_WITHOUT = {"gamma": 1, "evaluation_config.measures": [], "entropy_coeff": 0}
"""Values of options outside the sections that ask for nothing."""


def idle_notices(points: Sequence[Mapping[str, Any]], configs: Sequence[Any]) -> Iterator[str]:
    """Notices about given options that no trained policy reads at any point of the search space."""
    policies = [
        (config.settings.policy(name), PolicyFacts(config, name))
        for config in configs
        for name in config.trained_policies()
    ]
    told: dict[str, str] = {}
    for row in TOLD:
        given = [key for key in row.keys if key not in told and _is_given(key, points, configs)]
        if given and all(row.idle(*each) for each in policies):
            told |= dict.fromkeys(given, ", ".join(sorted({row.say.format(s=s, f=f) for s, f in policies})))
    for message in dict.fromkeys(told.values()):
        keys = ", ".join(f"config.{key}" for key, said in told.items() if said == message)
        yield f"{keys}: without effect, {message}"
    stages = [config.settings.supervised for config in configs]
    late = next((stage for stage in stages if stage and stage.lr_warmup_steps > stage.max_steps), None)
    if late is not None:
        yield (
            f"config.{configs[0].section_of('supervised_options')}.lr_warmup_steps: {late.lr_warmup_steps} steps of "
            f"warm-up are more than max_steps: {late.max_steps}, so that the learning rate never comes to lr: "
            f"{late.lr:g}"
        )


def _is_given(key: str, points: Sequence[Mapping[str, Any]], configs: Sequence[Any]) -> bool:
    """Whether an option has a schedule, or somewhere a value other than its default; switched off does not count."""
    if any(key in config.schedule_options for config in configs):
        return True
    section, _, name = key.partition(".")
    group = configs[0].entry.groups.get(section)
    default = default_of(leaves(group)[name].field) if group else _AS_WITHOUT.get(key)
    for point in points:
        value: Any = point
        for part in key.split("."):
            if isinstance(value, str) and part == "type":
                break  # A type alone stands for its group.
            value = value.get(part) if isinstance(value, Mapping) else None
        if value and value != default:
            return True
    return False
