"""What is found wrong before anything starts."""

from __future__ import annotations

import shutil
import sys

import pytest
from ray.tune import Callback

from rllib_lmgame.algorithms.checkpoints.paths import MARKER
from rllib_lmgame.algorithms.models import initial_model
from rllib_lmgame.algorithms.ppo import LMGamePPOConfig
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.games.grids.sokoban import Sokoban
from rllib_lmgame.experiments.checks.algorithms import PACKAGES, make_callbacks
from rllib_lmgame.experiments.checks.check import check_experiments, check_quickly
from rllib_lmgame.experiments.checks.dry_run import dry_run_lines, resolved_config
from rllib_lmgame.experiments.checks.resources import request_of
from rllib_lmgame.experiments.files.reading import apply_overrides, dump_text, load_text
from rllib_lmgame.experiments.spec import make_specs

GAME = "a:\n  run: LMGamePPO\n  env: lmgame/Sokoban-v0\n  stop: {rl_iteration: 1}\n  config: {num_learners: 1}\n"
SFT = GAME.replace("LMGamePPO", "LMGameSFT").replace("rl_iteration", "supervised_steps")
STOCK = "a:\n  run: PPO\n  env: gymnasium:Taxi-v3\n  stop: {training_iteration: 1}\n  config: {num_env_runners: 0}\n"


def check(text: str, *overrides: str, trust: bool = False):
    experiments, source = load_text(text, "x.yaml")
    (spec,) = make_specs(apply_overrides(experiments, source, overrides), source)
    check_quickly([spec], trust=trust)
    return check_experiments([spec])[0]


