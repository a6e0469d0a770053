"""What goes wrong costs its own episodes only; what cannot be helped ends the run and says why."""

from __future__ import annotations

import os
import signal

import pytest

GAME = {"max_turns": 2}


def ray_call(name: str, method: str):
    import ray

    return ray.get(getattr(ray.get_actor(name), method).remote())


def faulty(name: str, **options):
    return {"env": f"faulty_games:{name}", "env_config": {**GAME, **options}}


def play(algorithm, game: str, episodes: int = 16):
    from rllib_lmgame.rollouts.plans import plan_episodes
    from rllib_lmgame.rollouts.records import GameConfig, PlaySettings

    plans = plan_episodes(episodes, run_seed=0, purpose="train", iteration=0)
    return algorithm.play(plans, PlaySettings((GameConfig(env=f"faulty_games:{game}", env_config=GAME),)))


def test_episodes_of_a_faulty_game_are_dropped_and_replaced(tiny_algorithm) -> None:
    """Of other faults: ``tests/rollouts/test_faults.py``."""
    result = play(tiny_algorithm, "Raises")
    assert [summary.index for summary in result.summaries] == list(range(16))
    assert len(result.episodes) == 16
    assert {failure.reason for failure in result.failures} == {"env_error"}
    assert all("third square" in failure.message and "Raises" in failure.message for failure in result.failures)
    assert all(abs(seat.episode_return) < 100 for summary in result.summaries for seat in summary.seats)


def test_a_game_that_always_fails_ends_the_run_and_says_why(tiny_algorithm) -> None:
    from rllib_lmgame.rollouts.sources import RolloutError

    with pytest.raises(RolloutError, match=r"no episode was finished.*AlwaysRaises.*KeyError.*third square"):
        play(tiny_algorithm, "AlwaysRaises", 4)


@pytest.mark.slow
def test_a_runner_killed_in_play_costs_its_own_episodes_only(start, make_config, tmp_path) -> None:
    pid_file = tmp_path / "pid"
    algorithm = start(make_config(**faulty("Killer", pid_file=str(pid_file)), num_env_runners=2))
    pid_file.write_text("own")
    hurt = algorithm.train()
    iterations = 0
    while algorithm.env_runner_group.num_healthy_remote_workers() < 2:  # Its process takes some seconds to come up.
        algorithm.train()
        iterations += 1
        assert iterations < 100
    assert hurt["env_runners"]["num_episodes"] == 16
    assert {reason: n for reason, n in hurt["env_runners"]["dropped"].items() if n} == {"env_runner_lost": 8}
    assert hurt["learners"]["player"]["logprob_diff"] <= 1e-4
    healed = algorithm.train()
    assert healed["env_runners"]["num_episodes"] == 16
    assert healed["learners"]["player"]["logprob_diff"] <= 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["transformers", pytest.param("vllm", marks=pytest.mark.slow)])
def test_an_engine_killed_while_generating_and_in_an_update_comes_back_with_the_last_weights(
    start, make_config, tmp_path, monkeypatch, engine
) -> None:
    from rllib_lmgame.inference import weights as transports

    pid_file = tmp_path / "pid"
    # Carried along: must outlive a restart.
    model = {"model": "tiny", "tiny": {"hidden_size": 64, "num_layers": 2, "num_heads": 2}}
    config = make_config(**faulty("Killer", pid_file=str(pid_file)), language_model=model, inference={"engine": engine})
    algorithm = start(config)
    (name,) = algorithm.engine_groups["player"].names
    algorithm.train()

    first = ray_call(name, "alive")
    pid_file.write_text(str(first))
    result = algorithm.train()
    second = ray_call(name, "alive")
    assert second != first
    assert result["env_runners"]["num_episodes"] == 16
    assert {reason for reason, n in result["env_runners"]["dropped"].items() if n} == {"engine_error"}
    assert result["learners"]["player"]["logprob_diff"] <= 1e-4
    assert result["learners"]["player"]["staleness"] == 0

    gather = transports.gather
    killed = []

    def kill_then_gather(calls, *args):
        if not killed:
            killed.append(second)
            os.kill(second, signal.SIGKILL)
        return gather(calls, *args)

    monkeypatch.setattr(transports, "gather", kill_then_gather)
    os.kill(second, signal.SIGSTOP)  # Takes the weights, does not answer, dies.
    algorithm.push_weights()
    assert ray_call(name, "alive") not in (first, second)
    assert ray_call(name, "status")["version"] == 2
    result = algorithm.train()
    assert result["learners"]["player"]["logprob_diff"] <= 1e-4
    assert result["env_runners"]["num_episodes"] == 16


@pytest.mark.slow
def test_a_lost_learner_ends_training_with_its_cause(start, make_config, tmp_path) -> None:
    from rllib_lmgame.algorithms.cluster.workers import LearnerError
    from rllib_lmgame.base.errors import CheckpointError

    algorithm = start(make_config(num_learners=2))
    algorithm.train()
    pids = [result.get() for result in algorithm.learner_group.foreach_learner(lambda learner: os.getpid())]
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(LearnerError, match=r"learner 1 of 2 died .*last checkpoint"):
        algorithm.train()
    with pytest.raises(LearnerError, match="learner 1 of 2 died"):
        algorithm.push_weights()
    with pytest.raises(CheckpointError, match="could not be written: learner 1 of 2 died"):
        algorithm.save_to_path(tmp_path / "checkpoint")


def break_the_second(learner) -> None:
    def broken(module_id: str, trajectories):
        raise ValueError("no rows today")

    if learner.ranks.rank == 1:
        learner.build_batch = broken


@pytest.mark.slow
def test_a_learner_that_fails_ends_an_update_the_others_wait_in(start, make_config, monkeypatch) -> None:
    from rllib_lmgame.algorithms.cluster import workers

    algorithm = start(make_config(num_learners=2))
    algorithm.learner_group.foreach_learner(break_the_second)
    monkeypatch.setattr(workers, "STRAGGLER_S", 2.0)
    with pytest.raises(workers.LearnerError, match=r"a learner failed .*no rows today"):
        algorithm.train()
