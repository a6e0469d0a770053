"""When a run has lost what it had learned, and when it has not."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest

from rllib_lmgame.measures.collapse import CollapseGuard, CollapseOptions


def result(iteration: int, success: float = 0.5, entropy: float = 0.4, **more: Any) -> dict[str, Any]:
    learner = {"entropy": entropy, "num_steps": 4.0, "nan_steps": 0.0, "total_loss": 0.1}
    runners = {"success_rate": success, "num_episodes": 128.0, "judged_episodes": 128.0}
    return {"training_iteration": iteration, "phase": 1.0, "env_runners": runners, "learners": {"a": learner}} | more


def evaluation(success: float, low: float, high: float) -> dict[str, Any]:
    return {"env_runners": {"success_rate": success, "success_low": low, "success_high": high}}


def sides(win: float, draw: float, games: float = 128.0) -> dict[str, Any]:
    """Outcomes of a policy that learns, and of one that does not."""
    counts = {"outcomes": {"a": {"X": games}, "minimax": {"O": games}}}
    own = {"win_rate": win, "draw_rate": draw, "loss_rate": 1 - win - draw}
    fixed = {"win_rate": 1 - win - draw, "draw_rate": draw, "loss_rate": win}
    return counts | {name: {"a": {"X": own[name]}, "minimax": {"O": fixed[name]}} for name in own}


def seen(*results: dict[str, Any], **options: Any) -> list[str]:
    guard = CollapseGuard(CollapseOptions(**options), "a game")
    return [guard.seen(each) for each in results]


@pytest.mark.parametrize(
    ("first", "low", "words"),
    [
        ({}, {"success": 0.03}, "env_runners/success_rate fell from 0.5 (iteration 1) to 0.03"),
        ({}, {"entropy": 1e-3}, "learners/a/entropy fell from 0.4 (iteration 1) to 0.001"),
        ({"env_runners": sides(0.5, 0.2)}, {"env_runners": sides(0.0, 0.02)}, "points of a as X fell from 0.6"),
    ],
)
def test_what_is_low_often_enough_in_a_row_has_collapsed(first: Any, low: Any, words: str) -> None:
    begun, lows = result(1, **first), [result(i, **low) for i in range(2, 9)]
    told = seen(begun, *lows, patience=3)
    assert not any(told[:3]) and all(words in each for each in told[3:])
    assert not any(seen(begun, *lows[:2], begun, *lows[:2], begun, patience=3)), "not in a row"
    assert not any(seen(begun, *lows, success=0.0, wins=0.0, entropy=0.0))
    assert not any(seen(*(each | {"phase": 0.0} for each in (begun, *lows)), patience=1)), "a warm start"


def test_a_run_that_only_wins_more_and_one_in_which_nothing_was_ever_learnt_go_on() -> None:
    assert not any(seen(*(result(i, env_runners=sides(i / 20, 0.0)) for i in range(20)), patience=1))
    assert not any(seen(*(result(i, success=0.0) for i in range(20)), patience=1))
    assert not any(seen(*(result(i, success=0.95, entropy=0.1**i) for i in range(9)), patience=1)), "it is solved"
    supervised = (result(i, entropy=0.1**i, env_runners={"success_rate": math.nan}) for i in range(9))
    assert not any(seen(*supervised, patience=1)), "it imitates"


def test_of_an_evaluation_one_is_enough_and_its_interval_counts() -> None:
    best = result(1, evaluation=evaluation(0.8, 0.7, 0.87))
    assert "evaluation/env_runners/success_rate" in seen(best, result(2, evaluation=evaluation(0.05, 0.02, 0.12)))[1]
    assert not any(seen(best, result(2, evaluation=evaluation(0.0, 0.0, 0.19)))), "16 episodes"
    luck, worse = (result(2, evaluation=evaluation(*each)) for each in ((0.9, 0.3, 1.0), (0.1, 0.05, 0.17)))
    assert seen(best, luck, worse)[2], "the best is what was surest"


def test_a_group_counts_as_one_and_after_going_back_the_row_begins_anew() -> None:
    guard = CollapseGuard(CollapseOptions(patience=1), "a game", group_size=8)
    assert not any(guard.seen(each) for each in (result(1), result(2, success=0.03)))
    guard, told = CollapseGuard(CollapseOptions(patience=2), "a game"), list[bool]()
    for each in (result(1), *[result(i, success=0.0) for i in range(2, 7)]):
        told.append(bool(guard.seen(each)))
        if told[-1]:
            guard.goes_back()
    assert told == [False, False, True, False, True, False]


@pytest.mark.parametrize("games", [32.0, 64.0])
def test_a_few_games_each_are_judged_together(games: float) -> None:
    few = [{"success_rate": rate, "judged_episodes": games} for rate in (*[0.4] * 5, *[0.0] * 5)]
    told = seen(*(result(i, env_runners=each) for i, each in enumerate(few, 1)))
    assert not any(told[:9]) and "env_runners/success_rate fell from 0.4 (iteration 5) to 0" in told[-1]
    back = [*few[:9], few[0]]
    assert not any(seen(*(result(i, env_runners=each) for i, each in enumerate(back, 1)))), "it has recovered"


def test_chance_is_no_collapse() -> None:
    """16 episodes of a policy that wins three in ten, 200 times."""
    draw = random.Random(0)
    rates = [sum(draw.random() < 0.3 for _ in range(16)) / 16 for _ in range(200)]
    runners = [{"success_rate": rate, "judged_episodes": 16.0} for rate in rates]
    assert not any(seen(*(result(i, env_runners=each) for i, each in enumerate(runners)), patience=1))
    few = [sides(win, 0.0, games=3.0) | {"num_episodes": 64.0} for win in (1.0, *[0.0] * 9)]
    assert not any(seen(*(result(i, env_runners=each) for i, each in enumerate(few)))), "the others are self-play"


@pytest.mark.parametrize(("loss", "skipped", "bad"), [(math.nan, 4, True), (math.nan, 1, False), (0.3, 4, False)])
def test_a_loss_is_lost_when_no_step_has_one(loss: float, skipped: float, bad: bool) -> None:
    """Also in a warm start."""
    learner = {"num_steps": 4.0, "nan_steps": skipped, "total_loss": loss}
    (found,) = seen(result(1, learners={"a": learner}, phase=0.0))
    assert (found == "learners/a/total_loss is no number in all of 4 steps") == bad
    told = seen(*(result(i, learners={"a": learner}) for i in range(1, 5)), patience=4)
    assert bool(told[-1]) == (skipped == 4) and (math.isnan(loss) or not any(told[:3])), "no finite gradient"


def test_a_resumed_run_goes_on_and_one_of_other_games_begins_anew() -> None:
    options = CollapseOptions(patience=2)
    guard, same, other = (CollapseGuard(options, games) for games in ("a game", "a game", "another"))
    guard.seen(result(1)), guard.seen(result(2, success=0.0))
    saved = json.loads(json.dumps(guard.state()))
    same.set_state(saved), other.set_state(saved), other.set_state({})
    assert same.seen(result(3, success=0.0)) and not other.seen(result(3, success=0.0))