def error_of(text: str, *overrides: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        check(text, *overrides)
    return caught.value


RAISING = """
from rllib_lmgame.learners.advantages.base import Estimator

class Leaving(Estimator):
    def step(self):
        pass

    def __init__(self, **options):
        raise SystemExit(3)

class NotMade(Estimator):
    def __init__(self):
        pass

class Player:
    act = property(lambda self: 1 / 0)
"""


@pytest.fixture
def broken_module(tmp_path, monkeypatch):
    """A module that raises when it is imported, and one whose parts raise when they are asked anything."""
    (tmp_path / "broken_module.py").write_text("raise RuntimeError('no luck')")
    (tmp_path / "raising.py").write_text(RAISING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "raising", raising=False)


@pytest.mark.parametrize(
    ("text", "override", "words"),
    [
        (GAME, "training={policy_loss: {clip_high: 0.3}}", "'config.training'"),
        (GAME, "config.inference.max_tokens_per_turn=8", "'config.language_model.max_tokens_per_turn'"),
        (GAME, "config.inference.temperature='1e-1'", "must be a valid number"),
        (GAME, "config.lr={loguniforn: [1e-6, 1e-4]}", "loguniforn"),
        (GAME, "config.env_config.max_turns={values: [1, 2]}", "must be a valid integer, got the mapping"),
        (GAME, "config.inference.engine={type: x}", "no engine `x`"),
        (GAME, "stop.ppo_iteratoin=1", "rl_iteration"),
        (GAME, "run=LMGamPPO", "LMGamePPO"),
        (GAME, "run=os:path", "not an RLlib Algorithm"),
        (GAME, "restore=/no/such/checkpoint", "no such directory"),
        (GAME, "restore=s3://bucket/checkpoint", "directories only"),
        (GAME, "config.supervised={max_steps: 3}", "did you mean 'config.warm_start'?"),
        (SFT, "config.async_rollouts={max_staleness: 1}", "unknown key; it is one of LMGamePPO, LMGameGRPO"),
        (GAME, "config.evaluation_config.num_env_runners=5", "config.evaluation_num_env_runners"),
        (GAME, "config.num_gpus=0", "num_gpus_per_learner, and inference.num_gpus_per_engine"),
        (STOCK, "config.lr2=3", "did you mean 'lr'"),
        (STOCK, "config.use_gae=yes", "write true or false"),
        (STOCK.replace("  env: gymnasium:Taxi-v3\n", ""), "config.env=CartPole-v9", "It provides versioned"),
    ],
)
def test_who_is_refused_is_told_what_works_here(text, override, words):
    error = error_of(text, override)
    assert (error.path, error.source) == (override.partition("=")[0], f"--set {override}") and words in error.message


@pytest.mark.parametrize(
    ("override", "key", "words"),
    [
        ("callbacks=['broken_module:X']", "callbacks[0]", "RuntimeError: no luck"),
        ("callbacks=['os:getcwd']", "callbacks[0]", "derived from ray.tune.Callback"),
        ("callbacks=[{type: 'ray.tune.logger:CSVLoggerCallback', separator: x}]", "callbacks[0]", "'separator'"),
        ("config.warm_start.expert='raising:Player'", "config.warm_start.expert", "ZeroDivisionError"),
        ("env='raising:Leaving'", "config.env", "SystemExit: 3"),
        *(
            (f"config.training.advantage_estimator='raising:{name}'", "config.training.advantage_estimator", words)
            for name, words in (("NotMade", "making `raising:NotMade` fails: TypeError"), ("Leaving", "SystemExit: 3"))
        ),
        ("config.lr={quniform: [1.0e-5, 1.0e-3, 3.0e-5]}", "config.lr.quniform", "not divisible"),
        ("config.language_model={tokenizer: ~nobodyhere/x}", "config.language_model.tokenizer", "no such tokenizer"),
    ],
)
def test_wrong_names_of_what_is_brought_along(override, key, words, broken_module):
    error = error_of(GAME, override)
    assert (error.path, error.source) == (key, f"--set {override}") and words in error.message


@pytest.mark.parametrize("override", ["custom_resources_per_env_runner={a: x}", "num_gpus_per_env_runner=[1]"])
def test_what_a_trial_of_rllibs_asks_for_must_be_countable(override):
    checked = check(STOCK.replace("env: ", "env: gymnasium:"), "config.num_env_runners=1", f"config.{override}")
    with pytest.raises(ConfigError, match="cannot be counted") as caught:
        request_of(checked)
    assert caught.value.path == "config"


@pytest.fixture(scope="module")
def of_taxi(tmp_path_factory):
    """A checkpoint with the models of a run on Taxi."""
    checkpoint = tmp_path_factory.mktemp("checkpoint")
    (checkpoint / MARKER).write_text("{}")
    files = initial_model(LMGamePPOConfig().environment("lmgame/Taxi-v0"), "player")
    shutil.copytree(files.directory(), checkpoint / "hf")
    return checkpoint


def test_a_model_without_a_tokenizer_is_told_at_the_key_that_named_it(of_taxi, tmp_path) -> None:
    bare = shutil.copytree(of_taxi / "hf", tmp_path / "bare", ignore=shutil.ignore_patterns("*token*", "vocab*"))
    error = error_of(
        GAME.replace("{num_", "{language_model: {max_tokens_per_turn: 8}, num_"), f"config.language_model.model={bare}"
    )
    assert (error.path, error.source) == ("config.language_model.model", f"--set config.language_model.model={bare}")
    assert "name one in language_model.tokenizer" in error.message


def test_messages_of_rllib_get_a_key_and_a_line():
    error = error_of(STOCK, "config.minibatch_size=5000", "config.train_batch_size_per_learner=100")
    assert error.path.startswith("config")
    assert "minibatch_size" in error.message
    assert "Traceback" not in str(error)


def test_the_line_of_a_value_in_the_file_is_named():
    text = "a:\n  run: LMGamePPO\n  env: lmgame/Sokoban-v0\n  config:\n    lr: 1e-4\n    inference:\n      top_p: 2\n"
    assert (
        str(error_of(text))
        == "x.yaml:7: config.inference.top_p: must be less than or equal to 1, got the whole number 2"
    )


class Picky(Callback):
    def __init__(self, version: int = 1) -> None:
        if version != 1:
            raise RuntimeError("install another version")


def test_a_callback_that_cannot_be_made_is_named():
    with pytest.raises(ConfigError, match=r"callbacks\[1\]: .*install another version"):
        make_callbacks([f"{__name__}:Picky", {"type": f"{__name__}:Picky", "version": 2}])


def test_numbers_of_evaluations_that_nobody_makes_are_refused():
    kuhn = GAME.replace("Sokoban", "KuhnPoker")
    measured = "config.evaluation_config={measures: [exploitability]}"
    for name in ("exploitability", "exploitabilty", "env_runners/measures/joint_share"):
        assert error_of(kuhn, f"stop={{evaluation/{name}: 0.9}}", measured).path == f"stop.evaluation/{name}"


@pytest.fixture
def sokobans(monkeypatch):
    """``env_config`` of every Sokoban that somebody tries to make, filled as they are made."""
    tried, plain = [], Sokoban.__init__

    def counted(self, **env_config):
        tried.append(env_config)
        plain(self, **env_config)

    monkeypatch.setattr(Sokoban, "__init__", counted)
    return tried


def test_every_game_is_made_once(sokobans):
    """As it is configured, for evaluation, and as a schedule makes it."""
    check(
        GAME,
        "config.env_config.num_boxes={points: [[0, 1], [9, 2]]}",
        "config.evaluation_config={games: [{env: lmgame/Sokoban-v0, env_config: {split: test}}]}",
        "config.evaluation_interval=1",
    )
    made = [{name: value for name, value in env_config.items() if name != "show_rules"} for env_config in sokobans]
    assert sorted(made, key=str) == [{"num_boxes": 1}, {"num_boxes": 2}, {"split": "test"}]


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("config.env_config={numbered_cell: true}", "config.env_config.numbered_cell"),
        ("config.env_config={symbols: '0123456', numbered_cells: true}", "config.env_config.numbered_cells"),
        ("config.env_config={max_distance: 4}", "config.env_config.min_distance"),
    ],
)
def test_what_is_wrong_without_a_schedule_is_not_called_the_schedules_fault(override, key, sokobans):
    assert error_of(GAME, override, "config.env_config.min_distance={points: [[0, 3], [20, 5]]}").path == key
    assert len({str(env_config) for env_config in sokobans}) == len(sokobans), "made twice"


