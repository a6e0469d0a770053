"""What is said of a run that has nothing to learn from, or loses episodes, and what to try."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rllib_lmgame.base.schedule import number_at
from rllib_lmgame.telemetry.metrics import MOSTLY

UNREAD, EQUAL, GAP, DROPPED = "unread", "equal", "gap", "dropped"
LARGE_GAP = 0.1
"""Mean difference above which a note is printed; bfloat16 alone explains about a third of it."""
PAGE = "docs/troubleshooting.md"
ROWS = (1, 10, 100, 1000)
"""Iterations in a row after which it is said, each time once."""


def advice(result: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Why there is little to learn in an iteration, and how many episodes were lost, by kind.

    Options that the ``config`` of the run has are not advised.
    """
    found, config = {}, config or {}
    warm = [] if config.get("warm_start") else ["warm_start"]
    prefilled = (config.get("language_model") or {}).get("reply_prefill")
    untried = ", or ".join([*warm, *([] if prefilled else ["language_model.reply_prefill: '<answer>'"])])
    unread = number_at(result, "env_runners/format_error_rate")
    if unread is not None and unread > MOSTLY:
        found[UNREAD] = (
            f"{unread:.0%} of the replies could not be read (`rllib evaluate` shows some); set "
            f"{untried or 'language_model.max_tokens_per_turn higher'}: {PAGE}"
        )
    learners = {str(name): x for name, x in (result.get("learners") or {}).items() if isinstance(x, Mapping)}
    equal = [
        name for name, x in learners.items() if number_at(x, "advantage_min") == 0 == number_at(x, "advantage_max")
    ]
    if equal:
        found[EQUAL] = (
            f"{', '.join(equal)}: every advantage is 0, since the games of each group earned the same; play levels of "
            f"which some are won, raise text_rollouts.group_size{', or set warm_start' * bool(warm)}: {PAGE}"
        )
    gaps = [(gap, name) for name, x in learners.items() if (gap := number_at(x, "logprob_diff_mean")) is not None]
    gap, policy = max(gaps, default=(0.0, ""))
    if gap > LARGE_GAP:
        found[GAP] = (
            f"{policy}: sampler and learner differ by {gap:.2g} on average in the log-probability of a token "
            "(logprob_diff_mean); in bfloat16 try dtype: float32 in language_model and inference, or "
            f"training.importance_sampling: {PAGE}"
        )
    reasons = (result.get("env_runners") or {}).get("dropped") or {}
    if lost := {reason: count for reason in reasons if (count := number_at(reasons, reason))}:
        told = ", ".join(f"{reason} {count:.0f}" for reason, count in lost.items())
        found[DROPPED] = f"{sum(lost.values()):.0f} episodes were dropped, and played anew as often as allowed ({told})"
    return found


class Adviser:
    """Says once each what :func:`advice` finds for 1, 10, 100 ... iterations of a trial in a row; ``why`` says why
    episodes of a trial were dropped.
    """

    def __init__(self, why: Callable[[str], str | None]) -> None:
        self._why = why
        self._rows: dict[tuple[str, str], int] = {}
        self._said: set[tuple[str, str, int]] = set()

    def lines(self, trial_id: str, result: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> list[str]:
        found, lines = advice(result, config), []
        if DROPPED in found and (why := self._why(trial_id)):
            found[DROPPED] += f": {why}"
        for kind in (UNREAD, EQUAL, GAP, DROPPED):
            row = self._rows[trial_id, kind] = self._rows.get((trial_id, kind), 0) + 1 if kind in found else 0
            if row in ROWS and (trial_id, kind, row) not in self._said:
                self._said.add((trial_id, kind, row))
                lines.append(found[kind] + (f" ({row} iterations in a row)" if row > 1 else ""))
        return lines
