"""The JSON schema of an experiment file."""

from __future__ import annotations

from typing import Any

from rllib_lmgame.config.algorithms import OWN
from rllib_lmgame.config.json_schema import DRAFT, NULL, Schema, configs, of_group, one_of
from rllib_lmgame.config.rllib import TAKEN
from rllib_lmgame.experiments.search.spaces import SEARCH_KEYS
from rllib_lmgame.experiments.spec import MAPPINGS, ExperimentOptions


def file_schema() -> Schema:
    """The schema of a file: experiments by name.

    Configurations of algorithms that are not this package's may be any mapping.
    """
    experiment = of_group(ExperimentOptions, search=False)
    for key in MAPPINGS:
        experiment["properties"][key]["type"] = ["object", "null"]
    by_run: list[dict[str, Any]] = [
        {
            "if": {"properties": {"run": {"const": name}}, "required": ["run"]},
            "then": {"properties": {"config": one_of([{"$ref": f"#/$defs/{name}"}, NULL])}},
        }
        for name in OWN
    ]
    return {
        "$schema": DRAFT,
        "title": "rllib-lmgame: experiments by name",
        "type": "object",
        "additionalProperties": {**experiment, "required": ["run"], "allOf": by_run},
        "$defs": configs(OWN.values(), sorted(TAKEN), SEARCH_KEYS),
    }
