"""Builds what the code says of itself: pages of the site, and files beside it.

    python docs/generate.py

writes the index of games (``rllib_lmgame/envs/index.json``, which the package reads and git keeps), the JSON schema for
editors (``tuned_examples/experiment.schema.json``) and the dashboard for Grafana. ``mkdocs build`` asks :func:`pages`
for the reference, the parts by name and a page for each game, which are files of the site alone.
"""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from game_index import index_text
from json_schema import file_schema, of_group

from rllib_lmgame.base import registry as plugins
from rllib_lmgame.base.errors import MissingDependencyError
from rllib_lmgame.envs.checking.sample import docstring_text, example_turn
from rllib_lmgame.envs.registry import INDEX, GameSpec, load_factory, own_games, served

DOCS = Path(__file__).resolve().parent
SCHEMA = DOCS.parent / "tuned_examples" / "experiment.schema.json"
DASHBOARD = DOCS / "grafana" / "dashboards" / "rllib-lmgame.json"
HEAD = ("key", "type", "default", "what it is")


def pages() -> dict[str, str]:
    """File name in the site -> text. A game that cannot be played here (no Java, ...) has no example turn."""
    by_page: dict[str, list[GameSpec]] = {}
    for spec in (*own_games().values(), *served().values()):
        by_page.setdefault(_page_name(spec), []).append(spec)
    games = {f"games/{name}": game_page(specs) for name, specs in by_page.items()}
    return {"reference.md": reference_page(), "parts.md": parts_page(), "games/index.md": games_page(), **games}


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table; bars in cells are escaped."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


# -- options ---------------------------------------------------------------------------------------------------------


def reference_page() -> str:
    """All keys of a file, from its JSON schema."""
    schema = file_schema()
    parts = [
        "# Reference",
        "All keys with their types and defaults. [Configuration](configuration.md) explains the ones that most files "
        "set.",
        "## Experiment",
        "Keys directly below the experiment's name.",
        table(HEAD, option_rows(schema["additionalProperties"], schema)),
    ]
    owners: dict[str, list[str]] = {}
    for algorithm in (name for name in schema["$defs"] if name.startswith("LMGame")):
        for key in schema["$defs"][algorithm]["properties"]:
            owners.setdefault(key, []).append(algorithm)
    keys = {key: _followed(schema["$defs"][names[0]]["properties"][key], schema) for key, names in owners.items()}
    flat = {key: node for key, node in keys.items() if not any(_properties(node, schema))}
    parts += ["## `config`", table(HEAD, (_row(key, node, schema) for key, node in flat.items()))]
    most = max(len(names) for names in owners.values())
    for key in (key for key in keys if key not in flat):
        whose = "" if len(owners[key]) == most else f"Of {', '.join(f'`{name}`' for name in owners[key])}."
        text = f"{keys[key].get('description', '')} {whose}".strip()
        parts += [f"## `config.{key}`", text, table(HEAD, option_rows(keys[key], schema))]
    return "\n\n".join(part for part in parts if part) + "\n"


_ELSEWHERE = re.compile(r".+\.language_model|config")
"""Groups whose keys are listed once, in their own section."""


def option_rows(node: Any, schema: Any, prefix: str = "") -> Iterator[tuple[str, ...]]:
    """A row for each key of a mapping, those of mappings in it by their dotted names."""
    found: dict[str, list[Any]] = {}
    for key, child in _properties(node, schema):
        found.setdefault(key, []).append(child)
    for key, (child, *others) in found.items():  # Of the groups of a union several may have it.
        yield _row(prefix + key, {**child, "anyOf": [child, *others]} if others else child, schema)
        if not _ELSEWHERE.fullmatch(prefix + key):
            yield from option_rows(child, schema, f"{prefix}{key}.")


def _properties(node: Any, schema: Any) -> Iterator[tuple[str, Any]]:
    for form in _forms(node, schema):
        yield from form.get("properties", {}).items()
        for inner in (form.get("items"), form.get("additionalProperties")):
            if isinstance(inner, dict):
                yield from ((f"*.{key}", child) for key, child in _properties(inner, schema))


def _forms(node: Any, schema: Any) -> list[Any]:
    """The alternatives that a value has, but for schedules and search spaces, which many have."""
    if node.get("$ref", "").endswith(("/schedule", "/search_space")):
        return []
    node = _followed(node, schema)
    inner = node.get("anyOf") or node.get("oneOf")
    return [form for each in inner for form in _forms(each, schema)] if inner else [node]


def _followed(node: Any, schema: Any) -> Any:
    """A node with what it refers to."""
    if "$ref" not in node:
        return node
    referred = reduce(getitem, node["$ref"].split("/")[1:], schema)
    return {**_followed(referred, schema), **{name: value for name, value in node.items() if name != "$ref"}}


def _row(key: str, node: Any, schema: Any) -> tuple[str, ...]:
    node = _followed(node, schema)
    types = dict.fromkeys(text for form in _forms(node, schema) for text in _types(form))
    described = [form.get("description", "") for form in (node, *_forms(node, schema))]
    default = f"`{json.dumps(node['default'])}`" if "default" in node else ""
    if len(default) > 40:
        default = "below"
    return (f"`{key}`", " or ".join(types), default, next((text for text in described if text), ""))


