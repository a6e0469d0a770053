"""Numbers about episodes, checked against sums by hand."""

from __future__ import annotations

from typing import Any

import pytest

from rllib_lmgame.rollouts.episodes import EpisodeSummary, SeatSummary, episode_metrics, over_samples, returns_by_seat
from rllib_lmgame.rollouts.plans import plan_evaluation, with_samples


def seat(agent: str = "player", **numbers: Any) -> SeatSummary:
    defaults: dict[str, Any] = {
        "role": "role", "module_id": "m", "episode_return": 0.0, "turns": 1, "invalid_actions": 0, "illegal_actions": 0,
        "format_errors": 0, "response_tokens": 10, "prompt_tokens": 20, "rows": 1, "success": None,
        "min_policy_version": 0,
    }  # fmt: skip
    return SeatSummary(agent, **{**defaults, **numbers})


def episode(*seats: SeatSummary, **numbers: Any) -> EpisodeSummary:
    defaults: dict[str, Any] = {
        "episode_id": "e", "index": 0, "game": 0, "game_id": "lmgame/A-v0", "seed": 0, "terminated": True,
        "stop_reason": "game_over", "steps": 1, "success": True,
    }  # fmt: skip
    return EpisodeSummary(**{**defaults, **numbers}, seats=list(seats))


def test_single_player_numbers() -> None:
    numbers = episode_metrics(
        [
            episode(seat(episode_return=1.0, turns=2, invalid_actions=1, response_tokens=30, format_errors=1)),
            episode(
                seat(episode_return=-3.0, turns=6, response_tokens=50),
                success=False,
                terminated=False,
                stop_reason="max_turns",
            ),
        ]
    )
    assert numbers["num_episodes"] == 2
    assert (numbers["episode_return_mean"], numbers["episode_return_min"], numbers["episode_return_max"]) == (
        -1.0,
        -3.0,
        1.0,
    )
    assert numbers["episode_len_mean"] == numbers["turns_per_episode"] == 4.0
    assert (numbers["success_rate"], numbers["truncated_rate"]) == (0.5, 0.5)
    assert (numbers["invalid_action_rate"], numbers["format_error_rate"]) == (1 / 8, 1 / 8)
    assert (numbers["tokens_per_turn"], numbers["response_tokens"], numbers["prompt_tokens"]) == (10.0, 80, 40)
    assert numbers["stop_reason"] == {"game_over": 1, "max_turns": 1}
    assert "games" not in numbers and "dropped" not in numbers


def test_past_versions_are_not_the_policy() -> None:
    """What a member wins is no result of the policy that it is a version of."""
    own = seat("X", module_id="a", role="first", episode_return=1.0, outcome="win")
    past = seat("O", module_id="a", role="second", episode_return=-1.0, outcome="loss", member="a-3", trained=False)
    numbers = episode_metrics([episode(own, past)])
    assert numbers["win_rate"] == {"a": {"first": 1.0}} and numbers["module_episode_returns_mean"] == {"a": 1.0}


def test_several_players() -> None:
    numbers = episode_metrics(
        [
            episode(
                seat("X", role="first", module_id="a", episode_return=1.0, turns=3, outcome="win"),
                seat(
                    "O", role="second", module_id="b", episode_return=-1.0, turns=2, response_tokens=0, outcome="loss"
                ),
            ),
            episode(
                seat("X", role="first", module_id="b", episode_return=0.5, turns=1, outcome="draw"),
                seat("O", role="second", module_id="a", episode_return=0.0, turns=0, response_tokens=0, outcome="draw"),
                success=None,
            ),
        ]
    )
    assert numbers["episode_return_mean"] == 0.25
    assert numbers["agent_episode_returns_mean"] == {"X": 0.75, "O": -0.5}
    assert numbers["module_episode_returns_mean"] == {"a": 0.5, "b": -0.25}
    assert numbers["role_returns_mean"] == {"first": 0.75, "second": -0.5}
    assert numbers["episode_len_mean"] == 3.0 and numbers["turns_per_episode"] == 1.5
    assert numbers["tokens_per_turn"] == 20 / 4  # Scripted seats write no tokens and do not count.
    assert numbers["success_rate"] == numbers["judged_episodes"] == 1.0  # Of the games that have a verdict.
    assert numbers["outcomes"] == {key: {"first": 1, "second": 1} for key in "ab"}
    assert "success_rate" not in episode_metrics([episode(seat(), success=None)])
    assert numbers["win_rate"] == {"a": {"first": 1.0, "second": 0.0}, "b": {"first": 0.0, "second": 0.0}}
    assert numbers["draw_rate"] == {"a": {"first": 0.0, "second": 1.0}, "b": {"first": 1.0, "second": 0.0}}
    assert numbers["loss_rate"] == {"a": {"first": 0.0, "second": 0.0}, "b": {"first": 0.0, "second": 1.0}}


