"""A result as rows: its numbers by path, and the columns that its first one must have."""

from __future__ import annotations

from rllib_lmgame.algorithms.base import COUNTED
from rllib_lmgame.config.algorithms import PPO
from rllib_lmgame.telemetry.metrics import LEARNER_NAMES, with_columns


def test_a_result_of_the_warm_start_has_the_columns_of_those_after_it() -> None:
    """Tune's CSV file has the columns of the first result and no others."""
    result = with_columns(
        {"learners": {"player": {"policy_loss": 1.0}}},
        top=PPO.metrics,
        modules=["player"],
        learner=PPO.learner_metrics,
        evaluates=False,
        counts=COUNTED,
    )
    assert set(LEARNER_NAMES) == set(result["learners"]["player"])
    assert result["learners"]["player"]["policy_loss"] == 1.0
    assert "game_over" in result["env_runners"]["stop_reason"] and "timeout" in result["env_runners"]["dropped"]
