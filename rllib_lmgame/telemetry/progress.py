"""What a trial is doing, told through Ray's key-value store, and one line per iteration and per evaluation."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TextIO

from ray.tune import Callback

from rllib_lmgame.base.schedule import number_at
from rllib_lmgame.telemetry.advice import Adviser
from rllib_lmgame.telemetry.metrics import (
    COLLAPSE,
    EXPERT_TIMER,
    OVER_LEVELS,
    PHASES,
    RLLIB_EVALUATION,
    flatten,
    win_draw_loss,
)
from rllib_lmgame.telemetry.trial_names import names_of, trial_settings

WHY_DROPPED = "/dropped"
"""Behind a trial's id: where it says why episodes were dropped."""
CHOSEN = "/chosen"
"""Likewise, where it says what was left to it to choose."""
START = (
    "starting the trial's process",
    "preparing the models",
    "starting the engines",
    "starting env runners and learners",
)
"""Phases of a trial's start, one after the other."""
STARTING, MODELS, ENGINES, WORKERS = START
_NAMESPACE = b"rllib_lmgame_phase"


def tell_phase(trial_id: str, phase: str) -> None:
    """Say what the trial begins to do; nothing happens where no cluster answers."""
    from ray.experimental import internal_kv

    _asked(internal_kv._internal_kv_put, trial_id, phase.encode(), overwrite=True)


def phase_of(trial_id: str) -> str | None:
    """The trial's latest phase; ``None`` if it has reported none."""
    from ray.experimental import internal_kv

    told = _asked(internal_kv._internal_kv_get, trial_id)
    return None if told is None else told.decode()


def _asked(ask: Callable[..., Any], key: str, *value: bytes, **options: Any) -> Any:
    """Ray's answer; ``None`` where no cluster is, or it gives none: nothing fails because it could not be watched."""
    from ray.exceptions import RayError
    from ray.experimental import internal_kv

    if not internal_kv._internal_kv_initialized():
        return None
    with suppress(RayError, OSError):
        return ask(key.encode(), *value, namespace=_NAMESPACE, **options)
    return None


SAY_EVERY_S = 10.0
"""Between two lines about what a trial does that has no result yet."""


