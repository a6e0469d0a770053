"""``dtype: auto`` on processors: where it is bfloat16, and what a learner computes then."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from learning import difference, one_prompt_each, restored, step_gradients, update, weights

from rllib_lmgame.algorithms import base
from rllib_lmgame.algorithms.cluster import footprint
from rllib_lmgame.algorithms.ppo import LMGamePPOConfig
from rllib_lmgame.base import numerics


@pytest.mark.parametrize("units", ["avx512_bf16", "amx_bf16", "avx512_f"])
def test_processors_with_units_compute_in_bfloat16(units: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {"avx512_bf16": False, units: True})
    computed_in = runpy.run_path(numerics.__file__)["computed_in"]  # Anew: what a processor has is asked for once.
    assert computed_in("auto", lambda: 10e6) == ("float32" if units == "avx512_f" else "bfloat16")
    assert computed_in("auto", lambda: 9.9e6) == "float32"
    assert computed_in("auto", lambda: 1, on_gpu=True) == "bfloat16"
    assert [computed_in(asked, lambda: 10e6) for asked in ("float32", "bfloat16")] == ["float32", "bfloat16"]


@pytest.mark.parametrize("options", [{}, {"value_model": "separate"}, {"lora": {"r": 4}}], ids=repr)
def test_a_step_is_that_of_float32_within_rounding(
    options: Any, make_learner: Any, make_episodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients have a cosine above .999 and norms within 2 %; states are float32, and a checkpoint goes on alike."""
    monkeypatch.setattr(numerics, "has_bfloat16_units", lambda: True)
    monkeypatch.setattr(numerics, "FEW_PARAMETERS", 1000)
    episodes = [one_prompt_each([make_episodes(4, seed=10 * seed + i) for i in range(3)]) for seed in range(2)]
    kinds = [{"dtype": dtype, **options} for dtype in ("float32", "auto", "auto")]
    exact, half, again = (make_learner(options=kind) for kind in kinds)
    taken = [step_gradients(learner) for learner in (exact, half)]
    metrics = [update(learner, episodes[0]) for learner in (exact, half)]
    one, other = (torch.cat([found[name].flatten() for name in taken[0]]) for found in taken)
    assert not torch.equal(one, other) and torch.cosine_similarity(one, other, dim=0) > 0.999
    assert float(other.norm()) == pytest.approx(float(one.norm()), rel=0.02)
    assert metrics[1]["entropy"] == pytest.approx(metrics[0]["entropy"], rel=5e-3)
    optimizer = half.engines["player"].optimizer
    states = [tensor for state in optimizer.state.values() for tensor in (*state.values(), other)]
    assert {tensor.dtype for tensor in (*states, *optimizer.param_groups[0]["params"])} == {torch.float32}
    restored(again, half, tmp_path)
    for learner in (half, again):
        update(learner, episodes[1])
    assert difference(weights(half), weights(again)) == 0.0


def test_the_estimate_and_the_words_at_a_start_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = {"hidden_size": 576, "num_layers": 10, "num_heads": 9, "intermediate_size": 1536}
    run = {"env": "lmgame/Sokoban-v0", "language_model": {"model": "tiny", "tiny": shape}}
    config = LMGamePPOConfig().update_from_dict(run)
    taken, words = [], []
    for units in (False, True):
        for place in (numerics, base):
            monkeypatch.setattr(place, "has_bfloat16_units", lambda units=units: units)
        taken.append([each.parts for each in footprint.footprint(config).processes])
        words.append(base._dtype_words(config))
    assert words[0][1:] == ["float32 in each engine", "this processor has no units for bfloat16"]
    assert words[1] == ["bfloat16 in each learner", "bfloat16 in each engine"]
    assert footprint.engine_numerics(config.copy().text_rollouts(deterministic=True), "default_policy")[0] == "float32"
    (learner, engine, *_), (half, half_engine, *_) = taken
    assert half_engine["weights"] == engine["weights"] / 2 and half["weights"] == learner["weights"]
    assert half["weights in bfloat16"] == pytest.approx(learner["weights"] / 2, rel=0.02)