def test_returns_are_told_by_who_earned_them() -> None:
    """The policy's own where others have seats: over the trained seats of an episode, then over episodes."""
    both = episode(
        seat("a", module_id="m", role="first", episode_return=1.0, trained=True),
        seat("b", module_id="m", role="second", episode_return=0.0, trained=True),
        seat("c", module_id="random", role="second", episode_return=-1.0, trained=False),
    )
    one = episode(
        seat("a", module_id="random", role="first", episode_return=2.0, trained=False),
        seat("b", module_id="m", role="second", episode_return=-2.0, trained=True),
        seat("c", module_id="m", role="second", episode_return=0.0, trained=False, member="m-1"),
    )
    assert returns_by_seat([both, one]) == {
        "own_return_mean": (0.5 - 2.0) / 2,
        "seat_returns_mean": {"m": {"first": 1.0, "second": -1.0}, "random": {"first": 2.0, "second": -1.0}},
    }
    alone = episode(seat("a", episode_return=1.0, trained=True), seat("b", episode_return=-1.0, trained=True))
    assert returns_by_seat([alone]) == {"seat_returns_mean": {"m": {"role": 0.0}}}
    assert returns_by_seat([]) == {"seat_returns_mean": {}}


def test_games_are_told_apart_if_there_are_several() -> None:
    numbers = episode_metrics(
        [episode(seat(episode_return=2.0)), episode(seat(), game_id="lmgame/B-v0", success=False)]
    )
    assert numbers["games"] == {
        "lmgame_A-v0": {"success_rate": 1.0, "episode_return_mean": 2.0, "num_episodes": 1, "invalid_action_rate": 0.0},
        "lmgame_B-v0": {"success_rate": 0.0, "episode_return_mean": 0.0, "num_episodes": 1, "invalid_action_rate": 0.0},
    }


def test_what_games_measure_is_averaged_over_the_trained_seats_of_each_episode() -> None:
    numbers = episode_metrics(
        [
            episode(
                seat("a", trained=True, measures={"cooperation_rate": 1.0, "social_welfare": 0.5}),
                seat("b", trained=False, measures={"cooperation_rate": 0.0, "social_welfare": 0.5}),
            ),
            episode(
                seat("a", trained=True, measures={"cooperation_rate": 0.25}),
                seat("b", trained=True, measures={"cooperation_rate": 0.75}),
                game_id="lmgame/B-v0",
            ),
            episode(seat("a", trained=False, measures={"cooperation_rate": 0.0}), game_id="lmgame/B-v0"),
            episode(seat("a")),
        ]
    )
    assert numbers["measures"] == {"cooperation_rate": 0.5, "social_welfare": 0.5}
    assert numbers["games"]["lmgame_A-v0"]["measures"] == {"cooperation_rate": 1.0, "social_welfare": 0.5}
    assert numbers["games"]["lmgame_B-v0"]["measures"] == {"cooperation_rate": 0.25}
    assert "measures" not in episode_metrics([episode(seat())])


def test_several_samples_of_a_level_are_taken_together() -> None:
    """Level by level, in a loop; a level that lacks a sample has no part in the share that was passed."""
    plans = with_samples(plan_evaluation(2, 5), 3)
    assert len({plan.episode_id for plan in plans}) == len(plans) == 30
    assert [plan.index for plan in plans] == [*range(30)] and plans[:10] == plan_evaluation(2, 5)
    won = {plan.episode_id: (plan.index * 7) % 5 == 0 for plan in plans}
    played = [
        episode(
            seat(episode_return=float(plan.index % 4)), game=plan.game, seed=plan.seed, success=won[plan.episode_id]
        )
        for plan in plans[:-1]
    ]
    passed, best = [], []
    for first in plans[:10]:
        own = [plan for plan in plans[:-1] if (plan.game, plan.seed) == (first.game, first.seed)]
        best.append(max(plan.index % 4 for plan in own))
        passed += [any(won[plan.episode_id] for plan in own)] if len(own) == 3 else []
    assert len(passed) == 9
    assert over_samples(played, 3) == {
        "pass_at_k": pytest.approx(sum(passed) / 9),
        "best_return_mean": pytest.approx(sum(best) / 10),
    }
    assert over_samples(played, 1) == over_samples([], 3) == {}
