"""What a checkpoint of LMGameDPO remembers, without engines and learners."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from rllib_lmgame.algorithms.dpo import LMGameDPO, LMGameDPOConfig
from rllib_lmgame.algorithms.scheduled import schedules_of


class Resumed(LMGameDPO):
    """Of an algorithm, what its state is made of: nothing is started."""

    def __init__(self, data: Any) -> None:
        self.config = LMGameDPOConfig().environment("lmgame/Sokoban-v0")
        self._policy_version, self._best, self._at_start = 0, None, False
        self._rl_iteration, self._warm_start, self._league, self._item_order = 0, None, None, None
        self._schedules, self._data = schedules_of(self.config), data

    def _env_steps(self) -> int:
        return 0


def test_a_resumed_run_goes_on_counting_what_it_leaves_out() -> None:
    state = Resumed(SimpleNamespace(passed_over=7)).lmgame_state()
    data = SimpleNamespace(passed_over=0)
    Resumed(data).set_lmgame_state(state)
    assert data.passed_over == 7
    Resumed(None).set_lmgame_state(state)
    del state["passed_over"]
    Resumed(data).set_lmgame_state(state)
    assert data.passed_over == 0, "of a checkpoint that lacks it"
