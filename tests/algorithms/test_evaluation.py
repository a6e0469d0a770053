"""What is said when a checkpoint cannot play."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rllib_lmgame.algorithms.evaluation import LoadedPolicies
from rllib_lmgame.policies.rl_module import save_tokenizer
from rllib_lmgame.rollouts.env_runner import Failure, GameConfig, PlayResult
from rllib_lmgame.rollouts.seats import EpisodeFailed


def test_no_episode_played_is_an_error_with_its_cause() -> None:
    def play(plans: Any, settings: Any) -> PlayResult:
        return PlayResult(failures=[Failure(plan, "engine_error", "the prompt is empty") for plan in plans])

    policies = LoadedPolicies(cast(Any, None), cast(Any, SimpleNamespace(play=play)))
    with pytest.raises(EpisodeFailed, match=r"none of 3 episodes .* the prompt is empty"):
        policies.play((GameConfig("lmgame/Sokoban-v0"),), 3)


def test_a_tokenizer_that_has_gone_is_not_left_out_of_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="has been removed"):
        save_tokenizer(str(tmp_path / "gone"), tmp_path)
