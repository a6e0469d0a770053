"""Engine and learner that compute different models end a run at the first update that tells."""

from __future__ import annotations

from math import nan
from typing import Any

import pytest
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rllib_lmgame.algorithms.ppo import LMGamePPO, LMGamePPOConfig
from rllib_lmgame.base.errors import ConfigError


class Restored(LMGamePPO):
    """After seven iterations in another process; its updates bring given numbers, ``None`` none at all."""

    def __init__(self, **training: Any) -> None:
        self.config = LMGamePPOConfig().environment("lmgame/FrozenLake-v0").training(**training)
        self.metrics, self._learner = MetricsLogger(root=True), MetricsLogger()
        self._rl_iteration, self._policy_version, self._gaps_checked = 7, 7, set()
        self._league = self._warm_start = None

    def see(self, *gaps: float | None) -> None:
        for self._gap in gaps:
            self.training_step()
            self.metrics.reduce()

    def play_batch(self) -> Any:
        return None

    def update(self, result: Any) -> list[dict[str, Any]]:
        if self._gap is not None:
            self._learner.log_dict({"logprob_diff_mean": self._gap, "trained_tokens": 9.0}, key="player", window=1)
        return [self._learner.reduce()]

    def push_weights(self, *_: Any, **__: Any) -> float:
        return 0.0

    def _log_phase(self, phase: int) -> None: ...


@pytest.mark.parametrize("gaps", [(0.9,), (nan,), (None, 0.9), (None, None, nan)])
def test_a_restored_run_is_checked_at_its_first_update(gaps: tuple[float | None, ...]) -> None:
    run = Restored()
    run.see(*gaps[:-1])
    with pytest.raises(ConfigError, match=r"max_logprob_diff: player: log-probabilities .* differ by (0\.9|nan) "):
        run.see(gaps[-1])


@pytest.mark.parametrize(
    "make", [lambda: (Restored(), (0.01, 0.9, None, nan)), lambda: (Restored(max_logprob_diff=None), (nan, 0.9))]
)
def test_only_the_first_update_counts_and_null_goes_on(make) -> None:
    run, gaps = make()
    run.see(*gaps)
    assert run._rl_iteration == 7 + len(gaps)
