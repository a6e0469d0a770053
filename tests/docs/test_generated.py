"""What is built from the code: the index of games, pages of the site, the dashboard."""

from __future__ import annotations

import json
import re

import generate
import pytest
import yaml
from json_schema import file_schema

from rllib_lmgame.base.registry import ESTIMATORS
from rllib_lmgame.envs.registry import INDEX, own_games
from rllib_lmgame.learners.options import TrainingOptions


def test_the_index_of_games_is_what_their_classes_say() -> None:
    """Takes 3 s, as all games are made: a key that is not in the index is refused in files."""
    assert INDEX.read_text(encoding="utf-8") == generate.index_text(), "run `python docs/generate.py`"


def test_the_reference_has_every_section() -> None:
    reference = generate.reference_page()
    for section in ("language_model", "inference", "text_rollouts", "training", "warm_start", "supervised", "league"):
        assert f"\n## `config.{section}`\n" in reference
    for key in ("lr", "num_to_keep", "max_tokens_per_turn", "context_length"):
        assert f"{key}` | " in reference


def test_what_options_say_is_true_outside_of_the_site() -> None:
    """An editor shows it without the pages, so it links to none; the values that it shows are taken."""
    assert re.findall(r"\]\((?!http)[^)]*\)", json.dumps(file_schema())) == []
    shown = re.findall(r"`(\{type: [^`]*\})`", TrainingOptions.model_fields["advantage_estimator"].description or "")
    assert shown and all(ESTIMATORS.read(yaml.safe_load(each)) for each in shown)


@pytest.mark.slow  # Every game is played.
def test_every_game_has_a_row_and_a_page_with_a_turn() -> None:
    pages = generate.pages()
    for spec in own_games().values():
        name = spec.entry_point.split(":")[1]
        assert f"| [`{spec.game_id}`]({name}.md) |" in pages["games/index.md"]
        page = pages[f"games/{name}.md"]
        if "Not shown: " in page:  # It cannot be played on this machine.
            continue
        assert f"- `{spec.game_id}`: " in page and "[observation of" in page
        for line in ("Observation", "Action", "Reward"):
            assert f"- **{line}" in page, f"{name}: the class docstring has no line `{line}:`"


def test_the_dashboard_and_what_starts_it_fit_together() -> None:
    """The compose file mounts what is there, in the places that the files of both servers name."""
    from rllib_lmgame.telemetry import gauges

    names = (*gauges.EPISODE_GAUGES, *gauges.EVALUATION_GAUGES, *gauges.PROGRESS_GAUGES, *gauges.LEARNER_GAUGES)
    panels = json.loads(generate.dashboard())["panels"]
    assert {panel["targets"][0]["expr"].split("{")[0] for panel in panels} == {f"ray_lmgame_{name}" for name in names}
    folder = generate.DASHBOARD.parents[1]
    read = {path.relative_to(folder).as_posix(): yaml.safe_load(path.read_text()) for path in folder.rglob("*.y*ml")}
    prometheus, grafana = (read["compose.yaml"]["services"][name] for name in ("prometheus", "grafana"))
    mounts = dict(reversed(mount.split(":")[:2]) for mount in (*prometheus["volumes"], *grafana["volumes"]))
    flags = dict(flag.removeprefix("--").split("=") for flag in prometheus["command"])
    assert mounts[flags["config.file"]] == "./prometheus.yml" and (folder / "prometheus.yml").exists()
    environment = grafana["environment"]
    assert mounts[environment["GF_PATHS_PROVISIONING"]] == "./provisioning"
    assert folder / mounts[environment["LMGAME_DASHBOARDS"]] == generate.DASHBOARD.parent
    addresses = flags["web.listen-address"], environment["GF_SERVER_HTTP_ADDR"]
    assert all(address.startswith("127.0.0.1") for address in addresses)
