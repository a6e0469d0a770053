"""The counts and tables of ``benchmarks/`` against cases worked out by hand."""

from __future__ import annotations

from typing import Any

import bounds
import iteration
import numpy as np
import pytest
import several_policies
from recital import Recital

from rllib_lmgame.rollouts.records import Trajectory, Turn


def turn(prompt: list[int], reply: list[int], new_row: bool) -> Turn:
    return Turn(
        np.array(prompt, np.int32), np.array(reply, np.int32), np.zeros(len(reply), np.float32), new_row=new_row
    )


def test_prompt_tokens_by_hand() -> None:
    """Two episodes share 4 tokens; the reply (5 6 7) is cached but for its last token."""
    one = Trajectory([turn([1, 2, 3, 4, 10], [5, 6, 7], True), turn([11, 12], [5], False)], terminated=True)
    two = Trajectory([turn([1, 2, 3, 4, 20], [5, 6, 7], True), turn([21, 22], [5], False)], terminated=True)
    tokens = bounds.count_prompt_tokens([one, two], block=2)
    assert tokens.sent == 5 + 5 + 10 + 10
    # Single tokens: 5 and 1 new ones in the first turns; 7 and the two of the observation in the second ones.
    assert tokens.unique == 5 + 1 + 3 + 3
    # Blocks of two: the first turn of the second episode computes from token 4 on; second turns find 6 of 10 tokens
    # cached.
    assert tokens.unique_blocks == 5 + 1 + 4 + 4


def test_new_rows_start_from_scratch() -> None:
    window = Trajectory([turn([1, 2, 3], [4], True), turn([1, 2, 9], [4], True)], terminated=True)
    tokens = bounds.count_prompt_tokens([window], block=4)
    assert (tokens.sent, tokens.unique, tokens.unique_blocks) == (6, 4, 6)


def test_the_whole_prompt_is_never_cached() -> None:
    """The last token has to be computed to predict the next one."""
    same = Trajectory([turn([1, 2, 3, 4], [5], True)], terminated=True)
    assert bounds.count_prompt_tokens([same, same], block=1).unique == 4 + 1
    assert bounds.count_prompt_tokens([same, same], block=4).unique_blocks == 4 + 4


def test_recital_keeps_its_promise() -> None:
    game = Recital(turns=5, rules=192, first=100, later=84)
    assert len(game.instructions) == 192
    first, _ = game.reset(seed=3)
    steps = [game.step(str(i)) for i in range(5)]
    assert len(first) == 100 and [len(step[0]) for step in steps] == [84] * 5
    assert [step[2] for step in steps] == [False] * 4 + [True] and not any(step[3] for step in steps)
    assert game.reset(seed=3)[0] == first and game.reset(seed=4)[0] != first


def report(**values: float) -> dict[str, Any]:
    row = {key: values.get(key, 0.0) for key, *_ in iteration.ROWS}
    options = {"no_deepspeed": False, "minibatches": 4, "threads": 1, "warm_up": 2}
    return {"medians": row, "repeats": [row, row], "command": "python x", "parameters": 1_000_000, "options": options}


def test_table_says_what_is_reached() -> None:
    lines = {
        line.split("|")[1].strip(): line
        for line in iteration.table(report(rollout_utilisation=0.9, update_s=7.0), iteration.ROWS).splitlines()
    }
    assert lines["rollout utilisation (engine alone / rollout)"].endswith("| at least 0.8 | reached |")
    assert lines["update, s"].endswith("| at most 6.5 | **missed** |")


def test_several_policies_are_compared_by_turns_per_second() -> None:
    one = {"turns": 100.0, "rollout_s": 2.0, "iteration_s": 4.0, "update_s": 1.0, "busy": 0.5}
    two = one | {"turns": 90.0, "rollout_s": 2.5}
    league = one | {"iteration_s": 8.0, "members": 8.0, "swaps": 2.0, "prepare_s": 0.1}
    found = several_policies.figures({"one": one, "two": two, "league": league})
    assert found["two_per_one"] == pytest.approx(36 / 50) and found["two_iteration_per_one"] == pytest.approx(0.9)
    assert found["league_per_one"] == 1.0 and found["league_iteration_per_one"] == 0.5
    assert {key for key, *_ in several_policies.ROWS} <= found.keys()


def test_writing_keeps_what_stands_below(tmp_path) -> None:
    path = tmp_path / "results" / "benchmarks.md"
    iteration.write(path, report(), "a machine")
    first = path.read_text()
    path.write_text(first + "\nother figures\n")
    iteration.write(path, report(update_s=1.0), "a machine")
    text = path.read_text()
    assert text.endswith("\nother figures\n") and text.count("# Benchmarks") == 1 and "| update, s | 1.00 |" in text
