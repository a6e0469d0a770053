"""Every tuned example is checked as `rllib example run ... --dry-run` checks it: keys, types, combinations, games,
resources. The nine that are no slow tests take 5 s.
"""

from __future__ import annotations

import io
import math
import re
import socket
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path

import jsonschema
import pytest
from json_schema import file_schema

from rllib_lmgame.algorithms.cluster.footprint import footprint
from rllib_lmgame.algorithms.config import LMGameConfig
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.cli.main import main
from rllib_lmgame.experiments.checks import check, prompts
from rllib_lmgame.experiments.checks.check import CheckedExperiment, check_experiments, check_quickly
from rllib_lmgame.experiments.checks.dry_run import dry_run_lines
from rllib_lmgame.experiments.checks.outside import dry_run_outside, stand_in_for_missing
from rllib_lmgame.experiments.checks.resources import cards_of, request_of
from rllib_lmgame.experiments.files.reading import apply_overrides, load_file, read_experiments
from rllib_lmgame.experiments.spec import ExperimentSpec, make_specs
from rllib_lmgame.learners.microbatch import MOST_TOKENS
from rllib_lmgame.policies.model.gguf_files import PRETRAINED
from rllib_lmgame.rollouts.options import share_of_groups

EXAMPLES = Path(__file__).parents[2] / "tuned_examples"
SCHEMA = EXAMPLES / "experiment.schema.json"
FILES = sorted(EXAMPLES.rglob("*.yaml"))
GPU_FILES = [path for path in FILES if re.search(r"-\d+gpu$", path.stem)]
MULTIPLAYER_FILES = [path for path in GPU_FILES if path.stem.startswith("multiplayer")]
AGENTGYM_FILES = [path for path in GPU_FILES if path.stem.startswith("agentgym")]
HERE = [path for path in FILES if not path.stem.startswith("smollm2") or PRETRAINED["smollm2-135m"].installed()]
"""Those whose weights are installed, where a package has them."""
GRL_QUICK = EXAMPLES / "grl-quick.yaml"
TINY_FILES = [path for path in HERE if path not in (*GPU_FILES, GRL_QUICK) and path.stem != "cartpole-ppo"]
QUICK = {
    "cartpole-ppo",
    "kuhn-league-tiny",
    "lmrl-tiny",
    "quickstart-sokoban",
    "sokoban-grpo-qwen2.5-7b-8gpu",
    "sokoban-lora-qwen2.5-7b-1gpu",
    "sokoban-qwen2.5-7b-8gpu",
    "sokoban-sft-tiny",
    "sokoban-sweep-asha-tiny",
}
"""One of each kind, whose dry run takes a second at most; the dry runs of all are slow tests."""


def each(paths: Iterable[Path]) -> pytest.MarkDecorator:
    """Parameters ``path``, of which all but those of ``QUICK`` are slow."""
    slow = [path if path.stem in QUICK else pytest.param(path, marks=pytest.mark.slow) for path in paths]
    return pytest.mark.parametrize("path", slow, ids=lambda path: path.stem)


@cache
def dry_run(path: Path) -> tuple[list[CheckedExperiment], str, list[str]]:
    """The experiments that `rllib example run NAME --dry-run` checks, what it prints, and what it says beside that."""
    found: list[CheckedExperiment] = []

    def keeping(specs: Iterable[ExperimentSpec]) -> list[CheckedExperiment]:
        found.extend(check_experiments(specs))
        return found

    name = path.relative_to(EXAMPLES).with_suffix("").as_posix()
    printed, said = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), redirect_stderr(said):
        patch.setattr(check, "check_experiments", keeping)
        patch.setattr(prompts, "BUDGET_S", math.inf)  # How long it takes says how busy the machine is.
        assert main(["example", "run", name, "--dry-run"]) == 0, said.getvalue()
    return found, printed.getvalue(), said.getvalue().splitlines()


def checked_all(path: Path) -> list[CheckedExperiment]:
    return dry_run(path)[0]


