"""RLlib's callbacks of an env runner, without Ray: what they are shown of episodes, and what becomes of it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
from session_play import play_games

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.rollouts.env_runner import TextGameEnvRunner
from rllib_lmgame.rollouts.episodes import to_multi_agent_episode
from rllib_lmgame.rollouts.records import CUSTOM_DATA_KEY, PlayResult

MakeRunner = Callable[..., TextGameEnvRunner]


def contents(episode: MultiAgentEpisode) -> dict[str, Any]:
    """What of an episode must not depend on whether somebody listens."""
    custom = {key: value for key, value in episode.custom_data.items() if key == CUSTOM_DATA_KEY}
    parts = {agent: part.get_state() for agent, part in episode.agent_episodes.items()}
    times = {agent: list(steps.data) for agent, steps in episode.env_t_to_agent_t.items()}
    ends = (episode.env_t, episode.is_terminated, episode.is_truncated, episode.get_return())
    for part in parts.values():
        part.pop("id_")
    return {"parts": repr(parts), "times": times, "ends": ends, "custom": repr(custom)}


class Watcher(RLlibCallback):
    """Keeps what each player has seen and done so far, after every step."""

    def __init__(self) -> None:
        self.ended: dict[str, tuple[MultiAgentEpisode, list[Any]]] = {}

    def on_episode_start(self, *, episode: Any, **kwargs: Any) -> None:
        episode.custom_data["so far"] = [self.seen(episode)]

    def on_episode_step(self, *, episode: Any, **kwargs: Any) -> None:
        episode.custom_data["so far"].append(self.seen(episode))

    def on_episode_end(self, *, episode: Any, metrics_logger: Any, **kwargs: Any) -> None:
        assert episode.is_done
        self.ended[episode.id_] = (episode, episode.custom_data["so far"])
        metrics_logger.log_value("steps", float(episode.env_t), reduce="sum")

    @staticmethod
    def seen(episode: MultiAgentEpisode) -> dict[str, tuple[list[str], list[str]]]:
        parts = episode.agent_episodes.items()
        return {agent: (list(part.get_observations()), list(part.get_actions())) for agent, part in parts}


@pytest.mark.parametrize(
    ("game", "env_config", "model"),
    [
        ("lmgame/Sokoban-v0", {"max_turns": 5}, {}),
        ("lmgame/TicTacToe-v0", {}, {}),
        ("lmgame/TicTacToe-v0", {}, {"max_tokens_per_episode": 40}),
        ("lmgame/KuhnPoker-v0", {"players": 3}, {}),
        ("lmgame/IteratedPrisonersDilemma-v0", {}, {}),
        pytest.param("lmgame/Werewolf-v0", {}, {"context_length": 4096}, marks=pytest.mark.slow),
    ],
)
def test_episodes_grow_step_by_step_into_those_that_are_learnt_from(
    make_runner: MakeRunner, game: str, env_config: dict[str, Any], model: dict[str, Any]
) -> None:
    options = {"env_config": env_config, "model": {"context_length": 1024, **model}}
    heard = make_runner(game, callbacks_class=[Watcher], **options)
    result, alone = (play_games(each, 6, expert="random") for each in (heard, make_runner(game, **options)))
    assert result.error is None and len(result.episodes) == len(alone.episodes) > 0, result.failures
    assert [*map(contents, result.episodes)] == [*map(contents, alone.episodes)]
    (watcher,) = heard.hooks._objects
    for episode in result.episodes:
        kept, so_far = watcher.ended[episode.id_]
        assert kept is episode and len(so_far) == episode.env_t + 1
        whole = Watcher.seen(episode)
        assert so_far[-1] == whole
        for step in so_far:
            for agent, (observations, actions) in step.items():
                if agent in whole:  # Who only looked on has no episode in the end.
                    assert (observations, actions) == (
                        whole[agent][0][: len(observations)],
                        whole[agent][1][: len(actions)],
                    )
    assert not heard.hooks.shown


def test_what_is_logged_on_several_runners_is_put_together(make_runner: MakeRunner) -> None:
    results = [play_games(make_runner(callbacks_class=[Watcher]), count, keep="nothing") for count in (2, 3)]
    whole = PlayResult()
    for result in pickle.loads(pickle.dumps(results)):
        whole.extend(result)
    logger = MetricsLogger(root=True)
    logger.aggregate(whole.metrics, key="env_runners")
    assert logger.peek(("env_runners", "steps")) == sum(summary.steps for summary in whole.summaries) > 0
    assert not whole.episodes and not play_games(make_runner(), 2).metrics


@pytest.mark.parametrize(
    "hook", ["on_environment_created", "on_episode_created", "on_episode_start", "on_episode_step", "on_sample_end"]
)
def test_an_error_of_a_callback_is_its_own_and_no_games(make_runner: MakeRunner, hook: str) -> None:
    def fail(self: Any, **kwargs: Any) -> None:
        raise KeyError("missing")

    error = play_games(make_runner(callbacks_class=[type("Broken", (RLlibCallback,), {hook: fail})]), 2).error
    assert isinstance(error, ConfigError)
    assert str(error).startswith(f"config.callbacks: {hook} fails: ") and "missing" in str(error)


def test_who_overrides_nothing_pays_nothing(make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Any] = []
    monkeypatch.setattr(
        "rllib_lmgame.rollouts.env_runner.to_multi_agent_episode",
        lambda *given: built.append(given) or to_multi_agent_episode(*given),
    )
    runner = make_runner(callbacks_class=[RLlibCallback])
    assert play_games(runner, 2, keep="nothing").summaries and not built
    assert play_games(runner, 2).episodes and all(len(given) == 1 for given in built)
