"""A checkpoint is whole or not there, and a run goes on from it as if it had never stopped."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from learner_weights import weights_of

from rllib_lmgame.base.errors import CheckpointError, ConfigError
from rllib_lmgame.learners.options import WeightUse
from rllib_lmgame.policies.model.files import ModelFiles
from rllib_lmgame.policies.model.tiny import build_tiny_model
from tests.in_place import in_place

DETERMINISTIC = {
    "text_rollouts": {"deterministic": True},
    "training": {"kl": {}, "num_minibatches": 2, "ema_decay": 0.5, "lr_warmup_steps": 3},
    "warm_start": {"max_steps": 1, "steps_per_iteration": 1, "episodes_per_step": 8, "lr": 1e-3},
    "kl_coeff": 0.2,
    "kl_target": 1e-4,
    "lr": [[0, 1e-3], [200, 1e-4]],
    "entropy_coeff": [[0, 0.05], [200, 0.0]],
}
SCHEDULES = {
    "env_config.max_turns": {"points": [[0, 4], [3, 1]]},
    "inference.temperature": {"by": "env_steps", "points": [[0, 1.0], [100, 0.7]]},
    "language_model.max_tokens_per_turn": {"by": "env_runners/tokens_per_turn", "points": [[0, 10], [16, 14]]},
    "training.policy_loss.clip_high": {"by": "env_runners/turns_per_episode", "values": [0.2, 0.3, 0.4], "above": 0.5},
    "gamma": {"points": [[0, 1.0], [4, 0.9]]},
}
BEFORE, AFTER = 3, 2
USES = (WeightUse.TRAINING, WeightUse.EVALUATION)
LOSSES = (
    "policy_loss",
    "vf_loss",
    "total_loss",
    "mean_kl_loss",
    "entropy",
    "curr_kl_coeff",
    "curr_entropy_coeff",
    "default_optimizer_learning_rate",
)


class Recorder:
    """Trains an algorithm and keeps what was sampled and lost."""

    def __init__(self, algorithm: Any) -> None:
        self.algorithm = algorithm
        self.sampled: list[list[int]] = []
        self.losses: list[dict[str, float]] = []
        self.scheduled: list[dict[str, float]] = []
        self.turns: list[float] = []
        inner = algorithm.update
        algorithm.update = lambda result: self._record(result) or inner(result)

    def _record(self, result: Any) -> None:
        parts = (part for episode in result.episodes for part in episode.agent_episodes.values())
        self.sampled.append(
            [int(i) for part in parts for turn in part.get_extra_model_outputs("turn") for i in turn.response_ids]
        )

    def train(self, iterations: int) -> Recorder:
        for _ in range(iterations):
            result = self.algorithm.train()
            learner = result["learners"]["player"]
            self.losses.append({name: float(learner[name]) for name in LOSSES if name in learner})
            self.scheduled.append({key: float(value) for key, value in result["schedules"].items()})
            self.turns.append(result["env_runners"]["turns_per_episode"])
        return self


def without_checksums(state: Any) -> Any:
    """The state, but for what tells weights apart that differ by rounding: see the tolerance of weights."""
    if isinstance(state, dict):
        return {key: without_checksums(value) for key, value in state.items() if key not in ("checksum", "files")}
    return [without_checksums(value) for value in state] if isinstance(state, list) else state


def check_resumes_exactly(config: Any, tmp_path: Path, start, *, least: int = 50) -> Recorder:
    """``least`` is how many tokens an iteration samples at least."""
    from ray.rllib.algorithms.algorithm import Algorithm

    uninterrupted = Recorder(start(config)).train(BEFORE)
    checkpoint = uninterrupted.algorithm.save_to_path(tmp_path / "checkpoint")
    uninterrupted.train(AFTER)
    last_weights = [weights_of(uninterrupted.algorithm, use=use) for use in USES]
    last_state = without_checksums(uninterrupted.algorithm.lmgame_state())
    uninterrupted.algorithm.stop()
    moved = Path(checkpoint).rename(tmp_path / "moved")
    resumed = Recorder(Algorithm.from_checkpoint(moved))
    try:
        resumed.train(AFTER)
        assert resumed.sampled == uninterrupted.sampled[-AFTER:]
        assert len(resumed.sampled[0]) > least
        assert resumed.scheduled == uninterrupted.scheduled[-AFTER:]
        for ours, theirs in zip(resumed.losses, uninterrupted.losses[-AFTER:], strict=True):
            assert set(ours) == set(theirs) >= {"policy_loss", "vf_loss", "mean_kl_loss"}
            assert ours == pytest.approx(theirs, abs=1e-6)
        for theirs, use in zip(last_weights, USES, strict=True):
            mine = weights_of(resumed.algorithm, use=use)
            assert all(np.abs(mine[name] - theirs[name]).max() <= 1e-6 for name in theirs)
        assert without_checksums(resumed.algorithm.lmgame_state()) == last_state
        assert resumed.algorithm.training_iteration == BEFORE + AFTER
        assert resumed.algorithm._rl_iteration == BEFORE + AFTER - 1
    finally:
        resumed.algorithm.stop()
    return uninterrupted


def make_scheduled(make_config, options: dict[str, Any], schedules: Any = SCHEDULES) -> Any:
    """The fixture's configuration with ``schedules`` as values of their options."""
    return make_config(**options).update_from_dict(in_place({}, schedules))


