"""docs/coming-from.md and docs/coming-from-rllib.md name keys, and values of them, that exist."""

from __future__ import annotations

import re
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import generate
import jsonschema
import pytest
import yaml
from json_schema import file_schema, of_group

from rllib_lmgame.envs.registry import game_spec, load_factory

DOCS = Path(__file__).parents[2] / "docs"
SCHEMA = file_schema()
OF_THE_EXPERIMENT = ("stop", "checkpoint_config")
PARTS = generate.parts_page()
GAMES = ("lmgame/Sokoban-v0", "agentgym:textcraft")
"""Whose options are named."""


def rows() -> list[str]:
    """The last cell of each row of the tables."""
    pages = [DOCS / name for name in ("coming-from.md", "coming-from-rllib.md")]
    lines = [line for page in pages for line in page.read_text(encoding="utf-8").splitlines()]
    return [line.strip("| ").split(" | ")[-1] for line in lines if re.match(r"\| (?!there)", line)]


def below(node: Any, key: str) -> list[Any]:
    """What the schema says of a key of a mapping, or of the items of a list (``*``), in any of its forms."""
    if not isinstance(node, dict):
        return []
    found = [node["properties"][key]] if key in node.get("properties", {}) else []
    if key == "*" and "items" in node:
        found.append(node["items"])
    if "$ref" in node:
        found += below(reduce(getitem, node["$ref"].split("/")[1:], SCHEMA), key)
    return found + [each for form in node.get("anyOf", []) for each in below(form, key)]


def schemas_of(key: str) -> list[Any]:
    """What the algorithms' schemas say of a key, and games' schemas of theirs."""
    group, _, name = key.partition(".")
    if group == "env_config" and name:
        options = [of_group(load_factory(game_spec(game)).Options)["properties"] for game in GAMES]
        return [{} for keys in options if name in keys]
    algorithms = [SCHEMA["$defs"][name] for name in ("LMGamePPO", "LMGameGRPO", "LMGameSFT", "LMGameDPO", "LMGameILQL")]
    nodes = [SCHEMA["additionalProperties"]] if group in OF_THE_EXPERIMENT else algorithms
    for step in key.replace("[*]", ".*").split("."):
        nodes = [each for node in nodes for each in below(node, step)]
    return nodes


def check_value(key: str, value: str) -> None:
    parsed = yaml.safe_load(value)
    forms = [{**each, "$defs": SCHEMA["$defs"]} for each in schemas_of(key)]
    assert any(jsonschema.Draft202012Validator(form).is_valid(parsed) for form in forms), f"{key}: {value}"
    if key in ("training.advantage_estimator", "training.policy_loss"):
        name = parsed["type"] if isinstance(parsed, dict) else parsed
        assert ":" in name or f"\n### `{name}`\n" in PARTS, name


def check_row(row: str) -> None:
    key = ""
    for code in re.findall(r"`([^`]+)`", row):
        named = re.fullmatch(r"([a-z_]+(?:\[\*\])?(?:\.[a-z_]+(?:\[\*\])?)*)(?:: (.+))?", code)
        if code.startswith("rllib "):
            continue
        if named and (schemas_of(named[1]) or "." in named[1] or not key):
            key = named[1]
            assert schemas_of(key), key
            if named[2]:
                check_value(key, named[2])
        elif code != "{rules}":
            check_value(key, code)


def test_keys_and_values_exist() -> None:
    for row in rows():
        check_row(row)


def test_the_page_is_read() -> None:
    assert len(rows()) > 80 and not schemas_of("training.clip_low") and not schemas_of("env_config.no_such")
    with pytest.raises(AssertionError):
        check_value("training.policy_loss", "clipped")
