"""The live screen of a run, drawn on a console that is no terminal of anybody."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from rllib_lmgame.experiments.run import screen
from rllib_lmgame.experiments.run.screen import LiveScreen, trial_lines, wanted
from rllib_lmgame.telemetry.phases import Share
from rllib_lmgame.telemetry.progress import ProgressCallback


@pytest.fixture
def drawn() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def live(drawn: io.StringIO) -> Any:
    callback = LiveScreen({"rl_iteration": 10}, console=Console(file=drawn, force_terminal=True, width=100))
    callback.setup()
    yield callback
    callback.close()


def text_of(live: LiveScreen) -> str:
    return str(live._screen())


def trial(name: str = "a", path: str = "", status: str = "RUNNING") -> Any:
    return SimpleNamespace(trial_id=name, path=path, status=status)


def result(i: int, **more: Any) -> dict[str, Any]:
    runners = {"success_rate": i / 10, "engine_busy_fraction": 0.5}
    return {"training_iteration": i, "rl_iteration": i, "env_runners": runners, **more}


@pytest.mark.parametrize("status", ["PENDING", "RUNNING"])
def test_a_trial_has_its_phase_then_its_curve_bars_and_game(
    status: str, live: LiveScreen, drawn: io.StringIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screen, "LOOK_EVERY_S", 0.0)
    phases: dict[str, str] = {}
    monkeypatch.setattr(screen, "phase_of", phases.get)
    one = trial(path=str(tmp_path), status=status)
    live.on_step_begin(0, [one, trial("waits", status="PENDING")])
    assert screen.STARTING in text_of(live) and "waits" not in text_of(live)
    phases["a"] = "loading \x1b[2Jthe model"
    live.on_step_begin(0, [one])
    assert "loading \\x1b[2Jthe model" in text_of(live)
    told = {"a": ({"steps": Share(8, 2), "games": Share(64, 48)}, "a board\x1b[2J\nin play")}
    monkeypatch.setattr(screen, "shares_of", told.get)
    live.on_step_begin(0, [one])
    text = text_of(live)
    assert "steps    █████░░░░░░░░░░░░░░░ 2 of 8" in text and "games    ███████████████░░░░░ 48 of 64" in text
    assert text.endswith("a board\\x1b[2J\nin play")
    for i in (1, 2, 3):
        live.on_trial_result(i, [one], one, result(i))
    phases["a"], told["a"] = "playing", ({"games": Share(4, 1)}, "another in play")
    live.on_step_begin(3, [one])
    text = text_of(live)
    assert "playing" in text and "1 of 4" in text and text.endswith("another in play")
    told["a"] = ({}, "")
    live.on_step_begin(3, [one])
    text = text_of(live)
    assert "in play" not in text and "loading" not in text
    assert "iter    3" in drawn.getvalue() and "\x1b[2J" not in drawn.getvalue()


def test_several_trials_have_names_and_not_more_than_fit(live: LiveScreen) -> None:
    trials = [trial(str(i)) for i in range(screen.MOST_TRIALS + 2)]
    live.on_step_begin(0, trials)
    for one in trials:
        live.on_trial_result(1, trials, one, result(1))
    text = text_of(live)
    assert "[0]" in text and "and 2 more" in text and f"[{screen.MOST_TRIALS}]" not in text


def test_the_screen_goes_at_the_end_also_if_it_is_asked_twice(live: LiveScreen, drawn: io.StringIO) -> None:
    live.on_step_begin(0, [trial()])
    live.on_experiment_end([])
    live.close()
    assert drawn.getvalue().rstrip().endswith("\x1b[?25h") or "\x1b[?25h" in drawn.getvalue()  # The cursor is back.
    assert live._live is None


def test_the_time_left_stands_below() -> None:
    assert trial_lines(screen._Shown(eta_s=75.4))[-1] == "  1:15 left"


@pytest.mark.parametrize(
    ("terminal", "kind", "expected"), [(True, "xterm", True), (True, "dumb", False), (False, "xterm", False)]
)
def test_plain_lines_where_output_is_no_terminal(
    terminal: bool, kind: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.StringIO()
    out.isatty = lambda: terminal  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setenv("TERM", kind)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert wanted() is expected
    assert issubclass(LiveScreen, ProgressCallback)