def test_a_resumed_run_repeats_the_uninterrupted_one(start, make_config, tmp_path) -> None:
    boxes = {"env_config.num_boxes": {"by": "env_steps", "points": [[0, 1], [1, 2]], "type": "step"}}
    selection = {
        "reward_variance_filter": 0.75,
        "zero_variance_groups": {"type": "drop", "max_refill": 1},
        "normalize_rewards": "group",
    }
    chosen = {
        "text_rollouts": {"deterministic": True, "group_size": 2},
        "data_selection": selection | {"overlong": {"tokens": 12, "buffer": 8}},
    }
    config = make_scheduled(make_config, DETERMINISTIC | chosen, SCHEDULES | boxes)
    run = check_resumes_exactly(config, tmp_path, start, least=10)
    assert [values["env_config.max_turns"] for values in run.scheduled] == [4, 4, 3, 2, 1]
    assert [values["env_config.num_boxes"] for values in run.scheduled] == [1, 1, 2, 2, 2]
    assert [values["training.policy_loss.clip_high"] for values in run.scheduled] == [0.2, 0.2, 0.3, 0.4, 0.4]
    assert run.turns[4] == 1 < run.turns[3] <= 2 < run.turns[2] <= 3


@pytest.mark.slow
def test_a_resumed_league_repeats_the_uninterrupted_one(start, make_config, tmp_path) -> None:
    """Members, their weights, pay-offs and matches, out of the checkpoint alone."""
    league = {"snapshot_every": 1, "opponent_engines": 2, "max_members": 2}
    game = {"env": "lmgame/TicTacToe-v0", "env_config": {}}
    check_resumes_exactly(make_scheduled(make_config, DETERMINISTIC | game | {"league": league}), tmp_path, start)


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(
            {"inference": {"engine": "vllm"}, "deepspeed": {"zero_optimization": {"stage": 0}}}, id="vllm-deepspeed"
        ),
        pytest.param({"num_learners": 2, "deepspeed": {"zero_optimization": {"stage": 2}}}, id="zero2"),
        pytest.param({"num_learners": 2, "deepspeed": {"zero_optimization": {"stage": 3}}}, id="zero3"),
        pytest.param({"num_learners": 2, "num_env_runners": 2}, id="two-plain-learners"),
    ],
)
def test_any_layout_resumes(start, make_config, tmp_path, overrides) -> None:
    check_resumes_exactly(make_scheduled(make_config, DETERMINISTIC | overrides), tmp_path, start)