class ProgressCallback(Callback):
    """Prints a line per result and per evaluation, and before the first one every ten seconds what a trial does.

    ``stop`` criteria are for the ETA; ``since`` is the ``time.monotonic()`` from when the first trial is waited for;
    ``why`` gives the reason, in a line, why a trial failed.
    """

    def __init__(
        self,
        stop: Mapping[str, float] | None = None,
        since: float | None = None,
        stream: TextIO | None = None,
        why: Callable[[Any], str] | None = None,
    ) -> None:
        self._stop = dict(stop or {})
        self._began = time.monotonic() if since is None else since
        self._stream, self._why = stream, why
        self._is_first = True
        self._first: dict[tuple[str, str], tuple[float, float]] = {}
        self._names: dict[str, str] = {}
        self._next = time.monotonic() + SAY_EVERY_S
        self._with_result: set[str] = set()
        self._adviser = Adviser(lambda trial_id: phase_of(trial_id + WHY_DROPPED))

    def setup(self, *args: Any, **kwargs: Any) -> None:
        print("starting processes ...", file=self._stream or sys.stdout, flush=True)
        self._next = time.monotonic() + SAY_EVERY_S

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + SAY_EVERY_S
        self._names = names_of(trials)
        waiting = [trial for trial in trials if trial.status in ("PENDING", "RUNNING")]
        silent = {trial.trial_id: trial for trial in waiting if trial.trial_id not in self._with_result}
        told = {name: phase for name in silent if (phase := phase_of(name)) is not None}
        if silent and not told and len(silent) == len(trials):  # Nobody has got so far.
            told = {next(iter(silent)): STARTING}
        for name, phase in told.items():
            self._print(silent[name], f"{now - self._began:5.0f} s  {phase}")

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Its processes are up, its first iteration begins."""
        self._names = names_of(trials)
        took = f" in {time.monotonic() - self._began:.0f} s" if self._is_first else ""  # Later ones waited for turns.
        self._is_first = False
        chosen = phase_of(trial.trial_id + CHOSEN)
        self._print(trial, f"processes up{took}" + (f": {chosen}" if chosen else ""))

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        self._names = names_of(trials)
        self._with_result.add(trial.trial_id)
        self._print(trial, progress_line(result, self._eta(trial.trial_id, result)))
        if evaluated := evaluation_line(result):
            self._print(trial, evaluated)
        told = [result[COLLAPSE]] if COLLAPSE in result else []
        for line in [*self._adviser.lines(trial.trial_id, result, getattr(trial, "config", None)), *told]:
            self._print(trial, f"note: {line}")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._print(trial, f"failed: {self._why(trial)}" if self._why else "failed")

    def _print(self, trial: Any, text: str) -> None:
        """The line begins with the trial's name, where there are several or it has one."""
        named = len(self._names) > 1 or trial_settings(trial)
        head = f"[{self._names.get(trial.trial_id, trial.trial_id)}] " if named else ""
        print(head + text, file=self._stream or sys.stdout, flush=True)

    def _eta(self, trial_id: str, result: Mapping[str, Any]) -> float | None:
        """Seconds until the first counting criterion is met or the trial ends by itself, by the pace since it moved."""
        now, estimates = time.monotonic(), []
        for key, goal in [*self._stop.items(), ("progress", 1.0)]:
            value = number_at(result, key)
            if value is None or key.endswith(("_mean", "_rate")):
                continue
            since, start = self._first.get((trial_id, key), (now, value))
            if value <= start:
                self._first[trial_id, key] = (now, value)
                continue
            estimates.append(max(0.0, (goal - value) * (now - since) / (value - start)))
        return min(estimates) if estimates else None


def evaluation_line(result: Mapping[str, Any]) -> str:
    """What an iteration's evaluation found; empty without one, and in a warm start, whose own line has its success."""
    count = number_at(result, "evaluation/env_runners/num_episodes")
    if count is None or number_at(result, "phase") == 0:
        return ""
    numbers = result["evaluation"]
    measured = {key: value for key, value in numbers.items() if key not in ("env_runners", *RLLIB_EVALUATION)}
    found = [("/".join(path), number_at(numbers, "/".join(path))) for path, _ in flatten(measured)]
    shown = [f"{name} {value:.4f}" for name, value in found if value is not None]
    return "  ".join(
        [f"  evaluation of {count:.0f} episodes:", *played(numbers["env_runners"], _policies(result)), *shown]
    )


def played(runners: Mapping[str, Any], policies: Sequence[str]) -> list[str]:
    """Success, or who won in which role, the trained ``policies``' own return, and replies not taken."""
    success = number_at(runners, "success_rate")
    unread, illegal = (number_at(runners, name) for name in ("format_error_rate", "illegal_action_rate"))
    return [
        *([f"success {success:.3f}{_interval(runners)}"] if success is not None else _outcomes(runners)),
        *_returns(runners, policies),
        *([] if unread is None else [f"unreadable {unread:.3f}"]),
        *([] if illegal is None else [f"illegal {illegal:.3f}"]),
    ]


def _interval(runners: Mapping[str, Any]) -> str:
    levels, low, high = (number_at(runners, name) for name in OVER_LEVELS)
    over = "" if levels is None else f" over {levels:.0f} level" + "s" * (levels != 1)
    return f" ({low:.3f} - {high:.3f}{over})" if low is not None and high is not None else over and f" ({over.strip()})"


def progress_line(result: Mapping[str, Any], eta_s: float | None = None) -> str:
    """The line for one result of any algorithm; parts without a number are left out."""
    eta = [] if eta_s is None else [f"ETA {duration(eta_s)}"]
    return "  ".join(part for part in (_head(result), _times(result), *_numbers(result), *eta) if part)


