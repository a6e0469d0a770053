"""Finds the episode files that the arguments of ``rllib view`` stand for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.storage import expanded
from rllib_lmgame.base.text import first_line
from rllib_lmgame.experiments.results.files import RESULT_FILE
from rllib_lmgame.rollouts.log.episode_log import TOKENS
from rllib_lmgame.viewer.library import Source

_LOGS = ("episodes/*.jsonl", f"episodes/*{TOKENS}", "games.jsonl", "results.jsonl", "executer_logs/step*/*.json")
"""What is looked for in a directory, in that order; where nothing is, every ``*.jsonl``."""
_LISTS = "step*/*.json"


def sources_of(targets: Sequence[str]) -> list[Source]:
    """The files of ``targets``: logs, and directories of runs, trials, checkpoints, tournaments, evaluations.

    A run that has not written any yet has none. Raises: ConfigError: there is no such file or directory.
    """
    found: dict[Path, str] = {}
    for target in targets:
        path = expanded(target)
        try:
            if path.is_dir():
                root = _with_logs(path)
                files = _logs_of(root)
            elif path.is_file():
                root, files = path.parent, [path, *sorted(path.parent.glob(f"*{TOKENS}"))]
            else:
                raise ConfigError("", f"no such run, checkpoint or episode log: {target}")
        except (OSError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError("", f"{target} cannot be read: {first_line(error)}") from None
        for file in files:
            label = str(file.relative_to(root))
            found.setdefault(file.resolve(), f"{root.name}/{label}" if len(targets) > 1 else label)
    return [Source(path, label) for path, label in found.items()]


def _with_logs(path: Path) -> Path:
    """A checkpoint's episodes lie in the directory of its trial."""
    own = (path / "manifest.json").exists() or (path / "lmgame_config.json").exists()
    return path.absolute().parent if own else path


def _logs_of(root: Path) -> list[Path]:
    patterns = [p for log in _LOGS for p in (log, f"*/{log}")]
    found = [file for pattern in [*patterns, _LISTS] for file in sorted(root.glob(pattern)) if file.is_file()]
    known = found or [file for file in sorted(root.glob("**/*.jsonl")) if file.is_file()]
    return [file for file in dict.fromkeys(known) if file.name != "failures.jsonl"]


def trials_of(targets: Sequence[str]) -> list[Path]:
    """The trials that ``targets`` are, are of, or hold."""
    roots = [_with_logs(path) for path in map(expanded, targets) if path.is_dir()]
    found = [path.parent for root in roots for path in (root / RESULT_FILE, *sorted(root.glob(f"*/{RESULT_FILE}")))]
    return list({path.resolve(): None for path in found if (path / RESULT_FILE).is_file()})
