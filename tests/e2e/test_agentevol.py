"""Exploring and imitating what succeeded, with the real engines and learners."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.rollouts.records import played_parts, turns_of


@pytest.fixture
def evolving(tiny_dict: Callable[..., dict[str, Any]]) -> Callable[..., Any]:
    """Function that gives a configuration on a game that any reply of two wins now and then."""

    def make(supervised: dict[str, Any] | None = None, **own: Any) -> Any:
        from rllib_lmgame.algorithms.agentevol import LMGameAgentEvolConfig

        options = {"levels": 8, "samples_per_level": 3, "original_episodes": 16, "iterations": 2, **own}
        values = tiny_dict(
            env="lmgame/FrozenLake-v0",
            env_config={"size": 3, "is_slippery": False},
            agentevol=options,
            supervised={"episodes_per_step": 8, "lr_warmup_steps": 0, **(supervised or {})},
            text_rollouts={"constrained_decoding": True},
            num_learners=0,
        )
        return LMGameAgentEvolConfig().update_from_dict(values)

    return make


def weights(algorithm: Any) -> dict[str, np.ndarray]:
    return {name: p.detach().numpy().copy() for name, p in algorithm.get_module().named_parameters()}


@pytest.mark.slow
def test_it_imitates_explores_and_begins_again(start: Any, evolving: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """The data of the start alone, then with what succeeded, each time from the first weights; a checkpoint goes on."""
    algorithm = start(evolving(supervised={"test_episodes": 8}, min_return=-1000.0, accumulate=True))
    first = weights(algorithm)
    began: list[dict[str, np.ndarray]] = []
    again = algorithm._begin_again
    monkeypatch.setattr(algorithm, "_begin_again", lambda: again() or began.append(weights(algorithm)))
    results = [algorithm.train(), algorithm.train()]
    saved = algorithm.save_to_path(str(tmp_path / "saved"))
    results.append(algorithm.train())
    assert [result["evolution"] for result in results] == [0, 1, 2]
    assert [bool(result["done"]) for result in results] == [False, False, True]
    first_kept, then_kept = (int(result["kept_episodes"]) for result in results[1:])
    assert math.isnan(results[0]["kept_episodes"]) and 0 < first_kept <= 8, "one of each level"
    expected = [16, 16 + first_kept, 16 + first_kept + then_kept]
    assert [result["imitated_episodes"] for result in results] == expected, "and all before"
    assert len(began) == 2 and all(np.array_equal(each[name], first[name]) for each in began for name in first)
    assert any(not np.array_equal(weights(algorithm)[name], first[name]) for name in first)
    assert results[2]["env_runners"]["num_episodes"] == 24
    assert list(algorithm.milestones()) == ["before imitation", "after imitation"]
    other = start(evolving(supervised={"test_episodes": 8}, min_return=-1000.0, accumulate=True))
    other.restore_from_path(saved)
    result = other.train()
    assert result["done"] and result["imitated_episodes"] == expected[2]
    began_other = weights(other)
    other._begin_again()
    assert all(np.array_equal(weights(other)[name], first[name]) for name in first)
    assert any(not np.array_equal(began_other[name], first[name]) for name in first)


@pytest.mark.slow
def test_filtered_cloning_online_goes_on_from_what_it_has(start: Any, evolving: Any) -> None:
    """Without other data it explores at once; a share of the best is kept."""
    options = {"original_episodes": 0, "one_per_level": None, "top_share": 0.25, "start": "last", "epochs": 2}
    algorithm = start(evolving(**options, levels=8))
    seen: list[Any] = []
    imitate = algorithm._imitate
    algorithm._imitate = lambda learnt, own: (seen.append(learnt), imitate(learnt, own))
    result = algorithm.train()
    assert result["evolution"] == 1 and result["kept_episodes"] == 6 == len(seen[0])
    assert result["learners"]["player"]["num_steps"] == 1 and algorithm.policy_version == 2, "two passes of a step"
    assert not algorithm._base.exists(), "nothing to begin again with"
    parts = [part for episode in seen[0] for part in played_parts(episode)]
    assert all(turn.weight == 1.0 for part in parts for turn in turns_of(part))


def test_what_cannot_be_explored_is_refused(evolving: Any) -> None:
    config = evolving()
    config.env, config.env_config = None, {}
    config.supervised(data="data:agentgym-traj")
    with pytest.raises(ConfigError) as caught:
        config.validate()
    assert caught.value.path == "config.env"