def test_every_point_of_a_grid_is_built():
    text = STOCK.replace("CartPole-v1", "gymnasium.envs.classic_control:CartPole-v1")  # Imports its module.
    checked = check(text, "config.lr={grid_search: [1e-3, 1e-4]}", "config.gamma={choice: [0.9, 0.99]}")
    assert {c.lr for c in checked.configs} == {1e-3, 1e-4}
    assert {c.gamma for c in checked.configs} == {0.9, 0.99}


def test_a_server_has_the_weights_of_one_trial() -> None:
    servers = [f"{{type: server, url: 'http://h:{port}', weights_dir: /tmp}}" for port in (1, 2)]
    check(GAME, f"config.inference.engine={servers[0]}")
    check(GAME, f"config.inference.engine={{grid_search: [{', '.join(servers)}]}}")
    error = error_of(GAME, f"config.inference.engine={servers[0]}", "num_samples=2")
    assert error.path == "config.inference.engine.url" and "one trial, not 2" in error.message


def test_tune_learns_of_the_last_checkpoint_that_is_written_meanwhile_at_the_end() -> None:
    error = error_of(GAME, "checkpoint_config={asynchronous: true, checkpoint_at_end: false}")
    assert error.path == "checkpoint_config.checkpoint_at_end"


def test_resources_hold_runners_learners_and_engines():
    request = request_of(
        check(GAME, "config.num_env_runners=2", "config.num_learners=2", "config.inference.num_engines=3")
    )
    assert request.required_resources["CPU"] == 1 + 2 + 2 + 3
    assert "GPU" not in request.required_resources
    gpus = request_of(
        check(
            GAME,
            "config.num_gpus_per_learner=1",
            "config.num_learners=4",
            "config.inference={num_engines: 2, num_gpus_per_engine: 2, tensor_parallel_size: 2}",
        )
    )
    assert gpus.required_resources["GPU"] == 8
    assert gpus.bundles.count({"CPU": 1, "GPU": 2}) == 2
    nodes = "{num_engines: 2, num_gpus_per_engine: 4, tensor_parallel_size: 2, pipeline_parallel_size: 2}"
    over_nodes = request_of(check(GAME, f"config.inference={nodes}"))
    assert over_nodes.bundles[-8:] == 2 * [{"CPU": 1, "GPU": 1}, *3 * [{"GPU": 1}]]


def test_the_dry_run_shows_everything():
    checked = check(
        GAME,
        "config.lr={grid_search: [1e-4, 3e-4]}",
        "config.deepspeed={zero_optimization: {stage: 2}}",
        "config.num_env_runners=1",
    )
    text = "\n".join(dry_run_lines(checked))
    for words in (
        "2 trials",
        "rl_iteration: 1",
        "grid_search",
        "context_length:",
        "in all 4 CPU",
        "parameters",
        "learner of player x 1",
        "engine of player x 1",
        "env runner x 1",
    ):
        assert words in text
    resolved = resolved_config(checked)
    assert resolved["lr"] == 1e-4
    assert resolved["deepspeed"] == {"zero_optimization": {"stage": 2}}
    assert resolved["inference"]["temperature"] == 1.0


