"""Lines of Python and words of pages against the budget in ``pyproject.toml``: ``python tests/size.py``.

Who adds, first takes away. A limit is only ever lowered.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def sizes() -> dict[str, int]:
    """Lines of each room of the package, of the package without games, of tests, and words written by hand."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    files = [Path(name) for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    found: Counter[str] = Counter()
    for file in files:
        text = (ROOT / file).read_text(encoding="utf-8") if file.suffix in (".py", ".md") else ""
        if file.suffix == ".py" and file.parts[0] == "rllib_lmgame":
            rooms = [file.parts[1], *(["package without games"] if file.parts[1] != "envs" else [])]
            found.update(dict.fromkeys(rooms, text.count("\n")))
        elif file.suffix == ".py" and file.parts[0] == "tests":
            found["tests"] += text.count("\n")
        elif file.suffix == ".md" and file.parts[0] not in ("rllib_lmgame", "tests"):
            found["words"] += len(text.split())
    return dict(found)


def main() -> int:
    budget = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["size"]
    found = sizes()
    over = [
        f"{name}: {found.get(name, 0):,}, at most {most:,}"
        for name, most in budget.items()
        if found.get(name, 0) > most
    ]
    print(
        "\n".join(
            ["more than pyproject.toml allows", *over] if over else [f"{name} {size:,}" for name, size in found.items()]
        )
    )
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
