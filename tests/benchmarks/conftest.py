"""The scripts of ``benchmarks/`` can be imported, where the source has them."""

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
collect_ignore_glob = [] if BENCHMARKS.is_dir() else ["test_*.py"]
