"""The experts that an engine tells travel with the tokens of turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from session_play import play_games

from rllib_lmgame.inference.protocol import Generation, GenerationRequest, StopReason
from rllib_lmgame.rollouts.env_runner import TextGameEnvRunner
from rllib_lmgame.rollouts.records import trajectory_of

MakeRunner = Callable[..., TextGameEnvRunner]


def coded(ids: Any) -> np.ndarray:
    """Made-up experts of tokens in one layer."""
    ids = np.asarray(ids)
    return np.stack([ids % 251, ids // 251], -1)[:, None].astype(np.uint8)


@pytest.mark.parametrize("history", ["keep", "window"])
def test_turns_know_the_experts_of_their_tokens(history: str, make_runner: MakeRunner) -> None:
    """The last token of a reply is computed with the next prompt, if that continues it."""
    told = []

    def answer(request: GenerationRequest) -> Generation:
        ids = np.asarray(runner.chat("player").reply_ids("Up"), np.int32)
        assert request.routes_from is not None
        routes = coded([*request.prompt_ids, *ids.tolist()])[request.routes_from : -1]
        told.append(len(routes))
        logprobs = np.zeros(len(ids), np.float32)
        return Generation(request.request_id, ids, logprobs, StopReason.EOS, routed_experts=routes)

    runner = make_runner(answer=answer, model={"history": history}, env_config={"max_turns": 4})
    (episode,) = play_games(runner, 1).episodes
    turns = trajectory_of(episode.agent_episodes["player"]).turns
    assert len(turns) == 4
    for number, turn in enumerate(turns):
        expected = coded(np.concatenate([turn.prompt_ids, turn.response_ids]))
        if history == "window" or number == 3:
            expected[-1] = 255
        np.testing.assert_array_equal(turn.routed_experts, expected)
    assert history == "window" or sum(told) == sum(len(turn.routed_experts) for turn in turns) - 1


def test_where_nothing_is_replayed_nothing_is_asked_for(make_runner: MakeRunner) -> None:
    def answer(request: GenerationRequest) -> str:
        assert request.routes_from is None
        return "Up"

    play_games(make_runner(answer=answer, sections={"inference": {"router_replay": False}}), 1)