def _types(form: Any) -> list[str]:
    if "enum" in form or "const" in form:
        return [f"`{value}`" for value in form.get("enum", [form.get("const")])]
    kinds = form.get("type", [])
    signs = (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
    limits = " ".join(f"{sign} {form[name]}" for name, sign in signs if name in form)
    return [f"{kind} {limits}".strip() for kind in ([kinds] if isinstance(kinds, str) else kinds)]


# -- parts -----------------------------------------------------------------------------------------------------------

_PARTS = {
    "Advantage estimators": plugins.ESTIMATORS,
    "Policy losses": plugins.POLICY_LOSSES,
    "Aggregation": plugins.AGGREGATIONS,
    "Losses of preferences": plugins.PREFERENCE_LOSSES,
    "Reply formats": plugins.REPLY_FORMATS,
    "Matchmakers": plugins.MATCHMAKERS,
    "Measures": plugins.MEASURES,
    "Reports": plugins.REPORTS,
}


def parts_page() -> str:
    """What is chosen by name, with the docstring of each."""
    parts = [
        "# Parts by name",
        "Parts of a run that are chosen by name. A part of your own is named by its import path, see "
        "[extending](extending.md). `A` is the advantage of a token, `r_t` its reward, `R` the sum of a trajectory's "
        "rewards, `V` the value function, and `r` the ratio of a token's probability to that before the update.",
    ]
    for title, registry in _PARTS.items():
        parts += [f"## {title}", f"`{registry.key}`"]
        for name in registry:
            part = getattr(registry[name], "function", registry[name])
            text = re.split(r"\n\n(?:Args|Returns|Raises|Attributes):", inspect.getdoc(part) or "")[0]
            text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", text).replace("``", "`")
            parts += [f"### `{name}`", text]
    return "\n\n".join(parts) + "\n"


# -- games -----------------------------------------------------------------------------------------------------------


def games_page() -> str:
    """The tables of all games, family by family."""
    specs = [*own_games().values(), *served().values()]
    head = ("id", "players", "replies", "return", "expert", "extra", "what it is")
    parts = ["# All games", "How games are played, checked and given data: [games](../games.md)."]
    for family in dict.fromkeys(spec.family for spec in specs):
        rows = [
            (f"[`{spec.game_id}`]({_page_name(spec)})", *(cell or "" for cell in spec.cells()))
            for spec in specs
            if spec.family == family
        ]
        parts += [f"## {family}", table(head, rows)]
    return "\n\n".join(parts) + "\n"


def game_page(specs: list[GameSpec]) -> str:
    """What a game is, its ids, a turn of it and its options."""
    parts = [f"# {specs[0].entry_point.split(':')[1]}"]
    try:
        factory = load_factory(specs[0])
        parts.append(docstring_text(factory))
        turn = example_turn(specs[0]) if specs[0].game_id in own_games() else ""
    except MissingDependencyError as missing:
        return "\n\n".join([*parts, specs[0].summary, f"Not shown: {missing}"]) + "\n"
    ids = [f"- `{spec.game_id}`: {spec.summary}" + _defaults(spec) for spec in specs]
    extra = f"Needs `pip install 'rllib-lmgame[{specs[0].extra}]'`." if specs[0].extra else ""
    shown = f"A turn:\n\n```text\n{turn}\n```" if turn else ""
    options = "Options (`env_config`):\n\n" + table(HEAD, option_rows(of_group(factory.Options), {}))
    parts += [extra, "Ids:\n\n" + "\n".join(ids), shown, options, "[All games](index.md)"]
    return "\n\n".join(part for part in parts if part) + "\n"


def _page_name(spec: GameSpec) -> str:
    return f"{spec.entry_point.split(':')[1]}.md"


def _defaults(spec: GameSpec) -> str:
    return f" `{json.dumps(dict(spec.defaults))}`" if spec.defaults else ""


# -- files -----------------------------------------------------------------------------------------------------------


def dashboard() -> str:
    """A Grafana dashboard with one panel per gauge."""
    from rllib_lmgame.telemetry.gauges import EPISODE_GAUGES, EVALUATION_GAUGES, LEARNER_GAUGES, PROGRESS_GAUGES

    source = {"type": "prometheus", "uid": "${datasource}"}
    trials = EPISODE_GAUGES | EVALUATION_GAUGES | PROGRESS_GAUGES
    gauges = [(name, doc, "{{trial}}") for name, doc in trials.items()]
    gauges += [(name, doc, "{{trial}} {{policy}}") for name, doc in LEARNER_GAUGES.items()]
    panels = []
    for number, (name, doc, legend) in enumerate(gauges):
        target = {"refId": "A", "datasource": source, "legendFormat": legend}
        panels.append(
            {
                "id": number + 1,
                "type": "timeseries",
                "title": doc,
                "datasource": source,
                "gridPos": {"x": 8 * (number % 3), "y": 7 * (number // 3), "w": 8, "h": 7},
                "targets": [target | {"expr": f'ray_lmgame_{name}{{trial=~"$trial"}}'}],
            }
        )
    query = {"query": "label_values(ray_lmgame_training_iteration, trial)", "datasource": source}
    trial = {"name": "trial", "type": "query", "refresh": 2, "multi": True, "includeAll": True, **query}
    board = {
        "title": "rllib-lmgame",
        "uid": "rllib-lmgame",
        "schemaVersion": 39,
        "refresh": "15s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}, trial]},
        "panels": panels,
    }
    return json.dumps(board, indent=1) + "\n"


def main() -> int:
    """Write the files."""
    index = index_text()
    if INDEX.read_text(encoding="utf-8") != index:
        INDEX.write_text(index, encoding="utf-8")
        return subprocess.call([sys.executable, *sys.orig_argv[1:]])  # What follows reads the index.
    DASHBOARD.parent.mkdir(parents=True, exist_ok=True)
    DASHBOARD.write_text(dashboard(), encoding="utf-8")
    SCHEMA.write_text(json.dumps(file_schema(), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