@pytest.fixture(scope="module")
def trained(tiny_algorithm, tmp_path_factory):
    """An algorithm after one iteration, and a directory with two checkpoints of it."""
    directory = tmp_path_factory.mktemp("checkpoints")
    for number in range(2):
        tiny_algorithm.save_to_path(directory / f"checkpoint_{number:06d}")
    return tiny_algorithm, directory


def test_the_export_is_the_learners_model(trained: tuple[Any, Path]) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    algorithm, directory = trained
    export = directory / "checkpoint_000001" / "hf"
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= {
        path.name for path in export.iterdir()
    }
    model = AutoModelForCausalLM.from_pretrained(export, dtype="float32").eval()
    ids = torch.tensor([AutoTokenizer.from_pretrained(export)("######\n#_P__#\n", add_special_tokens=False).input_ids])
    loaded = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    ours = weights_of(algorithm)
    assert all(np.array_equal(loaded[name], array) for name, array in ours.items())
    module = algorithm.learner_group._learner.module["player"]
    with torch.inference_mode():
        hidden = module.language_model.base_model(ids).last_hidden_state
        assert torch.equal(model(ids).logits, module.language_model.get_output_embeddings()(hidden))


def test_a_policy_s_module_needs_no_name_where_there_is_one(trained: tuple[Any, Path]) -> None:
    algorithm, _ = trained
    module = algorithm.get_module()
    assert module is algorithm.get_module("player") is algorithm.learner_group._learner.module["player"]
    assert next(module.parameters()).numel()
    with pytest.raises(ConfigError, match=r"get_module: there is no policy 'payer'; there are player$"):
        algorithm.get_module("payer")
    for change in (algorithm.add_module, algorithm.remove_module, algorithm.add_policy, algorithm.remove_policy):
        with pytest.raises(ConfigError, match="policies are those an algorithm is built with"):
            change("player")
    asking = (algorithm.compute_single_action, algorithm.export_policy_checkpoint, algorithm.evaluate_offline)
    for ask in (algorithm.get_policy, *asking):
        with pytest.raises(ConfigError, match=r"get_module\(POLICY\) has the weights, evaluate\(\) plays"):
            ask("player")
    algorithm.set_weights(algorithm.get_weights())


def test_restore_calls_back_once(trained: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, directory = trained
    heard: list[Any] = []
    monkeypatch.setitem(vars(algorithm.config), "callbacks_on_checkpoint_loaded", [lambda **of: heard.append(of)])
    algorithm.restore(str(directory / "checkpoint_000001"))
    assert heard == [{"algorithm": algorithm}]


def spoil(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    else:
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


@pytest.mark.parametrize("how", ["missing", "truncated", "altered"])
@pytest.mark.parametrize("name", ["algorithm_state.pkl", "hf/model.safetensors", "class_and_ctor_args.pkl"])
def test_a_spoilt_checkpoint_is_refused(trained, tmp_path, name, how) -> None:
    from rllib_lmgame.algorithms.ppo import LMGamePPO

    algorithm, directory = trained
    copies = Path(shutil.copytree(directory, tmp_path / "run"))
    spoil(copies / "checkpoint_000001" / name, how)
    for load in (algorithm.restore_from_path, LMGamePPO.from_checkpoint):
        with pytest.raises(CheckpointError, match=f"checkpoint_000001/{name} .*{how}"):
            load(str(copies / "checkpoint_000001"))


def test_what_never_was_a_checkpoint_is_refused(trained: tuple[Any, Path], tmp_path: Path) -> None:
    for path, words in ((tmp_path / "nothing", "no such checkpoint"), (tmp_path, "manifest.json is missing")):
        with pytest.raises(CheckpointError, match=words):
            trained[0].restore_from_path(str(path))


def test_weights_of_another_tokenizer_are_refused(trained, tmp_path, monkeypatch) -> None:
    algorithm, directory = trained
    other = build_tiny_model(tmp_path, ["other words " * 3])
    monkeypatch.setitem(algorithm.config.model_files, "player", ModelFiles.ship(other))
    with pytest.raises(CheckpointError, match="another tokenizer"):
        algorithm.restore_from_path(str(directory / "checkpoint_000001"))


def test_a_full_disk_leaves_no_half_checkpoint(trained: tuple[Any, Path], tmp_path: Path) -> None:
    algorithm = trained[0]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, hard))
    try:
        with pytest.raises(CheckpointError, match=r"checkpoint_000007.*([Ff]ile too large|failed writing)"):
            algorithm.save_to_path(tmp_path / "checkpoint_000007")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []
    algorithm.save_to_path(tmp_path / "checkpoint_000007")
    assert (tmp_path / "checkpoint_000007" / "manifest.json").is_file()


