"""Callbacks written for RLlib hear of games here what they hear of stock PPO's environments."""

from __future__ import annotations

from typing import Any

import pytest
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.examples.envs.classes.multi_agent.tic_tac_toe import TicTacToe

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.telemetry.gauges import LMGameGauges

EPISODE = ["on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end"]


class Recorder(RLlibCallback):
    """Keeps what it was told; some of it also stands in the episode, or in the metrics."""

    heard: list[tuple[str, dict[str, Any]]] = []

    def tell(self, hook: str, **facts: Any) -> None:
        self.heard.append((hook, facts))

    def on_algorithm_init(self, *, algorithm, metrics_logger=None, **kwargs):
        self.tell("on_algorithm_init", algorithm=algorithm.iteration)

    def on_train_result(self, *, algorithm, metrics_logger=None, result, **kwargs):
        self.tell("on_train_result", numbers="env_runners" in result)

    def on_evaluate_start(self, *, algorithm, metrics_logger=None, **kwargs):
        self.tell("on_evaluate_start", logger=metrics_logger is algorithm.metrics)

    def on_evaluate_end(self, *, algorithm, metrics_logger=None, evaluation_metrics, **kwargs):
        logged = evaluation_metrics["env_runners"]["moves_seen"]
        self.tell("on_evaluate_end", logger=metrics_logger is algorithm.metrics, moves=logged > 1)

    def on_environment_created(self, *, env_runner, metrics_logger=None, env, env_context, **kwargs):
        env.reset  # noqa: B018
        self.tell("on_environment_created", worker=env_context.worker_index, option=env_context["max_turns"])

    def on_episode_created(self, *, episode, env_runner=None, metrics_logger=None, env=None, env_index, **kwargs):
        episode.custom_data["steps"] = 0
        self.tell(
            "on_episode_created", id=episode.id_, kind=type(episode), t=episode.env_t, begun=len(episode.agent_ids)
        )

    def on_episode_start(self, *, episode, env_runner=None, env=None, env_index, rl_module=None, **kwargs):
        seen = episode.get_observations(-1)
        self.tell("on_episode_start", id=episode.id_, kind=type(episode), t=episode.env_t, agents=len(seen))

    def on_episode_step(self, *, episode, env_runner=None, env=None, env_index, rl_module=None, **kwargs):
        episode.custom_data["steps"] += 1
        self.tell(
            "on_episode_step", id=episode.id_, kind=type(episode), t=episode.env_t == episode.custom_data["steps"]
        )

    def on_episode_end(self, *, episode, env_runner=None, metrics_logger=None, env=None, rl_module=None, **kwargs):
        steps = episode.custom_data["steps"]
        metrics_logger.log_value("moves_seen", steps, reduce="mean", window=100)
        moves = sum(len(part) for part in episode.agent_episodes.values())
        self.tell("on_episode_end", id=episode.id_, kind=type(episode), done=episode.is_done, all=moves == steps)

    def on_sample_end(self, *, env_runner=None, metrics_logger=None, samples, **kwargs):
        kept = all(one.custom_data["steps"] == one.env_t for one in samples)
        self.tell("on_sample_end", kinds={type(one) for one in samples}, kept=kept)


class TicTacToeWithOptions(TicTacToe):
    """Its observation space has no room for the second player's marks."""


def stock(callbacks: Any) -> PPOConfig:
    policies = {"player1", "player2"}
    config = PPOConfig().environment(TicTacToeWithOptions, env_config={"max_turns": 9})
    config.multi_agent(policies=policies, policy_mapping_fn=lambda agent, *args, **kwargs: agent)
    config.env_runners(num_env_runners=0, batch_mode="complete_episodes")
    config.training(train_batch_size_per_learner=32, minibatch_size=16, num_epochs=1)
    return config.evaluation(evaluation_interval=1, evaluation_duration=2).callbacks(callbacks)


def lmgame(make_config: Any, callbacks: Any, **options: Any) -> Any:
    config = make_config(env="lmgame/TicTacToe-v0", env_config={"max_turns": 9}, **options)
    config.text_rollouts(episodes_per_iteration=8)
    return config.evaluation(evaluation_interval=1, evaluation_duration=2).callbacks(callbacks)


def heard_in(algorithm: Any) -> tuple[list[tuple[str, dict[str, Any]]], dict[str, Any]]:
    result = algorithm.train()
    heard, Recorder.heard[:] = [*Recorder.heard], []
    return heard, result


def facts_of(kind: str, events: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in facts.items() if key != "id"} for hook, facts in events if hook == kind]


@pytest.mark.slow
def test_one_class_hears_the_same_kinds_of_events_of_stock_ppo_and_here(make_config, start) -> None:
    Recorder.heard[:] = []
    ours, result = heard_in(start(lmgame(make_config, Recorder)))
    theirs, of_stock = heard_in(start(stock(Recorder)))
    kinds = ("on_algorithm_init", "on_train_result", *EPISODE, "on_sample_end", "on_environment_created")
    for kind in (*kinds, "on_evaluate_start", "on_evaluate_end"):
        here, there = facts_of(kind, ours), facts_of(kind, theirs)
        assert here and there, kind
        assert all(facts in there for facts in here), (kind, here[:3], there[:3])
    by_episode: dict[str, list[str]] = {}
    for hook, facts in ours:
        if "id" in facts:
            by_episode.setdefault(facts["id"], []).append(hook)
            assert facts["kind"] is MultiAgentEpisode
    assert len(by_episode) == 10
    for hooks in by_episode.values():
        assert [hook for number, hook in enumerate(hooks) if hook not in hooks[:number]] == EPISODE
        assert hooks.count("on_episode_end") == 1
    for numbers in (result, of_stock):
        assert numbers["env_runners"]["moves_seen"] > 1 and numbers["evaluation"]["env_runners"]["moves_seen"] > 1


PATH = "test_callbacks:Recorder"


def test_own_callbacks_keep_the_gauges(make_config) -> None:
    for given in (Recorder, [Recorder], [LMGameGauges, Recorder], PATH, [PATH], PATH.replace(":", ".")):
        config = make_config(callbacks=given)
        assert [cls.__name__ for cls in config.callbacks_class] == ["Recorder", "LMGameGauges"]
        assert type(config)().update_from_dict(config.to_dict()).callbacks_class == config.callbacks_class
    assert make_config().callbacks(None).callbacks_class == [LMGameGauges]
    assert make_config(callbacks_on_train_result="builtins:print").callbacks_on_train_result is print
    for wrong, words in (
        (5, "an RLlibCallback class"),
        (f"{PATH}s", "did you mean 'Recorder'"),
        (dict, "RLlibCallback"),
    ):
        with pytest.raises(ConfigError, match=f"config.callbacks: .*{words}"):
            make_config(callbacks=wrong)
