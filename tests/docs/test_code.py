"""All Python and YAML of the README and the documentation does what it is shown for."""

from __future__ import annotations

import random
import re
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from ray.tune.search.variant_generator import generate_variants
from transformers import AutoModelForCausalLM, LlamaConfig

from rllib_lmgame.algorithms.grpo import LMGameGRPOConfig
from rllib_lmgame.algorithms.ppo import LMGamePPOConfig
from rllib_lmgame.base.errors import ConfigError, MissingDependencyError
from rllib_lmgame.base.registry import ESTIMATORS
from rllib_lmgame.cli.main import make_parser
from rllib_lmgame.envs.registry import make_session
from rllib_lmgame.experiments.checks.algorithms import check_callbacks
from rllib_lmgame.experiments.checks.check import check_experiments, check_quickly
from rllib_lmgame.experiments.checks.outside import stand_in_for_missing
from rllib_lmgame.experiments.spec import Source, make_spec
from rllib_lmgame.learners.losses.policy import PolicyTerms
from rllib_lmgame.policies.model.tiny import build_tiny_model
from rllib_lmgame.policies.options import LanguageModelOptions
from rllib_lmgame.policies.scripted import make_scripted_player
from rllib_lmgame.rollouts.batch_inference import Answer
from rllib_lmgame.rollouts.records import GameConfig

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

RUN_ELSEWHERE = {"README.md": 1, "writing-a-game.md": 5, "own-model.md": 1, "coming-from-rllib.md": 6, "serving.md": 3}
"""Python blocks with a test of their own."""

SMALLER = {
    "range(20)": "range(3)",
    'stop_at={"success": 0.4}': (
        'stop_at={"success": 0.4, "every": 2, "episodes": 4}, max_steps=4, steps_per_iteration=2, episodes_per_step=4'
    ),
    "episodes_per_iteration=128": "episodes_per_iteration=8",
}
"""What makes the README's example a matter of seconds."""


