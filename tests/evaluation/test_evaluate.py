"""What an evaluation plays and says, also when a checkpoint cannot play; and the tables at the end of a run."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rllib_lmgame.algorithms.base import LMGameAlgorithm
from rllib_lmgame.algorithms.ppo import LMGamePPOConfig
from rllib_lmgame.evaluation import learning_report
from rllib_lmgame.evaluation.learning_report import episode_text, success_table
from rllib_lmgame.policies.model.export import save_tokenizer
from rllib_lmgame.policies.options import LanguageModelOptions
from rllib_lmgame.rollouts.records import Failure, GameConfig, PlayResult
from rllib_lmgame.rollouts.seats import EpisodeFailed


def test_no_episode_played_is_an_error_with_its_cause() -> None:
    def play(plans: Any, settings: Any) -> PlayResult:
        return PlayResult(failures=[Failure(plan, "engine_error", "the prompt is empty") for plan in plans])

    runner = cast(Any, SimpleNamespace(play=play, config=LMGamePPOConfig()))
    with pytest.raises(EpisodeFailed, match=r"none of 3 episodes .* the prompt is empty"):
        learning_report.play(runner, (GameConfig(env="lmgame/Sokoban-v0"),), 3)


def test_levels_and_seeds_are_those_of_the_evaluation_during_training() -> None:
    """An algorithm and what is left of it in a checkpoint hand the same plans and settings to those who play."""
    config = LMGamePPOConfig().text_rollouts(deterministic=True).evaluation(evaluation_config={"temperature": 0.5})
    games, seen = (GameConfig(env="lmgame/Sokoban-v0"), GameConfig(env="lmgame/TicTacToe-v0")), []

    def play(plans: Any, settings: Any, *_: Any, **__: Any) -> PlayResult:
        levels = [(plan.game, plan.seed, plan.group, plan.episode_id) for plan in plans]
        seen.append((levels, settings.seeded, settings.temperature))
        return PlayResult()

    learning_report.play(cast(Any, SimpleNamespace(play=play, config=config)), games, 5, temperature=0.5)
    algorithm = SimpleNamespace(config=config, eval_env_runner_group=None, play=play, tell=lambda _: None)
    algorithm._evaluate_plans = partial(LMGameAlgorithm._evaluate_plans, algorithm)
    LMGameAlgorithm.evaluate_games(cast(Any, algorithm), games, 5)
    assert seen[0] == seen[1] and seen[0][1] and len(seen[0][0]) == 10


def test_a_tokenizer_that_has_gone_is_not_left_out_of_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="has been removed"):
        save_tokenizer(str(tmp_path / "gone"), tmp_path, LanguageModelOptions())


def levels(successes: str, first: int = 0) -> dict[str, float]:
    return {f"game {first + i}": float(success) for i, success in enumerate(successes)}


def test_milestones_pair_by_level() -> None:
    """In another order, and on levels of which some were played only once."""
    before, after = levels("0001"), dict(reversed(levels("011111", first=1).items()))
    _, first, second = success_table({"before": before, "after": after}, "test").splitlines()
    assert first.split()[:4] == ["before", "4", "4", "0.250"]
    # Levels 1, 2, 3 were played both times: 0 -> 0, 0 -> 1, 1 -> 1.
    assert second.split()[:4] == ["after", "6", "6", "0.833"] and "+0.333 (" in second
    assert second.endswith("on 3 episodes")


def on_levels(successes: str, digits: str) -> dict[str, float]:
    return {f"game {i} {digits[i] * 16}": float(success) for i, success in enumerate(successes)}


def test_levels_are_counted_and_not_seeds() -> None:
    """Two levels, each eight times; an older milestone named seeds alone."""
    before, after = levels("0" * 16), on_levels("10" * 8, "ab" * 8)
    _, first, second, greedy = success_table(
        {"before": before, "after": after, "after, greedy": after}, "test"
    ).splitlines()
    assert first.split()[:4] == ["before", "16", "16", "0.000"]
    assert second.split()[:4] == ["after", "16", "2", "0.500"] and "+0.500 (" in second
    low, high = map(float, (greedy.split()[5], greedy.split()[7]))
    assert low < 0.1 and high > 0.9
    _, alone = success_table({"after": on_levels("1110", "aaaa")}, "test").splitlines()
    assert alone.split() == ["after", "4", "1", "0.750", "-"]


def test_an_episode_ends_in_words() -> None:
    seat = {"agent_id": "player", "outcome": None, "success": True, "return": 9.4}
    record = {
        "steps": [{"observations": {"player": "board"}, "actions": {"player": "Up"}, "rewards": {"player": 9.4}}],
        "final_observations": {"player": "solved"},
        "stop_reason": "max_turns",
        "infos": {"player": {"success": True, "level": "0f3a"}},
        "trajectories": [seat],
    }
    assert episode_text(record).splitlines()[-3:] == ["solved", "ended: max turns", "player: success, return +9.40"]
    record["trajectories"] = [seat | {"agent_id": "X", "outcome": "loss"}, seat | {"agent_id": "O", "success": None}]
    assert episode_text(record).splitlines()[-2:] == ["X: loss, return +9.40", "O: return +9.40"]
