"""How soon commands say something: seconds from the start of a process to its first byte on a terminal.

    python benchmarks/first_output.py --repeats 9

Each is ended once it has said something. Beside the seconds stand those of its processor: on an idle machine they are
about the same.
"""

from __future__ import annotations

import argparse
import os
import pty
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from machine import cpu_seconds, describe, machine

RLLIB = Path(sys.executable).with_name("rllib")
EXAMPLE = Path(__file__).parents[1] / "tuned_examples" / "quickstart-sokoban.yaml"
COMMANDS = {"--help": 0.5, "games list": 0.5, f"train file {EXAMPLE}": 1.0}
"""The words, and the most seconds they are to take."""


def first_byte(words: Sequence[str]) -> tuple[float, float]:
    """Seconds, and processor seconds, until ``rllib`` with these words says something."""
    ours, theirs = pty.openpty()
    began = time.monotonic()
    process = subprocess.Popen([str(RLLIB), *words], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    os.read(ours, 1)
    took, worked = time.monotonic() - began, cpu_seconds(process.pid)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    os.close(ours)
    return took, worked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9, metavar="N")
    arguments = parser.parse_args()
    print(
        f"{describe(machine())}\n\n| command | first output, s | range | processor, s | target |\n|---|---|---|---|---|"
    )
    for line, most in COMMANDS.items():
        found = [first_byte(line.split()) for _ in range(arguments.repeats + 1)][1:]  # The first one fills caches.
        times, worked = zip(*found, strict=True)
        shown = f"{statistics.median(times):.2f} | {min(times):.2f} to {max(times):.2f}"
        name = line.replace(str(EXAMPLE.parents[1]) + os.sep, "")
        print(f"| `rllib {name}` | {shown} | {statistics.median(worked):.2f} | at most {most:g} |", flush=True)


if __name__ == "__main__":
    main()
