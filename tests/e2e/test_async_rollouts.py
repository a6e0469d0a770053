"""Rollouts and updates at the same time: what is trained on, evaluations, faults, checkpoints and the end.

The driver's decisions alone: :mod:`tests.algorithms.test_async_rollouts`.
"""

from __future__ import annotations

import math
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

import numpy as np
import pytest
from learner_weights import weights_of

from rllib_lmgame.rollouts.episode_log import read_log
from rllib_lmgame.rollouts.records import Turn, trajectory_of

EPISODES = 16
ASYNC_ROLLOUTS = {
    "env": "faulty_games:Listed",
    "env_config": {"max_turns": 3},
    "num_env_runners": 1,
    "async_rollouts": {"max_staleness": 1},
}


def turns_by_policy(episodes: list[Any]) -> dict[str, list[Turn]]:
    turns: dict[str, list[Turn]] = {}
    for part in [part for episode in episodes for part in episode.agent_episodes.values()]:
        turns.setdefault(part.module_id, []).extend(trajectory_of(part).turns)
    return turns


def logged(algorithm: Any, ending: str) -> set[int]:
    """Iterations whose episodes stand in a run's logs, each of them once."""
    logs = Path(algorithm.trial_directory(), "episodes").glob(f"*.{ending}")
    ids = [record["episode_id"] for log in logs for record in read_log(log)]
    assert len(ids) == len(set(ids))
    return {int(each.split("-")[1]) for each in ids}


class Trained:
    """What an algorithm trains on; ``during`` is called when an update begins."""

    def __init__(self, algorithm: Any) -> None:
        self.algorithm = algorithm
        self.results, self.levels = list[dict[str, Any]](), list[list[int]]()
        self.played: list[dict[str, list[Turn]]] = []  # By policy, the turns of an iteration.
        self.versions, self.ids, self.during = list[int](), list[str](), lambda: None
        inner = algorithm.update

        def update(result: Any) -> Any:
            self.levels.append([summary.seed for summary in result.summaries])
            self.ids += [summary.episode_id for summary in result.summaries]
            self.versions.append(algorithm.policy_version)
            self.played.append(turns_by_policy(result.episodes))
            self.during()
            return inner(result)

        algorithm.update = update

    def train(self, iterations: int) -> dict[str, Any]:
        self.results += [self.algorithm.train() for _ in range(iterations)]
        return self.results[-1]


@pytest.mark.slow
def test_a_run_that_plays_ahead_is_killed_and_goes_on(start, make_config, tmp_path, monkeypatch) -> None:
    from ray.rllib.algorithms.algorithm import Algorithm

    run = Trained(start(make_config(**ASYNC_ROLLOUTS, text_rollouts={"episode_log": "all"})))
    ask, asking = run.algorithm.env_runner_group.foreach_env_runner, set()
    asks = lambda *args, **options: asking.add(current_thread()) or ask(*args, **options)  # noqa: E731
    monkeypatch.setattr(run.algorithm.env_runner_group, "foreach_env_runner", asks)
    run.train(3)
    assert asking and main_thread() not in asking, "RLlib waits for runners that play"
    learner = [result["learners"]["player"] for result in run.results]
    assert [numbers["staleness_max"] for numbers in learner] == [0, 1, 1]
    assert learner[0]["logprob_diff"] <= 1e-4 and all(0 < each["importance_weight"] <= 1.5 for each in learner)
    assert [result["env_runners"]["num_episodes"] for result in run.results] == [EPISODES] * 3
    assert not any(count for result in run.results for count in result["env_runners"]["dropped"].values())
    assert all(math.isfinite(value) and value >= 0 for each in run.results for value in each["async_rollouts"].values())
    busy = [result["env_runners"]["engine_busy_fraction"] for result in run.results]  # None for what was played beside
    assert all(0 <= each <= 1.05 for each in busy) and sum(busy) > 0

    checkpoint = run.algorithm.save_to_path(tmp_path / "checkpoint")
    (job,) = run.algorithm._ahead.begun
    evaluated = run.algorithm.evaluate()
    assert job.future.done() and evaluated["env_runners"]["num_episodes"] == 8
    assert run.algorithm._engines_before is None  # What evaluations do is no rollout's.
    run.train(1)
    run.algorithm.stop()  # In the middle of the next iteration's games.

    resumed = Trained(Algorithm.from_checkpoint(checkpoint))
    try:
        resumed.train(1)
        assert resumed.levels == run.levels[3:]
        dealt = [seed for levels in run.levels for seed in levels]
        assert dealt == list(range(dealt[0], dealt[0] + 4 * EPISODES))
        # A live algorithm that is given a checkpoint forgets what it has begun.
        assert logged(resumed.algorithm, "jsonl") >= logged(resumed.algorithm, "tokens") == {3}
        resumed.algorithm.restore_from_path(checkpoint)
        assert not logged(resumed.algorithm, "jsonl") | logged(resumed.algorithm, "tokens")
        again = resumed.train(2)
        assert resumed.levels[1:] == [run.levels[3], list(range(dealt[-1] + 1, dealt[-1] + 1 + EPISODES))]
        assert again["rl_iteration"] == 5 and again["data_epochs"] == 5 * EPISODES / 299
        resumed.algorithm._ahead.drain()
        assert logged(resumed.algorithm, "jsonl") == {3, 4, 5} and logged(resumed.algorithm, "tokens") == {3, 4}
    finally:
        resumed.algorithm.stop()


