"""The counts of ``benchmarks/bounds.py`` against cases worked out by hand."""

from __future__ import annotations

import bounds
import numpy as np

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
