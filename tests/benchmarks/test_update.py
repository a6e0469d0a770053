"""``benchmarks/update.py``: its learner, which others of them update too."""

from __future__ import annotations

import update


def test_its_learner_has_all_that_an_update_asks(tiny_model_dir: str) -> None:
    learner = update.make_learner(tiny_model_dir, critic=False)
    assert learner.settings("player").reward_scale == 1.0
