"""Constrained decoding: what each token was chosen among reaches the learner, in few bytes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

from episode_parts import logged
from session_play import play_games

from rllib_lmgame.rollouts.env_runner import TextGameEnvRunner
from rllib_lmgame.rollouts.episode_log import read_log
from rllib_lmgame.rollouts.records import trajectory_of

MakeRunner = Callable[..., TextGameEnvRunner]


def played(make_runner: MakeRunner, constrained: bool = True, count: int = 6, log_dir=None):
    """Episodes of TicTacToe in which a random legal move is chosen, and their runner."""
    chance = random.Random(0)

    def answer(request) -> list[int]:
        return list(chance.choice(request.choices)) if constrained else "4"

    runner = make_runner("lmgame/TicTacToe-v0", answer, rollouts={"constrained_decoding": constrained})
    if log_dir is not None:
        runner.config.episode_log_dir = str(log_dir)
    result = play_games(runner, count, log="x" if log_dir else None)
    assert result.error is None and not result.failures
    return result.episodes, runner


def turns_of(episodes):
    return [
        turn for episode in episodes for part in episode.agent_episodes.values() for turn in trajectory_of(part).turns
    ]


def test_each_token_carries_what_it_was_chosen_among(make_runner: MakeRunner) -> None:
    episodes, runner = played(make_runner)
    requests = {request.request_id: request for request in runner.client("player").requests}  # type: ignore[attr-defined]
    asked = 0
    for episode in episodes:
        for agent, part in episode.agent_episodes.items():
            for number, turn in enumerate(trajectory_of(part).turns):
                choices, reply = requests[f"{episode.id_}/{agent}/{number}"].choices, tuple(turn.response_ids.tolist())
                ends = list(itertools.accumulate(turn.allowed.counts.tolist(), initial=0))
                for at, (start, end) in enumerate(itertools.pairwise(ends)):
                    expected = {c[at] for c in choices if len(c) > at and c[:at] == reply[:at]}
                    assert sorted(turn.allowed.ids[start:end].tolist()) == sorted(expected)
                asked += 1
    assert asked == len(requests)


def test_a_reply_outside_the_choices_drops_its_episode(make_runner: MakeRunner) -> None:
    runner = make_runner(
        "lmgame/TicTacToe-v0", lambda request: list(request.choices[0][:-1]), rollouts={"constrained_decoding": True}
    )
    result = play_games(runner, 1)
    assert [failure.reason for failure in result.failures] == ["engine_error"]
    assert "none of the 9 choices" in result.failures[0].message


def test_logs_hold_them(make_runner, tmp_path) -> None:
    episodes, runner = played(make_runner, log_dir=tmp_path)
    path = tmp_path / "x-0.jsonl"
    turns = [turn for record in read_log(path) for seat in record["trajectories"] for turn in seat["turns"]]
    assert all(len(turn["allowed_counts"]) == len(turn["response_ids"]) for turn in turns)
    assert all(len(turn["allowed_ids"]) == sum(turn["allowed_counts"]) for turn in turns)
    replayed = logged(path).episodes(0, len(episodes), runner)
    assert [turn.response_ids.tolist() for turn in turns_of(replayed)] == [
        turn.response_ids.tolist() for turn in turns_of(episodes)
    ]
    # To supervised learning an expert's reply is one of all texts.
    assert all(turn.allowed is None for turn in turns_of(replayed))


def test_replies_are_free_where_a_game_lists_nothing(make_runner: MakeRunner) -> None:
    """Werewolf: names at night and in the vote, anything in the talk; `allowed` says which was which."""
    chance = random.Random(0)

    def answer(request):
        return list(chance.choice(request.choices)) if request.choices else "It was not me"

    runner = make_runner(
        "lmgame/Werewolf-v0",
        answer,
        rollouts={"constrained_decoding": True},
        model={"context_length": 1024, "max_tokens_per_turn": 64, "history": "window"},
    )
    result = play_games(runner, 3)
    assert result.error is None and not result.failures
    assert sum(seat.invalid_actions for summary in result.summaries for seat in summary.seats) == 0
    requests = {request.request_id: request for request in runner.client("player").requests}  # type: ignore[attr-defined]
    kinds = set()
    for episode in result.episodes:
        for agent, part in episode.agent_episodes.items():
            for number, turn in enumerate(trajectory_of(part).turns):
                choices = requests[f"{episode.id_}/{agent}/{number}"].choices
                assert (turn.allowed is None) == (choices is None)
                assert choices is None or tuple(turn.response_ids.tolist()) in choices
                kinds.add(choices is None)
    assert kinds == {True, False}