@pytest.mark.slow
def test_tuner_restore_goes_on_from_the_last_checkpoint(ray_cluster, tiny_dict, tmp_path) -> None:
    from faulty_games import LosesALearner
    from ray import tune

    (tmp_path / "pid.learner").write_text("")
    game = {"env": "faulty_games:Killer", "env_config": {"max_turns": 2, "pid_file": str(tmp_path / "pid")}}
    space = tiny_dict(**game, num_learners=2)
    checkpoints = tune.CheckpointConfig(checkpoint_frequency=1)
    run = tune.RunConfig(
        name="run", storage_path=str(tmp_path), stop={"rl_iteration": 3}, checkpoint_config=checkpoints, verbose=0
    )
    (failed,) = tune.Tuner(LosesALearner, param_space=space, run_config=run).fit()
    assert "learner 1 of 2 died" in str(failed.error)
    (result,) = tune.Tuner.restore(str(tmp_path / "run"), LosesALearner, param_space=space, resume_errored=True).fit()
    assert result.error is None
    assert [int(i) for i in result.metrics_dataframe["rl_iteration"]] == [1, 2, 3]
    assert result.metrics["training_iteration"] == 3


def hide(directory: str) -> bool:
    """Give this thread an empty ``directory`` of its own, as on another node; whether it is allowed to."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    new_namespace, recursive_private = 0x20000, 0x4000 | (1 << 18)
    if libc.unshare(new_namespace) or libc.mount(None, b"/", None, recursive_private, None):
        return False
    return not libc.mount(b"tmpfs", directory.encode(), b"tmpfs", 0, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "away"), [({"deepspeed": {"zero_optimization": {"stage": 2}}}, 1), ({}, 0)], ids=["zero2", "plain"]
)
def test_learners_need_not_share_a_disk_with_the_algorithm(start, make_config, tmp_path, overrides, away) -> None:
    from ray.rllib.algorithms.algorithm import Algorithm

    algorithm = start(make_config(num_learners=2, **overrides))
    algorithm.train()
    directory = str(tmp_path)
    hidden = algorithm.learner_group.foreach_learner(lambda learner: learner.ranks.rank != away or hide(directory))
    if not all(result.get() for result in hidden):
        pytest.skip("needs the right to mount")
    checkpoint = algorithm.save_to_path(tmp_path / "checkpoint")
    before = weights_of(algorithm)
    algorithm.train()
    algorithm.restore_from_path(checkpoint)
    after = weights_of(algorithm)
    assert all(np.array_equal(after[name], before[name]) for name in before)
    left = algorithm.learner_group.foreach_learner(
        lambda learner: learner.ranks.rank == away and list(Path(directory).rglob("*.*"))
    )
    assert not any(result.get() for result in left)
    algorithm.stop()
    again = Algorithm.from_checkpoint(checkpoint)
    try:
        restored = weights_of(again)
        assert all(np.array_equal(restored[name], before[name]) for name in before)
    finally:
        again.stop()
