"""``benchmarks/memory.py``: an estimate for each algorithm, and cases that the measurement takes."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import memory
import pytest


def test_each_algorithm_has_an_estimate_beside_its_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[dict[str, Any]]] = []

    def measure(command: list[str], **_: Any) -> Any:
        asked.append(json.loads(command[-1]))
        return SimpleNamespace(stdout=json.dumps({"cases": [{"peak": 1.0}, {"peak": 100.0 + len(asked)}]}))

    monkeypatch.setattr(memory.subprocess, "run", measure)
    found = {name: (estimate, peak) for name, estimate, peak in memory.measured(memory.MODELS["tiny"])}
    assert list(found) == list(memory.ALGORITHMS)
    assert [peak for _, peak in found.values()] == [101.0, 102.0, 103.0, 104.0]
    assert all(
        adapted < found[name.removesuffix(", LoRA")][0] for name, (adapted, _) in found.items() if "LoRA" in name
    )
    assert [cases[1]["lora"] for cases in asked] == [None, None, {"r": 16}, {"r": 16}]