def blocks(page: Path, language: str) -> list[str]:
    """Fenced blocks."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) for indent, text in found]


@pytest.mark.slow
def test_the_example_of_the_readme_trains_prints_and_saves(
    ray_cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (text,) = blocks(ROOT / "README.md", "python")
    for shown, small in SMALLER.items():
        assert shown in text
        text = text.replace(shown, small)
    monkeypatch.chdir(tmp_path)
    results: list[dict[str, Any]] = []
    text = text.replace("algorithm.train()", "kept(algorithm.train())")
    exec(compile(text, "README.md", "exec"), {"kept": lambda result: results.append(result) or result})
    assert (tmp_path / "checkpoint" / "hf" / "model.safetensors").is_file()
    assert [result["phase"] for result in results] == [0, 0, 1]
    printed = [
        line.split() for line in capsys.readouterr().out.splitlines() if re.fullmatch(r"\d (nan|[01]\.\d+)", line)
    ]
    assert [number for number, _ in printed] == ["0", "1", "2"] and printed[2][1] != "nan"
    for place in (("env_runners",), ("timers",), ("learners", "player"), ("evaluation", "env_runners")):
        columns = []
        for result in results:
            section: Any = result
            for part in place:
                section = section[part]
            columns.append({key for key, value in section.items() if not isinstance(value, dict)})
        shared = set.intersection(*columns)
        assert {"success_rate", "policy_loss", "update_s"} & shared, place


@pytest.mark.slow
def test_the_page_of_the_python_api_runs_from_top_to_bottom(
    ray_cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All but the sweep itself, whose trials are looked at instead."""
    monkeypatch.chdir(tmp_path)
    trials: list[dict[str, Any]] = []

    def fit(tuner: Any) -> Any:
        trials.extend(config for _, config in generate_variants(tuner._local_tuner._param_space))
        return SimpleNamespace(get_best_result=lambda metric, mode: SimpleNamespace(config=trials[0]))

    monkeypatch.setattr("ray.tune.Tuner.fit", fit)
    names: dict[str, Any] = {}
    *texts, _ = blocks(ROOT / "docs" / "coming-from-rllib.md", "python")
    for text in texts:
        exec(compile(text, "coming-from-rllib.md", "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    assert (tmp_path / "checkpoint" / "hf" / "README.md").is_file()
    assert names["module"].version == 2 and any(line.startswith("2 3") for line in printed)
    assert [trial["lr"] for trial in trials] == [1e-4, 3e-4]
    for trial in trials:
        LMGamePPOConfig().update_from_dict({key: trial[key] for key in ("env", "lr")}).validate()


@pytest.mark.slow
def test_the_page_for_users_of_rllib_trains_and_hears(ray_cluster: Any, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "shown"}
    exec(compile(block("coming-from-rllib.md", "WordsPerReply"), "coming-from-rllib.md", "exec"), names)
    assert re.search(r"^\d+\.\d+ \d+\.\d+$", capsys.readouterr().out, re.MULTILINE)
    assert names["config"].trained_policies() == ["player"]


def test_the_page_of_ones_own_model_shows_what_it_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a random Llama that has a tokenizer of its own, and with demonstrations."""
    build_tiny_model(tmp_path / "models" / "mine", ["What is 1 + 2? Reply with the result alone. " * 3])
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=320, **shape)).save_pretrained(tmp_path / "models" / "mine")
    monkeypatch.chdir(tmp_path)
    (text,) = blocks(ROOT / "docs" / "own-model.md", "python")
    names: dict[str, Any] = {}
    exec(compile(text, "own-model.md", "exec"), names)
    page = (ROOT / "docs" / "own-model.md").read_text(encoding="utf-8")
    (spec,) = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0]).values()
    (command,) = re.findall(r"\$ (rllib evaluate models/mine .*)", page)
    given = yaml.safe_load(make_parser("evaluate").parse_args(shlex.split(command)[1:]).config)["language_model"]
    seen = names["options"].model_copy(update={"model": "models/mine"})
    assert LanguageModelOptions(**spec["config"]["language_model"]) == seen
    assert LanguageModelOptions(model="models/mine", **given) == seen
    printed = capsys.readouterr().out
    assert "<|assistant|><answer>\n" in printed and "room for a reply of 16" in printed
    assert "a reply that is read: '<answer>12</answer>'" in printed
    assert re.search(r"a reply ends at \['<\|end\|>', .*'</answer>'\]", printed)
    exec(text.replace('model="models/mine",', 'model="models/mine", demonstrations=3,'), {})
    assert capsys.readouterr().out.count("<|assistant|><answer>") == 4


@pytest.mark.parametrize(
    ("page", "name", "played"), [("many-players.md", "LastMove", "9876543"), ("extending.md", "First", "1234567")]
)
def test_the_scripted_player_shown_plays(page: str, name: str, played: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("my_players")
    monkeypatch.setitem(sys.modules, "my_players", module)
    exec(compile(block(page, f"class {name}"), page, "exec"), vars(module))
    player, game, moves = make_scripted_player(f"my_players:{name}"), make_session("lmgame/TicTacToe-v0"), []
    game.reset(seed=0)
    while seats := game.to_act():
        moves.append(player.act(game, seats[0], game.observe(seats[0]), random.Random(0)))
        game.step({seats[0]: moves[-1]})
    assert "".join(moves) == played


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.name not in RUN_ELSEWHERE and blocks(page, "python")],
    ids=lambda page: page.stem,
)
def test_python_runs(page: Path) -> None:
    for text in blocks(page, "python"):
        try:
            exec(compile(text, page.name, "exec"), {})
        except MissingDependencyError as missing:
            pytest.skip(str(missing))


def block(page: str, words: str) -> str:
    """The one Python block of a page with these words."""
    (text,) = (text for text in blocks(ROOT / "docs" / page, "python") if words in text)
    return text


@pytest.mark.parametrize(("options", "scale"), [({}, 1.0), ({"scale": 2}, 2.0)])
def test_the_estimator_shown_is_taken_without_a_critic_and_with_its_option(
    options: dict[str, Any], scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("my_package.estimators")
    monkeypatch.setitem(sys.modules, "my_package", ModuleType("my_package"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(block("extending.md", "class MeanOfGroup"), "extending.md", "exec"), vars(module))
    name = "my_package.estimators:MeanOfGroup"
    choice = {"type": name, **options} if options else name
    LMGameGRPOConfig().environment("lmgame/Sokoban-v0").training(advantage_estimator=choice).validate()
    inputs: Any = SimpleNamespace(
        groups=np.array([0, 1, 0]), returns=np.array([1.0, 5.0, 2.0]), per_token=lambda values: np.repeat(values, 2)
    )
    assert ESTIMATORS.read(choice)(inputs).tolist() == [-0.5 * scale] * 2 + [0.0] * 2 + [0.5 * scale] * 2


def test_the_policy_loss_shown_is_the_formula_beside_it() -> None:
    """At ``r = 1`` it has the gradient of ``-r A``, and none where ``r`` has gone as far as ``clip_high`` allows."""
    shown: dict[str, Any] = {}
    exec(compile(block("algorithms.md", "class SPO"), "algorithms.md", "exec", dont_inherit=True), shown)
    ratio = torch.tensor([1.0, 1.2, 0.7, 1.0, 0.8, 1.5], dtype=torch.float64)
    advantages = torch.tensor([2.0, 2.0, 2.0, -3.0, -3.0, -3.0], dtype=torch.float64)
    new, old = ratio.log().requires_grad_(), torch.zeros_like(ratio)
    terms = PolicyTerms(
        logprobs=new, old_logprobs=old, rollout_logprobs=old, advantages=advantages, sequence=torch.arange(6)
    )
    loss, sums = shown["SPO"](clip_high=0.2)(terms)
    formula = [-(r * a - abs(a) * (r - 1) ** 2 / 0.4) for r, a in zip(ratio.tolist(), advantages.tolist(), strict=True)]
    assert loss.tolist() == pytest.approx(formula)
    (slope,) = torch.autograd.grad(loss.sum(), new)
    assert slope[[0, 1, 3, 4]].tolist() == pytest.approx([-2.0, 0.0, 3.0, 0.0])
    assert sums["ratio"].item() == pytest.approx(6.2)


def test_the_measure_shown_is_taken_and_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("my_package.my_module")
    monkeypatch.setitem(sys.modules, "my_package", ModuleType("my_package"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(block("leagues.md", "class Bluffs"), "leagues.md", "exec"), vars(module))
    name = "my_package.my_module:Bluffs"
    for env, words in (("lmgame/KuhnPoker-v0", None), ("lmgame/Sokoban-v0", "Sokoban-v0 is not Kuhn poker")):
        config = LMGamePPOConfig().environment(env).update_from_dict({"evaluation_interval": 1})
        config.update_from_dict({"evaluation_config": {"measures": [name]}})
        with nullcontext() if words is None else pytest.raises(ConfigError, match=words):
            config.validate()

    def ask(decisions: Any, samples: int) -> list[Answer]:
        return [Answer({"check": 0.75, "bet": 0.25}, 0.0) for _ in decisions]

    policies: Any = SimpleNamespace(reasoning=False, ask=ask)
    assert vars(module)["Bluffs"]()(GameConfig(env="lmgame/KuhnPoker-v0"), policies) == {"bluff_rate": 0.25}


def test_python_with_a_test_of_its_own_is_all_there_is() -> None:
    for page in PAGES:
        if page.name in RUN_ELSEWHERE:
            assert len(blocks(page, "python")) == RUN_ELSEWHERE[page.name], page.name


YAML = [(page, text) for page in PAGES for text in blocks(page, "yaml") if "my_package.tools_server" not in text]
"""That one is run by tests/envs/test_own_tools.py, with tools of its own."""


@pytest.mark.parametrize(("page", "text"), YAML, ids=[f"{page.stem}-{text.split(':')[0]}" for page, text in YAML])
def test_yaml_passes_the_checks_of_a_run(
    page: Path, text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A fragment is put where it belongs: settings of an experiment, or of its configuration."""
    monkeypatch.setenv("JUDGE_KEY", "of a judge")
    if "my_ideas" in text:
        ideas = ModuleType("my_ideas")
        monkeypatch.setitem(sys.modules, "my_ideas", ideas)
        exec(compile(block(page.name, "class BetterThanGroup"), page.name, "exec"), vars(ideas))
    if "lmgame/WebArena-v0" in text:  # A site has an address, and somebody has logged in.
        monkeypatch.setenv("WA_SHOPPING", "http://127.0.0.1:9")
        (tmp_path / ".auth").mkdir()
        (tmp_path / ".auth" / "shopping_state.json").write_text('{"cookies": [], "origins": []}')
        monkeypatch.chdir(tmp_path)
    ((name, settings), *others) = yaml.safe_load(text).items()
    if not others and isinstance(settings, dict) and "run" in settings:
        pass
    elif name in ("callbacks", "env_vars", "report", "scheduler"):
        settings = {name: settings, "run": "LMGamePPO", "env": "lmgame/Sokoban-v0"}
    else:
        gpus = {
            "num_learners": 2,
            "num_gpus_per_learner": 1,
            "language_model": {
                "model": "Qwen/Qwen2.5-0.5B-Instruct",
                "dtype": "bfloat16" if name == "deepspeed" else "auto",
            },
        }
        config = {**gpus, name: settings, **dict(others)}
        game = config.pop("env", "lmgame/Sokoban-v0")
        settings = {"run": "LMGamePPO", "env": game, "config": config}
    callbacks = settings.pop("callbacks", None)
    spec = make_spec("shown", {"stop": {"rl_iteration": 1}, **settings}, Source(page.name))
    check_quickly([spec])
    stand_in_for_missing([spec])
    try:
        check_experiments([spec])[0]
    except MissingDependencyError as missing:
        if "lmgame/WebArena-v0" not in text and "model: smollm2-135m" not in text:
            raise
        pytest.skip(str(missing))  # There is no browser, or the weights are not installed.
    for callback in callbacks or []:
        try:
            check_callbacks([callback])
        except ConfigError as missing:
            assert f"pip install {callback['type']}" in str(missing)
