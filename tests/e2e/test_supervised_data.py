"""Supervised learning on conversations of others, with the real learners, and without any game."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rllib_lmgame.algorithms.cluster.workers import foreach_learner

RULES = "Say what colour the thing has."
THINGS = {"grass": "green", "sky": "blue", "snow": "white", "coal": "black"}


def messages() -> list[dict[str, Any]]:
    """Conversations of two replies, of which the first is not learnt."""
    return [
        {
            "messages": [
                {"role": "system", "content": RULES},
                {"role": "user", "content": "hello"},
                {"role": "assistant", "content": "what thing?", "weight": 0},
                {"role": "user", "content": thing},
                {"role": "assistant", "content": colour},
            ],
            "item_id": f"{thing}_{number}",
        }
        for number in range(10)
        for thing, colour in THINGS.items()
    ]


@pytest.fixture
def config(tiny_dict: Callable[..., dict[str, Any]], tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def make(rows: list[dict[str, Any]], **supervised: Any) -> dict[str, Any]:
        path = tmp_path / "data.json"
        path.write_text(json.dumps(rows))
        options = {"episodes_per_step": 8, "steps_per_iteration": 8, "lr": 5e-3, "lr_warmup_steps": 2, "epochs": 4}
        return tiny_dict(
            env=None,
            env_config={},
            supervised={"data": str(path), "validation_share": 0.2, **options, **supervised},
            num_learners=0,
        )

    return make


def sft(values: dict[str, Any]) -> Any:
    from rllib_lmgame.algorithms.sft import LMGameSFTConfig

    return LMGameSFTConfig().update_from_dict(values)


def test_the_loss_of_what_is_held_out_falls_without_a_game(start, config) -> None:
    algorithm = start(sft(config(messages())))
    first, second = algorithm.train(), algorithm.train()
    assert not algorithm.engine_groups, "nothing is played"
    losses = [first["validation_loss_before"], first["validation_loss"], second["validation_loss"]]
    assert losses[0] > 2 * losses[1] > 2 * losses[2] > 0 and math.isnan(second["validation_loss_before"])
    assert second["done"] and second["supervised_steps"] == 16, "four passes over 32 conversations"
    assert second["conversations_left_out"] == 0
    # Only the colours and what ends them are learnt.
    chat = algorithm.env_runner.chat("player")
    longest = max(len(chat.encode(colour)) for colour in THINGS.values()) + 1
    assert first["learners"]["player"]["trained_tokens"] <= 64 * longest


def test_a_checkpoint_goes_on_where_it_was(start, config, tmp_path) -> None:
    rows = messages()
    for place in (0, 1):  # Left out of every pass, or of what is held out.
        rows[place]["messages"][0]["content"] = "too long " * 2000
    values = config(rows)
    algorithm = start(sft(values))
    algorithm.train()
    saved = algorithm.save_to_path(str(tmp_path / "saved"))
    second = algorithm.train()
    other = start(sft(values))
    other.restore_from_path(saved)
    again = other.train()
    assert second["conversations_left_out"] > 2
    for name in ("validation_loss", "supervised_steps", "done", "conversations_left_out"):
        assert again[name] == pytest.approx(second[name], rel=1e-5), name


def test_the_measured_loss_is_the_loss_of_an_update_that_changes_nothing(start, config) -> None:
    """The mean over all tokens that count, each times its message's weight, of all rows."""
    import torch
    from episode_parts import rows_of
    from transformers import AutoModelForCausalLM

    from rllib_lmgame.learners.objectives import SupervisedObjective
    from rllib_lmgame.rollouts.records import played_parts, trajectory_of

    rows = messages()
    for number, row in enumerate(rows):
        row["messages"][2]["weight"] = 0.25 * (number % 3)
    algorithm = start(sft(config(rows, validation_share=0.5)))
    episodes = algorithm._stage.data.held_out(algorithm.env_runner)
    objective = SupervisedObjective(1, 1e-3)
    (measured,) = foreach_learner(algorithm.learner_group, lambda learner: learner.measured_losses(episodes, objective))
    model = AutoModelForCausalLM.from_pretrained(algorithm.config.run.language_model.model, dtype=torch.float32)
    total = counted = 0.0
    for trajectory in [trajectory_of(part) for episode in episodes for part in played_parts(episode, ["player"])]:
        (row,) = rows_of([trajectory], max_row_tokens=1000)
        ids = torch.from_numpy(row.input_ids.astype("int64"))[None]
        with torch.no_grad():
            logits = model(ids).logits[0]
        logprobs = torch.log_softmax(logits.float(), -1)[:-1].gather(-1, ids[0, 1:, None])[:, 0].numpy()
        of_tokens = row.weights[1:]
        total += float(-(logprobs * of_tokens).sum())
        counted += float((of_tokens > 0).sum())
    assert measured["player"] == pytest.approx(total / counted, rel=1e-4)
