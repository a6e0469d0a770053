"""Links lead somewhere, commands exist, and nothing is a leftover."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import shlex
from pathlib import Path

import pytest
import yaml

import rllib_lmgame
from rllib_lmgame.base.plugin import IMPORTING_KEYS
from rllib_lmgame.cli.main import COMMANDS, main, make_parser
from rllib_lmgame.experiments.checks.check import check_experiments, check_quickly
from rllib_lmgame.experiments.checks.outside import stand_in_for_missing
from rllib_lmgame.experiments.files.reading import read_experiments
from tests.docs.test_code import blocks

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def commands() -> list[tuple[str, str]]:
    """Every `rllib ...` shown in a console block or in code quotes."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        lines = [line for block in blocks(page, "console") for line in block.splitlines()]
        lines += re.findall(r"^    (rllib .+)", text, re.MULTILINE) + re.findall(r"`(rllib [^`]+)`", text)
        found += [(page.name, line[line.index("rllib ") :]) for line in lines if re.search(r"(^|[$] |-- )rllib ", line)]
    return sorted(set(found))


def test_links_and_names_of_files_lead_somewhere() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text) + re.findall(r"^\[\w+\]: (\S+)$", text, re.MULTILINE)
        assert [each for each in targets if "://" not in each and not (page.parent / each).exists()] == [], page.name
        names = re.findall(
            r"`((?:rllib_lmgame|tests|benchmarks|tuned_examples|docs)/[\w./-]+\.(?:py|yaml|md|json))`", text
        )
        assert [name for name in names if not (ROOT / name).exists()] == [], page.name


def test_commands_are_understood() -> None:
    for page, command in commands():
        words = shlex.split(command.split(" #")[0])[1:]
        if not words or words[0].startswith("-"):
            continue
        assert words[0] in COMMANDS, (page, command)
        if words in (["train"], ["games"], ["example"]) or words[-1] == "...":
            continue
        assert make_parser(words[0]).parse_args(words).run, (page, command)
        for word in words:
            if word.endswith(".yaml") and word.startswith(("tuned_examples/", "docs/")):
                assert (ROOT / word).is_file(), (page, word)


SET = sorted({command for _, command in commands() if re.search(" tuned_examples/.* --set ", command)})


@pytest.mark.parametrize(
    "command", [*SET[::12], *(pytest.param(each, marks=pytest.mark.slow) for each in SET if each not in SET[::12])]
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
    import ray
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
    assert cluster["rayVersion"] == ray.__version__
    containers = [
        group["template"]["spec"]["containers"][0] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])
    ]
    assert all({"name": "HF_HOME", "value": "/shared/hf"} in container["env"] for container in containers)
    assert {container["image"] for container in containers} == {ray_up["docker"]["image"]}
    (memory,) = (volume["emptyDir"] for volume in cluster["headGroupSpec"]["template"]["spec"]["volumes"][1:])
    assert memory == {"medium": "Memory", "sizeLimit": "64Gi"}, "weights of two engines of 7B, for each node"


def test_no_leftovers() -> None:
    for page in (*PAGES, *(ROOT / "tuned_examples").rglob("*.yaml")):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"\b(TODO|FIXME|XXX|lorem|TBD)\b|/work/", text), page.name


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    (version,) = re.findall(r'^    version="(.*)",$', (ROOT / "setup.py").read_text(encoding="utf-8"), re.MULTILINE)
    assert (citation["cff-version"], citation["version"], citation["license"]) == ("1.2.0", version, "Apache-2.0")
    assert citation["message"] and citation["title"] and citation["authors"], "what the format asks for"


def test_every_command_stands_on_a_page() -> None:
    shown = {command.split()[1] for _, command in commands()}
    assert set(COMMANDS) <= shown


def test_all_places_for_an_import_path_are_listed() -> None:
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^## Parts and their keys\n.*?^## ", page, re.MULTILINE | re.DOTALL)
    keys = {re.sub(r"\[.*?\]", "", key).split(".")[-1] for key in re.findall(r"`([\w.*\[\]]+)`", table)}
    in_search_spaces = {"choice", "grid_search"}
    assert IMPORTING_KEYS - in_search_spaces - {"type"} <= keys | {"games", "env"}
    assert {"measures", "callbacks", "report", "advantage_estimator"} <= keys, "which take it as `type`"


def test_stable_imports_are_there() -> None:
    """Those of the table, and all that Python on a page imports."""
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8").partition("## Stable imports")[2]
    rows = re.findall(r"^\| `(rllib_lmgame[\w.]*)` \| (.*) \|$", page, re.MULTILINE)
    assert len(rows) > 20
    named = {(module, name) for module, names in rows for name in re.findall(r"`(\w+)`", names)}
    for text in (text for path in PAGES for text in blocks(path, "python")):
        named |= {
            (node.module, alias.name)
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("rllib_lmgame")
            for alias in node.names
        }
    for module, name in sorted(named):
        assert hasattr(importlib.import_module(module), name), f"{module}.{name}"


def test_no_module_takes_the_name_of_what_its_package_exports() -> None:
    """Importing it would put it in the place of the export."""
    for info in pkgutil.walk_packages(rllib_lmgame.__path__, "rllib_lmgame."):
        if not info.ispkg or info.name == "rllib_lmgame.cli":  # whose command has imported it before
            continue
        package = importlib.import_module(info.name)
        modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
        assert not modules & set(getattr(package, "__all__", ())), info.name