def checked(path: Path) -> CheckedExperiment:
    """The only experiment of a file; of several that differ in the game alone, the first."""
    return checked_all(path)[0]


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of the examples are hub ids; checking an example must not ask the hub."""

    connect = socket.socket.connect

    def refuse(self, address) -> None:
        assert address[0] == "127.0.0.1", f"a dry run connects to {address}"
        connect(self, address)  # Whether the games of a server on this machine are there.

    monkeypatch.setattr(socket.socket, "connect", refuse)


@each(HERE)
def test_example_passes_every_check_without_network(path: Path) -> None:
    experiments, printed, said = dry_run(path)
    hardware = path.stem.partition("-")[2]
    if len(experiments) > 1:
        assert all(experiment.spec.name.endswith(f"-{hardware}") for experiment in experiments)
    else:
        assert experiments[0].spec.name == path.stem
    for experiment in experiments:
        assert experiment.spec.options.stop, "an example ends by itself"
        text = "\n".join(dry_run_lines(experiment))
        assert "in all" in text and experiment.spec.name in text
    assert "# resources of one trial" in printed
    said = [line for line in said if " is converted once into " not in line]
    assert all(line.startswith("note: ") and "`rllib data fetch " in line for line in said), said
    assert bool(said) == bool(re.search("^[^#]*[\"' ]data:[a-z]", path.read_text(), re.MULTILINE))


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(file_schema())


def test_examples_are_what_the_schema_says(schema: jsonschema.Draft202012Validator) -> None:
    schema.check_schema(schema.schema)
    found = {path.stem: [error.message for error in schema.iter_errors(load_file(path)[0])] for path in FILES}
    assert {name: errors for name, errors in found.items() if errors} == {}


@pytest.mark.parametrize(
    "override",
    [
        "rum=PPO",
        "config.lr=-1",
        "config.gamma={unifrom: [0, 1]}",
        "config.num_learners={points: [[0, 1]]}",
        "config.training.clip_lo=0.1",
        "config.games=[{env: lmgame/Sokoban-v0, wieght: 2}]",
        "config.training.policy_loss={type: cispo, clip_low: 0.1}",
        "config.training.advantage_estimator={type: gae, baseline_decay: 0.5}",
    ],
)
def test_a_wrong_key_type_and_range_is_refused_by_the_schema(
    override: str, schema: jsonschema.Draft202012Validator
) -> None:
    """And by the checks before a run, at the same place."""
    experiments, source = load_file(EXAMPLES / "quickstart-sokoban.yaml")
    changed = apply_overrides(experiments, source, [override])
    assert not schema.is_valid(changed)
    key = override.partition("=")[0]
    with pytest.raises(ConfigError) as caught:
        check_quickly(make_specs(changed, source))
        check_experiments(make_specs(changed, source))
    assert caught.value.path.startswith(key)


@pytest.mark.parametrize(
    "override",
    [
        "config.lr={points: [[0, 1.0e-3], [9, 1.0e-4]]}",
        "config.training={grid_search: [{num_minibatches: 2}, {}]}",
        "config.training.policy_loss.clip_high={by: env_runners/success_rate, values: [0.2, 0.3], above: 0.5}",
        "config.env_config.max_turns={choice: [3, 4]}",
        "config.training.policy_loss={type: {choice: [clip, gspo]}, dual_clip: 3}",
        "config.training.policy_loss={type: 'own.losses:mine', dual_clip: 3}",
        "config.policies=[player]",
        "config.policies={player: {grid_search: [{}, {trained: false}]}}",
        "config.lr={points: [[0, {uniform: [1.0e-5, 1.0e-4]}], [9, 1.0e-6]]}",
        "checkpoint_config=",
        "run=PPO",
    ],
)
def test_search_spaces_schedules_and_rllibs_other_keys_are_in_the_schema(
    override: str, schema: jsonschema.Draft202012Validator
) -> None:
    assert schema.is_valid(apply_overrides(*load_file(EXAMPLES / "quickstart-sokoban.yaml"), [override]))


def test_examples_begin_with_what_they_are_and_how_to_run_them() -> None:
    for path in FILES:
        editors, first, *rest = path.read_text(encoding="utf-8").splitlines()
        schema = re.fullmatch(r"# yaml-language-server: \$schema=(\S+)", editors)
        assert schema and (path.parent / schema[1]).resolve() == SCHEMA, path
        assert first.startswith("# ") and len(first) > 40, path
        if path in TINY_FILES or path in GPU_FILES:
            (command,) = [line for line in rest[:4] if f"rllib train file tuned_examples/{path.name}" in line]
            specs = read_experiments(str(path), [])
            check_quickly(specs)
            names = [spec.name for spec in specs]
            assert len(names) == 1 or command.endswith(f" --experiment-name {names[0]}"), path


@pytest.mark.slow
def test_learners_have_a_group_for_every_minibatch() -> None:
    """Where groups are compared they stay whole, and a learner with fewer makes fewer optimizer steps."""
    compared = [
        (experiment.spec.name, config)
        for path in HERE
        for experiment in checked_all(path)
        for config in experiment.configs
        if isinstance(config, LMGameConfig) and config.run.compares
    ]
    assert {"sokoban-grpo-tiny", "sciworld-qwen2.5-7b-8gpu"} < {name for name, _ in compared}
    for name, config in compared:
        rollouts, selection = config.run.text_rollouts, config.run.data_selection
        groups = share_of_groups(
            selection.reward_variance_filter, rollouts.episodes_per_iteration // rollouts.group_size
        )
        assert groups // max(1, config.num_learners) >= config.run.training.num_minibatches, name


@each(TINY_FILES)
def test_tiny_example_needs_two_cores_and_no_gpu(path: Path) -> None:
    total = request_of(checked(path)).required_resources
    assert total.get("GPU", 0) == 0
    assert total["CPU"] <= 2


@each(GPU_FILES)
def test_gpu_example_uses_the_gpus_of_its_name(path: Path) -> None:
    named = int(re.search(r"-(\d+)gpu$", path.stem).group(1))  # type: ignore[union-attr]
    for experiment in checked_all(path):
        assert request_of(experiment).required_resources["GPU"] == pytest.approx(named)


GRL_TASKS = [
    "Sokoban",
    "SokobanLarge",
    "GSM8K",
    "GSM8KFiveTries",
    "Blocksworld",
    "Blocksworld1d",
    "Blocksworld2d",
    "Tetris",
    "TetrisDominoes3x3",
    "TetrisDominoes",
    "WebShop",
    "BIRD",
    "BIRDFiveTries",
]


@each(path for path in GPU_FILES if path.stem.startswith(("sokoban", "grl")))
def test_grl_examples_validate_on_its_thirteen_tasks(path: Path) -> None:
    """The tasks of GRL's configs/agents.yaml."""
    for experiment in checked_all(path):
        games = experiment.configs[0].games_for_evaluation()
        assert [game.env for game in games] == [f"lmgame/{name}-v0" for name in GRL_TASKS]
        assert {game.env_config["split"] for game in games} == {"validation"}