def _head(result: Mapping[str, Any]) -> str:
    iteration, steps = f"iter {int(result.get('training_iteration', 0)):>4}", number_at(result, "supervised_steps")
    if number_at(result, "phase") == 1:
        return f"{iteration}  RL  {int(number_at(result, 'rl_iteration') or 0):>4}"
    return iteration if steps is None else f"{iteration}  supervised step {int(steps):>5}"


def _times(result: Mapping[str, Any]) -> str:
    parts = []
    for key, phase in PHASES.items():
        value = number_at(result, f"timers/{key}")
        if value is not None and not (key == EXPERT_TIMER and number_at(result, "phase") == 1):
            parts.append(f"{phase.name} {value:.2f}s")
    return " ".join(parts) or f"{number_at(result, 'time_this_iter_s') or 0:.1f}s"


def _numbers(result: Mapping[str, Any]) -> list[str]:
    phase = number_at(result, "phase")
    ppo = number_at(result, "supervised_steps") is None if phase is None else phase != 0
    policies, runners = _policies(result), (result.get("env_runners") or {}) if ppo else {}
    learner = result["learners"][policies[0]] if policies else {}
    success = number_at(runners, "success_rate")
    supervised = [
        ("loss", number_at(learner, "policy_loss"), "{:.3f}"),
        ("held out", number_at(result, "validation_loss"), "{:.3f}"),
        ("valid", number_at(result, "evaluation/env_runners/success_rate"), "{:.3f}"),
    ]
    both = [
        ("accuracy", number_at(learner, "reward_accuracy"), "{:.3f}"),
        ("kl", number_at(learner, "mean_kl_loss"), "{:.4f}"),
        ("entropy", number_at(learner, "entropy"), "{:.3f}"),
    ]
    played_for = [
        ("gap", number_at(learner, "logprob_diff"), "{:.0e}"),
        ("tok/s", number_at(runners, "generated_tokens_per_s"), "{:.0f}"),
        ("busy", number_at(runners, "engine_busy_fraction"), "{:.0%}"),
    ]
    chosen = [*both, *played_for] if ppo else [*supervised, *both]
    shown = [f"{name} {form.format(value)}" for name, value, form in chosen if value is not None]
    won = [f"success {success:.3f}"] if success is not None else _outcomes(runners)
    return [*won, *_returns(runners, policies), *shown]


def _returns(runners: Mapping[str, Any], policies: Sequence[str]) -> list[str]:
    """Returns of trained policies, by role where they differ. The sum over all seats only if nothing else is known."""
    earned = runners.get("seat_returns_mean") or {}
    found = {
        (policy, str(role)): f"{value:+.2f}"
        for policy in policies
        for role in earned.get(policy) or ()
        if (value := number_at(earned[policy], str(role))) is not None
    }
    if not found:
        total = number_at(runners, "episode_return_mean")
        return [] if total is None else [f"return {total:+.2f}"]
    if len(set(found.values())) == 1:
        return [f"return {next(iter(found.values()))}"]
    several = len({policy for policy, _ in found}) > 1
    return [
        "return " + ", ".join(f"{policy + ' ' if several else ''}{role} {x}" for (policy, role), x in found.items())
    ]


def _outcomes(runners: Mapping[str, Any]) -> list[str]:
    """Win, draw and loss by role where there is no success (trained policies against each other)."""
    found = win_draw_loss(runners)
    several = len({policy for policy, _, _ in found}) > 1
    shown = [
        f"{policy + ' ' if several else ''}{role} " + "-".join(f"{share:.2f}" for share in shares)
        for policy, role, shares in found
    ]
    return ["win-draw-loss " + ", ".join(shown)] if shown else []


def _policies(result: Mapping[str, Any]) -> list[str]:
    learners = result.get("learners")
    named = learners.items() if isinstance(learners, Mapping) else ()
    return [str(name) for name, numbers in named if name != "__all_modules__" and isinstance(numbers, Mapping)]


def duration(seconds: float) -> str:
    """Seconds in words: ``45 s``, ``12 min``, ``3 h 20 min``."""
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"
