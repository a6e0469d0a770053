"""``benchmarks/beside_trl.py``: its ratios by hand, and a process that is asked."""

from __future__ import annotations

import beside_trl
import pytest
import stock_trl
from asked import AskedProcess


def test_ratios_are_those_of_neighbours() -> None:
    ours = {"update_s": 2.0, "iteration_s": 5.0, "unshared_update_s": 9.0}
    found = beside_trl.figures(ours, {"update_s": 8.0, "iteration_s": 12.5})
    assert (found["trl_per_update"], found["trl_per_iteration"], found["unshared_per_update"]) == (4.0, 2.5, 4.5)
    assert found["trl_update_s"] == 8.0 and found["update_s"] == 2.0


def test_a_missing_trl_is_told_with_its_command(monkeypatch) -> None:
    monkeypatch.setattr(stock_trl.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=f"pip install trl=={stock_trl.VERSION}"):
        stock_trl.StockTRL("no directory", 1, 8, 10, "", 256, 1e-6, 1)


def test_a_process_answers_and_its_end_is_told(tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from asked import answer, questions, ready\n"
        "print('a library says something')\n"
        "ready()\n"
        "for question in questions():\n"
        "    print('and here')\n"
        "    answer(10 // question)\n",
        encoding="utf-8",
    )
    process = AskedProcess(script, environment={"PYTHONPATH": str(beside_trl.HERE)})
    try:
        assert process.ask(5) == 2 and process.ask(3) == 3
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            process.ask(0)
    finally:
        process.close()
