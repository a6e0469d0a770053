"""Links lead somewhere, commands exist, and nothing is a leftover."""

from __future__ import annotations

import ast
import importlib
import math
import pkgutil
import re
import shlex
from pathlib import Path

import pytest
import yaml

import rllib_lmgame
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.plugin import IMPORTING_KEYS
from rllib_lmgame.cli.main import COMMANDS, main, make_parser
from rllib_lmgame.envs.registry import own_games
from rllib_lmgame.experiments.checks.check import check_experiments, check_quickly
from rllib_lmgame.experiments.checks.outside import stand_in_for_missing
from rllib_lmgame.experiments.files.reading import read_experiments
from rllib_lmgame.learners.advantages import resolve_estimator
from rllib_lmgame.learners.objectives import resolve_objective
from rllib_lmgame.settings.algorithms import OWN
from rllib_lmgame.settings.plugins import MATCHMAKERS, MEASURES
from rllib_lmgame.settings.sections.token_ppo import AGGREGATIONS

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def commands() -> list[tuple[str, str]]:
    """Every `rllib ...` shown in a console block or in code quotes."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        lines = [line for block in blocks(page, "console") for line in block.splitlines()]
        lines += re.findall(r"^    (rllib .+)", text, re.MULTILINE) + re.findall(r"`(rllib [^`]+)`", text)
        found += [(page.name, line[line.index("rllib ") :]) for line in lines if re.search(r"(^|[$] |-- )rllib ", line)]
    return sorted(set(found))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text) + re.findall(r"^\[\w+\]: (\S+)$", text, re.MULTILINE)
    for target in targets:
        assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_named_exist(page: Path) -> None:
    names = re.findall(
        r"`((?:rllib_lmgame|tests|benchmarks|tuned_examples|docs)/[\w./-]+\.(?:py|yaml|md|json))`",
        page.read_text(encoding="utf-8"),
    )
    assert [name for name in names if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(("page", "command"), commands(), ids=lambda value: str(value)[:60])
def test_commands_are_understood(page: str, command: str) -> None:
    words = shlex.split(command.split(" #")[0])[1:]
    if not words or words[0].startswith("-"):
        return
    assert words[0] in COMMANDS, command
    if words in (["train"], ["games"], ["example"]) or words[-1] == "...":
        return
    parsed = make_parser(words[0]).parse_args(words)
    for word in words:
        if word.endswith(".yaml") and word.startswith(("tuned_examples/", "docs/")):
            assert (ROOT / word).is_file(), word
    assert parsed.run


@pytest.mark.parametrize(
    "command", sorted({command for _, command in commands() if re.search(" tuned_examples/.* --set ", command)})
)
def test_settings_in_commands_are_taken(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command.split(" #")[0])[1:]
    (path,) = [word for word in words if word.startswith("tuned_examples/")]
    args = make_parser("train").parse_args(words)
    specs = read_experiments(str(ROOT / path), args.overrides)
    specs = [spec for spec in specs if spec.name == args.experiment_name] or specs
    for log in re.findall(r"[\w-]+\.jsonl", command):
        assert main(["collect", specs[0].config["env"], "--episodes", "1", "--out", log]) == 0
    check_quickly(specs)
    stand_in_for_missing(specs)
    assert check_experiments(specs)


def test_cluster_files_start_what_the_documentation_says() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    ray_up = yaml.safe_load((ROOT / "docs" / "cluster" / "ray-cluster.yaml").read_text(encoding="utf-8"))
    assert ray_up["head_node_type"] in ray_up["available_node_types"]
    validate_config(prepare_config(ray_up))
    options = ray_up["docker"]["run_options"]
    assert "--entrypoint=" in options and "--shm-size=64g" in options and not ray_up.get("setup_commands")
    job = yaml.safe_load((ROOT / "docs" / "cluster" / "kuberay-rayjob.yaml").read_text(encoding="utf-8"))
    words = shlex.split(job["spec"]["entrypoint"])
    assert job["kind"] == "RayJob" and words[:3] == ["rllib", "train", "file"]
    assert (ROOT / "tuned_examples" / Path(words[3]).name).is_file()
    assert make_parser("train").parse_args(words[1:]).overrides == ["storage_path=/shared/runs"]
    cluster = job["spec"]["rayClusterSpec"]
    containers = [
        group["template"]["spec"]["containers"][0] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])
    ]
    assert all({"name": "HF_HOME", "value": "/shared/hf"} in container["env"] for container in containers)
    assert {container["image"] for container in containers} == {ray_up["docker"]["image"]}
    (memory,) = (volume["emptyDir"] for volume in cluster["headGroupSpec"]["template"]["spec"]["volumes"][1:])
    assert memory == {"medium": "Memory", "sizeLimit": "64Gi"}, "two engines of 7 B on two cards each take 46 GB"


def test_ray_version_in_the_cluster_file_is_the_one_installed() -> None:
    from importlib.metadata import version

    job = yaml.safe_load((ROOT / "docs" / "cluster" / "kuberay-rayjob.yaml").read_text(encoding="utf-8"))
    assert job["spec"]["rayClusterSpec"]["rayVersion"] == version("ray")


@pytest.mark.parametrize(
    "page", [*PAGES, *sorted((ROOT / "tuned_examples").rglob("*.yaml"))], ids=lambda page: page.name
)
def test_no_leftovers(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"\b(TODO|FIXME|XXX|lorem|TBD)\b|/work/", text), page.name


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    (version,) = re.findall(r'^    version="(.*)",$', (ROOT / "setup.py").read_text(encoding="utf-8"), re.MULTILINE)
    assert (citation["cff-version"], citation["version"], citation["license"]) == ("1.2.0", version, "Apache-2.0")
    assert citation["message"] and citation["title"] and citation["authors"], "what the format asks for"


def test_every_target_named_to_contributors_is_one_of_make() -> None:
    told = re.findall(r"\bmake ([a-z-]+)", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert told and set(told) <= set(targets)


def test_every_command_stands_on_a_page() -> None:
    shown = {command.split()[1] for _, command in commands()}
    assert set(COMMANDS) <= shown


@pytest.mark.parametrize(
    ("page", "words"), [("README.md", 1100), ("docs/concepts.md", 600), ("docs/rules-of-thumb.md", 700)]
)
def test_what_is_read_first_is_short(page: str, words: int) -> None:
    assert len((ROOT / page).read_text(encoding="utf-8").split()) <= words


def test_the_readme_begins_with_a_picture_and_a_file_of_eight_lines() -> None:
    page = ROOT / "README.md"
    assert "](docs/viewing-light.png)" in page.read_text(encoding="utf-8").partition("\n## ")[0]
    (file,) = blocks(page, "yaml")
    assert len(file.splitlines()) == 8


def test_concepts_are_twelve() -> None:
    text = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
    words = re.findall(r"^\| \*\*([\w ]+)\*\* \|", text, re.MULTILINE)
    (picture,) = blocks(ROOT / "docs" / "concepts.md", "text")
    assert len(words) == 12 and [word for word in words if word not in picture.lower()] == []


def test_shares_of_groups_that_differ_are_those_of_the_formula() -> None:
    """Counted over all outcomes of the games of a group."""
    text = (ROOT / "docs" / "rules-of-thumb.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| groups of (\d+) that differ \| (.*) \|$", text, re.MULTILINE)
    assert [games for games, _ in rows] == ["8", "16"]
    for games, shares in rows:
        for won, share in zip((0.05, 0.2, 0.5), shares.split(" | "), strict=True):
            n = int(games)
            mixed = sum(math.comb(n, wins) * won**wins * (1 - won) ** (n - wins) for wins in range(1, n))
            assert f"{mixed:.2f}" == share


def test_the_readme_counts_the_games_and_names_all_algorithms() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\b(\d+) (?:ids|games)\b", text) == [str(len(own_games()))]
    assert [name for name in OWN if f"`{name}`" not in text] == []


def test_every_benchmark_is_described() -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in (ROOT / "benchmarks").glob("*.py") if f"`{path.name}`" not in text] == []


def public() -> set[tuple[str, str]]:
    """Module and name of all that may be imported from outside."""
    page = (ROOT / "docs" / "import-paths.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(rllib_lmgame[\w.]*)`(.*?) \| (.*?) \|", page, re.MULTILINE)
    assert len(rows) > 10
    found = set()
    for module, beside, names in rows:  # Beside it in the same package, by their last names.
        package = module.rpartition(".")[0]
        modules = [module, *(f"{package}.{name}" for name in re.findall(r"`(\w+)`", beside))]
        found |= {(module, name) for module in modules for name in re.findall(r"`(\w+)`", names)}
    return found


def test_all_places_for_an_import_path_are_listed() -> None:
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^## What can be brought along\n.*?^## ", page, re.MULTILINE | re.DOTALL)
    keys = {re.sub(r"\[.*?\]", "", key).split(".")[-1] for key in re.findall(r"`([\w.*\[\]]+)`", table)}
    in_search_spaces = {"sample_from", "choice", "grid_search"}
    assert IMPORTING_KEYS - in_search_spaces - {"type"} <= keys | {"games", "env"}
    assert {"measures", "callbacks", "report", "advantage_estimator"} <= keys, "which take it as `type`"


def test_the_map_of_the_package_has_every_room() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = {name: row for row in page.splitlines() for name in re.findall(r"^\| `(\w+)`(?:, `\w+`)? \|", row)}
    rooms = {path.parent.relative_to(ROOT / "rllib_lmgame") for path in (ROOT / "rllib_lmgame").glob("*/*/__init__.py")}
    assert len(rooms) > 20
    assert [str(room) for room in sorted(rooms) if f"`{room.name}/" not in rows[room.parts[0]]] == []


def test_what_games_for_several_report_is_listed() -> None:
    page = (ROOT / "docs" / "many-players.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| of \| names \|\n\|---\|---\|\n((?:\|.*\n)+)", page, re.MULTILINE)
    told = {}
    for row in table.splitlines():
        games, names = row.strip("| ").split(" | ")
        told |= {game: set(re.findall(r"`(\w+)`", names)) for game in games.split(", ")}
    there = {}
    for path in (ROOT / "docs" / "games").glob("*.md"):
        for line in re.findall(r"^- \*\*Measures\*\*: (.*(?:\n  .*)*)", path.read_text(encoding="utf-8"), re.MULTILINE):
            there[path.stem] = set(re.findall(r"`([a-z_]+)`", line))
    assert told == there


def test_ways_of_averaging_are_told() -> None:
    page = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    (rows,) = re.findall(r"^\| `aggregation` \|.*\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert re.findall(r"^\| `(\w+)`", rows, re.MULTILINE) == list(AGGREGATIONS)


NAMED = {
    "matchmakers": (
        MATCHMAKERS,
        [("docs/reference.md", r"^\| `type` \|.*#matchmakers(.*)"), ("docs/leagues.md", r"^ +matchmaking: (.*)")],
    ),
    "measures": (
        MEASURES,
        [("docs/reference.md", r"^\| `measures` \|(.*)"), ("docs/monitoring.md", r"^\| `evaluation/.*")],
    ),
}
"""Tables of names, and where each of their names is to stand: page, and the part of it."""


@pytest.mark.parametrize(
    ("table", "path", "part"), [(table, *place) for table, (_, places) in NAMED.items() for place in places]
)
def test_the_names_of_a_table_stand_where_they_are_listed(table: str, path: str, part: str) -> None:
    found = re.findall(part, (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
    words = set(re.findall(r"\w+", " ".join(found)))
    assert found and set(NAMED[table][0]) <= words


def test_modules_that_give_guarantees_are_listed() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^Each module that gives guarantees lists them.*?^## ", text, re.MULTILINE | re.DOTALL)
    package = ROOT / "rllib_lmgame"
    heads = {
        path: ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "" for path in package.rglob("*.py")
    }
    numbered = {
        path.relative_to(package).as_posix()
        for path, head in heads.items()
        if re.search(r"^(?:Guarantees:|1\. )", head, re.MULTILINE)
    }
    assert numbered <= set(re.findall(r"`([\w/.]+)`", listed))


def test_no_module_takes_the_name_of_what_its_package_exports() -> None:
    """Importing it would put it in the place of the export."""
    for info in pkgutil.walk_packages(rllib_lmgame.__path__, "rllib_lmgame."):
        if not info.ispkg or info.name == "rllib_lmgame.cli":  # whose command has imported it before
            continue
        package = importlib.import_module(info.name)
        modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
        assert not modules & set(getattr(package, "__all__", ())), info.name


def test_public_import_paths_are_there() -> None:
    for module, name in public():
        assert hasattr(importlib.import_module(module), name), f"{module}.{name}"


def test_every_game_that_is_imported_as_pettingzoos_are_is_public() -> None:
    modules = [spec.module for spec in own_games().values() if spec.module]
    assert len(modules) > 10
    listed = public()
    for module in modules:
        path = f"rllib_lmgame.envs.{module}"
        assert {(path, name) for name in importlib.import_module(path).__all__} <= listed, module


def test_what_the_documentation_tells_to_use_is_public() -> None:
    """Names with their module: `this` in `rllib_lmgame/that.py`, or from `rllib_lmgame.that`."""
    told = set()
    for page in PAGES:
        found = re.findall(
            r"`(?:with )?(\w+)[^`]*`\s(?:\(|in\s|from\s)`(rllib_lmgame[\w./]*)`", page.read_text(encoding="utf-8")
        )
        told |= {(module.removesuffix(".py").replace("/", "."), name) for name, module in found}
    assert ("rllib_lmgame.envs.support.replies", "WholeReplyGame") in told and told <= public(), told - public()


def test_an_estimator_in_an_old_form_is_answered_with_a_public_path() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_estimator("builtins:divmod")
    (path,) = re.findall(r"an AdvantageInputs \((.*?)\)", str(caught.value))
    assert (path, "AdvantageInputs") in public()


def test_an_objective_that_lacks_something_is_answered_with_public_paths() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_objective("builtins:dict")
    named = re.findall(r"(\w+) \((rllib_lmgame[\w.]*)\)", str(caught.value))
    assert [name for name, _ in named] == ["Objective", "PPOObjective"]
    assert {(path, name) for name, path in named} <= public()


def test_what_the_documentation_imports_is_public() -> None:
    listed = set(
        re.findall(
            r"^\| `(rllib_lmgame[\w.]*)`", (ROOT / "docs" / "import-paths.md").read_text(encoding="utf-8"), re.MULTILINE
        )
    )
    for page in PAGES:
        shown = set(re.findall(r"^from (rllib_lmgame[\w.]*) import", page.read_text(encoding="utf-8"), re.MULTILINE))
        assert shown <= listed, page.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_are_whole(page: Path) -> None:
    """A line that is empty ends a table: what follows it is shown as text with bars."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert re.match(r"\|.*\n\|[\s:|-]+\|$", block, re.MULTILINE), f"{page.name}: no head above {block[:60]!r}"
