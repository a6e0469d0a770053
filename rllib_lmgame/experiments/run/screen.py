"""The live screen of a run on a terminal: lines of progress go by, below them stands how each trial does just now.

Of each trial: its phase by name, with a bar where it is known how much there is to do. From the first result on its
curve and the time left. Of one trial alone also a game that is being played. Where output is no terminal there are
plain lines alone.
"""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rllib_lmgame.base.text import printable
from rllib_lmgame.telemetry.phases import STARTING, Share, phase_of, shares_of
from rllib_lmgame.telemetry.progress import ProgressCallback
from rllib_lmgame.telemetry.trial_names import names_of

MOST_TRIALS = 6
"""Shown at the same time; of others the lines that go by tell."""
LOOK_EVERY_S = 0.5
"""Between two looks at what trials do."""
GAME_LINES = 14
BAR = 20


@dataclass
class _Shown:
    """What the screen knows of a trial."""

    phase: str = STARTING
    shares: dict[str, Share] = field(default_factory=dict)
    in_play: str = ""
    eta_s: float | None = None


def wanted() -> bool:
    """Whether output goes to a terminal that can be written all over, and rich is there."""
    if not sys.stdout.isatty():
        return False
    try:
        from rich.console import Console
    except ImportError:
        return False
    return not Console().is_dumb_terminal


class LiveScreen(ProgressCallback):
    """:class:`ProgressCallback` whose lines go by above a screen that stays; ``console`` is rich's, for tests."""

    def __init__(
        self,
        stop: Mapping[str, float] | None = None,
        since: float | None = None,
        console: Any = None,
        why: Callable[[Any], str] | None = None,
    ) -> None:
        from rich.console import Console

        super().__init__(stop, since, why=why)
        self._console = console or Console()
        self._shown: dict[str, _Shown] = {}
        self._started = time.monotonic() if since is None else since
        self._next_look = 0.0
        self._live: Any = None

    def setup(self, *args: Any, **kwargs: Any) -> None:
        from rich.live import Live

        super().setup(*args, **kwargs)
        self._live = Live(console=self._console, refresh_per_second=2, transient=True, get_renderable=self._screen)
        self._live.start()
        atexit.register(self.close)  # A run that breaks off leaves the terminal as it was.

    def close(self) -> None:
        """Take the screen away; doing it again changes nothing."""
        if self._live is not None:
            self._live.stop()
            self._live = None
            atexit.unregister(self.close)

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """What trials do stands on the screen; Tune calls one pending until its processes are up."""
        self._names = names_of(trials)
        under_way = []
        for trial in trials:
            if trial.status in ("PENDING", "RUNNING"):
                under_way.append(trial)
            else:
                self._shown.pop(trial.trial_id, None)
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_EVERY_S
        for trial in under_way:
            phase = phase_of(trial.trial_id)
            if phase is not None or trial.status == "RUNNING":
                shown = self._of(trial)
                shown.phase = phase or STARTING
                if list(self._shown).index(trial.trial_id) < MOST_TRIALS:
                    shown.shares, shown.in_play = shares_of(trial.trial_id)
        if under_way and not self._shown:  # Nobody has got so far.
            self._of(under_way[0])

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        self._of(trial)
        super().on_trial_result(iteration, trials, trial, result, **info)

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        self.close()

    def _eta(self, trial_id: str, result: Mapping[str, Any]) -> float | None:
        found = super()._eta(trial_id, result)
        if trial_id in self._shown:
            self._shown[trial_id].eta_s = found
        return found

    def _of(self, trial: Any) -> _Shown:
        return self._shown.setdefault(trial.trial_id, _Shown())

    def _print(self, trial: Any, text: str) -> None:
        self._console.print(printable(self._head(trial) + text), markup=False, highlight=False, soft_wrap=True)

    def _screen(self) -> Any:
        from rich.text import Text

        shown = list(self._shown.items())
        lines = [f"{time.monotonic() - self._started:.0f} s"]
        for name, trial in shown[:MOST_TRIALS]:
            lines += [f"[{self._names.get(name, name)}]"] * (len(shown) > 1) + trial_lines(trial)
        if len(shown) > MOST_TRIALS:
            lines.append(f"and {len(shown) - MOST_TRIALS} more")
        if len(shown) == 1 and shown[0][1].in_play:
            lines += ["", *shown[0][1].in_play.splitlines()[-GAME_LINES:]]
        return Text("\n".join(printable(line) for line in lines), no_wrap=True, overflow="ellipsis")


def trial_lines(shown: _Shown) -> list[str]:
    """A trial in a few lines."""
    lines = [f"  {shown.phase}"]
    for what, share in shown.shares.items():
        full = round(min(1.0, share.done / max(1, share.of)) * BAR)
        lines.append(f"  {what:8} {'█' * full}{'░' * (BAR - full)} {share.done} of {share.of}")
    if shown.eta_s is not None:
        minutes, seconds = divmod(round(shown.eta_s), 60)
        lines.append(f"  {minutes}:{seconds:02d} left")
    return lines