@pytest.mark.parametrize(
    "overrides",
    [
        ["config.text_rollouts.episodes_per_iteration=32", "config.gamma=0.99"],
        ["config.training={kl: {coef: 0.1}, importance_sampling: {cap: null}}"],
        ["config.training.kl={coef: {points: [[0, 0.1], [9, 0]]}}"],
        [
            *("env=lmgame/TicTacToe-v0", "config.league={opponent_engines: 2}", "config.policies=[a, b]"),
            "config.algorithm_config_overrides_per_module={b: {training: {kl: {coef: 0.1}}}}",
        ],
    ],
    ids=str,
)
def test_the_resolved_configuration_is_taken_as_a_file_and_says_the_same(overrides):
    resolved = resolved_config(check(GAME, *overrides))
    again = {"a": {"run": "LMGamePPO", "stop": {"training_iteration": 1}, "config": resolved}}
    assert resolved_config(check(dump_text(again))) == resolved


def test_the_resolved_configuration_shows_its_schedules():
    shown = resolved_config(check(GAME, "config.env_config.num_boxes={points: [[0, 1], [9, 2]]}"))
    assert shown["env_config"]["num_boxes"]["points"] == [[0, 1], [9, 2]]


OPPONENT = """\
a:
  run: LMGamePPO
  env: lmgame/TicTacToe-v0
  stop: {rl_iteration: 1}
  config:
    policies:
      player: {}
      opponent:
        trained: false
        language_model: {model: /no/such/model}
    policy_mapping_fn: {type: versus, opponents: {opponent: 1}}
"""


def test_a_missing_opponent_is_named_with_its_line() -> None:
    key = "x.yaml:10: config.policies.opponent.language_model.model"
    assert str(error_of(OPPONENT)) == f"{key}: no such model directory: /no/such/model"


@pytest.fixture
def bad_games(tmp_path, monkeypatch):
    """A module of games that each fail in their own way, and one that cannot be imported."""
    lines = ["from rllib_lmgame.envs.games.grids.sokoban import Sokoban"]
    for name, statement in {"Value": "raise ValueError('no\\nluck')", "File": "open('/no/file')"}.items():
        lines += [f"class {name}(Sokoban):", "    def __init__(self, **options):", f"        {statement}"]
    (tmp_path / "bad_games.py").write_text("\n".join([*lines, "class Nothing:", "    pass"]))
    (tmp_path / "worse_games.py").write_text("from rllib_lmgame.base.errors import nobody\n")
    (tmp_path / "leaving_games.py").write_text("raise SystemExit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_a_logger_whose_package_is_not_there_is_refused_before_ray_starts(monkeypatch) -> None:
    monkeypatch.setitem(PACKAGES, "wandb", "no_such_wandb")
    error = error_of("x:\n  run: LMGamePPO\n  env: lmgame/TicTacToe-v0\n", "callbacks=[{type: wandb, project: mine}]")
    assert error.path == "callbacks[0]" and error.message == "wandb needs no_such_wandb: pip install no_such_wandb"


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("bad_games:Value", "bad_games:Value: the constructor: ValueError: no luck"),
        ("bad_games:File", "bad_games:File: the constructor: FileNotFoundError"),
        ("bad_games:Nothing", "'bad_games:Nothing' is a class without `step`"),
        (
            "worse_games:Game",
            "importing 'worse_games' of game 'worse_games:Game' fails: ImportError: cannot import name",
        ),
        ("leaving_games:Game", "SystemExit: 0"),
        ("lmgame/Sokoban-v0, env_config: {dim_room: [900, 9]}", "rows and columns must be 4 to 12"),
        ("lmgame/Sokban-v0", "unknown game 'lmgame/Sokban-v0'"),
    ],
)
def test_one_bad_game_of_fifteen_is_named(bad, words, bad_games):
    games = ", ".join(f"{{env: {bad if number == 7 else 'lmgame/FrozenLake-v0'}}}" for number in range(15))
    error = error_of("x:\n  run: LMGamePPO\n", f"config.games=[{games}]")
    assert error.path.startswith("config.games[7].") and words in error.message
    assert bad.partition(",")[0] in error.message