@pytest.mark.slow
def test_a_runner_that_dies_while_the_learner_updates_costs_its_own_episodes(start, make_config, tmp_path) -> None:
    pid_file = tmp_path / "pid"
    killer = {"env": "faulty_games:Killer", "env_config": {"max_turns": 2, "pid_file": str(pid_file)}}
    run = Trained(start(make_config(**ASYNC_ROLLOUTS | killer | {"num_env_runners": 2})))
    run.during = lambda: pid_file.write_text("own") if not run.results else None
    results = [run.train(1) for _ in range(3)]
    assert [result["env_runners"]["num_episodes"] for result in results] == [EPISODES] * 3
    lost = [result["env_runners"]["dropped"]["env_runner_lost"] for result in results]
    assert lost[0] == 0 and sum(lost) == EPISODES // 2


@pytest.mark.slow
def test_two_policies_are_trained_on_what_was_played_ahead(start, make_config) -> None:
    """Each on all its own replies, once, by weights that are one update old at most."""
    policies = ("first", "second")
    game = {"env": "lmgame/TicTacToe-v0", "env_config": {}, "policies": [*policies]}
    run = Trained(start(make_config(**ASYNC_ROLLOUTS | game, policy_mapping_fn="random_seat")))
    lags, weights = [], [{policy: weights_of(run.algorithm, policy) for policy in policies}]
    for iteration in range(3):
        result = run.train(1)
        weights.append({policy: weights_of(run.algorithm, policy) for policy in policies})
        assert result["env_runners"]["num_episodes"] == EPISODES
        assert not any(result["env_runners"]["dropped"].values())
        for policy in policies:
            turns, numbers = run.played[iteration][policy], result["learners"][policy]
            assert numbers["trained_tokens"] == sum(len(turn.response_ids) for turn in turns) > 0
            lags.append({run.versions[iteration] - turn.policy_version for turn in turns})
            assert numbers["staleness_max"] == max(lags[-1])
            before, after = (each[policy] for each in weights[iteration : iteration + 2])
            assert max(np.abs(after[name] - before[name]).max() for name in before) > 1e-5
            if not iteration:
                assert numbers["logprob_diff"] <= 1e-4
    assert lags[:2] == [{0}, {0}] and all(1 in lag and lag <= {0, 1} for lag in lags[2:])
    assert len(set(run.ids)) == len(run.ids) == 3 * EPISODES
