"""Generated pages are up to date, and say what the code says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import generate
import pytest
import yaml
from game_pages import example_code

import rllib_lmgame.envs
from rllib_lmgame.base.errors import MissingDependencyError
from rllib_lmgame.base.group import declared
from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.registry import own_games

DOCS = Path(__file__).parents[2] / "docs"
SOME_PAGES = ("games.md", "reference.md", generate.DASHBOARD)


@pytest.mark.slow
def test_committed_pages_are_what_the_code_says() -> None:
    assert generate.stale() == [], "run `python docs/generate.py`"


def test_a_changed_page_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    docs = tmp_path / "docs"
    for folder in (docs, docs / "games", tmp_path / "tuned_examples"):
        folder.mkdir()
    monkeypatch.setattr(generate, "DOCS", docs)
    written = {name: write() for name, write in generate.pages().items() if name in SOME_PAGES}
    monkeypatch.setattr(generate, "pages", lambda: {name: lambda text=text: text for name, text in written.items()})
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    page = docs / "games.md"
    page.write_text(page.read_text(encoding="utf-8").replace("Sokoban", "Sokobum", 1), encoding="utf-8")
    (docs / generate.DASHBOARD).unlink()
    (docs / "games" / "Gone.md").write_text("of a game that is no more")
    (tmp_path / "tuned_examples" / "gone-1gpu.yaml").write_text(f"{generate.MADE}: of a shape that is no more")
    mine = tmp_path / "tuned_examples" / "mine-2gpu.yaml"
    mine.write_text("written by hand")
    capsys.readouterr()
    assert generate.main(["--check"]) == 1
    told = capsys.readouterr().out
    assert (
        "games.md" in told
        and "games/Gone.md" in told
        and "tuned_examples/gone-1gpu.yaml" in told
        and generate.DASHBOARD in told
        and "reference.md" not in told
        and "mine" not in told
    )
    assert generate.main([]) == 0
    assert mine.exists() and not (tmp_path / "tuned_examples" / "gone-1gpu.yaml").exists()


def test_a_page_that_cannot_be_written_here_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def write() -> str:
        raise MissingDependencyError("there is no browser")

    docs = tmp_path / "docs"
    for folder in (docs, docs / "games", tmp_path / "tuned_examples"):
        folder.mkdir()
    (docs / "games" / "Browsing.md").write_text("as it was")
    monkeypatch.setattr(generate, "DOCS", docs)
    monkeypatch.setattr(generate, "pages", lambda: {"games/Browsing.md": write, "more.md": lambda: "more"})
    assert generate.main([]) == 0
    assert "Browsing.md stays as it is: there is no browser" in capsys.readouterr().out
    assert (docs / "games" / "Browsing.md").read_text() == "as it was" and (docs / "more.md").read_text() == "more"


def test_the_example_of_a_game_in_which_all_reply_at_once_plays_it() -> None:
    code = example_code(own_games()["lmgame/RockPaperScissors-v0"])
    scope: dict[str, Any] = {}
    exec(code.removeprefix("```python").removesuffix("```"), scope)
    assert scope["env"].agents == [] and all(scope["terminations"].values())
    with pytest.raises(GameError, match="reset"):
        rllib_lmgame.envs.rock_paper_scissors_v0.parallel_env().step({"player_0": "rock"})


def test_every_option_of_every_section_is_described() -> None:
    from rllib_lmgame.settings.algorithms import PPO

    text = (DOCS / "reference.md").read_text(encoding="utf-8")
    for section, group in PPO.groups.items():
        part = text.split(f"## `config.{section}`", 1)[1].split("\n## ", 1)[0]
        for key, each in declared(group).items():
            assert f"| `{key}` |" in part, f"{section}.{key}"
            assert each.says["doc"].replace("|", "\\|") in part


def test_every_game_has_a_row_and_a_page_with_a_turn() -> None:
    index = (DOCS / "games.md").read_text(encoding="utf-8")
    for spec in own_games().values():
        name = spec.entry_point.split(":")[1]
        assert f"| [`{spec.game_id}`](games/{name}.md) |" in index
        page = (DOCS / "games" / f"{name}.md").read_text(encoding="utf-8")
        assert f"- `{spec.game_id}`: " in page and "[observation of" in page
        for line in ("Observation", "Action", "Reward"):
            assert f"- **{line}" in page, f"{name}: the class docstring has no line `{line}:`"


def test_table_cells_cannot_break_the_table() -> None:
    assert generate.table(("a", "b"), [("x || y", "one\ntwo")]).splitlines()[-1] == r"| x \|\| y | one two |"


def test_dashboard_asks_for_gauges_that_exist() -> None:
    from rllib_lmgame.telemetry import gauges

    names = (*gauges.EPISODE_GAUGES, *gauges.EVALUATION_GAUGES, *gauges.PROGRESS_GAUGES, *gauges.LEARNER_GAUGES)
    board = json.loads((DOCS / generate.DASHBOARD).read_text(encoding="utf-8"))
    asked = {target["expr"].split("{")[0] for panel in board["panels"] for target in panel["targets"]}
    assert asked == {f"ray_lmgame_{name}" for name in names}
    (trials,) = [each["query"] for each in board["templating"]["list"] if each["name"] == "trial"]
    assert any(f"(ray_lmgame_{name}," in trials for name in gauges.PROGRESS_GAUGES)  # They are there from the start.
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_what_starts_prometheus_and_grafana_fits_together() -> None:
    """The compose file mounts what is there, in the places that the files of both name."""
    folder = (DOCS / generate.DASHBOARD).parents[1]
    read = {path.relative_to(folder).as_posix(): yaml.safe_load(path.read_text()) for path in folder.rglob("*.y*ml")}
    prometheus, grafana = (read["compose.yaml"]["services"][name] for name in ("prometheus", "grafana"))
    mounts = {}
    for mount in (*prometheus["volumes"], *grafana["volumes"]):
        source, target, _ = mount.split(":")
        assert (folder / source).exists() or source == "/tmp/ray"
        mounts[target] = source
    (job,) = read["prometheus.yml"]["scrape_configs"]
    assert job["file_sd_configs"] == [{"files": ["/tmp/ray/prom_metrics_service_discovery.json"]}]  # Ray's own.
    flags = dict(flag.removeprefix("--").split("=") for flag in prometheus["command"])
    assert mounts[flags["config.file"]] == "./prometheus.yml"
    (source,) = read["provisioning/datasources/prometheus.yaml"]["datasources"]
    assert source["url"] == f"http://{flags['web.listen-address']}" and source["isDefault"]
    environment = grafana["environment"]
    assert mounts[environment["GF_PATHS_PROVISIONING"]] == "./provisioning"
    assert folder / mounts[environment["LMGAME_DASHBOARDS"]] == (DOCS / generate.DASHBOARD).parent
    providers = read["provisioning/dashboards/dashboards.yaml"]["providers"]
    paths = [each["options"]["path"] for each in providers]
    assert paths[0] == "$LMGAME_DASHBOARDS" and paths[1].startswith("/tmp/ray/session_latest/")
    addresses = flags["web.listen-address"], environment["GF_SERVER_HTTP_ADDR"]
    assert all(address.startswith("127.0.0.1") for address in addresses)
    by_hand = (DOCS / "monitoring.md").read_text(encoding="utf-8").split("Without Docker")[1].split("```")[1]
    assert f"--web.listen-address={addresses[0]} --storage" in by_hand, "and nothing of it lands in the repository"
    assert all(
        f"{name}={environment[name]}" in by_hand for name in ("GF_SERVER_HTTP_ADDR", "GF_AUTH_ANONYMOUS_ENABLED")
    )
