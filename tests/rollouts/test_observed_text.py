"""The game's text travels marked from the env runner to the learner's rows, where it is to be learned."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from episode_parts import logged, rows_of
from session_play import play_games

from rllib_lmgame.rollouts.env_runner import TextGameEnvRunner
from rllib_lmgame.rollouts.records import trajectory_of

MakeRunner = Callable[..., TextGameEnvRunner]
LEARNED = {"training": {"env_token_loss_weight": 0.1}}


@pytest.mark.parametrize("stage", ["training", "warm_start"])
@pytest.mark.parametrize("game", ["lmgame/Sokoban-v0", "lmgame/TicTacToe-v0"])
def test_rows_know_what_the_game_has_said(game: str, stage: str, make_runner: MakeRunner, tmp_path) -> None:
    """Of each seat its own; episodes of a log that are played again have the same marks."""
    sections = LEARNED if stage == "training" else {"warm_start": {"env_token_loss_weight": 0.5}}
    runner = make_runner(game, episode_log_dir=str(tmp_path), sections=sections)
    episodes = play_games(runner, 3, expert="random", log="x").episodes
    again = logged(tmp_path / "x-0.jsonl").episodes(0, 3, runner)
    seen = 0
    for episode, other in zip(episodes, again, strict=True):
        for agent, part in episode.agent_episodes.items():
            trajectory, second = trajectory_of(part), trajectory_of(other.agent_episodes[agent])
            (row,) = rows_of([trajectory], max_row_tokens=4096)
            said = list(part.observations.data[1 : len(trajectory.turns)])
            marked = runner.chat("player").decode(row.input_ids[row.observed])
            for text in said:
                assert text.strip() in marked, (text, marked)
                marked = marked.replace(text.strip(), "", 1)
            assert len(marked) <= 4 * (len(said) + 1) + len(str(part.observations.data[-1])) * (
                not trajectory.terminated
            )
            seen += len(said)
            for one, two in zip(trajectory.turns, second.turns, strict=True):
                assert np.array_equal(one.observed, two.observed)
    assert seen > 3


def test_where_it_is_not_learned_nobody_is_told(make_runner: MakeRunner) -> None:
    """Neither without a weight, nor of a policy that does not learn."""
    (episode,) = play_games(make_runner(), 1, expert="solver").episodes
    assert all(turn.observed is None for turn in trajectory_of(episode.agent_episodes["player"]).turns)
    policies = {"policies": {"player": {}, "other": {"trained": False}}, "policy_mapping_fn": {"*": "player"}}
    runner = make_runner("lmgame/TicTacToe-v0", players=policies, sections=LEARNED)
    assert [runner.chat(policy).tells_observed for policy in ("player", "other")] == [True, False]
