"""Writes the index of games and the documentation that comes from the code: ``reference.md``, ``games.md``,
``games/``, ``data-sets.md``, ``parts.md``, ``trust.md``, ``quickstart.ipynb`` and the dashboard for Grafana; and of
``tuned_examples/`` the schema and the files for GPUs.

    python docs/generate.py           write the files
    python docs/generate.py --check   say which are stale and end with 1 if any is

Keys, types, defaults and limits are read from the option groups; games from the registry, their docstrings and one turn
played with their own expert; the dashboard's panels from the gauges.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from data_page import data_page
from game_index import index_text
from game_pages import game_pages, games_index
from gpu_examples import gpu_examples
from notebook_page import notebook
from parts_page import parts_page
from tables import OPTION_HEAD, option_rows, option_table, table, wrapped
from trust_page import trust_page

from rllib_lmgame.base.errors import MissingDependencyError
from rllib_lmgame.base.group import NAMED, declared, default_text, walk
from rllib_lmgame.envs.registry import INDEX
from rllib_lmgame.settings.sections.games import GameConfig
from rllib_lmgame.settings.sections.language_model import LanguageModelOptions, TalkOptions

DOCS = Path(__file__).resolve().parent
NOTICE = "<!-- Written by docs/generate.py from the code; edit the code, then run it again. -->"
DASHBOARD = "grafana/dashboards/rllib-lmgame.json"
MADE = "# Made by docs/generate.py"
"""What an example that is made from a template says."""


def pages() -> dict[str, Callable[[], str]]:
    """File name -> its writer."""
    named: dict[str, Callable[[], str]] = {
        "reference.md": reference_page,
        "games.md": lambda: wrapped(f"{NOTICE}\n\n{games_index()}"),
        "trust.md": lambda: wrapped(f"{NOTICE}\n\n{trust_page()}"),
        "data-sets.md": lambda: wrapped(f"{NOTICE}\n\n{data_page()}"),
        "parts.md": lambda: wrapped(f"{NOTICE}\n\n{parts_page()}"),
        DASHBOARD: dashboard,
        "quickstart.ipynb": notebook,
        "../tuned_examples/experiment.schema.json": schema,
    }
    games = {
        f"games/{name}": lambda write=write: wrapped(f"{NOTICE}\n\n{write()}") for name, write in game_pages().items()
    }
    examples = {f"../tuned_examples/{name}": write for name, write in gpu_examples().items()}
    return named | games | examples  # type: ignore[return-value]


def unwritten(known: Collection[str]) -> list[str]:
    """Files, named as in :func:`pages`, that look like written ones and are not."""
    found = [f"games/{path.name}" for path in (DOCS / "games").glob("*.md")]
    examples = (DOCS / "../tuned_examples").glob("*.yaml")
    found += [f"../tuned_examples/{path.name}" for path in examples if MADE in path.read_text(encoding="utf-8")]
    return [name for name in found if name not in known]


# -- configuration ---------------------------------------------------------------------------------------------------


def reference_page() -> str:
    """All keys."""
    from rllib_lmgame.experiments.spec import ExperimentOptions
    from rllib_lmgame.settings.sections.rllib import OtherOptions

    parts = [
        NOTICE,
        "# Configuration reference",
        "All keys, with types, defaults and limits. What most files set, by topic: [configuration](configuration.md).",
        section("Experiment", "Directly below the experiment's name.", ExperimentOptions),
        _search_spaces(),
        "# The `config` section",
        "Flat keys are RLlib's; the sections below are this package's.",
        _rllib_section(),
        *_sections(),
        *(
            section(f"`config.{key}`", str(each.says["doc"]), each.holds and each.holds.group)
            for key, each in declared(OtherOptions).items()
        ),
        _deepspeed_keys(),
        _schedules_section(),
    ]
    return wrapped("\n\n".join(part for part in parts if part) + "\n")


_WHAT = {NAMED: "A mapping from names to these keys.\n\n"}


def section(title: str, text: str, group: type | None) -> str:
    """A heading and the table of an option group, and below it those of the groups in it."""
    parts = [f"## {title}", text, option_table(group) if group else ""]
    for each in walk(group) if group else ():
        inner = each.group or (
            each.holds.group
            if each.holds and each.holds.group not in (GameConfig, LanguageModelOptions, TalkOptions)
            else None
        )
        if inner:
            parts.append(
                f"### `{each.key}`\n\n{_WHAT.get(each.holds.form, '') if each.holds else ''}{option_table(inner)}"
            )
    return "\n\n".join(part for part in parts if part)


def _schedules_section() -> str:
    """The schedules, and what may follow one."""
    from rllib_lmgame.base.schedule import ScheduleOptions, schedulable
    from rllib_lmgame.settings.algorithms import PPO
    from rllib_lmgame.settings.sections.rllib import SCHEDULED_KEYS

    sections = {name: schedulable(group) for name, group in PPO.groups.items()}
    keys = [", ".join(f"`{key}`" for key in SCHEDULED_KEYS)]
    keys += [f"`{name}`: " + ", ".join(f"`{key}`" for key in options) for name, options in sections.items() if options]
    text = (
        "A schedule stands in the place of a number, see [curricula](curricula.md): `lr: {points: [[0, 1.0e-3], [1000, "
        "1.0e-4]]}`. Numbers that can change:\n\n- the `weight` and the options of games in `env_config`\n- "
        + "\n- ".join(keys)
    )
    return section("Schedules (`LMGamePPO`, `LMGameGRPO`)", text, ScheduleOptions)


def _sections() -> list[str]:
    """The sections of all algorithms, a table for each option group; those that only some have say whose they are."""
    from rllib_lmgame.settings.algorithms import OWN

    owners: dict[type, dict[str, list[str]]] = {}
    for entry in OWN.values():
        for name, group in entry.groups.items():
            owners.setdefault(group, {}).setdefault(name, []).append(f"`{entry.name}`")
    return [
        section(", ".join(_whose(name, of, len(OWN)) for name, of in names.items()), "", group)
        for group, names in owners.items()
    ]


def _whose(name: str, owners: list[str], of: int) -> str:
    return f"`config.{name}`" + (f" ({', '.join(owners)})" if len(owners) < of else "")


def _rllib_section() -> str:
    from ray.rllib.algorithms.ppo import PPOConfig

    from rllib_lmgame.settings.sections.rllib import RLlibOptions

    ours, stock = RLlibOptions(), PPOConfig()
    rows = []
    for row, name in zip(option_rows(RLlibOptions), RLlibOptions.model_fields, strict=True):
        here, there = getattr(ours, name), getattr(stock, name)
        rows.append((*row, "" if here == there else f"`{default_text(there)}`"))
    text = (
        "Keys of RLlib's `PPOConfig` that matter most, with this package's defaults; what else it knows is taken, too. "
        "`train_batch_size_per_learner` and `minibatch_size` are refused: a batch is made of whole episodes "
        "(`text_rollouts.episodes_per_iteration`, `token_ppo.num_minibatches`)."
    )
    return f"## RLlib's keys\n\n{text}\n\n" + table((*OPTION_HEAD, "RLlib's default"), rows)


def _search_spaces() -> str:
    from rllib_lmgame.experiments.search.schedulers import ALIASES
    from rllib_lmgame.experiments.search.spaces import DISTRIBUTIONS

    rows = [
        (f"`{name}`", "`[" + ", ".join(kind.arguments) + "]`", "drawn once per sample")
        for name, kind in DISTRIBUTIONS.items()
    ]
    rows += [
        ("`choice`", "`[value, ...]`", "one of the values, drawn once per sample"),
        ("`grid_search`", "`[value, ...]`", "every value is tried"),
        ("`sample_from`", "`package.module:function`", "what the function returns"),
    ]
    aliases = ", ".join(f"`{alias}` (Ray's `{name}`)" for alias, name in ALIASES.items())
    text = (
        "Any value below `config` may be a search space, a mapping with a single key, e.g. `lr: {loguniform: [1e-6, "
        f"1e-4]}}`. `scheduler` takes the names of Ray Tune's schedulers and {aliases}; their arguments are checked."
    )
    return f"## Search spaces\n\n{text}\n\n" + table(("key", "argument", "meaning"), rows)


def _deepspeed_keys() -> str:
    from rllib_lmgame.learners.engines.deepspeed_engine import _KNOWN_KEYS, _REPLACED_BY

    rows = [(f"`{key}`", f"refused: it is set by {by}") for key, by in _REPLACED_BY.items()]
    text = (
        "`gradient_clipping` must equal `grad_clip`; "
        "`activation_checkpointing` turns on the model's gradient checkpointing. "
        "`zero_optimization.reduce_bucket_size` is the model's size, at most 5e8, unless it is set. Known keys: "
        + ", ".join(f"`{key}`" for key in sorted(_KNOWN_KEYS))
        + "."
    )
    return f"{text}\n\n" + table(("key", ""), rows)


# -- for editors -------------------------------------------------------------------------------------------------------


def schema() -> str:
    """The JSON schema of experiment files."""
    from rllib_lmgame.experiments.files.schema import file_schema

    return json.dumps(file_schema(), indent=1) + "\n"


# -- dashboard -------------------------------------------------------------------------------------------------------


def dashboard() -> str:
    """A Grafana dashboard with one panel per gauge."""
    from rllib_lmgame.telemetry.gauges import (
        EPISODE_GAUGES,
        EVALUATION_GAUGES,
        LEARNER_GAUGES,
        PROGRESS_GAUGES,
    )

    of_trials = EPISODE_GAUGES | EVALUATION_GAUGES | PROGRESS_GAUGES
    panels = [_panel(i, name, doc, "{{trial}}") for i, (name, doc) in enumerate(of_trials.items())]
    panels += [
        _panel(len(panels) + i, name, doc, "{{trial}} {{policy}}")
        for i, (name, doc) in enumerate(LEARNER_GAUGES.items())
    ]
    board = {
        "title": "rllib-lmgame",
        "uid": "rllib-lmgame",
        "schemaVersion": 39,
        "refresh": "15s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                {
                    "name": "trial",
                    "type": "query",
                    "datasource": _DATASOURCE,
                    "query": "label_values(ray_lmgame_training_iteration, trial)",
                    "refresh": 2,
                    "multi": True,
                    "includeAll": True,
                },
            ]
        },
        "panels": panels,
    }
    return json.dumps(board, indent=1) + "\n"


_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def _panel(number: int, name: str, doc: str, legend: str) -> dict[str, Any]:
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": doc,
        "datasource": _DATASOURCE,
        "gridPos": {"x": 8 * (number % 3), "y": 7 * (number // 3), "w": 8, "h": 7},
        "targets": [
            {
                "refId": "A",
                "datasource": _DATASOURCE,
                "expr": f'ray_lmgame_{name}{{trial=~"$trial"}}',
                "legendFormat": legend,
            }
        ],
    }


# -- command line ----------------------------------------------------------------------------------------------------


def stale() -> list[str]:
    """Names of the files that differ from what the code says; pages of games that cannot be played here (no Java ...)
    are not compared.
    """
    known = pages()
    names = unwritten(known)
    if INDEX.read_text(encoding="utf-8") != index_text():
        names.append(f"../rllib_lmgame/envs/{INDEX.name}")
    for name, write in known.items():
        try:
            text = write()
        except MissingDependencyError:
            continue
        if not (DOCS / name).is_file() or (DOCS / name).read_text(encoding="utf-8") != text:
            names.append(name)
    return names


def main(argv: list[str] | None = None) -> int:
    """Write the files, or with ``--check`` compare them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say which files are stale")
    if parser.parse_args(argv).check:
        names = stale()
        print("\n".join(f"docs/{name} is stale; run python docs/generate.py" for name in names) or "up to date")
        return 1 if names else 0
    index = index_text()
    if INDEX.read_text(encoding="utf-8") != index:
        INDEX.write_text(index, encoding="utf-8")
        return subprocess.call([sys.executable, *sys.orig_argv[1:]])  # All that follows is read from the index.
    known = pages()
    for folder in ("games", Path(DASHBOARD).parent):
        (DOCS / folder).mkdir(parents=True, exist_ok=True)
    for name in unwritten(known):
        (DOCS / name).unlink()
    for name, write in known.items():
        try:
            text = write()
        except MissingDependencyError as missing:
            print(f"docs/{name} stays as it is: {missing}")
            continue
        (DOCS / name).write_text(text, encoding="utf-8")
        print(f"docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
