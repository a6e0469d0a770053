"""The example that a reader opens first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FILE = Path(__file__).parents[2] / "examples/one_iteration.py"
RUN = """
import asyncio, runpy, sys
example = runpy.run_path(sys.argv[1])
success = asyncio.run(example["train"](example["Config"](iterations=2, levels=4, group_size=4)))
assert len(success) == 2 and all(0 <= share <= 1 for share in success)
assert "ray" not in sys.modules, "the loop needs no Ray"
"""


def test_it_plays_learns_and_pushes_without_ray() -> None:
    """Takes seconds: a process of its own, which is what a reader runs first."""
    done = subprocess.run([sys.executable, "-c", RUN, str(FILE)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stdout.splitlines() if "logprob_diff" in line]  # DeepSpeed may warn before them.
    assert len(lines) == 2
    gaps = [float(line.split("logprob_diff ")[1].split()[0]) for line in lines]
    assert max(gaps) < 1e-4, "the engine plays with the weights that were pushed"
