"""What was refused before is refused now, at the same key (``benchmarks/refusals.py`` asks all of it)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import refusals


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_verdicts_are_those_of_before(part: int) -> None:
    differing = [
        (entry, old, new)
        for number, entry, old in refusals.entries()
        if number % 4 == part
        and (old.key is not None if number < refusals.OF_TESTS else number % 128 == part)
        and (new := refusals.other_verdict(number, entry, old)) is not None
    ]
    assert not differing, differing[:3]
