"""Schedules by dotted keys, put where they stand in a file."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any


def in_place(config: Mapping[str, Any], schedules: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with each schedule as the value of its option, e.g. of ``games.0.weight``."""
    result = copy.deepcopy(dict(config))
    for key, schedule in schedules.items():
        place: Any = result
        *above, name = key.split(".")
        for part in above:
            if isinstance(place, list):
                number = int(part)
                if isinstance(place[number], str):
                    place[number] = {"env": place[number]}
                place = place[number]
            else:
                if isinstance(place.get(part), str):
                    place[part] = {"type": place[part]}
                place = place.setdefault(part, {})
        place[name] = schedule
    return result
