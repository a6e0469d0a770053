"""Lines of Python and words of pages against the budget in ``pyproject.toml``: ``python tests/size.py``.

Who adds, first takes away. A limit is only ever lowered.
"""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

BEFORE = (
    *("config/*.py", "experiments/checks/*.py", "experiments/search/*.py", "experiments/files/*.py"),
    *("experiments/spec.py", "algorithms/validation.py", "algorithms/cluster/footprint.py"),
    *("algorithms/cluster/memory.py", "base/group.py", "base/schedule.py", "base/trust.py"),
    *(f"{room}/options.py" for room in ("datasets", "inference", "league", "learners", "policies", "rollouts")),
)
"""What runs before anything starts: options, their checks, and estimates of what a run needs."""


def sizes() -> Counter[str]:
    """Lines of each room of the package, of the package without games, of tests, and words written by hand."""
    found: Counter[str] = Counter()
    for folder in ("rllib_lmgame", "tests"):
        for file in (ROOT / folder).rglob("*.py"):
            lines = file.read_text(encoding="utf-8").count("\n")
            room = folder if folder == "tests" else file.relative_to(ROOT / folder).parts[0]
            found[room] += lines
            found["package without games"] += lines * (room not in ("tests", "envs"))
    for pattern in BEFORE:
        for file in (ROOT / "rllib_lmgame").glob(pattern):
            found["before a run starts"] += file.read_text(encoding="utf-8").count("\n")
    for pages in ("*.md", "docs/**/*.md", "benchmarks/*.md"):
        found["words"] += sum(len(file.read_text(encoding="utf-8").split()) for file in ROOT.glob(pages))
    return found


def main() -> int:
    budget = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["size"]
    found, over = sizes(), 0
    for name, most in budget.items():
        over += (too_much := found[name] > most or not found[name])
        print(f"{name}: {found[name]:,} of {most:,}" + " - more than pyproject.toml allows" * too_much)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
