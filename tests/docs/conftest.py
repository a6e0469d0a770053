"""The scripts that write and check the pages can be imported, and that of the figures."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "benchmarks")]
