"""The whole path: play, rows, update, weights, with the real engines and learners."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from rllib_lmgame.rollouts.item_order import evaluated_levels

WARM_START = {
    "max_steps": 2,
    "steps_per_iteration": 2,
    "episodes_per_step": 8,
    "stop_at": {"success": 0.9, "every": 2, "episodes": 8},
    "test_episodes": 8,
}
ITERATIONS = 3


def train(algorithm, iterations: int):
    return [algorithm.train() for _ in range(iterations)]


def check_rl_iteration(result, module_id: str = "player") -> None:
    """What must hold at every PPO iteration, whatever plays and learns."""
    learner = result["learners"][module_id]
    assert learner["logprob_diff"] <= 1e-4
    assert learner["first_minibatch_ratio_error"] <= 1e-3
    assert learner["padding_waste"] <= 0.02
    assert learner["staleness"] == 0
    assert learner["nan_steps"] == 0
    for name in (
        "policy_loss",
        "vf_loss",
        "entropy",
        "vf_explained_var",
        "clip_fraction",
        "trained_tokens_per_s",
        "grad_norm",
    ):
        assert math.isfinite(learner[name]), name
    runners = result["env_runners"]
    for name in (
        "episode_return_mean",
        "success_rate",
        "invalid_action_rate",
        "turns_per_episode",
        "tokens_per_turn",
        "truncated_rate",
        "generated_tokens_per_s",
    ):
        assert math.isfinite(runners[name]), name
    assert 0 < runners["engine_busy_fraction"] <= 1.05
    for name in ("rollout_s", "update_s", "weight_sync_s"):
        assert result["timers"][name] > 0


@pytest.fixture(scope="module")
def vllm_algorithm(ray_cluster, make_config):
    """vLLM and DeepSpeed, after one iteration of warm start and two of PPO; ``results`` holds what they reported."""
    pytest.importorskip("vllm")
    config = make_config(
        inference={"engine": "vllm"}, deepspeed={"zero_optimization": {"stage": 0}}, warm_start=WARM_START
    )
    algorithm = config.build_algo()
    algorithm.results = train(algorithm, ITERATIONS)
    yield algorithm
    algorithm.stop()


def test_a_warm_start_comes_before_ppo(vllm_algorithm) -> None:
    assert [result["phase"] for result in vllm_algorithm.results] == [0, 1, 1]
    assert [result["rl_iteration"] for result in vllm_algorithm.results] == [0, 1, 2]
    assert "policy_loss" in vllm_algorithm.results[0]["learners"]["player"]
    assert "success_rate" in vllm_algorithm.results[0]["evaluation"]["env_runners"]


@pytest.mark.parametrize("algorithm", ["vllm_algorithm", "tiny_algorithm"])
def test_every_rl_iteration_trains_on_what_was_sampled(request: pytest.FixtureRequest, algorithm: str) -> None:
    for result in request.getfixturevalue(algorithm).results[-2:]:
        check_rl_iteration(result)


def test_counters_add_up(vllm_algorithm) -> None:
    results = vllm_algorithm.results
    assert [r["env_runners"]["num_episodes"] for r in results[1:]] == [16, 16]
    assert results[2]["env_runners"]["num_episodes_lifetime"] == 32
    steps = [r["env_runners"]["num_env_steps_sampled"] for r in results[1:]]
    assert results[2]["env_runners"]["num_env_steps_sampled_lifetime"] == sum(steps)
    assert [r["learners"]["player"]["num_steps"] for r in results] == [2, 2, 2]


def test_engines_sample_with_the_last_weights(vllm_algorithm) -> None:
    import ray

    group = vllm_algorithm.engine_groups["player"]
    updates = vllm_algorithm._policy_version
    assert updates == ITERATIONS
    assert [ray.get(ray.get_actor(name).status.remote())["version"] for name in group.names] == [updates]
    played = vllm_algorithm.play_batch()
    versions = {
        turn.policy_version
        for e in played.episodes
        for a in e.agent_episodes.values()
        for turn in a.get_extra_model_outputs("turn")
    }
    assert versions == {updates}


def test_evaluation_plays_the_same_levels_each_time(vllm_algorithm) -> None:
    games = vllm_algorithm.config.games_for_evaluation()
    first, second = (vllm_algorithm._evaluate_plans(evaluated_levels(games, 8), games, 0.0) for _ in range(2))
    assert [s.episode_return for e in first.summaries for s in e.seats] == [
        s.episode_return for e in second.summaries for s in e.seats
    ]
    numbers = vllm_algorithm.evaluate()["env_runners"]
    assert numbers["num_episodes"] == 8 and "success_rate" in numbers


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param({"evaluation_interval": 1, "evaluation_config": {"explore": False}}, id="plain"),
        pytest.param(
            {"num_env_runners": 2, "num_learners": 2, "deepspeed": {"zero_optimization": {"stage": 2}}},
            id="two-zero2-learners",
        ),
        pytest.param({"num_learners": 2}, id="two-plain-learners"),
        pytest.param({"num_learners": 2, "deepspeed": {"zero_optimization": {"stage": 3}}}, id="two-zero3-learners"),
        pytest.param({"num_learners": 1, "num_env_runners": 1}, id="one-remote-learner"),
        pytest.param(
            {
                "inference": {"num_engines": 2},
                "num_env_runners": 2,
                "evaluation_num_env_runners": 1,
                "evaluation_interval": 1,
            },
            id="two-engines-and-an-evaluation-runner",
        ),
    ],
)
def test_any_layout_trains(start, make_config, overrides) -> None:
    algorithm = start(make_config(**overrides))
    for result in train(algorithm, 2):
        check_rl_iteration(result)
        if "evaluation_interval" in overrides:
            assert result["evaluation"]["env_runners"]["num_episodes"] == 8
            assert "success_rate" in result["evaluation"]["env_runners"]
    assert result["env_runners"]["num_episodes"] == 16


@pytest.mark.slow
def test_supervised_learning_alone_ends_by_itself(start, tiny_dict) -> None:
    from rllib_lmgame.algorithms.sft import LMGameSFTConfig

    config = LMGameSFTConfig().update_from_dict(
        tiny_dict(supervised={"max_steps": 4, "steps_per_iteration": 2, "episodes_per_step": 8, "lr": 5e-3})
    )
    algorithm = start(config)
    first, second = train(algorithm, 2)
    assert algorithm.get_module().value_head is None
    assert second["learners"]["player"]["policy_loss"] < first["learners"]["player"]["policy_loss"]
    assert (first["done"], second["done"]) == (False, True)


@pytest.mark.slow
def test_a_form_of_replies_is_learnt_and_then_played(start, make_config) -> None:
    """A model that never saw a box writes one after some supervised steps, and PPO goes on from there."""
    boxed = {"reply_format": "boxed", "reply_prefill": "", "max_tokens_per_turn": 24, "context_length": 256}
    stage = {"max_steps": 120, "steps_per_iteration": 120, "episodes_per_step": 16, "lr": 5e-3}
    taught, played = train(start(make_config(language_model=boxed, warm_start=stage)), 2)
    assert (taught["phase"], played["phase"]) == (0, 1)
    check_rl_iteration(played)
    assert played["env_runners"]["format_error_rate"] < 0.2


@pytest.mark.slow
def test_tune_writes_tables_and_events(ray_cluster, tiny_dict, tmp_path) -> None:
    from ray import tune

    from rllib_lmgame.algorithms.ppo import LMGamePPO

    tuner = tune.Tuner(
        LMGamePPO,
        param_space=tiny_dict(num_env_runners=2),
        run_config=tune.RunConfig(name="run", storage_path=str(tmp_path), stop={"rl_iteration": 2}, verbose=0),
    )
    (result,) = tuner.fit()
    assert result.error is None
    rows = list(csv.DictReader((Path(result.path) / "progress.csv").open()))
    assert [float(row["rl_iteration"]) for row in rows] == [1, 2]
    assert float(rows[-1]["learners/player/logprob_diff"]) <= 1e-4
    assert list(Path(result.path).glob("events.out.tfevents*"))