@each(GPU_FILES)
def test_a_gpu_example_names_real_data_and_the_command_that_fetches_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    named = set(re.findall(r'"data:([\w-]+)"', text))
    (fetched,) = re.findall(r"^#.*: rllib data fetch ([\w :-]+)$", text, re.MULTILINE) or [""]
    assert named == set(fetched.split())
    for experiment in checked_all(path):
        assert not made_up_levels_of(experiment) or named or path in AGENTGYM_FILES
    settings = load_file(path)[0].values()
    games = [game for each in settings for game in each["config"].get("evaluation_config", {}).get("games", ())]
    imitated = [f"lmgame/{name}-v0" for name in GRL_TASKS if name.startswith(("GSM8K", "WebShop", "BIRD"))]
    assert not [game for game in games if game in imitated], "played on made-up levels"
    for each in settings:
        assert each.get("env") not in imitated or each["config"]["env_config"]["data"].startswith("data:"), "trained on"
    assert not named or named == ({"searchqa"} if path in AGENTGYM_FILES else {"gsm8k", "webshop", "bird"})


def made_up_levels_of(experiment) -> bool:
    return "# made-up levels" in dry_run_outside(experiment)


@each(MULTIPLAYER_FILES)
def test_multiplayer_example_has_a_tiny_one_of_each_mapping(path: Path) -> None:
    names = {spec.name.partition("-qwen")[0] for spec in read_experiments(str(path), [])}
    assert len(names) == 10
    assert {f"{name}-tiny" for name in names} <= {tiny.stem for tiny in TINY_FILES}
    for experiment in checked_all(path):
        config = experiment.configs[0]
        tokens = config.run.training.microbatch or MOST_TOKENS
        assert config.run.language_model.context_length <= tokens
        assert config.run.training.advantage_estimator.type == "rae"


@each(GPU_FILES)
def test_gpu_example_fits_the_cards_it_names(path: Path) -> None:
    """And the host memory; on a smaller card with what is to be set there."""
    text = path.read_text(encoding="utf-8")
    (named,) = re.findall(r"GPUs? of (\d+) GB", text.splitlines()[1])
    host = re.search(r"(\d+) GB of host memory", text)
    for experiment in checked_all(path):
        config = experiment.configs[0]
        assert fits(config, int(named)), experiment.spec.name
        assert ("offload" in text) == bool(host)
        assert host is None or footprint(config).on_host / 1024 < int(host.group(1))
    for smaller, setting in re.findall(r"On a GPU of (\d+) GB: --set (.*)", text):
        config = experiment.configs[0]
        assert not fits(config, int(smaller))
        specs = read_experiments(str(path), [setting])
        stand_in_for_missing(specs)
        config = check_experiments(specs)[0].configs[0]
        assert fits(config, int(smaller))


@each(GPU_FILES)
def test_gpu_example_says_what_the_dry_run_does(path: Path) -> None:
    """What learner, engine and hosts need, the most of all experiments of the file."""
    (said,) = re.findall("^# By the dry run .*", path.read_text(encoding="utf-8"), re.MULTILINE)
    for what, end in (("learner", ""), ("of the card, at least", " or more"), ("host memory in all", "")):
        most = max(map(float, re.findall(rf"{what} ([\d.]+) GiB", dry_run(path)[1])))
        assert re.search(rf" {most:g} GiB{end}\b", said), (what, most)
    stored = max(footprint(experiment.configs[0]).object_store for experiment in checked_all(path)) / 1024
    assert f"{stored:.1f} of it in /dev/shm" in said if stored else "shm" not in said


def fits(config: LMGameConfig, card: int) -> bool:
    """Whether every GPU of a run holds what is on it."""
    cards = [smallest for _, smallest, _ in cards_of(config, footprint(config))]
    assert cards
    return all(smallest is not None and smallest <= card for smallest in cards)
