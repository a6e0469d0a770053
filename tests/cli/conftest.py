"""Checkpoints made by hand."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Checkpoint = Callable[..., str]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, which Python does not look in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    return tmp_path


@pytest.fixture
def checkpoint(tmp_path, tiny_model_dir, make_config) -> Checkpoint:
    """Function ``(**overrides)`` that writes a checkpoint as far as playing needs one."""

    def write(**overrides) -> str:
        from rllib_lmgame.algorithms.checkpoints.manifest import write_manifest
        from rllib_lmgame.algorithms.checkpoints.paths import MARKER
        from rllib_lmgame.algorithms.config import CONFIG_FILE

        config = make_config(**overrides)
        place = tmp_path / "checkpoint_000000"
        (place / "hf").mkdir(parents=True)
        for path in Path(tiny_model_dir).iterdir():
            (place / "hf" / path.name).write_bytes(path.read_bytes())
        (place / CONFIG_FILE).write_text(json.dumps(config.run.as_yaml()))
        (place / MARKER).write_text("{}")
        write_manifest(place)
        return str(place)

    return write
