"""Values of tokens from what was logged, with the real learners and the engines that play by them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rllib_lmgame.cli import main
from rllib_lmgame.policies.model.heads import VALUES_FILE


def config_of(name: str, values: dict[str, Any]) -> Any:
    from rllib_lmgame.algorithms import action_values

    return getattr(action_values, f"{name}Config")().update_from_dict(values)


@pytest.fixture
def on_doors(tiny_dict: Any) -> Any:
    """Function that gives a configuration that learns from moves at random, a quarter of which get through."""

    def make(steps: int = 40, **own: Any) -> dict[str, Any]:
        return tiny_dict(
            env="own_parts:Doors",
            env_config={},
            supervised={
                "expert": "random",
                "episodes_per_step": 32,
                "steps_per_iteration": steps,
                "max_steps": 2 * steps,
                "lr": 5e-3,
                "lr_warmup_steps": 5,
            },
            action_values={"beta": 32.0, **own},
            text_rollouts={"reward_scale": 1.0, "constrained_decoding": True},
            evaluation_duration=64,
            num_learners=0,
        )

    return make


@pytest.mark.slow
def test_values_find_what_was_good_in_moves_at_random(start: Any, on_doors: Any, tmp_path: Path, capsys) -> None:
    """Two moves before a reward, where the policy alone would get through by chance. A checkpoint plays alike."""
    pytest.importorskip("vllm")
    values = on_doors()
    values["inference"] = {**values["inference"], "engine": "vllm"}
    algorithm = start(config_of("LMGameMC", values))
    numbers = algorithm.train()["learners"]["player"]
    assert numbers["q_loss"] > 0 and 0 < numbers["q_mean"] < 1
    assert algorithm.train()["done"] and algorithm.evaluate()["env_runners"]["success_rate"] > 0.8
    saved = algorithm.save_to_path(str(tmp_path / "saved"))
    assert (Path(saved) / "hf" / VALUES_FILE).is_file()
    flags = ("--episodes", "64", "--split", "train", "--json", "--trust-checkpoint")
    assert main(["evaluate", str(saved), *flags]) == 0
    (row,) = json.loads(capsys.readouterr().out)["evaluated"]
    assert row["success_rate"] > 0.8, "also where its files are loaded"


@pytest.mark.slow
def test_a_run_with_slow_copies_goes_on_where_it_was(start: Any, on_doors: Any, tmp_path: Path) -> None:
    values = on_doors(steps=4, target_rate=0.2, tau=0.9, beta=0.0)
    algorithm = start(config_of("LMGameILQL", values))
    assert algorithm.train()["learners"]["player"]["v_loss"] >= 0
    saved = algorithm.save_to_path(str(tmp_path / "saved"))
    assert not (Path(saved) / "hf" / VALUES_FILE).exists(), "values that count nothing are no part of what plays"
    last = algorithm.train()["learners"]["player"]
    other = start(config_of("LMGameILQL", values))
    other.restore_from_path(saved)
    again = other.train()["learners"]["player"]
    for key in ("q_loss", "v_loss", "policy_loss", "q_mean"):
        assert again[key] == pytest.approx(last[key], rel=1e-3, abs=1e-6), key


STEPS = (
    [("You are at 1, 1.", "move down\n", -1.0), ("You are at 2, 1.", "move up\n", -1.0)],
    [("You are at 1, 1.", "move right\n", -1.0), ("You are at 1, 2.", "move right\n", 0.0)],
    [("k 7 / 8 / 8 / 8 / 8 / 8 / 8 / K 6 R w", "h1h8", 0.0), ("k 7 / 8 w", "h8a8", 1.0)],
    [("r n b q k b n r w", "e2e5\n", -1.0)],
)
"""Two walks through LMRL-Gym's maze and two games of its chess: state, action, reward."""


@pytest.mark.parametrize(
    "name", ["LMGameILQL", *(pytest.param(name, marks=pytest.mark.slow) for name in ("LMGameMC", "LMGameCQL"))]
)
def test_values_are_learnt_of_lmrl_gyms_steps(name: str, start: Any, tiny_dict: Any, tmp_path: Path) -> None:
    """A line is an episode, and each of its replies has the reward that stands beside it."""
    keys, path = ("state", "action", "reward", "done"), tmp_path / "steps.jsonl"
    episodes = [
        [dict(zip(keys, (*step, step is steps[-1]), strict=True)) for step in steps] for steps in (*STEPS, *STEPS)
    ]
    path.write_text("".join(json.dumps(steps) + "\n" for steps in episodes))
    taught = {"data": str(path), "episodes_per_step": 8, "steps_per_iteration": 1, "max_steps": 2, "lr": 1e-2}
    values = tiny_dict(env=None, env_config={}, supervised=taught, num_learners=0)
    values["text_rollouts"] = {**values.get("text_rollouts", {}), "reward_scale": 1.0}
    algorithm = start(config_of(name, values))
    results = [algorithm.train() for _ in range(2)]
    assert [result.get("done", False) for result in results] == [False, True]
    first, second = (result["learners"]["player"] for result in results)
    assert first["trained_tokens"] == second["trained_tokens"] > 0
    assert first["q_mean"] == 0 and first["q_loss"] > 0, "the heads begin with 0"
    assert second["q_mean"] != 0 and second["policy_loss"] < first["policy_loss"]
